//! READ (RFC 8881 §18.22).

use forebay_proto::{
    limits::IO_MAX,
    nfs4::{
        Status, open,
        ops::read::{ReadArgs, ReadOk},
    },
    xdr::Opaque,
};

use super::{Context, authorize, regular};

/// Copying this much takes longer than handing the copy to another thread.
const SPREAD: u32 = 128 << 10;

pub async fn run(cx: &Context<'_>, args: &ReadArgs) -> Result<ReadOk, Status> {
    let node = regular(cx.file()?)?;
    authorize(cx, node, &args.stateid, open::ACCESS_READ).await?;
    // A short read is always allowed: the reply must fit what the session agreed to.
    let count = args.count.min(IO_MAX).min(cx.payload_room());
    let (data, eof) = if count < SPREAD || !node.read_copies() {
        node.read(cx.caller, args.offset, count as usize).await?
    } else {
        // The connection's task goes on sending what was read before, on another core.
        let (node, caller, offset) = (node.clone(), cx.caller.clone(), args.offset);
        let reading = tokio::spawn(async move { node.read(&caller, offset, count as usize).await });
        reading.await.map_err(|_| Status::ServerFault)??
    };
    let data = Opaque::new(data).ok_or(Status::ServerFault)?;
    Ok(ReadOk { eof, data })
}
