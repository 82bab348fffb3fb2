//! The same group over gRPC on loopback.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_meta::raft::{
    Answer, Endpoint, Group, Message, NodeId, Options, Outcome, Peer, Request, SnapshotAfter, Vote, Wire, WireError,
    transport::Grpc,
};
use openraft::raft::VoteRequest;
use parking_lot::Mutex;
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};
use tonic::transport::{Channel, server::TcpIncoming};

use crate::{
    cluster::TIMING,
    ledger::{ARCHIVE, Command, Ledger, Reply, append},
};

fn wire() -> Arc<Grpc> {
    Grpc::new(Arc::new(|peer: &Peer| {
        let endpoint = Channel::from_shared(format!("http://{}", peer.address)).map_err(|error| error.to_string())?;
        Ok(endpoint.connect_timeout(Duration::from_millis(300)).connect_lazy())
    }))
}

async fn serve(id: NodeId, endpoint: Arc<dyn Endpoint>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tonic::transport::Server::builder().add_service(Grpc::service(id, endpoint));
    let serving = server.serve_with_incoming(TcpIncoming::from(listener));
    (address, tokio::spawn(async move { serving.await.unwrap() }))
}

/// A node whose address is known before it runs.
#[derive(Default)]
struct Late(Mutex<Option<Group<Ledger>>>);

impl Late {
    fn node(&self) -> Result<Group<Ledger>, String> {
        self.0.lock().clone().ok_or_else(|| "not yet".into())
    }
}

#[async_trait]
impl Endpoint for Late {
    async fn answer(&self, message: Message) -> Result<Answer, String> {
        self.node()?.answer(message).await
    }

    async fn take_snapshot(&self, vote: Vote, chunks: mpsc::Receiver<Bytes>) -> Result<Vote, String> {
        self.node()?.take_snapshot(vote, chunks).await
    }
}

struct Served {
    node: Group<Ledger>,
    address: String,
    server: JoinHandle<()>,
}

async fn start(id: NodeId, directory: &std::path::Path) -> Served {
    let late = Arc::new(Late::default());
    let (address, server) = serve(id, late.clone()).await;
    let options = Options {
        id,
        directory: directory.join(id.to_string()),
        timing: TIMING,
        snapshot_after: SnapshotAfter { entries: 50, bytes: 1 << 30 },
        patience: Duration::from_secs(10),
    };
    let node = Group::start(options, wire()).await.unwrap();
    *late.0.lock() = Some(node.clone());
    Served { node, address: address.to_string(), server }
}

