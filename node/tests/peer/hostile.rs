//! Peers that break the protocol: they are closed and counted, hold no memory, and harm nobody else.

use std::{
    panic,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use forebay_node::peer::{Fetched, PeerError, PeerServerOptions, Provided};
use forebay_proto::{
    cluster::frame::{
        Answer, Data, Greeting, IN_FLIGHT_MAX, PAYLOAD_MAX, PayloadLength, PeerOp, Reply, Request, frame,
    },
    xdr::Xdr,
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
};

use crate::common::{
    CLIENT, Cluster, EPOCH, LONG, Node, Provider, Raw, SERVER, ask, content, fetch, hello, one_connection, open, until,
    whole,
};

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// From here on panics of any task are counted, not only those of a test's own thread.
fn count_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        before(info);
    }));
}

fn request(id: u64, op: PeerOp) -> Vec<u8> {
    frame(&Request { id, epoch: EPOCH, op }).to_vec()
}

fn framed(head: &[u8]) -> Vec<u8> {
    [&(head.len() as u32).to_be_bytes(), head].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_protocol_does_not_allow_closes_the_connection() {
    let provider = Provider::new(|_, _| std::future::pending::<Provided>());
    let node = Node::start(open(SERVER), provider.clone(), PeerServerOptions::default()).await;
    let fetching = PeerOp::Fetch(fetch(0, 0, 1));
    let too_many: Vec<u8> = (0..=IN_FLIGHT_MAX as u64).flat_map(|id| request(id, fetching.clone())).collect();
    let twice = [request(1, fetching.clone()), request(1, fetching)].concat();
    let beyond = {
        let mut bytes = frame(&Request { id: 1, epoch: EPOCH, op: PeerOp::Fetch(whole(0)) }).to_vec();
        let offset = bytes.len() - 12;
        bytes[offset..offset + 4].copy_from_slice(&1_u32.to_be_bytes());
        bytes
    };
    let cases = [
        ("too many", too_many),
        ("twice", twice),
        ("beyond the chunk", beyond),
        ("too long", u32::MAX.to_be_bytes().to_vec()),
        ("unknown", framed(&(1_u64, (EPOCH, 99_u32)).to_bytes())),
        ("empty", framed(&[])),
        ("a reply", frame(&Reply { id: 1, answer: Answer::Miss }).to_vec()),
        ("a second greeting", frame(&Greeting::Hello(hello(CLIENT, SERVER))).to_vec()),
        ("HTTP", b"GET /metrics HTTP/1.1\r\n\r\n".to_vec()),
    ];
    for (place, (name, bytes)) in (1..).zip(cases) {
        let mut raw = Raw::greeted(node.address).await;
        raw.send(&bytes).await;
        raw.closed().await;
        let counted = "forebay_peer_refused_total{reason=\"protocol\"}";
        node.counted.until(counted, |count| count == f64::from(place)).await;
        node.counted.until("forebay_peer_connections{side=\"in\"}", |count| count == 0.0).await;
        assert_eq!(node.counted.value("forebay_peer_held_bytes"), 0.0, "{name}");
    }
    // Taking back what was never asked for is no offence: the reply may just have been sent.
    let mut raw = Raw::greeted(node.address).await;
    raw.request(5, PeerOp::Cancel).await;
    raw.request(6, PeerOp::Ping).await;
    assert!(matches!(raw.replied().await, Some((reply, _)) if reply.id == 6));
    drop(raw);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_nobody_asked_for_close_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let asked = ask(open(CLIENT), listener.local_addr().unwrap(), one_connection());
    let data = |bytes| Answer::Data(Data { length: PayloadLength::new(bytes).unwrap(), eof: false });
    let cases = [
        ("another id", 1, Answer::Miss),
        ("more than was asked for", 0, data(PAYLOAD_MAX as usize)),
        ("less than was asked for, and no end", 0, data(99)),
        ("a sign of life that was not asked for", u64::MAX - 1, Answer::Pong(EPOCH)),
        ("one instead of a chunk", 0, Answer::Pong(EPOCH)),
    ];
    for (place, (name, other, answer)) in (1..).zip(cases) {
        let answering = async {
            let mut raw = Raw::accepted(&listener).await;
            let request: Request = raw.head().await.unwrap();
            // Wraps around to the id of a sign of life.
            raw.reply(request.id.wrapping_add(other), answer).await;
            raw.closed().await;
        };
        let asking = async {
            if place > 1 {
                until(|| asked.peer.is_up()).await;
            }
            asked.peer.fetch(EPOCH, fetch(0, 0, 100), LONG).await
        };
        let (told, ()) = tokio::join!(asking, answering);
        assert_eq!(told, Err(PeerError::Lost), "{name}");
        let counted = "forebay_peer_refused_total{reason=\"protocol\"}";
        asked.counted.until(counted, |count| count == f64::from(place)).await;
        until(|| !asked.peer.is_up()).await;
    }
    asked.peer.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_instead_of_tls_is_refused() {
    let cluster = Cluster::new();
    let node = Node::start(cluster.node(SERVER), Provider::full(), PeerServerOptions::default()).await;
    let mut random = Random(7);
    for round in 1..=50_u32 {
        let mut stream = TcpStream::connect(node.address).await.unwrap();
        let bytes: Vec<u8> = (0..2_000).map(|_| random.below(256) as u8).collect();
        // It may be closed before all of it is sent.
        let _ = stream.write_all(&bytes).await;
        Raw::new(stream).closed().await;
        node.counted
            .until("forebay_peer_refused_total{reason=\"certificate\"}", |count| count == f64::from(round))
            .await;
    }
    let asked = ask(cluster.node(CLIENT), node.address, one_connection());
    assert!(matches!(asked.peer.fetch(EPOCH, whole(0), LONG).await, Ok(Fetched::Data { .. })));
    node.stop().await;
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }

    /// A few changes of the kind that break decoders.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let place = self.below(bytes.len());
            let word = place & !3;
            match self.below(5) {
                0 if !bytes.is_empty() => bytes[place] ^= 1 << self.below(8),
                1 => bytes.truncate(place),
                2 if word + 4 <= bytes.len() => {
                    let lies = [0, 1, 3, 255, 256, 257, 1 << 20, (1 << 20) + 1, 0x7fff_ffff, u32::MAX];
                    bytes[word..word + 4].copy_from_slice(&lies[self.below(lies.len())].to_be_bytes());
                }
                3 => {
                    let end = (word + 4 * self.below(24)).min(bytes.len());
                    let copied = bytes[word.min(end)..end].to_vec();
                    bytes.splice(word.min(end)..word.min(end), copied);
                }
                _ => bytes.extend((0..self.below(90)).map(|_| 0xff)),
            }
        }
    }
}

