//! A peer that is asked.
//!
//! Owns: a few connections to one node, which of them a request takes, whether the node is there, how long it takes.
//! Never does: decide whom to ask, ask a second one.
//!
//! Invariants:
//! * A request ends within its deadline; one that nobody waits for any more is taken back at the other end too.
//! * While no connection stands and the last try failed, requests fail at once.
//! * At most [`IN_FLIGHT_MAX`] requests are under way on a connection; further ones wait.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use forebay_proto::cluster::{
    NodeId, RingEpoch,
    frame::{Fetch, IN_FLIGHT_MAX, Refusal},
};
use parking_lot::Mutex;
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    identity::PeerIdentity,
    latency::Latency,
    link::{self, Link, Wanted},
    metrics::{PeerGauges, PeerMetrics},
};

/// Connections to one node at most: one core encrypts about a gigabyte a second, and a node has more than one.
pub const CONNECTIONS_MAX: usize = 4;
/// The share of requests that must be done before somebody else is asked too.
const HEDGE_SHARE: f64 = 0.95;
/// Never sooner: the difference would not be noticed, and the source pays.
const HEDGE_MIN: Duration = Duration::from_millis(1);
/// Nor later: a peer that takes so long is not what a cache is for.
const HEDGE_MAX: Duration = Duration::from_secs(1);

/// How a peer is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerOptions {
    /// Connections, 1 to [`CONNECTIONS_MAX`].
    pub connections: usize,
    /// A connection on which a reply is awaited and nothing has come for this long is asked for a sign of life; ten times
    /// this if nothing is awaited.
    pub ping_after: Duration,
    /// If that does not come within this, the connection is given up.
    pub dead_after: Duration,
    /// Between tries to connect, at first and at most; each is shortened by up to half at random.
    pub pauses: (Duration, Duration),
}

impl Default for PeerOptions {
    fn default() -> Self {
        Self {
            connections: 2,
            ping_after: Duration::from_millis(500),
            dead_after: Duration::from_millis(1_500),
            pauses: (Duration::from_millis(50), Duration::from_secs(2)),
        }
    }
}

/// What a peer said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// The bytes; fewer than asked for only at the file's end.
    Data {
        /// From the range's first byte on, in memory of their own.
        bytes: Bytes,
        /// The file ends with them.
        eof: bool,
    },
    /// It does not have them.
    Miss,
    /// The ring by which it was asked is old; this is the present one.
    Stale(RingEpoch),
    /// It has too much to do.
    Busy,
    /// It never will.
    Refused(Refusal),
}

/// Why a peer said nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// It is not there, and was not a moment ago: nothing was sent.
    #[error("the peer is down")]
    Down,
    /// The connection broke while the request was under way.
    #[error("the connection to the peer was lost")]
    Lost,
    /// The deadline passed.
    #[error("the peer did not answer in time")]
    Deadline,
}

/// What a peer's connections share.
pub(super) struct PeerShared {
    pub(super) identity: PeerIdentity,
    pub(super) node: NodeId,
    pub(super) address: SocketAddr,
    pub(super) options: PeerOptions,
    pub(super) metrics: Arc<PeerMetrics>,
    pub(super) gauges: PeerGauges,
    pub(super) latency: Latency,
    /// The newest ring that this end or the other spoke of.
    epoch: AtomicU64,
    pub(super) closed: CancellationToken,
}

impl PeerShared {
    pub(super) fn epoch(&self) -> RingEpoch {
        RingEpoch(self.epoch.load(Ordering::Relaxed))
    }

    pub(super) fn saw(&self, epoch: RingEpoch) {
        self.epoch.fetch_max(epoch.0, Ordering::Relaxed);
    }
}

