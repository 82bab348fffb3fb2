//! WRITE (RFC 8881 §18.32).

use forebay_proto::nfs4::{
    StableHow, Status, open,
    ops::write::{WriteArgs, WriteOk},
};

use super::{Context, authorize, commit::mixed, regular};

pub async fn run(cx: &Context<'_>, args: WriteArgs) -> Result<WriteOk, Status> {
    let node = regular(cx.file()?)?;
    node.export.writable()?;
    authorize(cx, node, &args.stateid, open::ACCESS_WRITE).await?;
    let verifier = cx.server.write_verifier();
    let end = args.offset.checked_add(args.data.len() as u64).ok_or(Status::Inval)?;
    if end > i64::MAX.cast_unsigned() {
        return Err(Status::Fbig);
    }
    if args.data.is_empty() {
        return Ok(WriteOk { count: 0, committed: args.stable, verifier });
    }
    let stable = args.stable != StableHow::Unstable;
    let data = args.data.as_bytes().clone();
    let written = node.write(cx.caller, args.offset, data, stable).await;
    // The error of a stable write may be of an earlier write-back, and is told once.
    let written = written.inspect_err(|_| {
        if stable && node.has_our_verifier() {
            cx.server.lost_writes();
        }
    })?;
    let count = u32::try_from(written.count).map_err(|_| Status::ServerFault)?;
    let committed = if written.stable && !stable { StableHow::FileSync } else { args.stable };
    Ok(WriteOk { count, committed, verifier: mixed(verifier, written.verifier) })
}
