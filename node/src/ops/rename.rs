//! RENAME (RFC 8881 §18.26).

use bytes::Bytes;
use forebay_proto::nfs4::{
    Status,
    ops::rename::{RenameArgs, RenameOk},
};

use super::{Context, blocking, directory_of, durable, kept, with_change};
use crate::files::{Node, names};

pub async fn run(cx: &Context<'_>, args: &RenameArgs) -> Result<RenameOk, Status> {
    let old = names::existing(&args.old_name)?;
    let new = names::new(&args.new_name)?;
    let target = cx.directory_to_change()?;
    let Node::File(source) = directory_of(cx.saved()?)? else { return Err(Status::Rofs) };
    if !std::sync::Arc::ptr_eq(&source.export, &target.export) || source.fsid != target.fsid {
        return Err(Status::Xdev);
    }
    let (credentials, server) = (cx.credentials(target), cx.server.clone());
    let (source, target) = (source.clone(), target.clone());
    let (old, new) = (Bytes::copy_from_slice(old), Bytes::copy_from_slice(new));
    let (from, to) = (source.clone(), target.clone());
    // A large file that is replaced is freed, which can take seconds.
    let (source_change, target_change) = blocking(move || {
        let kept = kept::prepare(&to, &credentials, &new);
        let files = &to.export.source;
        let rename = || {
            let moved = || files.rename(&credentials, &from.file, &old, &to.file, &new).map_err(Status::from);
            with_change(&to, moved)
        };
        let ((_, target_change), source_change) =
            with_change(&from, rename).map_err(|status| match names::missing(&old, status) {
                Status::NotDir | Status::IsDir => Status::Exist,
                other => other,
            })?;
        kept::finish(&server, kept);
        Ok::<_, Status>((source_change, target_change))
    })
    .await??;
    durable(cx, [&source, &target]).await?;
    Ok(RenameOk { source: source_change, target: target_change })
}
