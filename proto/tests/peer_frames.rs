//! The frames between peers, byte by byte (`testdata/peer`), their bounds, and payloads however they are cut.
//!
//! `FOREBAY_WRITE_GOLDEN=1` writes the golden frames anew; other bytes than the committed ones mean that nodes of two
//! releases do not understand each other, and want another version number.
#![allow(clippy::unwrap_used, reason = "in a test, failing where one stands is what is wanted")]

use std::path::Path;

use bytes::{BufMut, BytesMut};
use forebay_proto::{
    cluster::{
        ClusterId, FileKey, NodeId, RingEpoch, Version,
        frame::{
            Answer, ChunkRange, Data, Fetch, FrameError, Greeting, GreetingRefusal, HEAD_MAX, Hello, Magic,
            PAYLOAD_MAX, Payload, PayloadLength, PeerOp, Priority, Refusal, Reply, Request, frame, take_head,
        },
    },
    xdr::{Xdr, XdrError},
};

fn hello(oldest: u32, newest: u32) -> Hello {
    let cluster = ClusterId(*b"sixteen bytes id");
    Hello { magic: Magic, oldest, newest, cluster, from: NodeId(3), to: NodeId(1 << 40), epoch: RingEpoch(17) }
}

fn fetch() -> PeerOp {
    PeerOp::Fetch(Fetch {
        file: FileKey { fsid: 5, fileid: 0x0123_4567_89ab_cdef },
        version: Version([0xa5; 16]),
        chunk: 42,
        range: ChunkRange::new(4096, 65_536).unwrap(),
        priority: Priority::ReadAhead,
    })
}

fn requests() -> Vec<(&'static str, Request)> {
    let request = |id, op| Request { id, epoch: RingEpoch(17), op };
    vec![
        ("fetch", request(1, fetch())),
        ("cancel", request(1, PeerOp::Cancel)),
        ("ping", request(u64::MAX, PeerOp::Ping)),
    ]
}

fn replies() -> Vec<(&'static str, Reply)> {
    let reply = |answer| Reply { id: 7, answer };
    let data = Data { length: PayloadLength::new(65_536).unwrap(), eof: true };
    vec![
        ("data", reply(Answer::Data(data))),
        ("miss", reply(Answer::Miss)),
        ("stale", reply(Answer::Stale(RingEpoch(18)))),
        ("busy", reply(Answer::Busy)),
        ("refused", reply(Answer::Refused(Refusal::OutOfRange))),
        ("cancelled", reply(Answer::Cancelled)),
        ("pong", reply(Answer::Pong(RingEpoch(17)))),
    ]
}

fn greetings() -> Vec<(&'static str, Greeting)> {
    let refused = Greeting::Refused(GreetingRefusal::Cluster);
    vec![("hello", Greeting::Hello(hello(1, 2))), ("greeting-refused", refused)]
}

/// A kind's golden frame; the kind's number is what the fuzz target's first byte picks it by.
fn check<T: Xdr + PartialEq + std::fmt::Debug>(pick: u8, named: Vec<(&'static str, T)>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, value) in named {
        let path = root.join(format!("testdata/peer/{name}.bin"));
        let bytes = frame(&value);
        if std::env::var_os("FOREBAY_WRITE_GOLDEN").is_some() {
            std::fs::write(&path, &bytes).unwrap();
            let seed = [&[pick, 7], &bytes[..]].concat();
            std::fs::write(root.join(format!("fuzz/corpus/peer_frames/{name}")), seed).unwrap();
        }
        let golden = std::fs::read(path).unwrap();
        assert_eq!(bytes, golden, "{name}");
        let mut input = BytesMut::from(&golden[..]);
        assert_eq!(take_head::<T>(&mut input).unwrap(), Some(value), "{name}");
        assert!(input.is_empty() && golden.len() <= 80, "{name} is short");
    }
}

#[test]
fn frames_are_what_they_were() {
    check(0, greetings());
    check(1, requests());
    check(2, replies());
}