async fn until(what: &str, mut look: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !look() {
        assert!(Instant::now() < end, "waited a minute for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_over_grpc() {
    let directory = tempfile::tempdir().unwrap();
    let mut nodes = BTreeMap::new();
    for id in 1..=3 {
        nodes.insert(id, start(id, directory.path()).await);
    }
    let members = nodes.iter().map(|(&id, served)| (id, served.address.clone())).collect();
    nodes[&1].node.initialise(members).await.unwrap();
    for serial in 0..120_u32 {
        let node = &nodes[&(u64::from(serial % 3) + 1)].node;
        let reply = node.propose(&append(1, 0, serial)).await.unwrap();
        assert_eq!(reply, Reply::Position(u64::from(serial)));
        let other = &nodes[&(u64::from(serial / 3 % 3) + 1)].node;
        let count = other.read_linearizable(|replica| replica.read(|core| core.all().count())).await.unwrap();
        assert_eq!(count, serial as usize + 1);
    }
    // Three megabytes, so that a snapshot has chunks; a command near the limit crosses the wire.
    for key in 0..2_u8 {
        let keep = Command::Keep { key: vec![key], value: vec![key; 1_500_000] };
        nodes[&3].node.propose(&keep).await.unwrap();
    }
    let leader = nodes.values().find(|served| served.node.status().leads).unwrap().node.clone();
    leader.snapshot_now().await.unwrap();
    until("a purge", || leader.status().purged.is_some_and(|purged| purged > 0)).await;
    nodes.insert(4, start(4, directory.path()).await);
    leader.add_learner(Peer { id: 4, address: nodes[&4].address.clone() }).await.unwrap();
    let last = leader.status().last;
    until("the newcomer to have everything", || nodes[&4].node.status().applied >= last).await;
    assert!(nodes[&4].node.status().purged.is_some(), "it got no snapshot");
    assert_eq!(nodes[&4].node.row_local(ARCHIVE, &[1]).unwrap(), Some(vec![1; 1_500_000]));

    // The leader vanishes: its connections break, its port refuses.
    let gone = nodes.remove(&leader.status().id).unwrap();
    gone.server.abort();
    gone.node.shutdown().await;
    let began = Instant::now();
    let survivor = nodes.values().next().unwrap().node.clone();
    loop {
        if survivor.propose(&append(2, 0, 0)).await.is_ok() {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "no new leader");
    }
    for served in nodes.into_values() {
        served.node.shutdown().await;
        served.server.abort();
    }
}

fn propose() -> Message {
    Message::Forward(Request::ReadIndex)
}

struct Answers(Result<Answer, String>);

#[async_trait]
impl Endpoint for Answers {
    async fn answer(&self, _message: Message) -> Result<Answer, String> {
        self.0.clone()
    }

    async fn take_snapshot(&self, _vote: Vote, mut chunks: mpsc::Receiver<Bytes>) -> Result<Vote, String> {
        let mut count = 0;
        while chunks.recv().await.is_some() {
            count += 1;
        }
        Err(format!("{count} chunks"))
    }
}

#[tokio::test]
async fn what_certainly_did_not_arrive_is_told_from_what_may_have() {
    let within = Duration::from_secs(5);
    let done = Answer::Forward(Outcome::NotDone(Some(3)));
    let (address, server) = serve(1, Arc::new(Answers(Ok(done)))).await;
    let peer = |id| Peer { id, address: address.to_string() };
    let grpc = wire();
    let answer = grpc.call(&peer(1), propose(), within).await.unwrap();
    assert!(matches!(answer, Answer::Forward(Outcome::NotDone(Some(3)))));
    let another = grpc.call(&peer(2), propose(), within).await;
    assert!(matches!(another, Err(WireError::NotSent(_))), "an address that is another node's now: {another:?}");
    let vote = Message::Vote(VoteRequest::new(Vote::new(1, 1), None));
    let astray = grpc.call(&peer(1), vote, within).await.unwrap();
    assert!(matches!(astray, Answer::Forward(_)), "what the answer is to is looked at by who asked");

    let (sender, chunks) = mpsc::channel(4);
    for chunk in ["a", "b"] {
        sender.send(Ok(Bytes::from(chunk))).await.unwrap();
    }
    sender.send(Err(std::io::Error::other("the disk"))).await.unwrap();
    let broken = grpc.snapshot(&peer(1), Vote::new(1, 1), chunks, within).await;
    assert!(matches!(&broken, Err(WireError::Lost(why)) if why.contains("2 chunks")), "{broken:?}");

    server.abort();
    let _ = server.await;
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let nobody = grpc.call(&Peer { id: 1, address: free.to_string() }, propose(), within).await;
    assert!(matches!(nobody, Err(WireError::NotSent(_))), "{nobody:?}");

    // One that takes the connection and says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = Peer { id: 1, address: listener.local_addr().unwrap().to_string() };
    let began = Instant::now();
    let nothing = grpc.call(&silent, propose(), Duration::from_millis(200)).await;
    assert!(matches!(nothing, Err(WireError::Lost(_))), "{nothing:?}");
    assert!(began.elapsed() < Duration::from_secs(3));
    let (stopped, server) = serve(1, Arc::new(Answers(Err("it has stopped".into())))).await;
    let stopped = grpc.call(&Peer { id: 1, address: stopped.to_string() }, propose(), within).await;
    assert!(matches!(stopped, Err(WireError::Lost(_))), "{stopped:?}");
    server.abort();
}
