//! What a peer that asks is told, and what it costs to change one's mind.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use forebay_node::peer::{Fetched, PeerError, PeerServerOptions, Provided};
use forebay_proto::cluster::{
    RingEpoch,
    frame::{IN_FLIGHT_MAX, Refusal},
};
use futures_util::future::join_all;
use tokio::sync::{Barrier, Notify};

use crate::common::{
    CLIENT, EPOCH, LONG, Node, Provider, SERVER, ask, content, data, fetch, one_connection, open, pair, until, whole,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_come_as_they_are() {
    let provider = Provider::new(|caller, fetch| async move {
        assert_eq!((caller.node, caller.epoch), (CLIENT, EPOCH));
        data(&fetch)
    });
    let (node, asked) = pair(provider.clone(), PeerServerOptions::default()).await;
    let plain = Node::start(open(SERVER), provider, PeerServerOptions::default()).await;
    let asked_plain = ask(open(CLIENT), plain.address, one_connection());
    for asked in [&asked, &asked_plain] {
        let parts = [(0, 0, 1), (1, 0, 1 << 20), (2, 4097, 65_537), (3, (1 << 20) - 1, 1), (4, 123, 16_384)];
        for (chunk, offset, length) in parts {
            let wanted = fetch(chunk, offset, length);
            let told = asked.peer.fetch(EPOCH, wanted, LONG).await.unwrap();
            assert!(told == Fetched::Data { bytes: content(&wanted), eof: chunk % 2 == 1 }, "{wanted:?}");
        }
        asked.peer.close().await;
    }
    assert_eq!(asked.counted.value("forebay_peer_requests_total{outcome=\"data\"}"), 5.0);
    let received = asked.counted.value("forebay_peer_received_bytes_total");
    assert_eq!(received, f64::from(1 + (1 << 20) + 65_537 + 1 + 16_384));
    assert_eq!(node.stop().await.value("forebay_peer_served_bytes_total"), received);
    plain.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_provided_is_told() {
    let provider = Provider::new(|_, fetch| {
        std::future::ready(match fetch.chunk {
            0 => Provided::Miss,
            1 => Provided::Busy,
            2 => Provided::Refused(Refusal::UnknownFile),
            3 => Provided::Data { bytes: vec![0; fetch.range.length() + 1].into(), eof: false },
            4 => Provided::Data { bytes: vec![0; 99].into(), eof: false },
            5 => Provided::Data { bytes: vec![].into(), eof: true },
            _ => data(&fetch),
        })
    });
    let (node, asked) = pair(provider, PeerServerOptions::default()).await;
    let expected = [
        Fetched::Miss,
        Fetched::Busy,
        Fetched::Refused(Refusal::UnknownFile),
        Fetched::Refused(Refusal::Failed),
        Fetched::Refused(Refusal::Failed),
        Fetched::Data { bytes: vec![].into(), eof: true },
    ];
    for (chunk, told) in (0..).zip(expected) {
        assert_eq!(asked.peer.fetch(EPOCH, fetch(chunk, 0, 100), LONG).await, Ok(told));
    }
    let text = {
        let mut text = String::new();
        asked.counted.metrics.render(&mut text);
        text
    };
    assert!(text.contains("forebay_peer_fetch_seconds_count{side=\"out\"} 1"), "{text}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_are_under_way_on_one_connection_and_more_wait() {
    // Nobody is answered before a connection's worth of requests is there.
    let barrier = Arc::new(Barrier::new(IN_FLIGHT_MAX));
    let provider = Provider::new(move |_, fetch| {
        let barrier = barrier.clone();
        async move {
            barrier.wait().await;
            data(&fetch)
        }
    });
    let (node, asked) = pair(provider.clone(), PeerServerOptions::default()).await;
    let wanted: Vec<_> = (0..3 * IN_FLIGHT_MAX as u32).map(|chunk| fetch(chunk, chunk, 1000 + chunk)).collect();
    let told = join_all(wanted.iter().map(|fetch| asked.peer.fetch(EPOCH, *fetch, LONG))).await;
    for (wanted, told) in wanted.iter().zip(told) {
        assert!(matches!(told, Ok(Fetched::Data { bytes, .. }) if bytes == content(wanted)), "{wanted:?}");
    }
    assert_eq!(provider.begun(), 3 * IN_FLIGHT_MAX);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_one_holds_nobody_up() {
    let go = Arc::new(Notify::new());
    let provider = {
        let go = go.clone();
        Provider::new(move |_, fetch| {
            let go = go.clone();
            async move {
                if fetch.chunk == 0 {
                    go.notified().await;
                }
                data(&fetch)
            }
        })
    };
    let (node, asked) = pair(provider.clone(), PeerServerOptions::default()).await;
    let slow = asked.peer.fetch(EPOCH, whole(0), LONG);
    let quick = async {
        until(|| provider.begun() == 1).await;
        for chunk in 1..20 {
            assert!(matches!(asked.peer.fetch(EPOCH, whole(chunk), LONG).await, Ok(Fetched::Data { .. })));
        }
        go.notify_one();
    };
    let (slow, ()) = tokio::join!(slow, quick);
    assert!(matches!(slow, Ok(Fetched::Data { .. })));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_ring_is_told_the_new_one() {
    let provider = Provider::full();
    let (node, asked) = pair(provider.clone(), PeerServerOptions::default()).await;
    let ask = |epoch| asked.peer.fetch(RingEpoch(epoch), fetch(0, 0, 10), LONG);
    assert!(matches!(ask(EPOCH.0).await, Ok(Fetched::Data { .. })));
    provider.epoch.store(EPOCH.0 + 5, Ordering::SeqCst);
    let begun = provider.begun();
    assert_eq!(ask(EPOCH.0).await, Ok(Fetched::Stale(RingEpoch(EPOCH.0 + 5))));
    assert_eq!(provider.begun(), begun, "nobody was asked");
    assert_eq!(asked.peer.epoch(), RingEpoch(EPOCH.0 + 5));
    // Whoever knows of a newer ring than the node may ask it: contents are the same under every ring.
    for epoch in [EPOCH.0 + 5, EPOCH.0 + 6] {
        assert!(matches!(ask(epoch).await, Ok(Fetched::Data { .. })));
    }
    assert_eq!(node.stop().await.value("forebay_peer_served_total{outcome=\"stale\"}"), 1.0);
}

/// Counts itself while it lives.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_wanted_any_more_stops_at_the_other_end() {
    let alive = Arc::new(AtomicUsize::new(0));
    let provider = {
        let alive = alive.clone();
        Provider::new(move |_, fetch| {
            let alive = Alive::new(&alive);
            async move {
                if fetch.chunk == 0 {
                    std::future::pending::<()>().await;
                }
                drop(alive);
                data(&fetch)
            }
        })
    };
    let (node, asked) = pair(provider, PeerServerOptions::default()).await;
    let asked = Arc::new(asked);
    // Eight fill what one connection may have under way, so the last two are not even begun.
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let asked = asked.clone();
            tokio::spawn(async move { asked.peer.fetch(EPOCH, whole(0), LONG).await })
        })
        .collect();
    until(|| alive.load(Ordering::SeqCst) == 8).await;
    tasks.iter().for_each(|task| task.abort());
    node.counted.until("forebay_peer_served_total{outcome=\"cancelled\"}", |count| count == 10.0).await;
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    asked.counted.until("forebay_peer_requests_total{outcome=\"cancelled\"}", |count| count == 10.0).await;
    // A deadline takes back too, and no place is lost by any of it.
    let began = Instant::now();
    let late = join_all((0..200).map(|_| asked.peer.fetch(EPOCH, fetch(0, 0, 1), Duration::from_millis(200)))).await;
    assert!(late.iter().all(|told| *told == Err(PeerError::Deadline)), "{late:?}");
    assert!(began.elapsed() < Duration::from_secs(5));
    until(|| alive.load(Ordering::SeqCst) == 0).await;
    let after = join_all((1..200).map(|chunk| asked.peer.fetch(EPOCH, fetch(chunk, 0, 1), LONG))).await;
    assert!(after.iter().all(|told| matches!(told, Ok(Fetched::Data { .. }))));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_peer_is_known_for_it() {
    const SLOW: Duration = Duration::from_millis(40);
    let provider = Provider::new(|_, fetch| async move {
        if fetch.chunk == 1 {
            tokio::time::sleep(SLOW).await;
        }
        data(&fetch)
    });
    let (node, asked) = pair(provider, PeerServerOptions::default()).await;
    assert_eq!(asked.peer.hedge_after(), None);
    for _ in 0..100 {
        asked.peer.fetch(EPOCH, fetch(0, 0, 100), LONG).await.unwrap();
    }
    let quick = asked.peer.hedge_after().unwrap();
    join_all((0..100).map(|_| asked.peer.fetch(EPOCH, fetch(1, 0, 100), LONG))).await;
    let slow = asked.peer.hedge_after().unwrap();
    println!("hedged after {quick:?} when quick, {slow:?} when slow");
    assert!(quick < SLOW && slow >= SLOW, "{quick:?} {slow:?}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_ends_answers_what_it_began() {
    let go = Arc::new(Notify::new());
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
    let (node, asked) = pair(provider.clone(), PeerServerOptions::default()).await;
    let asking = join_all((0..12).map(|chunk| asked.peer.fetch(EPOCH, whole(chunk), LONG)));
    let ending = async {
        until(|| provider.begun() == 8).await;
        node.drain();
        // What was not begun is refused before what was begun is done.
        node.counted.until("forebay_peer_served_total{outcome=\"refused\"}", |count| count == 4.0).await;
        go.notify_waiters();
        node.stop().await
    };
    let (told, counted) = tokio::join!(asking, ending);
    let data = told.iter().filter(|told| matches!(told, Ok(Fetched::Data { .. }))).count();
    let refused = told.iter().filter(|told| **told == Ok(Fetched::Refused(Refusal::Draining))).count();
    assert_eq!((data, refused), (8, 4), "{told:?}");
    assert_eq!(counted.value("forebay_peer_connections{side=\"in\"}"), 0.0);
    assert_eq!(counted.value("forebay_peer_held_bytes"), 0.0);
}
