//! READ (RFC 8881 §18.22).

use bytes::Bytes;
use forebay_proto::{
    limits::IO_MAX,
    nfs4::{
        Status, open,
        ops::read::{ReadArgs, ReadOk},
    },
    xdr::Opaque,
};

use super::{Context, authorize, blocking, buffers, regular};
use crate::{files::FileNode, source::ReadOutcome};

/// Copying this much takes longer than handing the copy to another thread.
const SPREAD: u32 = 128 << 10;

pub async fn run(cx: &Context<'_>, args: &ReadArgs) -> Result<ReadOk, Status> {
    let node = regular(cx.file()?)?;
    authorize(cx, node, &args.stateid, open::ACCESS_READ)?;
    // A short read is always allowed: the reply must fit what the session agreed to.
    let count = args.count.min(IO_MAX).min(cx.payload_room());
    let (data, eof) = if count < SPREAD {
        read(node, args.offset, count as usize).await?
    } else {
        // The connection's task goes on sending what was read before, on another core.
        let (node, offset) = (node.clone(), args.offset);
        let reading = tokio::spawn(async move { read(&node, offset, count as usize).await });
        reading.await.map_err(|_| Status::ServerFault)??
    };
    let data = Opaque::new(data).ok_or(Status::ServerFault)?;
    Ok(ReadOk { eof, data })
}

/// Data of a file: from memory at once, else where waiting for the disk hinders nobody.
pub async fn read(node: &FileNode, offset: u64, count: usize) -> Result<(Bytes, bool), Status> {
    if offset > i64::MAX.cast_unsigned() - u64::from(IO_MAX) {
        return Ok((Bytes::new(), true));
    }
    let mut buffer = buffers::take(count);
    let outcome = node.export.source.read(&node.file, offset, count, &mut buffer, true)?;
    if let ReadOutcome::Done { eof, .. } = outcome {
        return Ok((buffer.freeze(), eof));
    }
    let node = node.clone();
    blocking(move || match node.export.source.read(&node.file, offset, count, &mut buffer, false)? {
        ReadOutcome::Done { eof, .. } => Ok((buffer.freeze(), eof)),
        ReadOutcome::WouldBlock => Err(Status::Delay),
    })
    .await?
}
