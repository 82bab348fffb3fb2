//! RENAME (RFC 8881 §18.26).

use bytes::Bytes;
use forebay_proto::nfs4::{
    Status,
    ops::rename::{RenameArgs, RenameOk},
};

use super::{Context, directory_of, durable, kept};
use crate::files::{Node, names};

pub async fn run(cx: &Context<'_>, args: &RenameArgs) -> Result<RenameOk, Status> {
    let old = names::existing(&args.old_name)?;
    let new = names::new(&args.new_name)?;
    let target = cx.directory_to_change()?;
    let Node::File(source) = directory_of(cx.saved()?)? else { return Err(Status::Rofs) };
    if !std::sync::Arc::ptr_eq(&source.export, &target.export) || source.fsid != target.fsid {
        return Err(Status::Xdev);
    }
    let (old, new) = (Bytes::copy_from_slice(old), Bytes::copy_from_slice(new));
    let in_use = |key| kept::in_use(cx.server, key);
    let renamed = source.rename(cx.caller, &old, target, &new, in_use).await;
    let (source_change, target_change, kept) = renamed.map_err(|status| match names::missing(&old, status) {
        Status::NotDir | Status::IsDir => Status::Exist,
        other => other,
    })?;
    kept::finish(cx.server, kept);
    durable(cx, [source, target]).await?;
    Ok(RenameOk { source: source_change, target: target_change })
}
