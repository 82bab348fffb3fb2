//! REMOVE (RFC 8881 §18.25).

use bytes::Bytes;
use forebay_proto::nfs4::{ChangeInfo, Status, ops::remove::RemoveArgs};

use super::{Context, blocking, durable, kept, with_change};
use crate::files::names;

pub async fn run(cx: &Context<'_>, args: &RemoveArgs) -> Result<ChangeInfo, Status> {
    let name = Bytes::copy_from_slice(names::existing(&args.name)?);
    let directory = cx.directory_to_change()?.clone();
    let credentials = cx.credentials(&directory);
    let (server, changed) = (cx.server.clone(), directory.clone());
    // Freeing a large file's blocks can take seconds.
    let change = blocking(move || {
        let kept = kept::prepare(&directory, &credentials, &name);
        let remove = || directory.export.source.remove(&credentials, &directory.file, &name).map_err(Status::from);
        let (_, change) = with_change(&directory, remove).map_err(|status| names::missing(&name, status))?;
        kept::finish(&server, kept);
        Ok::<_, Status>(change)
    })
    .await??;
    durable(cx, [&changed]).await?;
    Ok(change)
}
