//! A cluster of nodes in this process, a provider that does what a test says, and an end of a connection that speaks frames
//! by hand.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::{Bytes, BytesMut};
use forebay_node::peer::{
    Caller, ChunkProvider, ClusterAuthority, NodeKey, Peer, PeerIdentity, PeerMetrics, PeerOptions, PeerServerOptions,
    Provided, server,
};
use forebay_proto::{
    cluster::{
        ClusterId, FileKey, NodeId, RingEpoch, Version,
        frame::{
            Answer, ChunkRange, Fetch, Greeting, Hello, Magic, NEWEST, OLDEST, PAYLOAD_MAX, PeerOp, Priority, Reply,
            Request, frame, take_head,
        },
    },
    xdr::Xdr,
};
use futures_util::future::BoxFuture;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

pub const CLUSTER: ClusterId = ClusterId([0xfb; 16]);
pub const SERVER: NodeId = NodeId(1);
pub const CLIENT: NodeId = NodeId(2);
pub const EPOCH: RingEpoch = RingEpoch(10);
/// Longer than anything here takes, on a machine that has other things to do.
pub const LONG: Duration = Duration::from_secs(20);

/// A cluster's nodes, as they prove it.
pub struct Cluster(ClusterAuthority);

impl Cluster {
    pub fn new() -> Self {
        Self(ClusterAuthority::create(CLUSTER, SystemTime::now()).unwrap())
    }

    pub fn certificate(&self) -> &[u8] {
        self.0.certificate()
    }

    pub fn issue(&self, node: NodeId, key: &NodeKey) -> Vec<u8> {
        self.issue_at(node, key, SystemTime::now())
    }

    pub fn issue_at(&self, node: NodeId, key: &NodeKey, now: SystemTime) -> Vec<u8> {
        self.0.issue(node, key.public_key(), now).unwrap()
    }

    pub fn node(&self, node: NodeId) -> PeerIdentity {
        self.node_trusting(node, self)
    }

    /// One of ours that takes another cluster's authority for its own.
    pub fn node_trusting(&self, node: NodeId, other: &Self) -> PeerIdentity {
        let key = NodeKey::create().unwrap();
        let certificate = self.issue(node, &key);
        PeerIdentity::mutual(CLUSTER, node, other.certificate(), &certificate, &key).unwrap()
    }
}

pub fn open(node: NodeId) -> PeerIdentity {
    PeerIdentity::open(CLUSTER, node)
}

type Answering = dyn Fn(Caller, Fetch) -> BoxFuture<'static, Provided> + Send + Sync;

/// Answers as a test wants, and counts.
pub struct Provider {
    pub epoch: AtomicU64,
    pub begun: AtomicUsize,
    answer: Box<Answering>,
}

impl Provider {
    pub fn new<F: Future<Output = Provided> + Send + 'static>(
        answer: impl Fn(Caller, Fetch) -> F + Send + Sync + 'static,
    ) -> Arc<Self> {
        let answer: Box<Answering> = Box::new(move |caller, fetch| Box::pin(answer(caller, fetch)));
        Arc::new(Self { epoch: AtomicU64::new(EPOCH.0), begun: AtomicUsize::new(0), answer })
    }

    /// One that has every chunk.
    pub fn full() -> Arc<Self> {
        Self::new(|_, fetch| std::future::ready(data(&fetch)))
    }

    pub fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }
}

impl ChunkProvider for Provider {
    fn epoch(&self) -> RingEpoch {
        RingEpoch(self.epoch.load(Ordering::SeqCst))
    }
    fn fetch(&self, caller: Caller, fetch: Fetch) -> BoxFuture<'_, Provided> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        (self.answer)(caller, fetch)
    }
}

/// What every byte of a chunk is.
pub fn byte(chunk: u32, offset: usize) -> u8 {
    (chunk as usize * 31 + offset * 7 + offset / 256) as u8
}

/// What a full provider gives.
pub fn data(fetch: &Fetch) -> Provided {
    Provided::Data { bytes: content(fetch), eof: fetch.chunk % 2 == 1 }
}

pub fn content(fetch: &Fetch) -> Bytes {
    let range = fetch.range;
    (range.offset()..range.offset() + range.length()).map(|offset| byte(fetch.chunk, offset)).collect::<Vec<_>>().into()
}

pub fn fetch(chunk: u32, offset: u32, length: u32) -> Fetch {
    Fetch {
        file: FileKey { fsid: 1, fileid: 2 },
        version: Version::from_content(3),
        chunk,
        range: ChunkRange::new(offset, length).unwrap(),
        priority: Priority::Reader,
    }
}

pub fn whole(chunk: u32) -> Fetch {
    fetch(chunk, 0, PAYLOAD_MAX)
}

/// Metrics that a test can read.
pub struct Counted {
    recorder: PrometheusRecorder,
    pub metrics: Arc<PeerMetrics>,
}

impl Counted {
    pub fn new() -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        let metrics = metrics::with_local_recorder(&recorder, || Arc::new(PeerMetrics::default()));
        Self { recorder, metrics }
    }

    /// The value of a metric, as its line in the text begins.
    pub fn value(&self, name: &str) -> f64 {
        let text = self.recorder.handle().render();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    pub fn refused(&self, reason: &str) -> f64 {
        self.value(&format!("forebay_peer_refused_total{{reason=\"{reason}\"}}"))
    }

    /// Waits until a metric has a value.
    pub async fn until(&self, name: &str, holds: impl Fn(f64) -> bool) {
        until(|| holds(self.value(name))).await;
    }
}

