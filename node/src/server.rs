//! The server behind all connections: state, name space, clock.
//!
//! Owns: the tables of `state` and their locks. Never does: bytes, sockets.
//! Invariants: no lock is held across an await; locks are taken in the order clients, sessions, files.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use forebay_meta::{
    Command, Plane, PlaneError, Reply,
    state::{Home, Identity, NodeId},
};
use forebay_proto::{
    limits::{OPERATIONS_MAX, RECORD_MAX},
    nfs4::{ClientId, SessionId, Status, Verifier},
};
use parking_lot::Mutex;

use crate::{
    admin::metrics::NfsMetrics,
    cluster::locks::SharedLocks,
    files::{Export, Namespace, namespace::NamespaceError},
    source::Source,
    state::{
        Now,
        clients::Clients,
        files::Files,
        recovery::Recovery,
        sessions::{ChannelLimits, Sessions},
    },
};

/// A node on its own is its cluster's first.
const NODE: NodeId = NodeId(1);

/// What the protocol side can be told.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// How long a client may be silent before others may take what it holds.
    pub lease: Duration,
    /// How long clients may reclaim after a restart.
    pub grace: Duration,
    /// Slots of a session at most.
    pub slots: u32,
    /// A peer that moves nothing for this long although something is half done is cut off.
    pub stall: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        let lease = Duration::from_secs(60);
        Self { lease, grace: lease, slots: 128, stall: Duration::from_secs(60) }
    }
}

/// Longest reply kept for a replay: any reply of an operation that changes something fits.
const CACHED_REPLY_MAX: u32 = 4096;

/// An expired client that nobody waits for keeps its state this many leases (courtesy), then it goes.
const COURTESY_LEASES: u64 = 24 * 60;

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The plane.
    #[error(transparent)]
    Plane(#[from] PlaneError),
    /// The exports.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The plane counts no further.
    #[error("the data directory has seen 4 Gi starts; move it away to begin anew")]
    Epochs,
}

/// One NFS server.
#[derive(Debug)]
pub struct Server {
    /// Name space and handles.
    pub namespace: Namespace,
    /// Opens and locks.
    pub files: Files,
    /// Sessions.
    pub sessions: Sessions,
    /// Client records.
    pub clients: Mutex<Clients>,
    /// Metrics of operations.
    pub metrics: Arc<NfsMetrics>,
    /// Facts that outlive the process.
    pub plane: Plane,
    /// Who this server is.
    pub identity: Identity,
    options: ServerOptions,
    recovery: Mutex<Recovery>,
    /// In a cluster: its locks.
    shared: OnceLock<Arc<SharedLocks>>,
    /// Clients that are gone, and that the plane has not forgotten yet.
    unfreed: Mutex<BTreeSet<ClientId>>,
    in_grace: AtomicBool,
    started: Instant,
    node: NodeId,
    epoch: u32,
    next_session: AtomicU64,
    write_verifier: AtomicU64,
}

impl Server {
    /// Begins a new epoch; grace begins if clients are on record.
    pub async fn start(
        exports: Vec<Export>,
        plane: Plane,
        options: ServerOptions,
        metrics: Arc<NfsMetrics>,
    ) -> Result<Self, StartError> {
        let Reply::Epoch(epoch) = plane.propose(Command::StartEpoch { node: NODE }).await? else {
            return Err(StartError::Epochs);
        };
        Self::start_at(exports, plane, options, metrics, Home { node: NODE, epoch })
    }

