//! Several nodes over one directory: a network that delays, loses and cuts, and a plane that gives leases and turns the ring.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_meta::state::{Changes, Command, NodeDescription, NodeId, NodeState, Reply, State};
use forebay_node::{
    cache::{Cache, ChunkKey},
    cluster::{
        NodeLease, View,
        control::{Answerer, CallError, Control, Topic},
    },
    peer::{Caller, ChunkProvider, Provided},
    ring::{
        coherence::{Answers, Coherence},
        messages::Message,
    },
    source::{
        Credentials,
        cached::{
            CachedFile, CachedOptions, CachedSource, ChunkPeers, Consistency, FarChunk, Policy, SharedChunks, Sharing,
        },
        local::{LocalOptions, LocalSource},
        shared::SharedSource,
    },
};
use forebay_proto::cluster::{
    FileKey, RingEpoch, Version,
    frame::{ChunkRange, Fetch, Priority},
};
use tokio::sync::watch;

use crate::common::upstream::Upstream;

pub fn superuser() -> Credentials {
    Credentials { uid: 0, gid: 0, groups: Arc::from([]) }
}

/// The network between nodes.
#[derive(Default)]
pub struct Net {
    answerers: Mutex<HashMap<NodeId, Arc<dyn Answerer>>>,
    chunks: Mutex<HashMap<NodeId, Arc<SharedChunks>>>,
    /// Pairs between which nothing goes.
    cut: Mutex<BTreeSet<(NodeId, NodeId)>>,
    /// Messages take up to so many microseconds.
    pub delay_us: AtomicU64,
    /// Of a thousand messages so many are lost, on the way there or back.
    pub lost: AtomicU64,
    /// What must be noticed: recalls are acknowledged and forgotten.
    pub forgets_recalls: AtomicBool,
    pub calls: AtomicU64,
    seed: AtomicU64,
}

impl Net {
    fn random(&self, below: u64) -> u64 {
        let number = self.seed.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        xxhash_rust::xxh3::xxh3_64(&number.to_be_bytes()) % below.max(1)
    }

    pub fn cut(&self, a: NodeId, b: NodeId) {
        self.cut.lock().unwrap().extend([(a, b), (b, a)]);
    }

    pub fn cut_off(&self, node: NodeId) {
        (0..16).map(NodeId).for_each(|other| self.cut(node, other));
    }

    pub fn heal(&self) {
        self.cut.lock().unwrap().clear();
    }

    fn is_cut(&self, a: NodeId, b: NodeId) -> bool {
        self.cut.lock().unwrap().contains(&(a, b))
    }

    async fn travel(&self) -> bool {
        // Most go at once: a sleep takes a millisecond at least, and histories should be long.
        let delay = self.random(self.delay_us.load(Ordering::Relaxed));
        if delay > 100 && self.random(8) == 0 {
            tokio::time::sleep(Duration::from_micros(delay)).await;
        } else {
            tokio::task::yield_now().await;
        }
        self.random(1000) >= self.lost.load(Ordering::Relaxed)
    }
}

/// A node's end of the network.
struct Wire {
    me: NodeId,
    net: Arc<Net>,
}

#[async_trait]
impl Control for Wire {
    async fn call(&self, to: NodeId, topic: Topic, message: Bytes, within: Duration) -> Result<Bytes, CallError> {
        assert_eq!(topic, Topic::Files);
        self.net.calls.fetch_add(1, Ordering::Relaxed);
        let call = async {
            if !self.net.travel().await || self.net.is_cut(self.me, to) {
                std::future::pending::<()>().await;
            }
            let answerer = self.net.answerers.lock().unwrap().get(&to).cloned();
            let answerer = answerer.ok_or_else(|| CallError::NotSent("nobody there".into()))?;
            let is_recall = matches!(Message::decode(&message), Some(Message::Recall { .. }));
            if is_recall && self.net.forgets_recalls.load(Ordering::Relaxed) {
                return Ok(forebay_node::ring::messages::Answer::Done.encode());
            }
            // What arrived is acted upon, whoever stops waiting for it.
            let from = self.me;
            let answering = tokio::spawn(async move { answerer.answer(from, message).await });
            let answer = answering.await.ok().flatten().expect("our own messages are understood");
            if !self.net.travel().await || self.net.is_cut(self.me, to) {
                std::future::pending::<()>().await;
            }
            Ok(answer)
        };
        tokio::time::timeout(within, call).await.unwrap_or(Err(CallError::Unknown("late".into())))
    }
}

