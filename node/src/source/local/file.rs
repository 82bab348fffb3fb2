//! Objects that are open, and how many.
//!
//! Owns: [`LocalFile`], the bounded caches of `O_PATH` and data descriptors, the table of pinned objects.
//! Never does: path walks, permissions. Invariants: descriptors in the caches are at most what the options say (objects
//! in use keep theirs); a pinned object is found by its handle even when no name is left; an error of writing back data
//! is not lost when the descriptor that would report it is closed.
//!
//! One object may for a short time have two [`LocalFile`]s (evicted and looked up again while in use): everything that
//! is shared between them is kept here by key, not in them.

use std::{
    collections::HashMap,
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use quick_cache::sync::Cache;
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::{mounts::Mount, sys};
use crate::source::{FileKind, ObjectId, SourceFsid, SourceHandle};

/// Shards of the pin table: more than worker threads of a large machine.
const PIN_SHARDS: usize = 64;
/// Files whose failed write-back is remembered; beyond this some error is reported for another file as well.
const FAILURES_MAX: usize = 4096;

/// An object of a local source. It keeps the object (not its names) alive in the kernel.
pub struct LocalFile {
    pub(super) key: u128,
    pub(super) path: OwnedFd,
    pub(super) mount: Arc<Mount>,
    /// The `ctime` at which it was seen to have no ACL, in nanoseconds; 0: unknown.
    pub(super) no_acl_at: AtomicU64,
    fsid: SourceFsid,
    shared: Weak<Shared>,
    kind: FileKind,
    is_root: bool,
    handle: SourceHandle,
}

impl LocalFile {
    pub(super) fn new(
        shared: &Arc<Shared>,
        path: OwnedFd,
        mount: Arc<Mount>,
        id: &ObjectId,
        kind: FileKind,
        is_root: bool,
    ) -> Self {
        let shared = Arc::downgrade(shared);
        Self {
            key: key_of(id.fsid, &id.handle),
            path,
            mount,
            no_acl_at: AtomicU64::new(0),
            fsid: id.fsid,
            shared,
            kind,
            is_root,
            handle: id.handle,
        }
    }

    /// Which file system of the source.
    pub fn fsid(&self) -> SourceFsid {
        self.fsid
    }

    /// The handle, stable for the life of the object.
    pub fn handle(&self) -> &SourceHandle {
        &self.handle
    }

    /// Both, as one value.
    pub fn id(&self) -> ObjectId {
        ObjectId { fsid: self.fsid, handle: self.handle }
    }

    /// Kind of object; never changes.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// This is the root of the export.
    pub fn is_root(&self) -> bool {
        self.is_root
    }

    /// While an object is pinned (somebody has it open) it goes on working after its last name is removed. Counted.
    pub fn pin(self: &Arc<Self>) {
        if let Some(shared) = self.shared.upgrade() {
            shared.pins(self.key).lock().entry(self.key).or_insert_with(|| (0, Arc::clone(self))).0 += 1;
        }
    }

    /// Undoes one [`LocalFile::pin`]. After the last one an object without names is let go, and its space is free.
    pub fn unpin(&self) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        let last = {
            let mut pins = shared.pins(self.key).lock();
            match pins.get_mut(&self.key) {
                Some((count, _)) if *count > 1 => {
                    *count -= 1;
                    None
                }
                _ => pins.remove(&self.key),
            }
        };
        if last.is_none() {
            return;
        }
        if sys::stat(&self.path).is_ok_and(|stat| stat.stx_nlink == 0) {
            shared.forget(self.key);
        } else {
            shared.release_unpinned_writer(self.key);
        }
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.path.as_fd()
    }
}

impl fmt::Debug for LocalFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalFile({:?} {:x} {:?})", self.kind, self.fsid.0, self.handle)
    }
}

/// A short name for an object. Equal keys are compared in full before they are believed.
pub(super) fn key_of(fsid: SourceFsid, handle: &SourceHandle) -> u128 {
    xxh3_128_with_seed(handle.as_bytes(), fsid.0)
}

/// A descriptor for data, opened by root.
pub(super) struct DataFile {
    fd: OwnedFd,
    key: u128,
    /// Has written what was not yet put on disk.
    dirty: AtomicBool,
    shared: Weak<Shared>,
}

impl DataFile {
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn mark_dirty(&self) {
        self.dirty.store(true, Ordering::Relaxed);
    }

    /// Puts written data on disk.
    pub(super) fn sync(&self) -> Result<(), Errno> {
        // Cleared before, so that a write meanwhile marks it again.
        self.dirty.store(false, Ordering::Relaxed);
        rustix::fs::fdatasync(&self.fd).inspect_err(|_| self.mark_dirty())
    }
}