    /// As [`Server::start`], in an epoch that has begun; of several nodes the one of `home`.
    ///
    /// # Errors
    /// The exports.
    pub fn start_at(
        exports: Vec<Export>,
        plane: Plane,
        options: ServerOptions,
        metrics: Arc<NfsMetrics>,
        home: Home,
    ) -> Result<Self, StartError> {
        let identity = plane.read(|state| state.identity.clone()).expect("an open store has an identity");
        let Home { node, epoch } = home;
        // Those who had their sessions at an earlier process of this node.
        let expected: Vec<_> = plane.read(|state| {
            let here = state.clients.iter().filter(|record| record.home.node == node);
            here.map(|record| record.owner.0.clone()).collect()
        });
        let grace_ms = u64::try_from(options.grace.as_millis()).unwrap_or(u64::MAX);
        let recovery = Recovery::new(expected, Now(grace_ms));
        if recovery.in_grace() {
            let (clients, seconds) = (recovery.expected(), options.grace.as_secs());
            tracing::info!(clients, seconds, "grace period: clients of the last run may reclaim");
        }
        let seed = uuid::Uuid::new_v4().as_u64_pair().0;
        Ok(Self {
            namespace: Namespace::new(exports, plane.clone(), &identity)?,
            files: Files::new(epoch),
            sessions: Sessions::default(),
            clients: Mutex::new(Clients::new(epoch)),
            metrics,
            plane,
            identity,
            options,
            in_grace: AtomicBool::new(recovery.in_grace()),
            recovery: Mutex::new(recovery),
            shared: OnceLock::new(),
            unfreed: Mutex::default(),
            started: Instant::now(),
            node,
            epoch,
            next_session: AtomicU64::new(1),
            write_verifier: AtomicU64::new(seed),
        })
    }

    /// From now on locks are the whole cluster's.
    pub fn share_locks(&self, locks: Arc<SharedLocks>) {
        // Once, before anything is served.
        let _ = self.shared.set(locks);
    }

    /// The whole cluster's locks; `None` where a node is on its own.
    pub fn shared_locks(&self) -> Option<&Arc<SharedLocks>> {
        self.shared.get()
    }

    /// Where the sessions of this process live.
    pub fn home(&self) -> Home {
        Home { node: self.node, epoch: self.epoch }
    }