/// Waits until something is so; fails if it does not come to be.
pub async fn until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(LONG, waiting).await.expect("it never came to be");
}

/// A node that serves.
pub struct Node {
    pub address: SocketAddr,
    pub counted: Counted,
    drain: CancellationToken,
    task: JoinHandle<()>,
}

impl Node {
    pub async fn start(identity: PeerIdentity, provider: Arc<Provider>, options: PeerServerOptions) -> Self {
        Self::start_at(identity, provider, options, "127.0.0.1:0".parse().unwrap()).await
    }

    pub async fn start_at(
        identity: PeerIdentity,
        provider: Arc<Provider>,
        options: PeerServerOptions,
        address: SocketAddr,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (counted, drain) = (Counted::new(), CancellationToken::new());
        let serving = server::serve(identity, provider, counted.metrics.clone(), options, listener, drain.clone());
        Self { address, counted, drain, task: tokio::spawn(serving) }
    }

    /// It is to end, and begins nothing more.
    pub fn drain(&self) {
        self.drain.cancel();
    }

    /// Drains it; everything it began has ended then.
    pub async fn stop(self) -> Counted {
        self.drain.cancel();
        tokio::time::timeout(LONG, self.task).await.expect("it ends").expect("and does not panic");
        self.counted
    }

    /// As a crash does: whatever is under way is cut.
    pub async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

/// A peer that is asked, with its metrics.
pub struct Asked {
    pub peer: Peer,
    pub counted: Counted,
}

pub fn ask(identity: PeerIdentity, address: SocketAddr, options: PeerOptions) -> Asked {
    let counted = Counted::new();
    let new = || Peer::new(identity, SERVER, address, options, counted.metrics.clone());
    let peer = metrics::with_local_recorder(&counted.recorder, new);
    Asked { peer, counted }
}

pub fn one_connection() -> PeerOptions {
    PeerOptions { connections: 1, ..PeerOptions::default() }
}

pub fn with_pauses(pauses: (Duration, Duration)) -> PeerOptions {
    PeerOptions { pauses, ..one_connection() }
}

/// A provider, a node that serves it, and a peer that asks the node, over TLS.
pub async fn pair(provider: Arc<Provider>, options: PeerServerOptions) -> (Node, Asked) {
    let cluster = Cluster::new();
    let node = Node::start(cluster.node(SERVER), provider, options).await;
    let asked = ask(cluster.node(CLIENT), node.address, one_connection());
    (node, asked)
}

/// An end of a connection without TLS that sends what it is told to.
pub struct Raw {
    pub stream: TcpStream,
    pub input: BytesMut,
}

impl Raw {
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, input: BytesMut::new() }
    }

    /// Connects to a node as [`CLIENT`] and greets it.
    pub async fn greeted(address: SocketAddr) -> Self {
        let mut raw = Self::new(TcpStream::connect(address).await.unwrap());
        raw.send(&frame(&Greeting::Hello(hello(CLIENT, SERVER)))).await;
        assert!(matches!(raw.head().await, Some(Greeting::Hello(_))));
        raw
    }

    /// Takes a connection as [`SERVER`] and greets whoever it is.
    pub async fn accepted(listener: &TcpListener) -> Self {
        let mut raw = Self::new(listener.accept().await.unwrap().0);
        assert!(matches!(raw.head().await, Some(Greeting::Hello(_))));
        raw.send(&frame(&Greeting::Hello(hello(SERVER, CLIENT)))).await;
        raw
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    pub async fn request(&mut self, id: u64, op: PeerOp) {
        self.send(&frame(&Request { id, epoch: EPOCH, op })).await;
    }

    pub async fn reply(&mut self, id: u64, answer: Answer) {
        self.send(&frame(&Reply { id, answer })).await;
    }

    /// The next head; `None` if the other end has closed.
    pub async fn head<T: Xdr>(&mut self) -> Option<T> {
        loop {
            if let Some(head) = take_head(&mut self.input).unwrap() {
                return Some(head);
            }
            let read =
                tokio::time::timeout(LONG, self.stream.read_buf(&mut self.input)).await.expect("it says something");
            if read.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// A reply and its payload.
    pub async fn replied(&mut self) -> Option<(Reply, BytesMut)> {
        let reply: Reply = self.head().await?;
        let Answer::Data(head) = &reply.answer else { return Some((reply, BytesMut::new())) };
        while self.input.len() < head.length.bytes() {
            if self.stream.read_buf(&mut self.input).await.unwrap() == 0 {
                return None;
            }
        }
        let payload = self.input.split_to(head.length.bytes());
        Some((reply, payload))
    }

    /// Waits until the other end closes, whatever it says before.
    pub async fn closed(&mut self) {
        let reading = async { while self.stream.read_buf(&mut self.input).await.unwrap_or(0) > 0 {} };
        tokio::time::timeout(LONG, reading).await.expect("it closes");
    }
}

pub fn hello(from: NodeId, to: NodeId) -> Hello {
    Hello { magic: Magic, oldest: OLDEST, newest: NEWEST, cluster: CLUSTER, from, to, epoch: EPOCH }
}