#[async_trait]
impl ChunkPeers for Wire {
    async fn fetch(&self, from: NodeId, epoch: u64, key: ChunkKey, _length: u64, _ahead: bool) -> FarChunk {
        if self.net.is_cut(self.me, from) || !self.net.travel().await {
            return FarChunk::Gone;
        }
        let Some(chunks) = self.net.chunks.lock().unwrap().get(&from).cloned() else { return FarChunk::Gone };
        let caller = Caller { node: self.me, epoch: RingEpoch(epoch) };
        let fetch = Fetch {
            file: FileKey::from_u128(key.file).unwrap(),
            version: Version::from_content(key.version),
            chunk: key.index,
            range: ChunkRange::WHOLE,
            priority: Priority::Reader,
        };
        match chunks.fetch(caller, fetch).await {
            Provided::Data { bytes, .. } => FarChunk::Here(bytes),
            _ => FarChunk::Miss,
        }
    }

    fn usual_time(&self, _node: NodeId) -> Option<Duration> {
        None
    }
}

/// A node.
pub struct Member {
    pub id: NodeId,
    pub coherence: Arc<Coherence>,
    pub cached: Arc<CachedSource>,
    pub root: Arc<CachedFile>,
    view: watch::Sender<Option<Arc<View>>>,
    lease: watch::Sender<Option<NodeLease>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.coherence.close();
        self.task.abort();
    }
}

/// Nodes, their source, and their plane.
pub struct Cluster {
    pub home: tempfile::TempDir,
    pub upstream: Arc<Upstream>,
    pub net: Arc<Net>,
    pub members: BTreeMap<NodeId, Member>,
    plane: Arc<Mutex<Plane>>,
    task: Option<tokio::task::JoinHandle<()>>,
}

/// The plane's own number in the network.
pub const PLANE: NodeId = NodeId(0);

struct Plane {
    state: State,
    began: Instant,
    epochs: BTreeMap<NodeId, u32>,
    /// Who wants to serve.
    willing: BTreeSet<NodeId>,
}

impl Plane {
    fn apply(&mut self, command: Command) -> Reply {
        self.state.apply(&command, &mut Changes::default())
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn view(&self, me: NodeId) -> View {
        let nodes = &self.state.nodes;
        View {
            me,
            epoch: self.epochs[&me],
            ring: nodes.ring().clone(),
            previous: nodes.previous_ring().clone(),
            nodes: Arc::new(nodes.iter().map(|(id, record)| (id, record.clone())).collect()),
        }
    }
}

pub fn options(consistency: Consistency) -> CachedOptions {
    CachedOptions { policy: Policy::preset(consistency), ..CachedOptions::default() }
}

impl Cluster {
    /// Nodes 1 to `count`, all of which serve.
    pub async fn start(count: u64, options: CachedOptions) -> Self {
        let home = tempfile::tempdir().unwrap();
        let local = LocalSource::open(home.path(), LocalOptions::default()).unwrap();
        let upstream = Upstream::new(local);
        let plane =
            Plane { state: State::default(), began: Instant::now(), epochs: BTreeMap::new(), willing: BTreeSet::new() };
        let mut cluster = Self {
            home,
            upstream,
            net: Arc::default(),
            members: BTreeMap::new(),
            plane: Arc::new(Mutex::new(plane)),
            task: None,
        };
        for id in (1..=count).map(NodeId) {
            cluster.join(id, options).await;
        }
        cluster.run_plane();
        cluster.settled().await;
        cluster.upstream.take_calls();
        cluster.upstream.read_bytes.store(0, Ordering::Relaxed);
        cluster
    }