    /// The time.
    pub fn now(&self) -> Now {
        Now(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// The lease in milliseconds.
    pub fn lease_ms(&self) -> u64 {
        u64::try_from(self.options.lease.as_millis()).unwrap_or(u64::MAX)
    }

    /// The lease as GETATTR tells it.
    pub fn lease_seconds(&self) -> u32 {
        u32::try_from(self.options.lease.as_secs()).unwrap_or(u32::MAX).max(1)
    }

    /// What a session gets at most.
    pub fn channel_limits(&self) -> ChannelLimits {
        let (record, operations) = (RECORD_MAX, OPERATIONS_MAX);
        ChannelLimits { record, cached: CACHED_REPLY_MAX, operations, slots: self.options.slots }
    }

    /// How long a peer may leave something half done.
    pub fn stall(&self) -> Duration {
        self.options.stall
    }

    /// A session id never used before: epoch, number, and the client for the reader of a trace.
    pub fn fresh_session(&self, client: ClientId) -> SessionId {
        let number = u128::from(self.next_session.fetch_add(1, Ordering::Relaxed));
        let id = u128::from(self.epoch) << 96 | u128::from(client.0 & 0xffff_ffff) << 64 | number;
        SessionId(id.to_be_bytes())
    }

    /// The epoch of this process, as the upper half of its clientids has it.
    pub fn epoch(&self) -> u64 {
        u64::from(self.epoch)
    }

    /// Changes whenever unstable data may have been lost.
    pub fn write_verifier(&self) -> Verifier {
        self.write_verifier.load(Ordering::Relaxed).to_be_bytes()
    }

    /// Unstable data may have been lost: clients must send it again.
    pub fn lost_writes(&self) {
        self.write_verifier.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether ordinary opens and locks must wait.
    pub fn in_grace(&self) -> bool {
        self.in_grace.load(Ordering::Acquire)
    }

    /// Clients still expected, and milliseconds left.
    pub fn grace_left(&self) -> (usize, u64) {
        let recovery = self.recovery.lock();
        (recovery.expected(), recovery.left_ms(self.now()))
    }

    /// A client has reclaimed what it wanted, or will never come.
    pub async fn reclaim_done(&self, owner: &[u8]) {
        let is_over = self.recovery.lock().done(owner);
        if is_over {
            self.grace_over("all clients are back").await;
        }
    }

    async fn grace_over(&self, why: &str) {
        // Those who did not come back may not reclaim after the next restart: others may have had their files since. So the plane must know
        // first; if it does not take it, the timer tries again.
        if self.keep(Command::ForgetUnreclaimed { home: self.home() }).await {
            self.in_grace.store(false, Ordering::Release);
            tracing::info!(why, "grace period over");
        }
    }

    /// Frees everything of a client. What it still sends finds no session from this moment on. `false`: the plane has not forgotten it, so its
    /// opens and locks stay until the timer has had more luck.
    pub async fn free_client(&self, client: ClientId) -> bool {
        self.sessions.remove_client(client);
        // On disk before others can have its files: it must not reclaim them after a crash. Most that go were never on
        // record, and a line in the journal costs a wait for the disk.
        let is_recorded = self.plane.read(|state| state.clients.is_recorded(client.0));
        if is_recorded && !self.keep(Command::ForgetClient { clientid: client.0 }).await {
            self.unfreed.lock().insert(client);
            return false;
        }
        self.files.release_client(client);
        true
    }

    async fn keep(&self, command: Command) -> bool {
        let proposed = self.plane.propose(command).await;
        if let Err(error) = &proposed {
            tracing::error!(%error, "the plane does not take what it must know; it is told again later");
        }
        proposed.is_ok()
    }

    /// Whether a client whose state is in the way is past its lease; if so it is freed, and the way is clear.
    pub async fn expire_if_over(&self, holder: ClientId) -> bool {
        let over = {
            let mut clients = self.clients.lock();
            clients.is_expired(holder, self.lease_ms(), self.now()) && {
                clients.remove(holder);
                true
            }
        };
        if over {
            tracing::warn!(client = holder.0, "client silent for longer than its lease: its opens and locks are freed");
            return self.free_client(holder).await;
        }
        false
    }

    /// What a timer does every few seconds: ends grace, frees clients that hold nothing and are gone.
    pub async fn tick(&self) {
        let now = self.now();
        let is_over = self.recovery.lock().tick(now);
        if is_over || (self.in_grace() && !self.recovery.lock().in_grace()) {
            self.grace_over("time is up").await;
        }
        let unfreed = std::mem::take(&mut *self.unfreed.lock());
        for client in unfreed {
            // One after the other fails at once where the first one did, and is remembered again.
            self.free_client(client).await;
        }
        let lease = self.lease_ms();
        self.clients.lock().drop_stale_unconfirmed(lease, now);
        let expired = self.clients.lock().expired(lease, now);
        let long_gone = self.clients.lock().expired(lease.saturating_mul(COURTESY_LEASES), now);
        let long_gone: HashSet<ClientId> = long_gone.into_iter().collect();
        for client in expired {
            if !self.files.has_state(client) || long_gone.contains(&client) {
                // Judged once more: it may have come back since.
                self.expire_if_over(client).await;
            }
        }
    }

    /// What a slower timer does: lets go of files that were deleted behind our back.
    pub fn sweep(&self) {
        for export in self.namespace.exports() {
            match &export.source {
                Source::Local(source) => drop(source.release_deleted()),
                Source::Cached(_) => {}
            }
        }
    }

    /// DENIED or SHARE_DENIED by `holder`, unless its lease is over: then try again.
    pub async fn conflict(&self, holder: ClientId, status: Status) -> Result<(), Status> {
        let is_gone = match self.shared_locks() {
            Some(shared) => shared.expire(self, holder).await,
            None => self.expire_if_over(holder).await,
        };
        if is_gone { Ok(()) } else { Err(status) }
    }
}
