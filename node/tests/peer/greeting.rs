//! Who gets in: nodes of this cluster, under their own names, that speak a version we speak.

use std::time::{Duration, Instant, SystemTime};

use forebay_node::peer::{Fetched, NodeKey, PeerError, PeerIdentity, PeerServerOptions};
use forebay_proto::cluster::{
    ClusterId, NodeId,
    frame::{Greeting, GreetingRefusal, frame},
};
use tokio::net::{TcpListener, TcpStream};

use crate::common::{
    CLIENT, CLUSTER, Cluster, EPOCH, LONG, Node, Provider, Raw, SERVER, ask, fetch, hello, one_connection, open,
};

/// Asks a node as `identity`, and expects not to be let in, for a reason that the node counts.
async fn is_refused(node: &Node, identity: PeerIdentity, reason: &str) {
    let before = node.counted.refused(reason);
    let asked = ask(identity, node.address, one_connection());
    let told = asked.peer.fetch(EPOCH, fetch(0, 0, 1), LONG).await;
    assert!(matches!(told, Err(PeerError::Down | PeerError::Lost)), "{reason}: {told:?}");
    let name = format!("forebay_peer_refused_total{{reason=\"{reason}\"}}");
    node.counted.until(&name, |count| count > before).await;
    asked.counted.until("forebay_peer_connect_failures_total", |count| count >= 1.0).await;
    assert!(!asked.peer.is_up());
    let began = Instant::now();
    assert_eq!(asked.peer.fetch(EPOCH, fetch(0, 0, 1), LONG).await, Err(PeerError::Down));
    assert!(began.elapsed() < Duration::from_millis(100), "at once");
    asked.peer.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_refused_and_counted() {
    let (cluster, foreign) = (Cluster::new(), Cluster::new());
    let provider = Provider::full();
    let node = Node::start(cluster.node(SERVER), provider.clone(), PeerServerOptions::default()).await;

    // Its authority has our name, and is not ours: neither end takes the other. What the node notices first is that its own
    // certificate is not taken.
    is_refused(&node, foreign.node(CLIENT), "certificate").await;
    // It has no certificate, nor speaks TLS.
    is_refused(&node, open(CLIENT), "certificate").await;
    // A node of ours, under the name of another one.
    let mut other_name = cluster.node(CLIENT);
    other_name.node = NodeId(3);
    is_refused(&node, other_name, "node").await;

    assert_eq!(provider.begun(), 0);
    let good = ask(cluster.node(CLIENT), node.address, one_connection());
    assert!(matches!(good.peer.fetch(EPOCH, fetch(0, 0, 1), LONG).await, Ok(Fetched::Data { .. })));
    node.stop().await;
}

/// A client that takes any server's certificate shows its own, of another authority: the node itself must refuse it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_certificate_is_refused_by_the_node_itself() {
    let (cluster, foreign) = (Cluster::new(), Cluster::new());
    let node = Node::start(cluster.node(SERVER), Provider::full(), PeerServerOptions::default()).await;
    let before = node.counted.refused("certificate");
    // Trusts our authority, and has the foreign one's certificate.
    let identity = foreign.node_trusting(CLIENT, &cluster);
    let asked = ask(identity, node.address, one_connection());
    let told = asked.peer.fetch(EPOCH, fetch(0, 0, 1), LONG).await;
    assert!(matches!(told, Err(PeerError::Down | PeerError::Lost)), "{told:?}");
    node.counted.until("forebay_peer_refused_total{reason=\"certificate\"}", |count| count > before).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_good_for_its_time() {
    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    let cluster = Cluster::new();
    let node = Node::start(cluster.node(SERVER), Provider::full(), PeerServerOptions::default()).await;
    let now = SystemTime::now();
    for (when, good) in [(now - 6 * YEAR, false), (now + YEAR, false), (now - 4 * YEAR, true)] {
        let key = NodeKey::create().unwrap();
        let certificate = cluster.issue_at(CLIENT, &key, when);
        let identity = PeerIdentity::mutual(CLUSTER, CLIENT, cluster.certificate(), &certificate, &key).unwrap();
        if good {
            let asked = ask(identity, node.address, one_connection());
            assert!(matches!(asked.peer.fetch(EPOCH, fetch(0, 0, 1), LONG).await, Ok(Fetched::Data { .. })));
        } else {
            is_refused(&node, identity, "certificate").await;
        }
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_not_the_wanted_one_is_refused_by_the_peer() {
    let (cluster, foreign) = (Cluster::new(), Cluster::new());
    for (identity, reason) in [(cluster.node(NodeId(7)), "node"), (foreign.node(SERVER), "certificate")] {
        let node = Node::start(identity, Provider::full(), PeerServerOptions::default()).await;
        let asked = ask(cluster.node(CLIENT), node.address, one_connection());
        assert_eq!(asked.peer.fetch(EPOCH, fetch(0, 0, 1), LONG).await, Err(PeerError::Down));
        let name = format!("forebay_peer_refused_total{{reason=\"{reason}\"}}");
        asked.counted.until(&name, |count| count >= 1.0).await;
        asked.peer.close().await;
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_cluster_node_or_version_is_told_so() {
    let node = Node::start(open(SERVER), Provider::full(), PeerServerOptions::default()).await;
    let mut other_cluster = hello(CLIENT, SERVER);
    other_cluster.cluster = ClusterId([1; 16]);
    let mut newer = hello(CLIENT, SERVER);
    (newer.oldest, newer.newest) = (7, 9);
    let cases = [
        (other_cluster, GreetingRefusal::Cluster, "cluster"),
        (hello(CLIENT, NodeId(9)), GreetingRefusal::Node, "node"),
        (newer, GreetingRefusal::Version, "version"),
    ];
    for (hello, refusal, reason) in cases {
        let mut raw = Raw::new(TcpStream::connect(node.address).await.unwrap());
        raw.send(&frame(&Greeting::Hello(hello))).await;
        assert_eq!(raw.head().await, Some(Greeting::Refused(refusal)));
        raw.closed().await;
        assert_eq!(node.counted.refused(reason), 1.0);
    }
    // A version that reaches further in both directions is one we can speak with.
    let mut wider = hello(CLIENT, SERVER);
    wider.newest = 9;
    let mut raw = Raw::new(TcpStream::connect(node.address).await.unwrap());
    raw.send(&frame(&Greeting::Hello(wider))).await;
    assert!(
        matches!(raw.head().await, Some(Greeting::Hello(hello)) if hello.cluster == CLUSTER && hello.from == SERVER)
    );
    drop(raw);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_refuses_answers_of_others_too() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let asked = ask(open(CLIENT), listener.local_addr().unwrap(), one_connection());
    let mut other_cluster = hello(SERVER, CLIENT);
    other_cluster.cluster = ClusterId([1; 16]);
    let mut newer = hello(SERVER, CLIENT);
    (newer.oldest, newer.newest) = (7, 9);
    let cases = [
        (other_cluster, "cluster"),
        (hello(NodeId(5), CLIENT), "node"),
        (hello(SERVER, NodeId(5)), "node"),
        (newer, "version"),
    ];
    let mut expected = std::collections::BTreeMap::new();
    for (hello, reason) in cases {
        let mut raw = Raw::new(listener.accept().await.unwrap().0);
        assert!(matches!(raw.head().await, Some(Greeting::Hello(_))));
        raw.send(&frame(&Greeting::Hello(hello))).await;
        raw.closed().await;
        let count = expected.entry(reason).or_insert(0.0);
        *count += 1.0;
        let name = format!("forebay_peer_refused_total{{reason=\"{reason}\"}}");
        asked.counted.until(&name, |counted| counted == *count).await;
    }
    asked.peer.close().await;
}
