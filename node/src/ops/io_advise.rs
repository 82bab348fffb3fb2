//! IO_ADVISE (RFC 7862 §15.5): what the source takes of the hints is told back.

use forebay_proto::nfs4::{
    Bitmap, Status, open,
    ops::io_advise::{IoAdviseArgs, IoAdviseOk},
};

use super::{Context, authorize, regular};
use crate::source::Advice;

/// RFC 7862 §15.5: `IO_ADVISE4_*` numbers.
const NORMAL: u32 = 0;
const SEQUENTIAL: u32 = 1;
const RANDOM: u32 = 3;
const WILLNEED: u32 = 4;
const DONTNEED: u32 = 6;
const NOREUSE: u32 = 7;

pub async fn run(cx: &Context<'_>, args: &IoAdviseArgs) -> Result<IoAdviseOk, Status> {
    let node = regular(cx.file()?)?;
    authorize(cx, node, &args.stateid, open::ACCESS_READ).await?;
    args.offset.checked_add(args.count).ok_or(Status::Inval)?;
    let known = [
        (NORMAL, Advice::Normal),
        (SEQUENTIAL, Advice::Sequential),
        (RANDOM, Advice::Random),
        (WILLNEED, Advice::WillNeed),
        (DONTNEED, Advice::DontNeed),
        (NOREUSE, Advice::NoReuse),
    ];
    let mut taken = Bitmap::EMPTY;
    for (number, advice) in known {
        let asked = args.hints.has_number(number);
        if asked && node.advise(args.offset, args.count, advice) {
            taken.insert_number(number);
        }
    }
    Ok(IoAdviseOk { hints: taken })
}
