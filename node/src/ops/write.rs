//! WRITE (RFC 8881 §18.32).

use forebay_proto::nfs4::{
    StableHow, Status, open,
    ops::write::{WriteArgs, WriteOk},
};

use super::{Context, authorize, blocking, regular};

pub async fn run(cx: &Context<'_>, args: WriteArgs) -> Result<WriteOk, Status> {
    let node = regular(cx.file()?)?;
    node.export.writable()?;
    authorize(cx, node, &args.stateid, open::ACCESS_WRITE)?;
    let verifier = cx.server.write_verifier();
    let end = args.offset.checked_add(args.data.len() as u64).ok_or(Status::Inval)?;
    if end > i64::MAX.cast_unsigned() {
        return Err(Status::Fbig);
    }
    if args.data.is_empty() {
        return Ok(WriteOk { count: 0, committed: args.stable, verifier });
    }
    let (stable, credentials, offset) = (args.stable, cx.credentials(node), args.offset);
    let written = if stable == StableHow::Unstable {
        node.export.source.write(&credentials, &node.file, offset, &args.data, false)?
    } else {
        let node = node.clone();
        let write = move || node.export.source.write(&credentials, &node.file, offset, &args.data, true);
        // The error may be of an earlier write-back, and the kernel tells it once.
        blocking(write).await?.inspect_err(|_| cx.server.lost_writes())?
    };
    let count = u32::try_from(written).map_err(|_| Status::ServerFault)?;
    Ok(WriteOk { count, committed: stable, verifier })
}
