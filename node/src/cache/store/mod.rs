//! Chunks on a device: a log of segments, an index in memory, one thread that writes.
//!
//! Owns: what is on the device and what waits to be. Never does: know NFS, or where chunks come from.
//!
//! * [`keep`] puts in and takes out, [`lookup`] finds.
//! * [`layout`] says which bytes, [`medium`] reads them and checks, [`device`] is what they are on.
//! * [`writer`] appends, through [`log`]; [`reclaim`] and [`quota`] decide what goes.
//! * [`recovery`] finds out at start what is there.
//!
//! Invariants, all under the one lock of [`Core`], which is never held over I/O or an await:
//! * A chunk of which nothing is known here comes back at a restart only if its content is the one last kept under its key
//!   (what was replaced or removed has a tombstone behind it in the log, or `unsettled` says that one is on its way).
//! * What is read from the device enters RAM only if the index still names the place it was read from.
//! * A chunk that waits to be written is in `pending` under the ticket of its job; a job without its ticket is not written,
//!   or what it wrote is not indexed.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{
    key::{ChunkKey, Placement},
    metrics::CacheMetrics,
    ram::Ram,
};
use index::Index;
use layout::{BLOCK, Record, RecordKind, chunk_blocks};
use medium::Medium;

pub use lookup::OnDevice;

pub mod aligned;
pub mod device;
pub mod index;
mod keep;
pub mod layout;
mod log;
mod lookup;
pub mod medium;
pub mod open;
mod quota;
mod reclaim;
mod recovery;
pub mod writer;

/// Pinned chunks may take this share of the store, in percent: more would leave reclaiming nothing to gain.
pub const PINNED_PERCENT: u64 = 80;

/// More would be pinned than may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "not pinned: {wanted} bytes more than the {pinned} that are pinned would exceed {limit} bytes \
     ({PINNED_PERCENT} % of what the cache store surely holds); unpin something or enlarge the store"
)]
pub struct PinLimit {
    /// Bytes asked for.
    pub wanted: u64,
    /// Bytes pinned.
    pub pinned: u64,
    /// Bytes that may be.
    pub limit: u64,
}

/// The store does not take writes; chunks are in RAM only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the cache store is degraded or closed")]
pub struct Unavailable;

/// A chunk that waits to be written.
#[derive(Debug)]
struct Pending {
    bytes: Bytes,
    placement: Placement,
    ticket: u64,
}

