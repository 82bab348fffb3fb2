//! Peers that die, vanish and come back.

use std::time::{Duration, Instant};

use forebay_node::peer::{Fetched, PeerError, PeerOptions, PeerServerOptions, Provided};
use forebay_proto::cluster::frame::{Answer, Data, PayloadLength, PeerOp, Request, frame};
use futures_util::future::join_all;
use tokio::net::TcpListener;

use crate::common::{
    CLIENT, Cluster, EPOCH, LONG, Node, Provider, Raw, SERVER, ask, content, fetch, one_connection, open, pair, until,
    whole,
};

/// For everything that must be known at once, on a machine that may be busy.
const AT_ONCE: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_killed_is_down_at_once_and_found_when_it_is_back() {
    let cluster = Cluster::new();
    let waiting = Provider::new(|_, _| std::future::pending::<Provided>());
    let node = Node::start(cluster.node(SERVER), waiting.clone(), PeerServerOptions::default()).await;
    let (identity, address) = (cluster.node(CLIENT), node.address);
    let asked = ask(identity, address, PeerOptions { connections: 3, ..PeerOptions::default() });
    let asking = join_all((0..20).map(|chunk| asked.peer.fetch(EPOCH, fetch(chunk, 0, 10), LONG)));
    let killing = async {
        until(|| waiting.begun() == 20).await;
        let killed = Instant::now();
        node.kill().await;
        killed
    };
    let (told, killed) = tokio::join!(asking, killing);
    assert!(killed.elapsed() < AT_ONCE, "{:?}", killed.elapsed());
    assert!(told.iter().all(|told| matches!(told, Err(PeerError::Lost))), "{told:?}");
    until(|| !asked.peer.is_up()).await;
    let began = Instant::now();
    assert_eq!(asked.peer.fetch(EPOCH, whole(0), LONG).await, Err(PeerError::Down));
    println!("lost after {:?}, refused in {:?}", killed.elapsed(), began.elapsed());
    assert!(began.elapsed() < Duration::from_millis(50));
    asked.counted.until("forebay_peer_up{node=\"1\"}", |up| up == 0.0).await;

    let node = Node::start_at(cluster.node(SERVER), Provider::full(), PeerServerOptions::default(), address).await;
    until(|| asked.peer.is_up()).await;
    assert!(matches!(asked.peer.fetch(EPOCH, whole(0), LONG).await, Ok(Fetched::Data { .. })));
    asked.counted.until("forebay_peer_connections{side=\"out\"}", |count| count == 3.0).await;
    asked.counted.until("forebay_peer_up{node=\"1\"}", |up| up == 1.0).await;
    asked.peer.close().await;
    assert_eq!(asked.counted.value("forebay_peer_connections{side=\"out\"}"), 0.0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_chunk_is_no_chunk() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let asked = ask(open(CLIENT), listener.local_addr().unwrap(), one_connection());
    let dying = async {
        let mut raw = Raw::accepted(&listener).await;
        let Some(Request { id, op: PeerOp::Fetch(wanted), .. }) = raw.head().await else { panic!("no request") };
        let length = PayloadLength::new(1 << 20).unwrap();
        raw.reply(id, Answer::Data(Data { length, eof: false })).await;
        raw.send(&content(&wanted)[..1 << 19]).await;
    };
    let (told, ()) = tokio::join!(asked.peer.fetch(EPOCH, whole(0), LONG), dying);
    assert_eq!(told, Err(PeerError::Lost));
    // What is behind a connection that is back is begun anew.
    let whole_reply = async {
        let mut raw = Raw::accepted(&listener).await;
        let (id, wanted) = loop {
            match raw.head().await {
                Some(Request { id, op: PeerOp::Fetch(wanted), .. }) => break (id, wanted),
                // On a busy machine the other end may want a sign of life, or have given this connection up and made another.
                Some(Request { id, op: PeerOp::Ping, .. }) => raw.reply(id, Answer::Pong(EPOCH)).await,
                Some(other) => panic!("no fetch but {other:?}"),
                None => raw = Raw::accepted(&listener).await,
            }
        };
        let length = PayloadLength::new(wanted.range.length()).unwrap();
        let head =
            frame(&forebay_proto::cluster::frame::Reply { id, answer: Answer::Data(Data { length, eof: true }) });
        // In pieces that end anywhere.
        for piece in [&head[..], &content(&wanted)[..]].concat().chunks(9_973) {
            raw.send(piece).await;
        }
        raw
    };
    let asking = async {
        loop {
            until(|| asked.peer.is_up()).await;
            match asked.peer.fetch(EPOCH, whole(1), LONG).await {
                // On a busy machine this connection may be given up too, and with it what was asked on it.
                Err(PeerError::Lost | PeerError::Down) => {}
                told => return told,
            }
        }
    };
    let (told, _raw) = tokio::join!(asking, whole_reply);
    assert_eq!(told, Ok(Fetched::Data { bytes: content(&whole(1)), eof: true }));
    asked.peer.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_gives_no_sign_of_life_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (ping_after, dead_after) = (Duration::from_millis(200), Duration::from_millis(400));
    let options = PeerOptions { ping_after, dead_after, ..one_connection() };
    let asked = ask(open(CLIENT), listener.local_addr().unwrap(), options);
    let silent = async {
        let mut raw = Raw::accepted(&listener).await;
        let asked: Request = raw.head().await.unwrap();
        let ping: Request = raw.head().await.unwrap();
        assert!(matches!((asked.op, ping.op), (PeerOp::Fetch(_), PeerOp::Ping)));
        // Alive once, and never again.
        raw.reply(ping.id, Answer::Pong(EPOCH)).await;
        raw.closed().await;
    };
    let began = Instant::now();
    let (told, ()) = tokio::join!(asked.peer.fetch(EPOCH, whole(0), LONG), silent);
    println!("given up after {:?}", began.elapsed());
    assert_eq!(told, Err(PeerError::Lost));
    assert!(began.elapsed() >= ping_after + dead_after && began.elapsed() < AT_ONCE * 2);
    assert_eq!(asked.counted.refused("stalled"), 1.0);
    asked.peer.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_takes_long_does_not_make_its_peer_dead() {
    let slow = Provider::new(|_, _| async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        Provided::Miss
    });
    let cluster = Cluster::new();
    let node = Node::start(cluster.node(SERVER), slow, PeerServerOptions::default()).await;
    let options = PeerOptions {
        ping_after: Duration::from_millis(100),
        dead_after: Duration::from_millis(2_500),
        ..one_connection()
    };
    let asked = ask(cluster.node(CLIENT), node.address, options);
    assert_eq!(asked.peer.fetch(EPOCH, whole(0), LONG).await, Ok(Fetched::Miss));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_there_is_known_from_the_first_try() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let asked = ask(Cluster::new().node(CLIENT), address, PeerOptions::default());
    let began = Instant::now();
    assert_eq!(asked.peer.fetch(EPOCH, whole(0), LONG).await, Err(PeerError::Down));
    assert!(began.elapsed() < AT_ONCE);
    asked.peer.close().await;
    assert_eq!(asked.peer.fetch(EPOCH, whole(0), LONG).await, Err(PeerError::Down));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_leaves_nothing_behind() {
    let waiting = Provider::new(|_, _| std::future::pending::<Provided>());
    let (node, asked) = pair(waiting.clone(), PeerServerOptions::default()).await;
    let closing = async {
        until(|| waiting.begun() == 1).await;
        asked.peer.close().await;
    };
    let (told, ()) = tokio::join!(asked.peer.fetch(EPOCH, whole(0), LONG), closing);
    assert_eq!(told, Err(PeerError::Lost));
    node.counted.until("forebay_peer_connections{side=\"in\"}", |count| count == 0.0).await;
    node.counted.until("forebay_peer_held_bytes", |count| count == 0.0).await;
    // Dropping one that nobody closed ends its connections as well.
    let cluster_node = Node::start(open(SERVER), waiting, PeerServerOptions::default()).await;
    let dropped = ask(open(CLIENT), cluster_node.address, one_connection());
    cluster_node.counted.until("forebay_peer_connections{side=\"in\"}", |count| count == 1.0).await;
    drop(dropped.peer);
    cluster_node.counted.until("forebay_peer_connections{side=\"in\"}", |count| count == 0.0).await;
    cluster_node.stop().await;
    node.stop().await;
}
