//! Answers other nodes: accepts their connections, asks a provider for what they want.
//!
//! Owns: the listener's loop, what all connections may hold together. Never does: know where chunks come from.
//! Invariants: connections, requests in flight and bytes held are bounded; when told to end, everything that was begun is
//! answered or cut off, and no task is left.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use forebay_proto::cluster::{
    NodeId, RingEpoch,
    frame::{Fetch, Refusal},
};
use futures_util::future::BoxFuture;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    greet,
    identity::PeerIdentity,
    metrics::{PeerMetrics, Refused},
    serving::Serving,
};

/// Connections at most: four from each of five hundred nodes, and some for those that come back before they are missed.
const CONNECTIONS_MAX: usize = 2_048;
/// Handshakes at once: each takes signatures, and strangers can begin them.
const HANDSHAKES_MAX: usize = 256;
/// Requests get this long to be answered when the node ends.
const DRAIN: Duration = Duration::from_secs(5);

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The node; it has proved that it is.
    pub node: NodeId,
    /// The ring by which it asks; not older than [`ChunkProvider::epoch`] was.
    pub epoch: RingEpoch,
}

/// What a provider has for a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Provided {
    /// The bytes: as many as were asked for, or fewer if the file ends with them. Sent from the memory that they are in.
    Data {
        /// From the range's first byte on.
        bytes: Bytes,
        /// The file ends with them.
        eof: bool,
    },
    /// Not here.
    Miss,
    /// Not now.
    Busy,
    /// Never.
    Refused(Refusal),
}

/// Where a node's chunks come from when a peer asks.
pub trait ChunkProvider: Send + Sync + 'static {
    /// The ring now. Callers with an older one are told this.
    fn epoch(&self) -> RingEpoch;

    /// The chunk. Dropped when the caller does not want it any more, so what others wait for too MUST NOT depend on it. The
    /// connection waits while it is polled: it MUST NOT block.
    fn fetch(&self, caller: Caller, fetch: Fetch) -> BoxFuture<'_, Provided>;
}

/// What a server may use. The defaults are for a node with a few gigabytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerServerOptions {
    /// Bytes that may be fetched or wait to be sent for one connection; beyond them its requests wait.
    pub connection_bytes: usize,
    /// The same for all together; beyond them requests are told that it is too much.
    pub all_bytes: usize,
    /// A peer that takes nothing of what it asked for, or stops in the middle of a frame, for this long is cut off.
    pub stall: Duration,
}

impl Default for PeerServerOptions {
    fn default() -> Self {
        Self { connection_bytes: 8 << 20, all_bytes: 256 << 20, stall: Duration::from_secs(30) }
    }
}

/// What all connections share.
pub(super) struct Shared {
    pub(super) identity: PeerIdentity,
    pub(super) provider: Arc<dyn ChunkProvider>,
    pub(super) metrics: Arc<PeerMetrics>,
    pub(super) options: PeerServerOptions,
    held: AtomicUsize,
    handshakes: Arc<Semaphore>,
}

impl Shared {
    /// Replaces what a connection holds.
    pub(super) fn hold(&self, before: usize, now: usize) {
        if now > before {
            self.held.fetch_add(now - before, Ordering::Relaxed);
        } else {
            self.held.fetch_sub(before - now, Ordering::Relaxed);
        }
        self.metrics.held_bytes.increment(now as f64 - before as f64);
    }

    /// Bytes that all connections hold.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

/// Serves peers until `drain` is cancelled, then until what they asked is answered, for a few seconds at most.
pub async fn serve(
    identity: PeerIdentity,
    provider: Arc<dyn ChunkProvider>,
    metrics: Arc<PeerMetrics>,
    options: PeerServerOptions,
    listener: TcpListener,
    drain: CancellationToken,
) {
    let (held, handshakes) = (AtomicUsize::new(0), Arc::new(Semaphore::new(HANDSHAKES_MAX)));
    let shared = Arc::new(Shared { identity, provider, metrics, options, held, handshakes });
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, address)) => match shared.handshakes.clone().try_acquire_owned() {
                    Ok(permit) => {
                        let serving = serve_one(shared.clone(), stream, permit, drain.clone());
                        connections.spawn(async move {
                            if let Err(error) = serving.await {
                                tracing::debug!(%address, %error, "peer connection closed");
                            }
                        });
                    }
                    Err(_) => shared.metrics.refuse(Refused::Busy),
                },
                Err(error) => {
                    // Out of descriptors or memory: it may pass, and spinning would not help.
                    tracing::warn!(%error, "cannot accept peers");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(done) = connections.join_next(), if !connections.is_empty() => log_panic(done),
            () = drain.cancelled() => break,
        }
    }
    drop(listener);
    let all = async {
        while let Some(done) = connections.join_next().await {
            log_panic(done);
        }
    };
    if tokio::time::timeout(DRAIN, all).await.is_err() {
        tracing::warn!(connections = connections.len(), "peers' requests still running at the deadline are cut off");
        connections.shutdown().await;
    }
}

fn log_panic(done: Result<(), tokio::task::JoinError>) {
    if let Err(error) = done {
        tracing::error!(%error, "a peer connection's task failed: this is a bug");
    }
}

/// Why a connection ended, but for its peer going.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("{0}")]
    Greet(#[from] greet::GreetError),
    #[error("{0}")]
    Serving(#[from] super::serving::ServingError),
}

async fn serve_one(
    shared: Arc<Shared>,
    stream: TcpStream,
    handshake: OwnedSemaphorePermit,
    drain: CancellationToken,
) -> Result<(), ServeError> {
    let epoch = shared.provider.epoch();
    let greeted = tokio::select! {
        greeted = greet::accept(&shared.identity, epoch, stream) => greeted,
        () = drain.cancelled() => return Ok(()),
    };
    drop(handshake);
    let greeted = greeted.inspect_err(|error| {
        if let Some(reason) = error.refusal() {
            shared.metrics.refuse(reason);
            tracing::warn!(%error, "peer refused");
        }
    })?;
    shared.metrics.connections_in.increment(1.0);
    let served = Serving::new(&shared, greeted).run(&drain).await;
    shared.metrics.connections_in.decrement(1.0);
    served.inspect_err(|error| {
        if let Some(reason) = error.refusal() {
            shared.metrics.refuse(reason);
        }
    })?;
    Ok(())
}
