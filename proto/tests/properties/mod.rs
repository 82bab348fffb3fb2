//! What must hold for any bytes, one function a decoder: they run under `cargo test` over the corpus and seeded mutations
//! of it, and under libFuzzer (`proto/fuzz`), which includes this file.
//!
//! Each function panics if its property is broken. Never does: I/O, randomness.
#![allow(dead_code, reason = "each user of this file calls what it needs")]

use bytes::{Bytes, BytesMut};
use forebay_proto::{
    cluster::{
        Weight,
        frame::{FrameError, Greeting, HEAD_MAX, Reply as PeerReply, Request, frame, take_head},
    },
    limits::{AUTH_SYS_GROUPS_MAX, BLOB_MAX, LONG_LIST_MAX, RECORD_MAX, SHORT_LIST_MAX, TEST_STATEIDS_MAX},
    nfs3,
    nfs4::{
        Attributes, Bitmap, Component, CompoundHeader, Fattr, Op, OpNumber, OpReply, ReplyHeader, Stateid, Status,
        attr::Principal,
        callback::{CallbackHeader, CallbackOp, CallbackReply},
        ops::{backchannel_ctl::CallbackSecurity, copy::SourceServer, read_plus::ReadPlusContent, secinfo::SecInfo},
    },
    rpc::{Call, Credential, RecordError, RecordReader, Reply, marker},
    xdr::{List, Opaque, Reader, Writer, Xdr},
};

