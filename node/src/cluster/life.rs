//! A node's life in its cluster: it gets in, keeps its lease, serves, sees who else is there, and leads if it is chosen to.
//!
//! Owns: the tasks that do so, and what they share. Never does: files, NFS. Invariants: the lease is counted from before it was asked for; the
//! plane's time is what some leader has led, so it never runs ahead of a node's own clock.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use async_trait::async_trait;
use bytes::Bytes;
use forebay_meta::{
    Command, Plane, Reply,
    keeper::{self, Step, Wishes},
    raft::{Peer, transport::Grpc},
    state::{Bytes as Stored, Identity, NODE_LEASE_MS, NodeDescription, NodeId, NodeState},
};
use forebay_proto::cluster::Weight;
use parking_lot::Mutex;
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    NodeLease, View,
    control::{Answerer, Control, Topic},
    enter::{AUTHORITY_CERTIFICATE, AUTHORITY_KEY, EnterError, Entering, Files, Gate, Membership, Token},
    peers::Peers,
    transport::{Calling, Listening},
};
use crate::{
    config::ClusterConfig,
    peer::{ChunkProvider, PeerIdentity, PeerMetrics, PeerServerOptions, server},
    ring::coherence::{Answers, Coherence},
};

/// How often a node asks for its lease.
const BEAT: Duration = Duration::from_millis(700);
/// And after a failure.
const BEAT_AGAIN: Duration = Duration::from_millis(150);
/// How long the leader may take to say so.
const BEAT_MAX: Duration = Duration::from_millis(1_500);
/// How often the leader tells the plane the time, and whom it has heard of.
const LEAD: Duration = Duration::from_millis(150);
/// How often it looks at who votes.
const KEEP: Duration = Duration::from_millis(500);
/// Time that the leader did not run for longer than this has not passed for the plane.
const LEAP_MAX: Duration = Duration::from_secs(1);
/// How often the view is looked at.
const LOOK: Duration = Duration::from_millis(30);
/// A node that has been lost for this long is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(4 * 3600);
/// What a usual node's cache has: the ring's scale, fixed for ever.
const STANDARD_CACHE: u64 = 256 << 30;
/// Less weight than this is too few points to be spread evenly.
const WEIGHT_MIN: u32 = 16;
/// How long leaving in good order may take.
const LEAVE: Duration = Duration::from_secs(2);

