//! PUTFH (RFC 8881 §18.19), PUTROOTFH (§18.21), PUTPUBFH (§18.20).

use forebay_proto::nfs4::{Status, ops::putfh::PutFhArgs};

use super::Context;

pub async fn run(cx: &mut Context<'_>, args: &PutFhArgs) -> Result<(), Status> {
    let node = cx.server.namespace.resolve(args.handle.as_bytes(), cx.caller).await?;
    cx.set_current(node);
    Ok(())
}

/// PUTROOTFH; the public filehandle is the same.
pub async fn root(cx: &mut Context<'_>) -> Result<(), Status> {
    let node = cx.server.namespace.root(cx.caller).await?;
    cx.set_current(node);
    Ok(())
}
