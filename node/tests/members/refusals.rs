//! Who is not let in.

use std::{net::SocketAddr, sync::Arc, time::Duration, time::SystemTime};

use bytes::Bytes;
use forebay_meta::state::NodeId;
use forebay_node::{
    cluster::{
        control::{CallError, Control, Topic},
        enter::Token,
        transport::{Calling, Knocking},
    },
    peer::{ClusterAuthority, NodeKey, PeerIdentity},
};
use forebay_proto::cluster::ClusterId;

use crate::farm::{Farm, TOKEN};

fn refused(farm: &Farm, reason: &str) -> u64 {
    let label = format!("forebay_peer_refused_total{{reason=\"{reason}\"}} ");
    let metrics = farm.metrics(0);
    metrics.lines().find_map(|line| line.strip_prefix(&label)?.parse().ok()).unwrap_or(0)
}

fn alone() -> Farm {
    let mut farm = Farm::new(1);
    farm.start(0);
    farm.wait_for_ring();
    farm
}

#[test]
fn another_token_lets_nobody_in() {
    let mut farm = alone();
    let wrong = farm.home.path().join("wrong");
    std::fs::write(&wrong, "a token of some other cluster").unwrap();
    farm.start_with(1, &[format!("--token-file={}", wrong.display())]);
    farm.wait("it is refused and says why", || farm.log(1).contains("is the token the cluster's?"));
    farm.wait("it is counted", || refused(&farm, "token") > 0);
    assert_eq!(farm.members(0).unwrap().nodes.len(), 1);
}

/// What somebody said who may come in is worth nothing on another connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proof_said_again_is_refused() {
    let farm = alone();
    let address = farm.control(0);
    let token = Token::new(TOKEN.as_bytes(), "farm");
    let mut first = Knocking::at(address).await.unwrap();
    let hello = token.hello(&first.binding);
    let answer = first.ask(hello.clone(), Duration::from_secs(3)).await.unwrap();
    assert!(!answer.is_empty());
    let again = first.ask(hello.clone(), Duration::from_secs(3)).await;
    assert!(again.is_ok(), "on the same connection it is the same node's");
    let mut second = Knocking::at(address).await.unwrap();
    let refusal = second.ask(hello, Duration::from_secs(3)).await.unwrap_err();
    assert!(refusal.contains("token"), "{refusal}");
    let garbage = second.ask(Bytes::from_static(b"\x01garbage"), Duration::from_secs(3)).await;
    assert!(garbage.is_err());
    farm.wait("they are counted", || refused(&farm, "token") == 1 && refused(&farm, "protocol") == 1);
}

/// A certificate of another authority, and a node of this cluster that says it is another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_authority_s_nodes_are_refused() {
    let farm = alone();
    let cluster = ClusterId(farm.status(0).unwrap().cluster.parse::<uuid::Uuid>().unwrap().into_bytes());
    let (authority, key) = (ClusterAuthority::create(cluster, SystemTime::now()).unwrap(), NodeKey::create().unwrap());
    let certificate = authority.issue(NodeId(7), key.public_key(), SystemTime::now()).unwrap();
    let identity = PeerIdentity::mutual(cluster, NodeId(7), authority.certificate(), &certificate, &key).unwrap();
    let address: SocketAddr = farm.control(0);
    let calling = Calling::new(identity, Arc::new(move |_| Some(address))).unwrap();
    let called = calling.call(NodeId(1), Topic::Files, Bytes::from_static(b"x"), Duration::from_secs(3)).await;
    assert!(matches!(called, Err(CallError::NotSent(_))), "neither end believes the other: {called:?}");
}
