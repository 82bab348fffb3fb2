//! REMOVE (RFC 8881 §18.25).

use bytes::Bytes;
use forebay_proto::nfs4::{ChangeInfo, Status, ops::remove::RemoveArgs};

use super::{Context, durable, kept};
use crate::files::names;

pub async fn run(cx: &Context<'_>, args: &RemoveArgs) -> Result<ChangeInfo, Status> {
    let name = Bytes::copy_from_slice(names::existing(&args.name)?);
    let directory = cx.directory_to_change()?;
    let in_use = |key| kept::in_use(cx.server, key);
    let removed = directory.remove(cx.caller, &name, in_use).await;
    let (change, kept) = removed.map_err(|status| names::missing(&name, status))?;
    kept::finish(cx.server, kept);
    durable(cx, [directory]).await?;
    Ok(change)
}
