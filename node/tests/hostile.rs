//! Peers that mean ill or are broken: no bytes make the server panic, leak a descriptor, or hold memory for long.
//!
//! One test, since it counts descriptors and memory of the whole process. `FOREBAY_FUZZ_SEED` chooses other mutations.
#![allow(clippy::unwrap_used, reason = "in a test, failing where one stands is what is wanted")]

#[macro_use]
mod common;

use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{Lab, Running, credential, done, no_panics, ops::*, watch_panics};
use forebay_node::client::{Session, compound_record};
use forebay_proto::{
    nfs4::{
        Attr, LockType, Op, OpReply, ReplyHeader, Stateid, ops::create::CreateType, ops::sequence::SequenceArgs,
        ops::setxattr::SetXattrOption,
    },
    rpc::{Reply, marker},
    xdr::Reader,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// The server's patience here; what must be cut off is, within a few of these.
const STALL: Duration = Duration::from_millis(400);
/// An answer or a close comes within this, or never.
const PATIENCE: Duration = Duration::from_secs(10);
/// Files that the server may keep open although nobody has them open, and directories that it may go on listing.
const OPEN_FILES_MAX: usize = 128;
const MUTATIONS: usize = 4000;
const CONNECTIONS: usize = 3000;
/// The slot of calls that are changed; making a session uses the first.
const SLOT: u32 = 7;
const MEGABYTE: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn hostile_peers_neither_crash_nor_fill_the_server() {
    watch_panics();
    let lab = Lab::default().stall(STALL).open_files(OPEN_FILES_MAX / 2);
    std::fs::write(lab.path("file"), vec![7; MEGABYTE]).unwrap();
    let running = lab.start().await;
    let session = running.client("witness").await;
    done(&session, at("data/file")).await;
    let (descriptors, memory) = (descriptors(), resident());

    wrong_streams_are_closed(&running).await;
    stalled_peers_are_cut_off(&running).await;
    mutated_calls_are_answered_or_the_connection_is_closed(&running).await;
    many_connections_come_and_go(&running).await;
    announced_records_take_no_memory(&running).await;

    settle(descriptors.sockets).await;
    let files = self::descriptors().files;
    let (opens, _) = running.server.files.counts();
    assert!(files <= descriptors.files + OPEN_FILES_MAX + opens, "{files} files, {} before", descriptors.files);
    let grown = resident().saturating_sub(memory);
    assert!(grown < 128 * MEGABYTE, "{} MiB more than before", grown / MEGABYTE);
    done(&session, at("data/file")).await;
    no_panics();
}

/// Every stream here ends in a close by the server, well before any patience is over.
async fn wrong_streams_are_closed(running: &Running) {
    let fragment = |length: u32| length.to_be_bytes().to_vec();
    let last = |body: &[u8]| [&marker(body.len())[..], body].concat();
    for (what, stream) in [
        ("a record of 2 GiB", u32::MAX.to_be_bytes().to_vec()),
        ("a fragment of 2 GiB", fragment(0x7fff_ffff)),
        ("a record just too long", marker((MEGABYTE + (64 << 10)) + 1).to_vec()),
        ("empty fragments without end", fragment(0).repeat(10_000)),
        ("small fragments without end", [fragment(4), vec![0; 4]].concat().repeat(10_000)),
        ("an empty record", last(&[])),
        ("three bytes", last(&[0, 0, 1])),
        ("a reply", last(&[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0])),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n".to_vec()),
        ("TLS", vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]),
    ] {
        let mut peer = TcpStream::connect(running.address).await.unwrap();
        // The server may close before it has taken all: that is what is wanted.
        let _ = peer.write_all(&stream).await;
        assert!(closed(&mut peer).await, "{what}");
    }
}

/// Whether the server closes, without sending anything. A reset is a close too.
async fn closed(peer: &mut TcpStream) -> bool {
    let read = tokio::time::timeout(PATIENCE, peer.read(&mut [0; 64])).await;
    matches!(read, Ok(Ok(0) | Err(_)))
}

