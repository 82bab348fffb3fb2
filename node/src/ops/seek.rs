//! SEEK (RFC 7862 §15.11).

use forebay_proto::nfs4::{
    Status, open,
    ops::seek::{SeekArgs, SeekContent, SeekOk},
};

use super::{Context, authorize, regular};
use crate::source::SeekWhat;

pub async fn run(cx: &Context<'_>, args: &SeekArgs) -> Result<SeekOk, Status> {
    let node = regular(cx.file()?)?;
    authorize(cx, node, &args.stateid, open::ACCESS_READ).await?;
    if args.offset > i64::MAX.cast_unsigned() {
        return Err(Status::Nxio);
    }
    let what = match args.what {
        SeekContent::Data => SeekWhat::Data,
        SeekContent::Hole => SeekWhat::Hole,
    };
    let offset = node.seek(cx.caller, args.offset, what).await?.ok_or(Status::Nxio)?;
    let size = node.attributes(cx.caller).await?.size;
    Ok(SeekOk { eof: offset >= size, offset })
}
