//! GETFH (RFC 8881 §18.8).

use forebay_proto::nfs4::{Status, ops::getfh::GetFhOk};

use super::Context;

pub async fn run(cx: &Context<'_>) -> Result<GetFhOk, Status> {
    let handle = cx.server.namespace.handle(cx.current()?)?;
    cx.server.namespace.handles_registered().await?;
    Ok(GetFhOk { handle })
}