/// A node as a member.
pub struct Cluster {
    /// This node.
    pub me: NodeId,
    /// Of this process.
    pub epoch: u32,
    /// The cluster's name.
    pub name: String,
    /// Facts that all nodes share.
    pub plane: Plane,
    /// Who believes what.
    pub coherence: Arc<Coherence>,
    /// The others' chunks.
    pub peers: Arc<Peers>,
    /// Messages to the others.
    pub control: Arc<dyn Control>,
    /// The cluster as this node sees it.
    pub view: watch::Receiver<Option<Arc<View>>>,
    /// Whether it may act as an owner.
    pub lease: watch::Receiver<Option<NodeLease>>,
    identity: PeerIdentity,
    metrics: Arc<PeerMetrics>,
    listening: Arc<Listening>,
    chunks: Mutex<Option<TcpListener>>,
    serves: watch::Sender<bool>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("me", &self.me).field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a node is told about itself.
#[derive(Clone, Debug)]
pub struct Being {
    /// What outlives the process.
    pub data_dir: PathBuf,
    /// Where NFS is served.
    pub nfs: SocketAddr,
    /// Bytes of its cache.
    pub cache_bytes: u64,
    /// The rest.
    pub cluster: ClusterConfig,
}

impl Cluster {
    /// Gets in, or begins the cluster, however long that takes; returns once this node knows what all know.
    ///
    /// # Errors
    /// What it keeps is damaged or another cluster's, or an address cannot be listened on.
    pub async fn start(being: Being, fresh: impl FnOnce(uuid::Uuid) -> Identity) -> anyhow::Result<Arc<Self>> {
        let config = &being.cluster;
        let listen = async |address: SocketAddr, what: &str| {
            TcpListener::bind(address).await.with_context(|| format!("cannot listen for {what} on {address}"))
        };
        let control = listen(config.control, "other nodes").await?;
        let chunks = listen(config.peer, "other nodes' chunks").await?;
        let files = Files::open(&being.data_dir)?;
        let membership = files.membership(&config.name)?;
        if membership.is_none() && Plane::is_there(&being.data_dir) {
            return Err(EnterError::Alone(being.data_dir).into());
        }
        let key = files.key()?;
        let token = Token::new(config.token.0.as_bytes(), &config.name);
        let gate = Gate::new(token.clone(), files.clone(), &key, config.expect)?;
        let metrics = Arc::new(PeerMetrics::default());
        let listening = Listening::begin(control, gate.clone(), metrics.clone())?;
        let description = describe(&being, listening.address(), chunks.local_addr()?).await?;
        let membership = match membership {
            Some(membership) => membership,
            None => {
                let (seeds, expect) = (config.seeds.clone(), config.expect);
                let (description, gate) = (description.clone(), &*gate);
                Entering { token, seeds, expect, description, gate, key: &key, files: &files }.run().await?
            }
        };
        let identity = membership.identity(&key)?;
        let me = identity.node;
        let (plane, calling) = open_plane(&being, &membership, &identity, &listening).await?;
        if let Some(authority) = &membership.begins_with {
            let first =
                first_commands(&membership, authority, key.public_key(), &description, fresh(membership.cluster));
            plane.found(me, description.control.clone(), first).await?;
            files.keep(&Membership { begins_with: None, ..membership.clone() })?;
        }
        gate.open(plane.clone(), membership.clone());
        wait_for_plane(&plane).await;
        propose(&plane, Command::Join { node: me, description }).await;
        let Reply::Epoch(epoch) = propose(&plane, Command::StartEpoch { node: me }).await else {
            anyhow::bail!("the cluster counts no further starts of nodes");
        };
        let coherence = Coherence::new(me, epoch, calling.clone());
        listening.register(Topic::Files, Arc::new(Answers(coherence.clone())));
        let peers = Peers::new(identity.clone(), metrics.clone());
        let (view, views) = watch::channel(None);
        let (lease, leases) = watch::channel(None);
        let (serves, serving) = watch::channel(false);
        let cluster = Arc::new(Self {
            me,
            epoch,
            name: config.name.clone(),
            plane: plane.clone(),
            coherence: coherence.clone(),
            peers: peers.clone(),
            control: calling.clone(),
            view: views.clone(),
            lease: leases.clone(),
            identity,
            metrics,
            listening: listening.clone(),
            chunks: Mutex::new(Some(chunks)),
            serves,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        let leader = Arc::new(Leader::new(plane.clone(), me, config.voters));
        listening.register(Topic::Life, Arc::new(Beats(leader.clone())));
        let node = Node { me, epoch, plane: plane.clone(), control: calling, leader: leader.clone() };
        cluster.run(leader.lead());
        cluster.run(node.clone().beat(lease, serving));
        cluster.run(node.look(view, peers));
        cluster.run(coherence.run(views, leases));
        tracing::info!(cluster = cluster.name, node = me.0, epoch, "this node is a member");
        Ok(cluster)
    }

    fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = task => {}
                () = stop.cancelled() => {}
            }
        });
    }

    /// Other nodes' questions on a topic are answered from now on.
    pub fn register(&self, topic: Topic, answerer: Arc<dyn Answerer>) {
        self.listening.register(topic, answerer);
    }

    /// Other nodes are given chunks from now on.
    pub fn give_chunks(&self, provider: Arc<dyn ChunkProvider>) {
        let Some(listener) = self.chunks.lock().take() else { return };
        let (identity, metrics, stop) = (self.identity.clone(), self.metrics.clone(), self.stop.clone());
        self.tasks.spawn(server::serve(identity, provider, metrics, PeerServerOptions::default(), listener, stop));
    }

    /// This node owns files from now on.
    pub fn serve(&self) {
        self.serves.send_replace(true);
    }

    /// Leaves in good order: its files go to others, who need not wait for its lease to end.
    pub async fn leave(&self) {
        self.serves.send_replace(false);
        let draining = Command::SetNodeState { node: self.me, epoch: self.epoch, state: NodeState::Draining };
        let leaving = async {
            if self.plane.propose(draining).await.is_err() {
                return;
            }
            // Those who ask whether its files are free are answered meanwhile.
            while self.view.borrow().as_ref().is_some_and(|view| view.ring.epoch > self.coherence.epoch()) {
                tokio::time::sleep(LOOK).await;
            }
            tokio::time::sleep(BEAT).await;
        };
        if tokio::time::timeout(LEAVE, leaving).await.is_err() {
            tracing::warn!("the cluster does not take notice; it finds out by itself");
        }
    }

    /// Ends everything but the plane, which is closed by whoever closes that of a node on its own.
    pub async fn close(&self) {
        self.coherence.close();
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.peers.close().await;
        self.listening.close().await;
    }
}

