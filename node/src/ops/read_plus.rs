//! READ_PLUS (RFC 7862 §15.10): holes are told, not sent.

use forebay_proto::{
    limits::IO_MAX,
    nfs4::{
        Status, open,
        ops::{
            read::ReadArgs,
            read_plus::{DataContent, HoleContent, ReadPlusContent, ReadPlusOk},
        },
    },
    xdr::{List, Opaque},
};

use super::{Context, authorize, regular};
use crate::source::SeekWhat;

/// Pieces of one reply at most; a file full of tiny holes is read in several calls.
const PIECES_MAX: usize = 64;

/// Bytes around a piece: discriminant, offset, length.
const PIECE_FRAME: u64 = 16;

pub async fn run(cx: &Context<'_>, args: &ReadArgs) -> Result<ReadPlusOk, Status> {
    let node = regular(cx.file()?)?;
    authorize(cx, node, &args.stateid, open::ACCESS_READ).await?;
    let size = node.attributes(cx.caller).await?.size;
    let mut at = args.offset;
    let mut room = u64::from(args.count.min(IO_MAX).min(cx.payload_room()));
    let mut contents = Vec::new();
    let end = args.offset.saturating_add(u64::from(args.count));
    while at < end.min(size) && contents.len() < PIECES_MAX && room > PIECE_FRAME {
        room -= PIECE_FRAME;
        let data = node.seek(cx.caller, at, SeekWhat::Data).await?.unwrap_or(size).max(at);
        if data > at {
            // A hole costs nothing to send, so it may reach beyond what was asked for (RFC 7862 §15.10.3).
            contents.push(ReadPlusContent::Hole(HoleContent { offset: at, length: data.min(size) - at }));
            at = data.min(size);
            continue;
        }
        let hole = node.seek(cx.caller, at, SeekWhat::Hole).await?.unwrap_or(size).min(end);
        let length = hole.saturating_sub(at).min(room);
        if length == 0 {
            break;
        }
        let (bytes, _) = node.read(cx.caller, at, length as usize).await?;
        if bytes.is_empty() {
            break;
        }
        let (offset, sent) = (at, bytes.len() as u64);
        at += sent;
        room -= sent;
        let data = Opaque::new(bytes).ok_or(Status::ServerFault)?;
        contents.push(ReadPlusContent::Data(DataContent { offset, data }));
    }
    let contents = List::new(contents).ok_or(Status::ServerFault)?;
    Ok(ReadPlusOk { eof: at >= size, contents })
}
