//! Real processes at the other end: killed and frozen in the middle of what they send.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use forebay_node::peer::{Fetched, NodeKey, PeerError, PeerIdentity, PeerOptions, PeerServerOptions};
use forebay_proto::cluster::NodeId;
use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{CLIENT, CLUSTER, Cluster, EPOCH, LONG, Node, Provider, SERVER, ask, content, until, whole};

const DIRECTORY: &str = "FOREBAY_TEST_PEER_DIRECTORY";

/// Not a test of its own: the process that is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_serves_until_it_is_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let node = Node::start(restore(directory.as_ref()), Provider::full(), PeerServerOptions::default()).await;
    println!("listens at {}", node.address);
    std::future::pending::<()>().await;
}

fn keep(cluster: &Cluster, node: NodeId, directory: &Path) {
    let key = NodeKey::create().unwrap();
    std::fs::write(directory.join("certificate"), cluster.issue(node, &key)).unwrap();
    std::fs::write(directory.join("authority"), cluster.certificate()).unwrap();
    std::fs::write(directory.join("key"), key.secret_key()).unwrap();
}

fn restore(directory: &Path) -> PeerIdentity {
    let read = |name: &str| std::fs::read(directory.join(name)).unwrap();
    let key = NodeKey::restore(&read("key")).unwrap();
    PeerIdentity::mutual(CLUSTER, SERVER, &read("authority"), &read("certificate"), &key).unwrap()
}

/// A process, ended with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn start(directory: &Path) -> (Process, SocketAddr) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::child_that_serves_until_it_is_killed", "--nocapture"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let address = lines.find_map(|line| line.split("listens at ").nth(1).map(|address| address.parse().unwrap()));
    (Process(child), address.expect("the child did not start"))
}

/// Asks without pause, and tells of anything that is not as it should be. Returns when the peer is down.
async fn ask_until_it_is_down(peer: &forebay_node::peer::Peer) -> (usize, usize) {
    let (mut whole_chunks, mut lost) = (0, 0);
    for chunk in 0.. {
        match peer.fetch(EPOCH, whole(chunk % 8), LONG).await {
            Ok(Fetched::Data { bytes, .. }) => {
                assert!(bytes == content(&whole(chunk % 8)), "a chunk that is none");
                whole_chunks += 1;
            }
            Err(PeerError::Lost) => lost += 1,
            Err(PeerError::Down) => break,
            other => panic!("{other:?}"),
        }
    }
    (whole_chunks, lost)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_are_killed_or_frozen_are_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::new();
    keep(&cluster, SERVER, directory.path());
    let options = PeerOptions { connections: 2, ..PeerOptions::default() };
    for signal in [Signal::KILL, Signal::STOP] {
        let (process, address) = start(directory.path());
        let asked = ask(cluster.node(CLIENT), address, options);
        let asking = join_all((0..8).map(|_| ask_until_it_is_down(&asked.peer)));
        let killing = async {
            asked.counted.until("forebay_peer_received_bytes_total", |bytes| bytes > 20e6).await;
            let pid = Pid::from_raw(process.0.id().try_into().unwrap()).unwrap();
            kill_process(pid, signal).unwrap();
            let killed = Instant::now();
            until(|| !asked.peer.is_up()).await;
            killed.elapsed()
        };
        let (told, noticed) = tokio::join!(asking, killing);
        let (chunks, lost) = told.iter().fold((0, 0), |sum, told| (sum.0 + told.0, sum.1 + told.1));
        println!("{signal:?}: {chunks} whole chunks, {lost} requests lost, noticed after {noticed:?}");
        assert!(lost > 0 && chunks >= 20);
        // A killed one's kernel says so; a frozen one's says nothing, and acknowledges what is sent.
        let silence = options.ping_after + options.dead_after;
        let expected = if signal == Signal::KILL { Duration::ZERO } else { silence };
        assert!(noticed < expected + Duration::from_secs(3), "{noticed:?}");
        asked.peer.close().await;
    }
}