async fn stalled_peers_are_cut_off(running: &Running) {
    let call = framed(&compound_record(1, &credential(0), 2, &at("data")).to_bytes());
    let mut unfinished = call[4..40].to_vec();
    unfinished.splice(0..0, 36_u32.to_be_bytes());
    let mut idle = TcpStream::connect(running.address).await.unwrap();
    for (what, stream) in [
        ("half a marker", &call[..2]),
        ("a marker", &call[..4]),
        ("half a record", &call[..30]),
        ("a fragment that is not the last", &unfinished[..]),
    ] {
        let mut peer = TcpStream::connect(running.address).await.unwrap();
        peer.write_all(stream).await.unwrap();
        let began = Instant::now();
        assert!(closed(&mut peer).await, "{what}");
        assert!(began.elapsed() >= STALL && began.elapsed() < STALL * 8, "{what} after {:?}", began.elapsed());
    }
    let drips = [call[..call.len() - 8].to_vec(), unfinished];
    let drips = drips.into_iter().map(|stream| drip(running, stream));
    let reader = takes_no_replies(running);
    let (drips, ()) = tokio::join!(futures_util::future::join_all(drips), reader);
    assert!(drips.iter().all(|lasted| *lasted < STALL * 20), "{drips:?}");
    // Who has nothing half done may be silent as long as it likes.
    idle.write_all(&call).await.unwrap();
    assert!(matches!(idle.read(&mut [0; 64]).await, Ok(1..)));
}

/// Sends a byte now and then, and then the same byte for ever; how long it took until the server closed.
async fn drip(running: &Running, stream: Vec<u8>) -> Duration {
    let mut peer = TcpStream::connect(running.address).await.unwrap();
    let began = Instant::now();
    let endless = stream.iter().copied().chain(std::iter::repeat_n([0_u8; 4], 10_000).flatten());
    // The announced length is far beyond what drips in time.
    let announced = (MEGABYTE as u32).to_be_bytes();
    peer.write_all(&announced).await.unwrap();
    for byte in endless {
        tokio::time::sleep(STALL / 8).await;
        let mut answer = [0; 1];
        let over = matches!(peer.try_read(&mut answer), Ok(0)) || peer.write_all(&[byte]).await.is_err();
        if over || began.elapsed() > STALL * 40 {
            break;
        }
    }
    began.elapsed()
}

/// Asks for a hundred megabytes and takes nothing: the server gives up, and holds little meanwhile.
async fn takes_no_replies(running: &Running) {
    let session = running.client("takes-nothing").await;
    let mut peer = TcpStream::connect(running.address).await.unwrap();
    let before = resident();
    for slot in 0..60 {
        let ops = sequenced(&session, slot, 1, at_then("data/file", [read(Stateid::ANONYMOUS, 0, MEGABYTE as u32)]));
        if peer.write_all(&framed(&compound_record(slot, &credential(0), 2, &ops).to_bytes())).await.is_err() {
            break;
        }
    }
    tokio::time::sleep(STALL * 6).await;
    let held = resident().saturating_sub(before);
    assert!(held < 64 * MEGABYTE, "{} MiB held for one peer", held / MEGABYTE);
    let mut taken = Vec::new();
    let end = tokio::time::timeout(PATIENCE, peer.read_to_end(&mut taken)).await;
    assert!(end.is_ok(), "the server has closed");
    assert!(taken.len() < 40 * MEGABYTE, "and not sent all");
}

fn sequenced(session: &Session, slot: u32, sequence: u32, ops: Vec<Op>) -> Vec<Op> {
    let args = SequenceArgs { session: session.id, sequence, slot, highest_slot: slot, cache_this: false };
    std::iter::once(Op::Sequence(args)).chain(ops).collect()
}

