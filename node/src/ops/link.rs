//! LINK (RFC 8881 §18.9).

use forebay_proto::nfs4::{ChangeInfo, Status, ops::link::LinkArgs};

use super::{Context, durable};
use crate::{
    files::{Node, names},
    source::FileKind,
};

pub async fn run(cx: &Context<'_>, args: &LinkArgs) -> Result<ChangeInfo, Status> {
    let name = names::new(&args.name)?;
    let directory = cx.directory_to_change()?;
    let Node::File(node) = cx.saved()? else { return Err(Status::IsDir) };
    if node.kind() == FileKind::Directory {
        return Err(Status::IsDir);
    }
    if !std::sync::Arc::ptr_eq(&node.export, &directory.export) || node.fsid != directory.fsid {
        return Err(Status::Xdev);
    }
    let change = directory.link(cx.caller, &node.file, name).await?;
    durable(cx, [directory]).await?;
    Ok(change)
}