/// What the writer is asked to do.
enum Job {
    /// Write a pending chunk, if it still has this ticket.
    Write { key: ChunkKey, ticket: u64, room: OwnedSemaphorePermit },
    /// Write a record without payload, and tell when it is on stable storage. It is so many of `Core::unsettled`.
    Control { record: Record, room: Option<OwnedSemaphorePermit>, done: Option<oneshot::Sender<()>>, unsettled: usize },
    /// Tell when everything before it is on stable storage.
    Flush(oneshot::Sender<()>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Health {
    Healthy,
    Degraded,
    Closing,
}

/// All that is known. See the module for what holds.
struct Core {
    index: Index,
    medium: Option<Arc<Medium>>,
    pending: HashMap<ChunkKey, Pending>,
    pending_pinned: u64,
    queue: VecDeque<Job>,
    /// Files that are pinned, with the sequence number of the record that says so, 0 before it is written.
    pinned_files: HashMap<u128, u64>,
    /// Chunks dropped since they did not read back; their tombstones are to be written.
    forget: Vec<ChunkKey>,
    /// Tombstones of keys that are not in the index any more and not yet on stable storage.
    unsettled: usize,
    tickets: u64,
    health: Health,
}

impl Core {
    fn take_pending(&mut self, key: &ChunkKey) -> Option<Pending> {
        let pending = self.pending.remove(key)?;
        if pending.placement.pinned {
            self.pending_pinned = self.pending_pinned.saturating_sub(footprint(pending.bytes.len()));
        }
        Some(pending)
    }

    fn has_ticket(&self, key: &ChunkKey, ticket: u64) -> bool {
        self.pending.get(key).is_some_and(|pending| pending.ticket == ticket)
    }

    /// Has a tombstone written for a key that is not in the index any more.
    fn forget_later(&mut self, key: ChunkKey) {
        self.forget.push(key);
        self.unsettled += 1;
    }

    /// A restart could bring the key back.
    fn needs_tombstone(&self, key: &ChunkKey) -> bool {
        self.unsettled > 0 || self.pending.contains_key(key) || self.index.find(key).is_some()
    }
}

/// Bytes on the device of a chunk of `length` bytes.
fn footprint(length: usize) -> u64 {
    u64::from(chunk_blocks(u32::try_from(length).unwrap_or(u32::MAX >> 8))) * BLOCK as u64
}

/// How the store is run.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes that may wait to be written.
    pub queue_bytes: u64,
    /// Bytes by export.
    pub quotas: HashMap<u64, u64>,
    /// Seconds since 1970.
    pub clock: fn() -> u64,
    /// Time between looking whether the store is still there, and between attempts to come back.
    pub retry: std::time::Duration,
}

/// The store. See the module.
pub struct Store {
    core: Mutex<Core>,
    wake: Condvar,
    room: Arc<Semaphore>,
    room_blocks: u32,
    limits: Limits,
    ram: Arc<Ram>,
    metrics: Arc<CacheMetrics>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Store {
    /// Bytes that may be pinned.
    fn pin_limit(core: &Core) -> u64 {
        core.medium.as_ref().map_or(0, |medium| log::pin_limit(&medium.superblock))
    }

    /// Room in the queue; waits for it.
    async fn room(&self, blocks: u32) -> OwnedSemaphorePermit {
        let blocks = blocks.min(self.room_blocks);
        if let Ok(permit) = Arc::clone(&self.room).try_acquire_many_owned(blocks) {
            return permit;
        }
        let started = Instant::now();
        let permit = Arc::clone(&self.room).acquire_many_owned(blocks).await.expect("the semaphore is never closed");
        self.metrics.waited(started.elapsed());
        permit
    }

    fn wake(&self, core: MutexGuard<'_, Core>) {
        drop(core);
        self.wake.notify_one();
    }

    /// Waits until all that was handed over is on stable storage.
    ///
    /// # Errors
    /// The store does not take writes, or stopped to.
    pub async fn flush(&self) -> Result<(), Unavailable> {
        let (done, settled) = oneshot::channel();
        self.ask_for_flush(done);
        settled.await.map_err(|_| Unavailable)
    }

    fn ask_for_flush(&self, done: oneshot::Sender<()>) {
        let mut core = self.core.lock();
        if core.health == Health::Healthy {
            core.queue.push_back(Job::Flush(done));
        }
        self.wake(core);
    }

    /// Tells the writer to write what is queued and to end.
    pub fn stop(&self) {
        let mut core = self.core.lock();
        core.health = Health::Closing;
        self.wake(core);
    }

    /// A copy of the sums, bytes queued, bytes of the store, bytes of memory for the index, and whether it is degraded.
    pub fn snapshot(&self) -> Snapshot {
        let core = self.core.lock();
        let free = self.room.available_permits() as u64;
        Snapshot {
            usage: core.index.usage().clone(),
            capacity: core.medium.as_ref().map_or(0, |medium| medium.superblock.blocks() * BLOCK as u64),
            queued: u64::from(self.room_blocks).saturating_sub(free) * BLOCK as u64,
            degraded: core.health == Health::Degraded,
        }
    }

    /// Bytes of memory the index takes.
    pub fn index_memory(&self) -> usize {
        self.core.lock().index.memory()
    }
}

/// The store at a moment.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "as in `Stats`")]
pub struct Snapshot {
    pub usage: index::Usage,
    pub capacity: u64,
    pub queued: u64,
    pub degraded: bool,
}

/// A record without payload. Its sequence number is given when it is written.
fn control(kind: RecordKind, key: ChunkKey) -> Record {
    Record { kind, pinned: false, sequence: 0, key, length: 0, export: 0, expires: 0 }
}