impl Drop for DataFile {
    fn drop(&mut self) {
        // The kernel reports an error of write-back to descriptors that were open then: ask before this one is closed.
        if self.dirty.load(Ordering::Relaxed)
            && let Err(errno) = rustix::fs::fdatasync(&self.fd)
            && let Some(shared) = self.shared.upgrade()
        {
            shared.record_failure(self.key, errno);
        }
    }
}

/// Pinned objects by key, and how often.
type Pins = HashMap<u128, (usize, Arc<LocalFile>)>;

/// What all objects of one source share.
pub(super) struct Shared {
    files: Cache<u128, Arc<LocalFile>>,
    data: Cache<(u128, bool), Arc<DataFile>>,
    pins: [Mutex<Pins>; PIN_SHARDS],
    failures: Mutex<HashMap<u128, Errno>>,
    failure_count: AtomicUsize,
}

impl Shared {
    /// Half of the descriptors are for objects, half for their data.
    pub(super) fn new(max_open_files: usize) -> Self {
        let half = (max_open_files / 2).max(8);
        Self {
            files: Cache::new(half),
            data: Cache::new(half),
            pins: std::array::from_fn(|_| Mutex::default()),
            failures: Mutex::default(),
            failure_count: AtomicUsize::new(0),
        }
    }

    fn pins(&self, key: u128) -> &Mutex<Pins> {
        &self.pins[key as usize % PIN_SHARDS]
    }

    pub(super) fn is_pinned(&self, key: u128) -> bool {
        self.pins(key).lock().contains_key(&key)
    }

    /// The open object of that name, if there is one.
    pub(super) fn find(&self, fsid: SourceFsid, handle: &SourceHandle) -> Option<Arc<LocalFile>> {
        let key = key_of(fsid, handle);
        let file = match self.files.get(&key) {
            Some(file) => file,
            None => {
                let pinned = self.pins(key).lock().get(&key).map(|(_, file)| Arc::clone(file))?;
                self.files.insert(key, Arc::clone(&pinned));
                pinned
            }
        };
        (file.fsid == fsid && file.handle == *handle).then_some(file)
    }

    pub(super) fn keep(&self, file: &Arc<LocalFile>) {
        self.files.insert(file.key, Arc::clone(file));
    }

    /// Closes what the caches hold of an object, unless it is pinned.
    pub(super) fn forget(&self, key: u128) {
        if self.is_pinned(key) {
            return;
        }
        self.files.remove(&key);
        self.data.remove(&(key, false));
        self.data.remove(&(key, true));
    }

    /// All objects in the cache.
    pub(super) fn cached(&self) -> Vec<Arc<LocalFile>> {
        self.files.iter().map(|(_, file)| file).collect()
    }

    pub(super) fn find_data(&self, key: u128, writable: bool) -> Option<Arc<DataFile>> {
        self.data.get(&(key, writable))
    }

    pub(super) fn keep_data(self: &Arc<Self>, key: u128, writable: bool, fd: OwnedFd) -> Arc<DataFile> {
        let file = Arc::new(DataFile { fd, key, dirty: AtomicBool::new(false), shared: Arc::downgrade(self) });
        self.data.insert((key, writable), Arc::clone(&file));
        file
    }

    /// Closes the descriptor for writing of an object nobody has open: it would make programs on this machine fail with
    /// "text file busy". One with data that is not on disk waits for its commit, or for the next sweep.
    pub(super) fn release_unpinned_writer(&self, key: u128) {
        if !self.is_pinned(key) {
            self.data.remove_if(&(key, true), |file| !file.dirty.load(Ordering::Relaxed));
        }
    }

    /// Closes all descriptors for writing of objects nobody has open, data put on disk first.
    pub(super) fn sweep_writers(&self) {
        let keys: Vec<u128> =
            self.data.iter().filter(|((_, writable), _)| *writable).map(|((key, _), _)| key).collect();
        for key in keys.into_iter().filter(|&key| !self.is_pinned(key)) {
            self.data.remove(&(key, true));
        }
    }

    /// Closes all descriptors nobody uses, when the process has run out of them.
    pub(super) fn close_idle(&self) {
        self.data.clear();
        self.files.clear();
    }

    fn record_failure(&self, key: u128, errno: Errno) {
        let mut failures = self.failures.lock();
        if failures.len() >= FAILURES_MAX
            && !failures.contains_key(&key)
            && let Some(&victim) = failures.keys().next()
        {
            failures.remove(&victim);
        }
        failures.insert(key, errno);
        self.failure_count.store(failures.len(), Ordering::Release);
    }

    /// An error of write-back that no descriptor reports any more.
    pub(super) fn take_failure(&self, key: u128) -> Option<Errno> {
        if self.failure_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut failures = self.failures.lock();
        let failure = failures.remove(&key);
        self.failure_count.store(failures.len(), Ordering::Release);
        failure
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("files", &self.files.len()).field("data", &self.data.len()).finish()
    }
}
