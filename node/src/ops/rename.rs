//! RENAME (RFC 8881 §18.26).

use forebay_proto::nfs4::{
    Status,
    ops::rename::{RenameArgs, RenameOk},
};

use super::{Context, directory_of, durable, kept, with_change};
use crate::files::{Node, names};

pub async fn run(cx: &Context<'_>, args: &RenameArgs) -> Result<RenameOk, Status> {
    let old = names::existing(&args.old_name)?;
    let new = names::new(&args.new_name)?;
    let target = cx.directory_to_change()?;
    let Node::File(source) = directory_of(cx.saved()?)? else { return Err(Status::Rofs) };
    if !std::sync::Arc::ptr_eq(&source.export, &target.export) || source.fsid != target.fsid {
        return Err(Status::Xdev);
    }
    let credentials = cx.credentials(target);
    let files = &target.export.source;
    let kept = kept::prepare(cx.server, target, &credentials, new);
    let rename = || {
        let moved = || files.rename(&credentials, &source.file, old, &target.file, new).map_err(Status::from);
        with_change(target, moved)
    };
    let ((_, target_change), source_change) =
        with_change(source, rename).map_err(|status| match names::missing(old, status) {
            Status::NotDir | Status::IsDir => Status::Exist,
            other => other,
        })?;
    kept::finish(cx.server, kept);
    durable(cx, [source, target]).await?;
    Ok(RenameOk { source: source_change, target: target_change })
}