fn framed(record: &[u8]) -> Vec<u8> {
    [&marker(record.len())[..], record].concat()
}

/// Calls of every kind, with a few changes each. Whatever comes of it, it comes at once.
async fn mutated_calls_are_answered_or_the_connection_is_closed(running: &Running) {
    let seed = std::env::var("FOREBAY_FUZZ_SEED").map_or(1, |text| text.parse().expect("a number"));
    println!("FOREBAY_FUZZ_SEED={seed}");
    let mut random = Random(seed);
    let mut session = running.client("mutant").await;
    let mut peer = TcpStream::connect(running.address).await.unwrap();
    let (mut sequence, mut answered, mut closes, mut ran) = (1, 0, 0, 0);
    let calls = calls();
    for round in 0..MUTATIONS {
        let ops = sequenced(&session, SLOT, sequence, calls[round % calls.len()].clone());
        let record = mutated(&compound_record(9, &credential(0), 2, &ops).to_bytes(), &mut random);
        let answer = match peer.write_all(&framed(&record)).await {
            Ok(()) => next_record(&mut peer).await,
            Err(_) => None,
        };
        let Some(answer) = answer else {
            closes += 1;
            peer = TcpStream::connect(running.address).await.unwrap();
            continue;
        };
        answered += 1;
        match results(answer).first() {
            Some(OpReply::Sequence(Ok(told))) if told.slot == SLOT => (sequence, ran) = (told.sequence + 1, ran + 1),
            // A change may have destroyed the session, or moved the slot on unseen.
            Some(OpReply::Sequence(Err(_))) if round % 8 == 0 => {
                session = running.client(&format!("mutant-{round}")).await;
                sequence = 1;
            }
            _ => {}
        }
    }
    println!("{answered} answered, {ran} of them ran, {closes} connections closed");
    assert!(ran > MUTATIONS / 4 && closes > 10, "the changes reach every layer");
}

/// The results in a reply, which is well-formed whatever the call was; none if the call was not run.
fn results(answer: Bytes) -> Vec<OpReply> {
    let mut reply = Reply::decode(Reader::new(answer)).unwrap();
    if reply.results.remaining() == 0 {
        return Vec::new();
    }
    let (_, replies) = ReplyHeader::decode_all(&mut reply.results).unwrap();
    reply.results.finish().unwrap();
    replies
}

/// The next record, or `None` if the server closed instead.
async fn next_record(peer: &mut TcpStream) -> Option<Bytes> {
    let read = async {
        let length = peer.read_u32().await.ok()? & 0x7fff_ffff;
        let mut record = vec![0; length as usize];
        peer.read_exact(&mut record).await.ok()?;
        Some(Bytes::from(record))
    };
    tokio::time::timeout(PATIENCE, read).await.expect("an answer or a close")
}

/// Compounds whose operations are of every kind that works on files. ALLOCATE is left out: a changed length fills disks.
fn calls() -> Vec<Vec<Op>> {
    let (anonymous, now) = (Stateid::ANONYMOUS, Stateid::CURRENT);
    let attrs = [Attr::Type, Attr::Size, Attr::Owner, Attr::FileHandle, Attr::SupportedAttrs, Attr::SpaceFree];
    vec![
        at_then("data/file", [getattr(&attrs), access(63), read(anonymous, 0, 4096), getfh()]),
        at_then("data", [create("owner", "made", BOTH), write(now, 0, "some data"), read_plus(now, 0, 99), close(now)]),
        at_then("data", [readdir(0, [0; 8], 4096, &attrs)]),
        at_then("data", [make(CreateType::Directory, "directory"), setattr(anonymous, &mode(0o700))]),
        at_then("data", [symlink("link", "target"), Op::ReadLink(())]),
        at_then("data", [Op::SaveFh(()), rename("made", "moved"), remove("moved"), secinfo("file")]),
        at_then("data/file", [Op::SaveFh(()), Op::PutRootFh(()), lookup("data"), link("hard")]),
        at_then("data", [open("owner", "file", BOTH, 0), lock(now, "p", LockType::Write, 0, 9), locku(now, 0, 9)]),
        at_then("data/file", [lockt("q", LockType::Read, 0, 9), test_stateids(&[anonymous, now]), free_stateid(now)]),
        at_then("data", [exclusive41("owner", "exclusive", [7; 8], &mode(0o600)), downgrade(now, READ, 0)]),
        at_then("data/file", [setxattr(SetXattrOption::Either, "x", "value"), getxattr("x"), listxattrs(0, 400)]),
        at_then("data/file", [Op::SaveFh(()), copy((anonymous, 0), (anonymous, 2 << 20), 100), removexattr("x")]),
    ]
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound.max(1) as u64) as usize
    }
}