/// One node, to be asked for chunks. Needs a runtime around it, where its connections live until [`Peer::close`] or the
/// last reference goes.
pub struct Peer {
    shared: Arc<PeerShared>,
    links: Vec<Arc<Link>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Peer {
    /// Begins to connect to `node` at `address`, and goes on whenever a connection is lost.
    pub fn new(
        identity: PeerIdentity,
        node: NodeId,
        address: SocketAddr,
        options: PeerOptions,
        metrics: Arc<PeerMetrics>,
    ) -> Self {
        let shared = Arc::new(PeerShared {
            identity,
            node,
            address,
            options,
            metrics,
            gauges: PeerGauges::new(node),
            latency: Latency::default(),
            epoch: AtomicU64::new(0),
            closed: CancellationToken::new(),
        });
        let count = options.connections.clamp(1, CONNECTIONS_MAX);
        let links: Vec<_> = (0..count).map(|_| Arc::new(Link::new(IN_FLIGHT_MAX))).collect();
        let keep = |link: &Arc<Link>| tokio::spawn(link::keep(shared.clone(), link.clone(), links.clone()));
        let tasks = links.iter().map(keep).collect();
        Self { shared, links, tasks: Mutex::new(tasks) }
    }

    /// Which node this is.
    pub fn node(&self) -> NodeId {
        self.shared.node
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// Whether a request would be sent now.
    pub fn is_up(&self) -> bool {
        self.links.iter().any(|link| link.is_up())
    }

    /// How long it takes.
    pub fn latency(&self) -> &Latency {
        &self.shared.latency
    }

    /// The newest ring that it, or a request to it, spoke of.
    pub fn epoch(&self) -> RingEpoch {
        self.shared.epoch()
    }

    /// How long a caller should wait before it asks somebody else too: what most requests took of late. `None` while too
    /// little is known.
    pub fn hedge_after(&self) -> Option<Duration> {
        self.shared.latency.quantile(HEDGE_SHARE).map(|time| time.clamp(HEDGE_MIN, HEDGE_MAX))
    }

    /// Asks for part of a chunk by the ring of `epoch`. Dropping the future takes the request back.
    ///
    /// # Errors
    /// It is not there, went away, or takes longer than `deadline`.
    pub async fn fetch(&self, epoch: RingEpoch, fetch: Fetch, deadline: Duration) -> Result<Fetched, PeerError> {
        let asked = &self.shared.metrics.asked;
        let mut counted = CountedCancel(Some(self.shared.metrics.as_ref()));
        let result = timeout(deadline, self.ask(epoch, fetch)).await.unwrap_or(Err(PeerError::Deadline));
        counted.0 = None;
        match &result {
            Ok(Fetched::Data { bytes, .. }) => {
                asked.data.increment(1);
                self.shared.metrics.asked_bytes.increment(bytes.len() as u64);
            }
            Ok(Fetched::Miss) => asked.miss.increment(1),
            Ok(Fetched::Stale(_)) => asked.stale.increment(1),
            Ok(Fetched::Busy) => asked.busy.increment(1),
            Ok(Fetched::Refused(_)) => asked.refused.increment(1),
            Err(PeerError::Down) => self.shared.metrics.asked_down.increment(1),
            Err(PeerError::Lost) => self.shared.metrics.asked_lost.increment(1),
            Err(PeerError::Deadline) => self.shared.metrics.asked_deadline.increment(1),
        }
        result
    }

    async fn ask(&self, epoch: RingEpoch, fetch: Fetch) -> Result<Fetched, PeerError> {
        self.shared.saw(epoch);
        loop {
            let link = self.links.iter().filter(|link| link.takes_requests()).max_by_key(|link| link.free());
            let link = link.ok_or(PeerError::Down)?;
            let slot = link.slot().await;
            let (told, replied) = oneshot::channel();
            // It may have gone down while we waited; then another may do.
            let Some(id) = link.request(epoch, fetch, told, slot) else { continue };
            // Whatever ends this, the deadline or whoever drops us, takes the request back.
            let mut wanted = Wanted::new(link, id);
            let result = replied.await;
            wanted.done();
            return result.unwrap_or(Err(PeerError::Lost));
        }
    }

    /// Ends all connections and waits until they are gone. What is under way is lost, and what comes fails.
    pub async fn close(&self) {
        self.shared.closed.cancel();
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a peer's task failed: this is a bug");
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.shared.closed.cancel();
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (node, address) = (self.node(), self.address());
        formatter.debug_struct("Peer").field("node", &node).field("address", &address).finish_non_exhaustive()
    }
}

/// Counts a request that was dropped before it ended.
struct CountedCancel<'a>(Option<&'a PeerMetrics>);

impl Drop for CountedCancel<'_> {
    fn drop(&mut self) {
        if let Some(metrics) = self.0 {
            metrics.asked.cancelled.increment(1);
        }
    }
}