#[test]
fn half_a_frame_is_none_yet() {
    let whole = frame(&requests()[0].1);
    for length in 0..whole.len() {
        let mut input = BytesMut::from(&whole[..length]);
        assert_eq!(take_head::<Request>(&mut input), Ok(None));
        assert_eq!(input.len(), length, "nothing is taken");
    }
}

#[test]
fn what_is_out_of_bounds_is_an_error() {
    let error = |bytes: &[u8]| take_head::<Request>(&mut BytesMut::from(bytes)).unwrap_err();
    assert_eq!(error(&[0, 0, 1, 1]), FrameError::TooLong(HEAD_MAX as u32 + 1));
    assert_eq!(error(b"\x16\x03\x01\x02\x00"), FrameError::TooLong(0x1603_0102), "TLS where none is spoken");
    assert_eq!(error(b"GET / HTTP/1.1"), FrameError::TooLong(u32::from_be_bytes(*b"GET ")));
    assert_eq!(error(&[0, 0, 0, 0]), FrameError::Head(XdrError::Truncated));
    let mut longer = frame(&requests()[1].1).to_vec();
    longer[3] += 4;
    longer.extend([0; 4]);
    assert_eq!(error(&longer), FrameError::Head(XdrError::Trailing(4)));
    assert!(matches!(take_head::<Reply>(&mut BytesMut::from(&longer[..])), Err(FrameError::Head(_))));

    let too_long = (7_u64, (1_u32, (PAYLOAD_MAX + 1, true))).to_bytes();
    assert_eq!(
        Reply::from_bytes(too_long),
        Err(XdrError::TooLong { length: PAYLOAD_MAX + 1, max: PAYLOAD_MAX as usize })
    );
    assert_eq!((PayloadLength::new(PAYLOAD_MAX as usize + 1), ChunkRange::new(0, 0)), (None, None));
    assert_eq!((ChunkRange::new(PAYLOAD_MAX, 1), ChunkRange::new(u32::MAX, u32::MAX)), (None, None));
    assert_eq!(ChunkRange::new(0, PAYLOAD_MAX), Some(ChunkRange::WHOLE));
}

#[test]
fn versions_are_agreed_upon() {
    let agreed = |mine: (u32, u32), theirs: (u32, u32)| hello(mine.0, mine.1).version_with(&hello(theirs.0, theirs.1));
    assert_eq!(agreed((1, 1), (1, 1)), Ok(1));
    assert_eq!((agreed((1, 2), (2, 3)), agreed((2, 3), (1, 2))), (Ok(2), Ok(2)));
    assert_eq!(agreed((1, 1), (2, 3)), Err(GreetingRefusal::Version));
    assert_eq!(agreed((2, 3), (1, 1)), Err(GreetingRefusal::Version));
}

#[test]
fn payloads_come_whole_however_they_are_cut() {
    let sent: Vec<u8> = (0..10_000_u32).map(|number| (number % 251) as u8).collect();
    let length = PayloadLength::new(sent.len()).unwrap();
    for early in [0, 1, 4096, 9_999, 10_000] {
        for step in [1, 1000, 20_000] {
            // What comes behind the payload stays where it is.
            let mut input = BytesMut::from(&sent[..early]);
            let mut payload = Payload::keep(length);
            let mut done = payload.take(&mut input);
            let mut rest = &sent[early..];
            while !done {
                let mut room = payload.room().expect("it is not complete");
                let count = step.min(room.remaining_mut()).min(rest.len());
                room.put_slice(&rest[..count]);
                rest = &rest[count..];
                done = payload.filled(count);
            }
            assert!(payload.room().is_none());
            assert_eq!(payload.into_bytes().unwrap(), sent);
        }
        let mut input = BytesMut::from(&[&sent[..], b"next"].concat()[..]);
        let mut skipped = Payload::skip(length);
        assert!(skipped.room().is_none() && skipped.take(&mut input));
        assert_eq!((&input[..], skipped.into_bytes()), (&b"next"[..], None));
    }
}
