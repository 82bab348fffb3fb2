//! GETFH (RFC 8881 §18.8).

use forebay_proto::nfs4::{Status, ops::getfh::GetFhOk};

use super::Context;

pub fn run(cx: &Context<'_>) -> Result<GetFhOk, Status> {
    Ok(GetFhOk { handle: cx.server.namespace.handle(cx.current()?)? })
}
