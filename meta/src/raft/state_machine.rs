//! Applies committed entries to the core and to its rows on disk, and makes and takes in snapshots.
//!
//! Owns: the core, the state's database. Never does: deciding what is committed. Invariants: rows and how far they are applied are written
//! in one batch; nothing is fsynced here, for the log has it, and the state is made durable before the log is purged; what cannot be decoded
//! stops the node; readers see the core and the database of one state, before or after a snapshot was taken in.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use openraft::{
    EntryPayload, OptionalSend, RaftSnapshotBuilder,
    storage::{ApplyResponder, EntryResponder, RaftStateMachine},
};
use parking_lot::{Mutex, RwLock};
use rocksdb::WriteBatch;
use tokio::sync::{Notify, mpsc};

use super::{
    core::{Changes, Core},
    database::{OpenError, broken, damaged},
    log_tail::weight,
    records::{self, Applied},
    snapshot_files::SnapshotFiles,
    state_files::{APPLIED_KEY, Directories, Lock, StateDatabase, row_key},
    types::{LogIdOf, ReplyBytes, SnapshotMeta, StoredMembership, Types},
};

/// Entries are applied in pages of this many: readers wait for no more than that.
const PAGE_ENTRIES: usize = 256;
/// And of about this many bytes.
const PAGE_BYTES: usize = 1 << 20;

type Snapshot = openraft::type_config::alias::SnapshotOf<Types, SnapshotFiles>;

/// When a snapshot is made, so that the log can be purged.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotAfter {
    /// Entries applied since the last one.
    pub entries: u64,
    /// Bytes of entries applied since the last one.
    pub bytes: u64,
}

impl Default for SnapshotAfter {
    /// The log of a node that was away for minutes under load is still there, and reading it at start takes about a second.
    fn default() -> Self {
        Self { entries: 200_000, bytes: 128 << 20 }
    }
}

/// The state of this node, to look at. Clones look at the same.
pub struct Replica<C> {
    shared: Arc<Shared<C>>,
}

impl<C> Clone for Replica<C> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

struct Shared<C> {
    current: RwLock<Current<C>>,
    directories: Arc<Directories>,
    snapshot: Mutex<Option<SnapshotFiles>>,
    after: SnapshotAfter,
    entries: AtomicU64,
    bytes: AtomicU64,
    due: Notify,
}

struct Current<C> {
    core: C,
    applied: Applied,
    rows: Arc<StateDatabase>,
}

impl<C: Core> Current<C> {
    fn load(path: &Path, lock: Lock) -> io::Result<Self> {
        let rows = StateDatabase::open(path.to_owned(), lock).map_err(io::Error::other)?;
        let mut core = C::default();
        // Tables that are not resident are not even read: each table is a range of its own.
        for table in (0..=u8::MAX).filter(|&table| C::is_resident(table)) {
            rows.rows(table, table, |row| {
                let damage = |error| damaged(format!("a row of table {table}: {error}"));
                core.load(row.table, row.key, row.value).map_err(damage)
            })?;
        }
        let applied = rows.applied()?;
        Ok(Self { core, applied, rows: Arc::new(rows) })
    }
}

impl<C: Core> Replica<C> {
    /// Looks at the resident facts. Short: entries wait meanwhile.
    pub fn read<R>(&self, look: impl FnOnce(&C) -> R) -> R {
        look(&self.shared.current.read().core)
    }

    /// A row of a table, from memory or the disk.
    pub fn row(&self, table: u8, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let rows = self.shared.current.read().rows.clone();
        rows.database().get(row_key(table, key)).map_err(broken)
    }

    /// Calls `each` for all rows of the tables from `from` to `to`, as they are when they are reached.
    pub fn rows(&self, from: u8, to: u8, mut each: impl FnMut(u8, &[u8], &[u8])) -> io::Result<()> {
        let rows = self.shared.current.read().rows.clone();
        rows.rows(from, to, |row| {
            each(row.table, row.key, row.value);
            Ok(())
        })
    }

    /// How far the state is.
    pub fn applied(&self) -> Applied {
        self.shared.current.read().applied.clone()
    }

    /// Makes the state durable as far as it is.
    pub fn sync(&self) -> io::Result<()> {
        let rows = self.shared.current.read().rows.clone();
        rows.sync()
    }

    /// Waits until so much was applied that a snapshot is due.
    pub async fn snapshot_due(&self) {
        self.shared.due.notified().await;
    }

    /// Takes in the chunks of a snapshot, beside the state.
    pub async fn receive(&self, chunks: mpsc::Receiver<Bytes>) -> io::Result<SnapshotFiles> {
        SnapshotFiles::receive(self.shared.directories.clone(), chunks).await
    }

    /// A snapshot of the state as it is, apart from those that the log is purged by: for a copy elsewhere.
    pub async fn copy(&self) -> io::Result<SnapshotFiles> {
        let (directories, rows) = (self.shared.directories.clone(), self.shared.current.read().rows.clone());
        tokio::task::spawn_blocking(move || SnapshotFiles::of(&directories, &rows)).await.map_err(io::Error::other)?
    }
}

/// What openraft applies entries to.
pub struct StateMachine<C> {
    replica: Replica<C>,
}

impl<C: Core> StateMachine<C> {
    /// Opens or begins the state in `directory`, and loads the resident rows.
    pub fn open(directory: &Path, after: SnapshotAfter) -> Result<Self, OpenError> {
        let (directories, path, exists) = Directories::open(directory)?;
        let current = Current::load(&path, directories.lock()).map_err(OpenError::at(&path))?;
        if !exists {
            directories.switch(&path).map_err(OpenError::at(&path))?;
        }
        let shared = Shared {
            current: RwLock::new(current),
            directories: Arc::new(directories),
            snapshot: Mutex::new(None),
            after,
            entries: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            due: Notify::new(),
        };
        Ok(Self { replica: Replica { shared: Arc::new(shared) } })
    }

