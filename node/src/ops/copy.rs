//! COPY (RFC 7862 §15.2), inside this server and synchronous.

use forebay_proto::{
    nfs4::{
        StableHow, Status, open,
        ops::copy::{CopyArgs, CopyOk, CopyReply, CopyRequirements, WriteResponse},
    },
    xdr::List,
};

use super::{Context, authorize, commit::mixed, regular};
use crate::files::{Node, node::Written};

/// Bytes of one COPY at most: the client asks again for the rest, and no call runs for minutes.
const COPY_MAX: u64 = 256 << 20;

pub async fn run(cx: &Context<'_>, args: &CopyArgs) -> CopyReply {
    match copy(cx, args).await {
        Ok(written) => {
            let count = written.count as u64;
            let verifier = mixed(cx.server.write_verifier(), written.verifier);
            let committed = if written.stable { StableHow::FileSync } else { StableHow::Unstable };
            let response = WriteResponse { callback_id: List::default(), count, committed, verifier };
            let requirements = CopyRequirements { consecutive: true, synchronous: true };
            CopyReply::Ok(CopyOk { response, requirements })
        }
        Err(status) => CopyReply::Err(status),
    }
}

async fn copy(cx: &Context<'_>, args: &CopyArgs) -> Result<Written, Status> {
    if !args.source_servers.is_empty() {
        return Err(Status::NotSupp);
    }
    let target = regular(cx.file()?)?;
    let Node::File(source) = cx.saved()? else { return Err(Status::IsDir) };
    let source = regular(source)?;
    target.export.writable()?;
    if !std::sync::Arc::ptr_eq(&source.export, &target.export) {
        return Err(Status::Xdev);
    }
    authorize(cx, source, &args.source_stateid, open::ACCESS_READ).await?;
    authorize(cx, target, &args.target_stateid, open::ACCESS_WRITE).await?;
    let size = source.attributes(cx.caller).await?.size;
    // RFC 7862 §15.2.3: a count of zero means to the end, and beyond the end is an error.
    let count = if args.count == 0 { size.saturating_sub(args.source_offset) } else { args.count };
    let source_end = args.source_offset.checked_add(count).ok_or(Status::Inval)?;
    let target_end = args.target_offset.checked_add(count).ok_or(Status::Inval)?;
    if source_end > size {
        return Err(Status::Inval);
    }
    if target_end > i64::MAX.cast_unsigned() {
        return Err(Status::Fbig);
    }
    let overlap = args.source_offset < target_end && args.target_offset < source_end;
    if source.key() == target.key() && overlap {
        return Err(Status::Inval);
    }
    source.copy_to(cx.caller, args.source_offset, target, args.target_offset, count.min(COPY_MAX)).await
}