/// A property and its name, which is also that of its fuzz target and of its corpus.
pub type Target = (&'static str, fn(&[u8]));

/// One row a decoder.
pub const TARGETS: &[Target] = &[
    ("record_reader", record_reader),
    ("rpc_call", rpc_call),
    ("rpc_reply", rpc_reply),
    ("compound_arguments", compound_arguments),
    ("compound_reply", compound_reply),
    ("callbacks", callbacks),
    ("attributes", attributes),
    ("xdr_lists", xdr_lists),
    ("nfs3_calls", nfs3_calls),
    ("nfs3_replies", nfs3_replies),
    ("peer_frames", peer_frames),
];

/// A stream gives the same records and the same error however it is cut; every record is within bounds and comes back
/// when it is sent again. The first byte says how the stream is cut.
pub fn record_reader(data: &[u8]) {
    let Some((&step, stream)) = data.split_first() else { return };
    // A small limit, so that short inputs reach it.
    for max in [64, RECORD_MAX] {
        let at_once = cut(stream, stream.len().max(1), max);
        let in_pieces = cut(stream, usize::from(step).max(1), max);
        assert_eq!(at_once, in_pieces);
        for record in &at_once.0 {
            assert!(record.len() <= max as usize);
            let mut again = marker(record.len()).to_vec();
            again.extend_from_slice(record);
            assert_eq!(cut(&again, again.len(), max), (vec![record.clone()], None));
        }
    }
}

fn cut(stream: &[u8], step: usize, max: u32) -> (Vec<Bytes>, Option<RecordError>) {
    let (mut reader, mut input, mut records) = (RecordReader::new(max), BytesMut::new(), Vec::new());
    for piece in stream.chunks(step) {
        input.extend_from_slice(piece);
        loop {
            match reader.next_record(&mut input) {
                Ok(Some(record)) => records.push(record),
                Ok(None) => break,
                Err(error) => return (records, Some(error)),
            }
        }
        assert!(reader.missing(&input) <= max as usize + 4);
    }
    (records, None)
}

/// A call's header comes back from what it encodes to, and its arguments are the rest.
pub fn rpc_call(data: &[u8]) {
    let Ok(call) = Call::decode(reader(data)) else { return };
    let mut writer = Writer::new();
    call.header.encode(&mut writer);
    writer.raw(&call.arguments.rest());
    let again = Call::decode(Reader::new(writer.finish().to_bytes())).expect("what was decoded encodes");
    assert_eq!((&again.header, again.arguments.rest()), (&call.header, call.arguments.rest()));
}

/// A reply's header comes back from what it encodes to, and its results are the rest.
pub fn rpc_reply(data: &[u8]) {
    let Ok(reply) = Reply::decode(reader(data)) else { return };
    let mut writer = Writer::new();
    reply.header.encode(reply.xid, &mut writer);
    writer.raw(&reply.results.rest());
    let again = Reply::decode(Reader::new(writer.finish().to_bytes())).expect("what was decoded encodes");
    assert_eq!((again.xid, again.header, again.results.rest()), (reply.xid, reply.header, reply.results.rest()));
}

/// COMPOUND's arguments, read as a server does: operation after operation until one cannot be read.
pub fn compound_arguments(data: &[u8]) {
    let mut input = reader(data);
    let Ok(header) = CompoundHeader::decode(&mut input) else { return };
    identity(&header);
    for _ in 0..header.operations {
        let mut ahead = input.clone();
        if !ahead.u32().is_ok_and(|number| OpNumber::from_number(number).is_some()) {
            return;
        }
        let Ok(op) = Op::decode(&mut input) else { return };
        // What failed is still to be told in this operation's words.
        let failed = OpReply::failed(op.number(), Status::Io);
        assert_eq!((failed.number(), failed.status()), (op.number() as u32, Status::Io));
        identity(&op);
    }
}

/// COMPOUND's reply as a whole.
pub fn compound_reply(data: &[u8]) {
    let Ok((header, replies)) = ReplyHeader::decode_all(&mut reader(data)) else { return };
    identity(&header);
    replies.iter().for_each(identity);
}

/// CB_COMPOUND's frame, operations and results. The first byte picks which.
pub fn callbacks(data: &[u8]) {
    let Some((&pick, data)) = data.split_first() else { return };
    match pick % 3 {
        0 => decodes_to_itself::<CallbackHeader>(data),
        1 => decodes_to_itself::<CallbackOp>(data),
        _ => decodes_to_itself::<CallbackReply>(data),
    }
}

/// An attribute list: the bitmap, its values, and what is said of those with names.
pub fn attributes(data: &[u8]) {
    decodes_to_itself::<Bitmap>(data);
    decodes_to_itself::<Principal>(data);
    let Ok(fattr) = Fattr::decode(&mut reader(data)) else { return };
    identity(&fattr);
    let Ok(attributes) = Attributes::from_fattr(&fattr) else { return };
    assert_eq!(attributes.mask(), fattr.mask, "every bit has its value");
    let again = attributes.to_fattr(&Attributes::NAMED);
    assert_eq!(again.mask, fattr.mask);
    assert_eq!(Attributes::from_fattr(&again).as_ref(), Ok(&attributes));
}

/// Counted lists and optional items of every element type that occurs. The first byte picks the type.
pub fn xdr_lists(data: &[u8]) {
    let Some((&pick, data)) = data.split_first() else { return };
    match pick % 12 {
        0 => decodes_to_itself::<List<u32, AUTH_SYS_GROUPS_MAX>>(data),
        1 => decodes_to_itself::<List<Stateid, TEST_STATEIDS_MAX>>(data),
        2 => decodes_to_itself::<List<Component, LONG_LIST_MAX>>(data),
        3 => decodes_to_itself::<List<SecInfo, SHORT_LIST_MAX>>(data),
        4 => decodes_to_itself::<List<CallbackSecurity, SHORT_LIST_MAX>>(data),
        5 => decodes_to_itself::<List<SourceServer, SHORT_LIST_MAX>>(data),
        6 => decodes_to_itself::<List<ReadPlusContent, LONG_LIST_MAX>>(data),
        7 => decodes_to_itself::<List<Fattr, LONG_LIST_MAX>>(data),
        8 => decodes_to_itself::<Option<List<Option<u64>, 3>>>(data),
        9 => decodes_to_itself::<Opaque<BLOB_MAX>>(data),
        10 => decodes_to_itself::<Credential>(data),
        _ => decodes_to_itself::<List<Bitmap, LONG_LIST_MAX>>(data),
    }
}

/// Decodes what a procedure takes or gives, and what that encodes to.
macro_rules! procedures_decode_to_themselves {
    ($kind:ident, $pick:expr, $procedure:expr, $data:expr) => {
        match $pick % 3 {
            0 => procedures_decode_to_themselves!(@program nfs3::$kind, nfs3::PROCEDURES, $procedure, $data),
            1 => procedures_decode_to_themselves!(@program nfs3::mount::$kind, nfs3::mount::PROCEDURES, $procedure, $data),
            _ => {
                procedures_decode_to_themselves!(@program nfs3::portmap::$kind, nfs3::portmap::PROCEDURES, $procedure, $data)
            }
        }
    };
    (@program $type:ty, $known:expr, $procedure:expr, $data:expr) => {{
        let mut input = reader($data);
        let decoded = <$type>::decode($procedure, &mut input);
        assert_eq!(decoded.is_some(), $known.contains(&$procedure));
        if let Some(Ok(value)) = decoded {
            assert_eq!(value.number(), $procedure);
            let mut writer = Writer::new();
            value.encode(&mut writer);
            let bytes = writer.finish().to_bytes();
            assert_eq!(bytes.len(), input.position(), "XDR has one form, padding aside");
            let mut again = Reader::new(bytes);
            let same = <$type>::decode($procedure, &mut again).expect("as before").expect("what was decoded encodes");
            assert_eq!((same, again.remaining()), (value, 0));
        }
    }};
}

/// Arguments of NFSv3, MOUNT and the port mapper. The first byte picks the program, the second the procedure.
pub fn nfs3_calls(data: &[u8]) {
    let Some((&[pick, procedure, _, _], data)) = data.split_first_chunk() else { return };
    procedures_decode_to_themselves!(Call, pick, u32::from(procedure), data);
}

/// Their results, picked likewise.
pub fn nfs3_replies(data: &[u8]) {
    let Some((&[pick, procedure, _, _], data)) = data.split_first_chunk() else { return };
    procedures_decode_to_themselves!(Reply, pick, u32::from(procedure), data);
}

/// A peer's stream gives the same heads and the same error however it is cut, and each head comes back from its frame. The
/// first byte picks what is expected, the second how the stream is cut.
pub fn peer_frames(data: &[u8]) {
    let Some((&[pick, step], stream)) = data.split_first_chunk() else { return };
    match pick % 4 {
        0 => peer_stream::<Greeting>(stream, step),
        1 => peer_stream::<Request>(stream, step),
        2 => peer_stream::<PeerReply>(stream, step),
        _ => decodes_to_itself::<Weight>(stream),
    }
}

fn peer_stream<T: Xdr + PartialEq + std::fmt::Debug>(stream: &[u8], step: u8) {
    let at_once = heads::<T>(stream, stream.len().max(1));
    assert_eq!(at_once, heads(stream, usize::from(step).max(1)));
    for head in &at_once.0 {
        identity(head);
        let bytes = frame(head);
        assert!(bytes.len() <= HEAD_MAX + 4);
        assert_eq!(heads::<T>(&bytes, bytes.len()).0.as_slice(), std::slice::from_ref(head));
    }
}

fn heads<T: Xdr>(stream: &[u8], step: usize) -> (Vec<T>, Option<FrameError>) {
    let (mut input, mut heads) = (BytesMut::new(), Vec::new());
    for piece in stream.chunks(step) {
        input.extend_from_slice(piece);
        loop {
            match take_head(&mut input) {
                Ok(Some(head)) => heads.push(head),
                Ok(None) => break,
                Err(error) => return (heads, Some(error)),
            }
        }
    }
    (heads, None)
}

fn decodes_to_itself<T: Xdr + PartialEq + std::fmt::Debug>(data: &[u8]) {
    if let Ok(value) = T::decode(&mut reader(data)) {
        identity(&value);
    }
}

/// Decoding what a decoded value encodes to gives the value, and so the same bytes for ever after.
fn identity<T: Xdr + PartialEq + std::fmt::Debug>(value: &T) {
    let bytes = value.to_bytes();
    assert!(bytes.len().is_multiple_of(4), "XDR comes in words");
    let again = T::from_bytes(bytes.clone()).expect("what was decoded encodes");
    assert_eq!(&again, value);
    assert_eq!(again.to_bytes(), bytes);
}

fn reader(data: &[u8]) -> Reader {
    Reader::new(Bytes::copy_from_slice(data))
}
