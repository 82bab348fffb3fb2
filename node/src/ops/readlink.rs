//! READLINK (RFC 8881 §18.24).

use forebay_proto::{
    nfs4::{Status, ops::readlink::ReadLinkOk},
    xdr::Opaque,
};

use super::Context;
use crate::{files::Node, source::FileKind};

pub async fn run(cx: &Context<'_>) -> Result<ReadLinkOk, Status> {
    let Node::File(node) = cx.current()? else { return Err(Status::WrongType) };
    if node.kind() != FileKind::Symlink {
        return Err(Status::WrongType);
    }
    let target = node.read_link(cx.caller).await?;
    Ok(ReadLinkOk { target: Opaque::new(target).ok_or(Status::NameTooLong)? })
}