/// What the cluster begins with.
fn first_commands(
    membership: &Membership,
    authority: &[u8],
    public_key: &[u8],
    description: &NodeDescription,
    identity: Identity,
) -> Vec<Command> {
    let secret = |name: &str, secret: &[u8]| Command::PutSecret { name: name.into(), secret: Stored(secret.to_vec()) };
    vec![
        Command::Initialise(identity),
        secret(AUTHORITY_KEY, authority),
        secret(AUTHORITY_CERTIFICATE, &membership.authority),
        Command::AdmitNode { key: Stored(public_key.to_vec()) },
        Command::Join { node: NodeId(membership.node), description: description.clone() },
    ]
}

async fn open_plane(
    being: &Being,
    membership: &Membership,
    identity: &PeerIdentity,
    listening: &Listening,
) -> anyhow::Result<(Plane, Arc<Calling>)> {
    let slot: Arc<OnceLock<Plane>> = Arc::default();
    let known: BTreeMap<u64, SocketAddr> =
        membership.known.iter().filter_map(|(node, address)| Some((*node, address.parse().ok()?))).collect();
    let plane = slot.clone();
    let find = move |node: NodeId| {
        let told = plane.get().and_then(|plane| {
            plane.read(|state| state.nodes.node(node).and_then(|record| record.description.control.parse().ok()))
        });
        told.or_else(|| known.get(&node.0).copied())
    };
    let find: Arc<dyn Fn(NodeId) -> Option<SocketAddr> + Send + Sync> = Arc::new(find);
    let calling = Calling::new(identity.clone(), find.clone())?;
    let channels = calling.clone();
    let connect = move |peer: &Peer| {
        // The plane knows best, but who is just beginning has only the group's own word.
        let address = find(NodeId(peer.id)).or_else(|| peer.address.parse().ok());
        let address = address.ok_or_else(|| format!("node {} has no address", peer.id))?;
        Ok(channels.channel(NodeId(peer.id), address))
    };
    let plane = Plane::member(&being.data_dir, identity.node, Grpc::new(Arc::new(connect))).await?;
    // It is set once, here.
    let _ = slot.set(plane.clone());
    listening.become_node(identity, Arc::new(plane.group().clone()))?;
    Ok((plane, calling))
}