/// `FOREBAY_FUZZ_SEED` and `FOREBAY_FUZZ_ROUNDS` choose other mutations, and more of them.
fn rounds() -> (Random, u64) {
    let setting = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (seed, rounds) = (setting("FOREBAY_FUZZ_SEED", 1_u64), setting("FOREBAY_FUZZ_ROUNDS", 300));
    println!("FOREBAY_FUZZ_SEED={seed} FOREBAY_FUZZ_ROUNDS={rounds}");
    (Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1), rounds)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_stream_of_requests_breaks_a_node() {
    count_panics();
    let options = PeerServerOptions { stall: Duration::from_millis(500), ..PeerServerOptions::default() };
    let node = Node::start(open(SERVER), Provider::full(), options).await;
    let good = ask(open(CLIENT), node.address, one_connection());
    let (mut random, rounds) = rounds();
    let mut stream = frame(&Greeting::Hello(hello(CLIENT, SERVER))).to_vec();
    for id in 0..6 {
        stream.extend(request(id, PeerOp::Fetch(fetch(id as u32, 0, 1000))));
        stream.extend(request(id, PeerOp::Cancel));
        stream.extend(request(id, PeerOp::Ping));
    }
    for _ in 0..rounds {
        let mut bytes = stream.clone();
        random.mutate(&mut bytes);
        let mut raw = Raw::new(TcpStream::connect(node.address).await.unwrap());
        let _ = raw.stream.write_all(&bytes).await;
        let _ = raw.stream.shutdown().await;
        raw.closed().await;
    }
    assert!(matches!(good.peer.fetch(EPOCH, whole(0), LONG).await, Ok(Fetched::Data { .. })));
    node.counted.until("forebay_peer_connections{side=\"in\"}", |count| count == 1.0).await;
    node.counted.until("forebay_peer_held_bytes", |held| held == 0.0).await;
    println!("{} streams were refused", node.counted.refused("protocol"));
    assert!(node.counted.refused("protocol") > 0.0);
    good.peer.close().await;
    node.stop().await;
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_stream_of_replies_breaks_a_peer() {
    count_panics();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pauses = (Duration::from_millis(1), Duration::from_millis(1));
    let asked = ask(open(CLIENT), listener.local_addr().unwrap(), crate::common::with_pauses(pauses));
    let (mut random, rounds) = rounds();
    let (mut right, mut lost) = (0, 0);
    for _ in 0..rounds {
        let answering = async {
            let mut raw = Raw::accepted(&listener).await;
            let mut stream = Vec::new();
            for _ in 0..3 {
                let Some(Request { id, op: PeerOp::Fetch(wanted), .. }) = raw.head().await else { return };
                let length = PayloadLength::new(wanted.range.length()).unwrap();
                stream.extend_from_slice(&frame(&Reply { id, answer: Answer::Data(Data { length, eof: false }) }));
                stream.extend_from_slice(&content(&wanted));
            }
            random.mutate(&mut stream);
            let _ = raw.stream.write_all(&stream).await;
        };
        let asking = async {
            until(|| asked.peer.is_up()).await;
            let wanted = [fetch(1, 0, 300), fetch(2, 0, 40), fetch(3, 0, 5)];
            futures_util::future::join_all(wanted.map(|fetch| asked.peer.fetch(EPOCH, fetch, LONG))).await
        };
        let (told, ()) = tokio::join!(asking, answering);
        for (wanted, told) in [300, 40, 5].into_iter().zip(told) {
            match told {
                Ok(Fetched::Data { bytes, .. }) => {
                    assert!(bytes.len() <= wanted);
                    right += 1;
                }
                Ok(_) => right += 1,
                Err(error) => {
                    assert!(matches!(error, PeerError::Lost | PeerError::Down), "{error:?}");
                    lost += 1;
                }
            }
        }
        until(|| !asked.peer.is_up()).await;
    }
    println!("{right} requests were answered, {lost} lost");
    assert!(right > 0 && lost > 0);
    asked.peer.close().await;
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}