    /// A process of a node begins, and wants to serve.
    pub async fn join(&mut self, id: NodeId, options: CachedOptions) {
        self.members.remove(&id);
        let (epoch, view) = {
            let mut plane = self.plane.lock().unwrap();
            let description = NodeDescription {
                nfs: String::new(),
                peer: String::new(),
                control: String::new(),
                zone: String::new(),
                weight: 64,
                may_vote: true,
            };
            plane.apply(Command::Join { node: id, description });
            let Reply::Epoch(epoch) = plane.apply(Command::StartEpoch { node: id }) else { panic!() };
            plane.epochs.insert(id, epoch);
            plane.willing.insert(id);
            (epoch, plane.view(id))
        };
        let wire = Arc::new(Wire { me: id, net: self.net.clone() });
        let coherence = Coherence::new(id, epoch, wire.clone());
        let source = SharedSource::new(self.upstream.clone(), coherence.clone(), "/x");
        let cache: Arc<Cache> = crate::common::ram_cache();
        let sharing = Sharing::new(source, wire);
        let cached =
            CachedSource::shared(("/x", "test://x"), sharing, cache.clone(), options, id.0 << 32 | u64::from(epoch));
        let chunks = Arc::new(SharedChunks::new(cache));
        chunks.add(&cached);
        self.net.answerers.lock().unwrap().insert(id, Arc::new(Answers(coherence.clone())));
        self.net.chunks.lock().unwrap().insert(id, chunks);
        let (view, views) = watch::channel(Some(Arc::new(view)));
        let (lease, leases) = watch::channel(None);
        let task = tokio::spawn(coherence.clone().run(views, leases));
        let root = cached.root(&superuser()).await.unwrap();
        let member = Member { id, coherence, cached, root, view, lease, task };
        self.members.insert(id, member);
        self.run_plane();
    }

    /// A node dies.
    pub fn kill(&mut self, id: NodeId) {
        self.net.answerers.lock().unwrap().remove(&id);
        self.net.chunks.lock().unwrap().remove(&id);
        self.plane.lock().unwrap().willing.remove(&id);
        self.members.remove(&id);
    }

    /// A node leaves the ring in good order, but goes on answering.
    pub fn leave(&self, id: NodeId) {
        let mut plane = self.plane.lock().unwrap();
        let epoch = plane.epochs[&id];
        plane.willing.remove(&id);
        plane.apply(Command::SetNodeState { node: id, epoch, state: NodeState::Draining });
    }

    /// And serves again.
    pub fn serve(&self, id: NodeId) {
        self.plane.lock().unwrap().willing.insert(id);
    }

    fn run_plane(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
        let (plane, net) = (self.plane.clone(), self.net.clone());
        let ends: Vec<_> =
            self.members.values().map(|member| (member.id, member.view.clone(), member.lease.clone())).collect();
        self.task = Some(tokio::spawn(async move {
            for turn in 0_u64.. {
                for (id, view, lease) in &ends {
                    if net.is_cut(*id, PLANE) || net.answerers.lock().unwrap().get(id).is_none() {
                        continue;
                    }
                    let sent = Instant::now();
                    let mut plane = plane.lock().unwrap();
                    let now_ms = plane.now_ms();
                    let epoch = plane.epochs[id];
                    if turn % 4 == id.0 % 4 {
                        plane.apply(Command::RenewLeases { nodes: vec![(*id, epoch)], now_ms });
                        let is_held = plane.state.nodes.node(*id).is_some_and(|node| node.state != NodeState::Lost);
                        if is_held {
                            let _ = lease.send(Some(NodeLease { sent, valid: Duration::from_millis(3_000) }));
                        }
                    }
                    let state = plane.state.nodes.node(*id).map(|node| node.state);
                    if plane.willing.contains(id) && state != Some(NodeState::Serving) {
                        plane.apply(Command::SetNodeState { node: *id, epoch, state: NodeState::Serving });
                    }
                    let news = Arc::new(plane.view(*id));
                    let is_news = view.borrow().as_ref() != Some(&news);
                    if is_news {
                        let _ = view.send(Some(news));
                    }
                }
                {
                    let mut plane = plane.lock().unwrap();
                    let now_ms = plane.now_ms();
                    plane.apply(Command::Tick { now_ms });
                }
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
        }));
    }

    /// Waits until all that are in the ring go by the same one and act as owners.
    pub async fn settled(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let (epoch, members) = {
                let plane = self.plane.lock().unwrap();
                let ring = plane.state.nodes.ring();
                (ring.epoch, ring.members.iter().map(|(id, _)| *id).collect::<Vec<_>>())
            };
            let live: Vec<_> = self.members.keys().copied().collect();
            let all = live == members && self.members.values().all(|member| member.coherence.is_in_order(epoch));
            if all {
                return;
            }
            assert!(Instant::now() < deadline, "ring {epoch} of {members:?} does not settle");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn node(&self, id: u64) -> &Member {
        &self.members[&NodeId(id)]
    }

    pub fn write_file(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.home.path().join(name), bytes).unwrap();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}