    /// The state, to look at.
    pub fn replica(&self) -> Replica<C> {
        self.replica.clone()
    }

    // The write goes to the system's memory, without a sync: microseconds, unless RocksDB holds writers back because the disk does not keep up.
    fn apply_page(&self, page: Vec<EntryResponder<Types>>) -> io::Result<()> {
        let (mut batch, mut replies) = (WriteBatch::default(), Vec::with_capacity(page.len()));
        let rows = self.decide(page, &mut batch, &mut replies)?;
        rows.database().write(batch).map_err(broken)?;
        for (responder, reply) in replies {
            responder.send(reply);
        }
        Ok(())
    }

    fn decide(
        &self,
        page: Vec<EntryResponder<Types>>,
        batch: &mut WriteBatch,
        replies: &mut Vec<(ApplyResponder<Types>, ReplyBytes)>,
    ) -> io::Result<Arc<StateDatabase>> {
        let mut changes = Changes::default();
        let mut current = self.replica.shared.current.write();
        for (entry, responder) in page {
            let mut reply = ReplyBytes::default();
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(command) => {
                    let command = C::decode_command(&command.0)
                        .map_err(|error| damaged(format!("command {}: {error}", entry.log_id.index)))?;
                    let came_to = current.core.apply(&command, &mut changes);
                    if responder.is_some() {
                        reply = ReplyBytes(C::encode_reply(&came_to).into());
                    }
                }
                EntryPayload::Membership(membership) => {
                    current.applied.membership = StoredMembership::new(Some(entry.log_id), membership);
                }
            }
            current.applied.last = Some(entry.log_id);
            replies.extend(responder.map(|responder| (responder, reply)));
        }
        for change in changes.drain() {
            match change.value {
                Some(value) => batch.put(row_key(change.table, &change.key), value),
                None => batch.delete(row_key(change.table, &change.key)),
            }
        }
        batch.put(APPLIED_KEY, records::encode(APPLIED_KEY, &current.applied));
        Ok(current.rows.clone())
    }

    fn count(&self, entries: usize, bytes: usize) {
        let shared = &self.replica.shared;
        let entries = shared.entries.fetch_add(entries as u64, Ordering::Relaxed) + entries as u64;
        let bytes = shared.bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if entries >= shared.after.entries || bytes >= shared.after.bytes {
            shared.entries.store(0, Ordering::Relaxed);
            shared.bytes.store(0, Ordering::Relaxed);
            shared.due.notify_one();
        }
    }
}

impl<C: Core> RaftStateMachine<Types> for StateMachine<C> {
    type SnapshotData = SnapshotFiles;
    type SnapshotBuilder = SnapshotMaker<C>;

    async fn applied_state(&mut self) -> Result<(Option<LogIdOf>, StoredMembership), io::Error> {
        let applied = self.replica.applied();
        Ok((applied.last, applied.membership))
    }

    async fn apply<Entries>(&mut self, mut entries: Entries) -> Result<(), io::Error>
    where
        Entries: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        let (mut page, mut bytes) = (Vec::new(), 0);
        while let Some(item) = entries.next().await {
            let item = item?;
            bytes += weight(&item.0);
            page.push(item);
            if page.len() >= PAGE_ENTRIES || bytes >= PAGE_BYTES {
                self.count(page.len(), bytes);
                self.apply_page(std::mem::take(&mut page))?;
                bytes = 0;
            }
        }
        if !page.is_empty() {
            self.count(page.len(), bytes);
            self.apply_page(page)?;
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotMaker<C> {
        SnapshotMaker { replica: self.replica() }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotFiles) -> Result<(), io::Error> {
        if snapshot.meta() != *meta {
            return Err(damaged(format!("a snapshot of {} was sent as one of {meta}", snapshot.meta())));
        }
        let shared = self.replica.shared.clone();
        tokio::task::spawn_blocking(move || install(&shared, &snapshot)).await.map_err(io::Error::other)?
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        let snapshot = self.replica.shared.snapshot.lock().clone();
        Ok(snapshot.map(|snapshot| Snapshot { meta: snapshot.meta(), snapshot }))
    }
}

fn install<C: Core>(shared: &Shared<C>, snapshot: &SnapshotFiles) -> io::Result<()> {
    let path = shared.directories.fresh("state");
    snapshot.place(&shared.directories, &path)?;
    let fresh = Current::<C>::load(&path, shared.directories.lock())?;
    if fresh.applied != *snapshot.applied() {
        return Err(damaged("a snapshot covers something else than it said"));
    }
    shared.directories.switch(&path)?;
    let copy = SnapshotFiles::of(&shared.directories, &fresh.rows)?;
    let old = std::mem::replace(&mut *shared.current.write(), fresh);
    old.rows.retire();
    *shared.snapshot.lock() = Some(copy);
    Ok(())
}

/// Makes a snapshot while entries go on being applied.
pub struct SnapshotMaker<C> {
    replica: Replica<C>,
}

impl<C: Core> RaftSnapshotBuilder<Types> for SnapshotMaker<C> {
    type SnapshotData = SnapshotFiles;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let snapshot = self.replica.copy().await?;
        let meta = snapshot.meta();
        let mut held = self.replica.shared.snapshot.lock();
        // One that came from the leader meanwhile may cover more.
        if held.as_ref().is_none_or(|held| held.applied().last <= snapshot.applied().last) {
            *held = Some(snapshot.clone());
        }
        Ok(Snapshot { meta, snapshot })
    }
}