/// Until this node has everything that was said before it came.
async fn wait_for_plane(plane: &Plane) {
    let began = Instant::now();
    let mut said = Duration::ZERO;
    while plane.read_linearizable(|state| state.identity.is_some()).await != Ok(true) {
        if began.elapsed() > said + Duration::from_secs(5) {
            said = began.elapsed();
            tracing::info!(seconds = said.as_secs(), "waiting for the other nodes: no majority is here yet");
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What must be said before the node goes on, and does no harm said twice.
async fn propose(plane: &Plane, command: Command) -> Reply {
    loop {
        match plane.propose(command.clone()).await {
            Ok(reply) => return reply,
            Err(error) => tracing::warn!(%error, "the plane does not answer; trying again"),
        }
        tokio::time::sleep(BEAT_AGAIN).await;
    }
}

async fn describe(being: &Being, control: SocketAddr, peer: SocketAddr) -> anyhow::Result<NodeDescription> {
    let config = &being.cluster;
    let host = match config.advertise {
        Some(host) => host,
        None if !control.ip().is_unspecified() => control.ip(),
        None => seen_from(&config.seeds).await.context(
            "this node listens on all its addresses and no seed tells which of them others can reach: give --advertise",
        )?,
    };
    let at = |address: SocketAddr| {
        let ip = if address.ip().is_unspecified() { host } else { address.ip() };
        SocketAddr::new(ip, address.port()).to_string()
    };
    let weight = Weight::of_cache(being.cache_bytes, STANDARD_CACHE).units().max(WEIGHT_MIN);
    Ok(NodeDescription {
        nfs: at(being.nfs),
        peer: at(peer),
        control: at(control),
        zone: config.zone.clone(),
        weight,
        may_vote: config.may_vote,
    })
}

/// The address from which this machine reaches the seeds.
async fn seen_from(seeds: &[String]) -> Option<IpAddr> {
    for seed in seeds {
        for address in tokio::net::lookup_host(seed).await.into_iter().flatten() {
            let any: SocketAddr = if address.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
            let socket = tokio::net::UdpSocket::bind(any).await.ok()?;
            // Nothing is sent; the system only chooses a way.
            if socket.connect(address).await.is_ok()
                && let Ok(mine) = socket.local_addr()
            {
                return Some(mine.ip());
            }
        }
    }
    None
}

/// What a node does whoever leads.
#[derive(Clone)]
struct Node {
    me: NodeId,
    epoch: u32,
    plane: Plane,
    control: Arc<dyn Control>,
    leader: Arc<Leader>,
}

impl Node {
    /// Keeps the lease.
    async fn beat(self, lease: watch::Sender<Option<NodeLease>>, mut serving: watch::Receiver<bool>) {
        loop {
            let sent = Instant::now();
            let is_held = self.beat_once().await;
            if is_held {
                lease.send_replace(Some(NodeLease { sent, valid: Duration::from_millis(NODE_LEASE_MS) }));
            }
            let record = self.plane.read(|state| state.nodes.node(self.me).map(|node| (node.epoch, node.state)));
            let waits = matches!(record, Some((_, NodeState::Joining | NodeState::Lost)));
            if waits && *serving.borrow() {
                let state = NodeState::Serving;
                let serve = Command::SetNodeState { node: self.me, epoch: self.epoch, state };
                match self.plane.propose(serve).await {
                    Ok(Reply::Done) => tracing::info!(node = self.me.0, "this node serves"),
                    Ok(_) => tracing::error!("another process speaks for this node; this one owns nothing any more"),
                    Err(error) => tracing::warn!(%error, "the plane does not take that this node serves"),
                }
            }
            let pause = if is_held { BEAT } else { BEAT_AGAIN };
            tokio::select! {
                () = tokio::time::sleep(pause.saturating_sub(sent.elapsed())) => {}
                _ = serving.changed() => {}
            }
        }
    }

    async fn beat_once(&self) -> bool {
        let Some(leader) = self.plane.group().status().leader.map(NodeId) else { return false };
        if leader == self.me {
            return self.leader.beaten(self.me, self.epoch).await;
        }
        let message = Bytes::copy_from_slice(&self.epoch.to_be_bytes());
        let answer = self.control.call(leader, Topic::Life, message, BEAT_MAX).await;
        answer.is_ok_and(|answer| answer[..] == [1])
    }

    /// Tells all who want to know how the cluster looks.
    async fn look(self, view: watch::Sender<Option<Arc<View>>>, peers: Arc<Peers>) {
        loop {
            let news = self.plane.read(|state| {
                let nodes = &state.nodes;
                let known = view.borrow();
                let is_known = known.as_ref().is_some_and(|known| {
                    known.ring == *nodes.ring() && known.nodes.iter().map(|(id, node)| (*id, node)).eq(nodes.iter())
                });
                (!is_known).then(|| View {
                    me: self.me,
                    epoch: self.epoch,
                    ring: nodes.ring().clone(),
                    previous: nodes.previous_ring().clone(),
                    nodes: Arc::new(nodes.iter().map(|(id, node)| (id, node.clone())).collect()),
                })
            });
            if let Some(news) = news {
                peers.follow(&news);
                view.send_replace(Some(Arc::new(news)));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// What the leader knows; on every node, idle where it does not lead.
struct Leader {
    plane: Plane,
    me: NodeId,
    voters: usize,
    /// Who wants to hear that its lease is renewed.
    waiting: Mutex<Vec<Waiting>>,
    heard: Mutex<HashMap<NodeId, Instant>>,
}

struct Waiting {
    node: NodeId,
    epoch: u32,
    told: oneshot::Sender<bool>,
}

/// Nodes that may wait at once: all there can be, twice.
const WAITING_MAX: usize = 2_048;

impl Leader {
    fn new(plane: Plane, me: NodeId, voters: usize) -> Self {
        Self { plane, me, voters, waiting: Mutex::default(), heard: Mutex::default() }
    }

    /// A node's beat; whether its lease is renewed.
    async fn beaten(&self, node: NodeId, epoch: u32) -> bool {
        let (told, renewed) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock();
            if waiting.len() >= WAITING_MAX {
                return false;
            }
            waiting.push(Waiting { node, epoch, told });
        }
        self.heard.lock().insert(node, Instant::now());
        tokio::time::timeout(BEAT_MAX, renewed).await.is_ok_and(|renewed| renewed.unwrap_or(false))
    }

    /// Leads whenever it is this node's turn.
    async fn lead(self: Arc<Self>) {
        let (mut time, mut last, mut kept) = (None, Instant::now(), Instant::now());
        let mut led_since = Instant::now();
        loop {
            tokio::time::sleep(LEAD).await;
            if !self.plane.group().status().leads {
                time = None;
                self.waiting.lock().clear();
                continue;
            }
            if time.is_none() {
                // Whom an earlier leader heard of is not known here: everybody has been heard of just now.
                self.heard.lock().clear();
                (last, led_since) = (Instant::now(), Instant::now());
            }
            let now = Instant::now();
            let passed = now.duration_since(last).min(LEAP_MAX);
            last = now;
            let known = self.plane.read(|state| state.now_ms);
            let now_ms = known.max(time.unwrap_or(known) + u64::try_from(passed.as_millis()).unwrap_or(0));
            time = Some(now_ms);
            self.renew(now_ms).await;
            if kept.elapsed() > KEEP {
                kept = Instant::now();
                self.keep(led_since).await;
            }
        }
    }

    async fn renew(&self, now_ms: u64) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        let nodes = waiting.iter().map(|waiting| (waiting.node, waiting.epoch)).collect();
        let renewed = self.plane.propose(Command::RenewLeases { nodes, now_ms }).await.is_ok();
        for Waiting { node, epoch, told } in waiting {
            let is_held = renewed
                && self.plane.read(|state| {
                    let record = state.nodes.node(node);
                    record.is_some_and(|record| record.epoch == epoch && record.state != NodeState::Lost)
                });
            // It may have stopped waiting.
            let _ = told.send(is_held);
        }
    }

    /// One step towards the right voters.
    async fn keep(&self, led_since: Instant) {
        let status = self.plane.group().status();
        let (voters, members) = (status.voters.clone(), status.members.clone());
        let last = status.last.unwrap_or(0);
        let lag = status.matched.iter().filter_map(|(id, at)| Some((NodeId(*id), last.saturating_sub((*at)?))));
        let silent = {
            let heard = self.heard.lock();
            let since = |id: u64| heard.get(&NodeId(id)).copied().unwrap_or(led_since).elapsed();
            let silent = members.keys().filter(|id| NodeId(**id) != self.me);
            silent.map(|id| (NodeId(*id), since(*id).as_millis() as u64)).collect()
        };
        let group = keeper::Group {
            voters: voters.iter().copied().map(NodeId).collect(),
            learners: members.keys().filter(|id| !voters.contains(id)).copied().map(NodeId).collect(),
            lag: lag.collect(),
            silent_ms: silent,
        };
        let wishes = Wishes { voters: self.voters, ..Wishes::default() };
        let step = self.plane.read(|state| keeper::next_step(&state.nodes, &group, self.me, wishes));
        let Some(step) = step else { return self.forget_the_lost().await };
        let done = match &step {
            Step::AddLearner(node) => {
                let address = self.plane.read(|state| {
                    state.nodes.node(*node).map(|node| node.description.control.clone()).unwrap_or_default()
                });
                self.plane.group().add_learner(Peer { id: node.0, address }).await
            }
            Step::SetVoters(voters) => {
                self.plane.group().change_voters(voters.iter().map(|id| id.0).collect(), true).await
            }
            Step::RemoveLearner(node) => self.plane.group().remove_learners([node.0].into()).await,
        };
        match done {
            Ok(()) => tracing::info!(?step, "the group of those who vote and follow has changed"),
            Err(error) => tracing::debug!(?step, %error, "not yet"),
        }
    }

    /// Nodes that will not come back are forgotten.
    async fn forget_the_lost(&self) {
        let now_ms = self.plane.read(|state| state.now_ms);
        let is_over = |until: u64| until + FORGET_AFTER.as_millis() as u64 <= now_ms;
        let gone = self.plane.read(|state| {
            let gone =
                state.nodes.iter().filter(|(_, node)| node.state == NodeState::Lost && is_over(node.lease_until_ms));
            gone.map(|(id, _)| id).next()
        });
        if let Some(node) = gone
            && self.plane.propose(Command::Leave { node }).await.is_ok()
        {
            tracing::info!(node = node.0, "a node that has been lost for hours is forgotten");
        }
    }
}

/// Answers beats.
struct Beats(Arc<Leader>);

#[async_trait]
impl Answerer for Beats {
    async fn answer(&self, from: NodeId, message: Bytes) -> Option<Bytes> {
        let epoch = u32::from_be_bytes(message[..].try_into().ok()?);
        let is_held = self.0.plane.group().status().leads && self.0.beaten(from, epoch).await;
        Some(Bytes::copy_from_slice(&[u8::from(is_held)]))
    }
}
