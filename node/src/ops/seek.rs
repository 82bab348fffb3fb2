//! SEEK (RFC 7862 §15.11).

use forebay_proto::nfs4::{
    Status, open,
    ops::seek::{SeekArgs, SeekContent, SeekOk},
};

use super::{Context, authorize, regular};
use crate::source::SeekWhat;

pub fn run(cx: &Context<'_>, args: &SeekArgs) -> Result<SeekOk, Status> {
    let node = regular(cx.file()?)?;
    authorize(cx, node, &args.stateid, open::ACCESS_READ)?;
    if args.offset > i64::MAX.cast_unsigned() {
        return Err(Status::Nxio);
    }
    let what = match args.what {
        SeekContent::Data => SeekWhat::Data,
        SeekContent::Hole => SeekWhat::Hole,
    };
    let offset = node.export.source.seek(&node.file, args.offset, what)?.ok_or(Status::Nxio)?;
    let size = node.export.source.attributes(&node.file)?.size;
    Ok(SeekOk { eof: offset >= size, offset })
}
