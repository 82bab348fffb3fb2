//! Source handles that do not fit into ours: the wire carries a key, the plane knows the handle.
//!
//! Owns: the way from a source handle to its key, what was told and is not in the plane yet, and what was looked up lately. Invariant: a key is
//! in the plane before a client can see it, so every node can resolve what any node told, for ever.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use forebay_meta::{
    Command, Plane, Reply,
    state::{Bytes, HANDLES_MAX, HandleKey, Table},
};
use forebay_proto::nfs4::Status;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher as _;

use crate::source::SourceHandle;

/// Handles remembered with their keys: the working set of a busy node, at about 200 bytes each.
const KNOWN_MAX: usize = 32_768;
/// Handles told and not in the plane: the listings of all calls under way. More wait for the plane.
const PENDING_MAX: usize = 65_536;

/// Handles by key.
#[derive(Debug)]
pub struct HandleTable {
    plane: Plane,
    hasher: SipHasher24,
    known: Cache<HandleKey, SourceHandle>,
    pending: Mutex<HashMap<HandleKey, SourceHandle>>,
    /// Whether anything is pending or on its way; most replies have nothing to wait for.
    dirty: AtomicBool,
    /// One flush at a time: who waits for it finds what it told in the plane, or still pending.
    flush: tokio::sync::Mutex<()>,
    proposals: AtomicU64,
}

impl HandleTable {
    /// With the cluster's key, so that all nodes make the same keys.
    pub fn new(plane: Plane, key: &[u8; 16]) -> Self {
        Self {
            plane,
            hasher: SipHasher24::new_with_key(key),
            known: Cache::new(KNOWN_MAX),
            pending: Mutex::default(),
            dirty: AtomicBool::new(false),
            flush: tokio::sync::Mutex::default(),
            proposals: AtomicU64::new(0),
        }
    }

    /// The key of a handle on the file system with index `fsid`. Before the client sees it, [`HandleTable::registered`] must have been waited for.
    pub fn tell(&self, fsid: u32, handle: &SourceHandle) -> Result<HandleKey, Status> {
        let key = self.key(fsid, handle);
        if self.known.get(&key).is_some() {
            return Ok(key);
        }
        if self.row(&key)?.is_some() {
            self.known.insert(key, *handle);
            return Ok(key);
        }
        let mut pending = self.pending.lock();
        if pending.len() >= PENDING_MAX {
            return Err(Status::Delay);
        }
        pending.insert(key, *handle);
        self.dirty.store(true, Ordering::Release);
        Ok(key)
    }

    /// Whether something was told that the plane does not know.
    pub fn has_pending(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Waits until everything told so far is in the plane.
    pub async fn registered(&self) -> Result<(), Status> {
        if !self.has_pending() {
            return Ok(());
        }
        let _one = self.flush.lock().await;
        let told: Vec<_> = self.pending.lock().iter().map(|(key, handle)| (*key, *handle)).collect();
        for part in told.chunks(HANDLES_MAX) {
            self.register(part).await?;
        }
        let mut pending = self.pending.lock();
        for (key, _) in &told {
            pending.remove(key);
        }
        if pending.is_empty() {
            self.dirty.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Commands that it took so far to register handles.
    pub fn proposals(&self) -> u64 {
        self.proposals.load(Ordering::Relaxed)
    }

    async fn register(&self, handles: &[(HandleKey, SourceHandle)]) -> Result<(), Status> {
        self.proposals.fetch_add(1, Ordering::Relaxed);
        let rows = handles.iter().map(|(key, handle)| (*key, Bytes::from(handle.as_bytes())));
        match self.plane.propose(Command::RegisterHandles(rows.collect())).await {
            Ok(Reply::Done) => {
                handles.iter().for_each(|(key, handle)| self.known.insert(*key, *handle));
                metrics::counter!("forebay_handles_registered_total").increment(handles.len() as u64);
                Ok(())
            }
            Ok(reply) => {
                tracing::error!(?reply, "the plane does not take handles");
                Err(Status::ServerFault)
            }
            Err(error) => {
                tracing::error!(%error, "handles cannot be remembered; clients are told to try again");
                Err(Status::Delay)
            }
        }
    }

    /// The handle with this key.
    pub fn find(&self, key: &HandleKey) -> Result<SourceHandle, Status> {
        if let Some(handle) = self.known.get(key) {
            return Ok(handle);
        }
        let handle = self.row(key)?.as_deref().and_then(SourceHandle::new).ok_or(Status::Stale)?;
        self.known.insert(*key, handle);
        Ok(handle)
    }

    /// A disk that fails for a moment must not make a handle stale for ever.
    fn row(&self, key: &HandleKey) -> Result<Option<Vec<u8>>, Status> {
        self.plane.row(Table::Handles, key).map_err(|error| {
            tracing::error!(%error, "the handle table cannot be read; the client is told to try again");
            Status::Delay
        })
    }

    fn key(&self, fsid: u32, handle: &SourceHandle) -> HandleKey {
        let mut hasher = self.hasher;
        hasher.write(&fsid.to_be_bytes());
        hasher.write(handle.as_bytes());
        hasher.finish128().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    async fn table(directory: &std::path::Path) -> HandleTable {
        let identity = || forebay_meta::state::Identity { cluster: "c".into(), handle_key: [1; 16] };
        HandleTable::new(Plane::open(directory, identity).await.unwrap(), &[1; 16])
    }

    fn handle(number: u32) -> SourceHandle {
        SourceHandle::new(&[number.to_be_bytes(); 32].concat()).unwrap()
    }

    #[tokio::test]
    async fn keys_stay_and_are_known_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let first = table(directory.path()).await;
        let keys: Vec<_> = (0..10_000).map(|number| first.tell(1, &handle(number)).unwrap()).collect();
        assert!(first.has_pending() && first.find(&keys[0]).is_err(), "nothing is known before it is in the plane");
        first.registered().await.unwrap();
        assert!(!first.has_pending());
        assert_eq!(first.find(&keys[9_999]), Ok(handle(9_999)));
        assert_ne!(first.tell(2, &handle(7)), Ok(keys[7]), "the same bytes on another file system");
        first.plane.close().await;
        drop(first);
        let second = table(directory.path()).await;
        for number in [0, 7, 9_999_u32] {
            assert_eq!(second.tell(1, &handle(number)), Ok(keys[number as usize]), "keys never change");
        }
        assert!(!second.has_pending(), "the plane knew them all");
        assert_eq!(second.find(&[9; 16]), Err(Status::Stale));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn whoever_waits_finds_what_it_told_in_the_plane() {
        let directory = tempfile::tempdir().unwrap();
        let table = Arc::new(table(directory.path()).await);
        let tasks = (0..16_u32).map(|task| {
            let table = table.clone();
            tokio::spawn(async move {
                for number in 0..40 {
                    // Half of them are others' as well.
                    let told = handle(if number % 2 == 0 { number } else { task << 16 | number });
                    let key = table.tell(1, &told).unwrap();
                    table.registered().await.unwrap();
                    assert!(table.row(&key).unwrap().is_some());
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        assert!(table.pending.lock().is_empty());
    }

    #[tokio::test]
    async fn more_than_may_wait_is_told_later() {
        let directory = tempfile::tempdir().unwrap();
        let table = table(directory.path()).await;
        let full = (0..).find(|&number| table.tell(1, &handle(number)) == Err(Status::Delay));
        assert_eq!(full, Some(PENDING_MAX as u32));
        table.registered().await.unwrap();
        assert!(table.tell(1, &handle(PENDING_MAX as u32)).is_ok());
    }
}
