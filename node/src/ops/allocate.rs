//! ALLOCATE (RFC 7862 §15.1) and DEALLOCATE (§15.4).

use forebay_proto::nfs4::{Status, open, ops::allocate::AllocateArgs};

use super::{Context, authorize, regular};

pub async fn run(cx: &Context<'_>, args: &AllocateArgs, punch: bool) -> Result<(), Status> {
    let node = regular(cx.file()?)?;
    node.export.writable()?;
    let end = args.offset.checked_add(args.length).ok_or(Status::Inval)?;
    if end > i64::MAX.cast_unsigned() {
        return Err(Status::Fbig);
    }
    authorize(cx, node, &args.stateid, open::ACCESS_WRITE).await?;
    if args.length == 0 {
        return Ok(());
    }
    node.allocate(cx.caller, args.offset, args.length, punch).await
}
