//! What a peer that does not take its replies costs, and what a node does that has too much to do.

use std::{sync::atomic::Ordering, time::Duration};

use forebay_node::peer::{Fetched, PeerServerOptions, Provided};
use forebay_proto::cluster::frame::{Answer, Fetch, IN_FLIGHT_MAX, PeerOp, Priority, Request, frame};
use tokio::sync::{Notify, Semaphore};

use crate::common::{
    CLIENT, EPOCH, LONG, Node, Provider, Raw, SERVER, ask, content, data, fetch, one_connection, open, until, whole,
};

const MIB: f64 = (1 << 20) as f64;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_are_not_taken_hold_little_memory() {
    let provider = Provider::full();
    let options = PeerServerOptions { connection_bytes: 4 << 20, ..PeerServerOptions::default() };
    let node = Node::start(open(SERVER), provider.clone(), options).await;
    let mut raw = Raw::greeted(node.address).await;
    for id in 0..IN_FLIGHT_MAX as u64 {
        raw.request(id, PeerOp::Fetch(whole(id as u32))).await;
    }
    until(|| provider.begun() >= 4).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let begun = provider.begun();
    let held = node.counted.value("forebay_peer_held_bytes") / MIB;
    // What the sockets' own buffers took is gone from here and makes room for a few more.
    println!("{begun} of {IN_FLIGHT_MAX} requests begun, {held:.2} MiB held while nothing is taken");
    assert!(begun < IN_FLIGHT_MAX / 2 && held < 5.0, "{begun} {held}");
    for _ in 0..IN_FLIGHT_MAX {
        let (reply, payload) = raw.replied().await.unwrap();
        assert!(payload == content(&whole(reply.id as u32)), "{reply:?}");
    }
    node.counted.until("forebay_peer_held_bytes", |held| held == 0.0).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_never_takes_its_replies_is_cut_off() {
    let options = PeerServerOptions { stall: Duration::from_millis(400), ..PeerServerOptions::default() };
    let node = Node::start(open(SERVER), Provider::full(), options).await;
    let mut raw = Raw::greeted(node.address).await;
    for id in 0..64 {
        raw.request(id, PeerOp::Fetch(whole(0))).await;
    }
    node.counted.until("forebay_peer_refused_total{reason=\"stalled\"}", |count| count == 1.0).await;
    // Neither is one that stops in the middle of a frame waited for; one that asks for nothing is.
    let mut half = Raw::greeted(node.address).await;
    half.send(&[0, 0, 0]).await;
    let mut quiet = Raw::greeted(node.address).await;
    half.closed().await;
    node.counted.until("forebay_peer_refused_total{reason=\"stalled\"}", |count| count == 2.0).await;
    quiet.request(1, PeerOp::Ping).await;
    assert!(matches!(quiet.replied().await, Some((reply, _)) if reply.answer == Answer::Pong(EPOCH)));
    assert_eq!(node.counted.value("forebay_peer_connections{side=\"in\"}"), 1.0);
    drop(quiet);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_and_cancels_without_end_are_not_read_without_end() {
    let provider = Provider::new(|_, _| std::future::pending::<Provided>());
    let node = Node::start(open(SERVER), provider.clone(), PeerServerOptions::default()).await;
    let mut raw = Raw::greeted(node.address).await;
    let mut id = 0;
    // The sockets' own buffers take replies to a hundred thousand; then it must stop.
    loop {
        let mut bytes = Vec::new();
        for _ in 0..1_000 {
            for op in [PeerOp::Fetch(fetch(0, 0, 1)), PeerOp::Cancel] {
                bytes.extend_from_slice(&frame(&Request { id, epoch: EPOCH, op }));
            }
            id += 1;
        }
        if tokio::time::timeout(Duration::from_secs(1), raw.send(&bytes)).await.is_err() {
            break;
        }
        assert!(id < 5_000_000, "it reads on though nothing is taken");
    }
    println!("{} of {id} requests were begun and cancelled until nothing more was read", provider.begun());
    let held = node.counted.value("forebay_peer_held_bytes");
    assert!(held < 100e3, "{held}");
    drop(raw);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_too_much_to_do_says_so() {
    let (go, limit) = (std::sync::Arc::new(Notify::new()), 3 << 20);
    let provider = {
        let go = go.clone();
        Provider::new(move |_, fetch| {
            let go = go.clone();
            async move {
                go.notified().await;
                data(&fetch)
            }
        })
    };
    let options = PeerServerOptions { all_bytes: limit, ..PeerServerOptions::default() };
    let node = Node::start(open(SERVER), provider.clone(), options).await;
    let mut first = Raw::greeted(node.address).await;
    for id in 0..2 {
        first.request(id, PeerOp::Fetch(whole(0))).await;
    }
    until(|| provider.begun() == 2).await;
    let asked = ask(open(CLIENT), node.address, one_connection());
    tokio::select! {
        told = asked.peer.fetch(EPOCH, fetch(0, 0, 1 << 19), LONG) => panic!("{told:?}"),
        () = until(|| provider.begun() == 3) => {}
    }
    // That was taken back: there is room for one more, and for no other beside it.
    node.counted.until("forebay_peer_held_bytes", |held| held == 2.0 * MIB).await;
    let refused = async {
        until(|| provider.begun() == 4).await;
        asked.peer.fetch(EPOCH, whole(0), LONG).await
    };
    tokio::select! {
        told = asked.peer.fetch(EPOCH, whole(0), LONG) => panic!("{told:?}"),
        told = refused => assert_eq!(told, Ok(Fetched::Busy)),
    }
    drop(first);
    until(|| node.counted.value("forebay_peer_held_bytes") == 0.0).await;
    go.notify_one();
    assert!(matches!(asked.peer.fetch(EPOCH, whole(0), LONG).await, Ok(Fetched::Data { .. })));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_go_before_what_only_moves_house() {
    let (gate, order) =
        (std::sync::Arc::new(Semaphore::new(0)), std::sync::Arc::new(parking_lot::Mutex::new(Vec::new())));
    let provider = {
        let (gate, order) = (gate.clone(), order.clone());
        Provider::new(move |_, fetch| {
            let gate = gate.clone();
            order.lock().push(fetch.chunk);
            async move {
                gate.acquire().await.unwrap().forget();
                data(&fetch)
            }
        })
    };
    let options = PeerServerOptions { connection_bytes: 1 << 20, ..PeerServerOptions::default() };
    let node = Node::start(open(SERVER), provider.clone(), options).await;
    let mut raw = Raw::greeted(node.address).await;
    let priorities =
        [Priority::Background, Priority::Background, Priority::ReadAhead, Priority::Reader, Priority::Reader];
    for (id, priority) in (0..).zip(priorities) {
        raw.request(id, PeerOp::Fetch(Fetch { priority, ..whole(id as u32) })).await;
    }
    raw.request(99, PeerOp::Ping).await;
    assert!(matches!(raw.replied().await, Some((reply, _)) if reply.id == 99));
    assert_eq!(*order.lock(), [0], "one at a time");
    gate.add_permits(5);
    let mut replies = Vec::new();
    for _ in 0..5 {
        replies.push(raw.replied().await.unwrap().0.id);
    }
    assert_eq!((replies, order.lock().clone()), (vec![0, 3, 4, 2, 1], vec![0, 3, 4, 2, 1]));
    assert_eq!(provider.begun.load(Ordering::SeqCst), 5);
    node.stop().await;
}
