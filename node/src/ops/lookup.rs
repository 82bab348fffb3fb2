//! LOOKUP (RFC 8881 §18.13) and LOOKUPP (§18.14).

use forebay_proto::nfs4::{Status, ops::lookup::LookupArgs};

use super::Context;
use crate::files::names;

pub async fn run(cx: &mut Context<'_>, args: &LookupArgs) -> Result<(), Status> {
    let name = names::existing(&args.name)?;
    let node = cx.directory()?;
    let found =
        cx.server.namespace.lookup(node, name, cx.caller).await.map_err(|status| names::missing(name, status))?;
    cx.set_current(found);
    Ok(())
}

/// LOOKUPP.
pub async fn parent(cx: &mut Context<'_>) -> Result<(), Status> {
    let node = cx.directory()?;
    let found = cx.server.namespace.parent(node, cx.caller).await?;
    cx.set_current(found);
    Ok(())
}