fn mutated(record: &[u8], random: &mut Random) -> Vec<u8> {
    /// Where the operations after SEQUENCE begin; most changes go there, the rest anywhere.
    const AFTER_SEQUENCE: usize = 4 * 6 + 8 + 4 * 5 + 8 + 12 + 36;
    let mut bytes = record.to_vec();
    for _ in 0..=random.below(3) {
        let from = if random.below(8) > 0 { AFTER_SEQUENCE.min(bytes.len()) } else { 0 };
        let place = from + random.below(bytes.len() - from);
        let word = (place & !3).min(bytes.len().saturating_sub(4));
        match random.below(5) {
            0 | 1 if place < bytes.len() => bytes[place] ^= 1 << random.below(8),
            2 => bytes.truncate(place),
            3 if bytes.len() >= 4 => {
                let lies = [0, 1, 4, 255, 256, 1025, 65_537, 1 << 20, 0x7fff_ffff, u32::MAX];
                bytes[word..word + 4].copy_from_slice(&lies[random.below(lies.len())].to_be_bytes());
            }
            _ => bytes.extend((0..random.below(64)).map(|_| 0xee)),
        }
    }
    bytes
}

async fn many_connections_come_and_go(running: &Running) {
    let call = framed(&compound_record(1, &credential(0), 2, &at("data")).to_bytes());
    for batch in 0..CONNECTIONS / 100 {
        let mut peers = Vec::new();
        for number in 0..100 {
            let mut peer = TcpStream::connect(running.address).await.unwrap();
            // Some say nothing, some half a call, some a call whose answer they do not wait for.
            let length = [0, call.len() / 2, call.len()][(batch + number) % 3];
            peer.write_all(&call[..length]).await.unwrap();
            peers.push(peer);
        }
    }
}

/// Records of a megabyte are announced on many connections; what was not sent must not be held in memory.
async fn announced_records_take_no_memory(running: &Running) {
    let before = resident();
    let mut peers = Vec::new();
    for _ in 0..200 {
        let mut peer = TcpStream::connect(running.address).await.unwrap();
        peer.write_all(&marker(MEGABYTE)).await.unwrap();
        peer.write_all(&[0; 100]).await.unwrap();
        peers.push(peer);
    }
    tokio::time::sleep(STALL / 2).await;
    let held = resident().saturating_sub(before);
    assert!(held < 64 * MEGABYTE, "{} MiB for 200 announcements", held / MEGABYTE);
}

/// Waits until no more sockets are open than before.
async fn settle(before: usize) {
    let began = Instant::now();
    while descriptors().sockets > before {
        assert!(began.elapsed() < PATIENCE, "{} sockets, {before} before", descriptors().sockets);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

struct Descriptors {
    sockets: usize,
    files: usize,
}

fn descriptors() -> Descriptors {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| entry.ok()?.path().read_link().ok());
    let (sockets, files): (Vec<_>, Vec<_>) = all.partition(|target| target.to_string_lossy().starts_with("socket:"));
    Descriptors { sockets: sockets.len(), files: files.len() }
}

/// Bytes of memory that the process has.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
