//! Putting chunks in and taking them out.
//!
//! Owns: what happens in memory when a chunk is inserted, replaced, removed or pinned, and what the writer is asked for it.
//! Never does: I/O; it waits only for room in the queue, and never with the lock.
//! Invariant: a job is queued under the same hold of the lock as what it stands for changes, so jobs are in the order of the
//! changes.

use std::collections::HashMap;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    Core, Health, Job, Pending, PinLimit, Store, control, footprint, index,
    layout::{RecordKind, chunk_blocks},
    log,
};
use crate::cache::key::{ChunkKey, Placement, Removed};

/// Forgets a pending chunk if its insertion is dropped while it waits for room.
struct Waiting<'a> {
    store: &'a Store,
    key: ChunkKey,
    ticket: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut core = self.store.core.lock();
        if core.has_ticket(&self.key, self.ticket) {
            core.take_pending(&self.key);
            // An earlier insertion of the key may be half written, and nothing would name it any more.
            core.forget_later(self.key);
        }
    }
}

impl Store {
    /// Keeps a chunk in RAM and hands it to the writer; waits while the queue is full.
    ///
    /// # Errors
    /// It was kept, but not pinned.
    pub async fn insert(&self, key: ChunkKey, bytes: Bytes, placement: Placement) -> Result<(), PinLimit> {
        let blocks = chunk_blocks(u32::try_from(bytes.len()).unwrap_or(u32::MAX >> 8));
        let (waiting, pinned) = {
            let mut core = self.core.lock();
            let pushed_out = self.ram.insert(key, bytes.clone(), placement.expires);
            let fits = core.medium.as_ref().is_some_and(|medium| log::fits(&medium.superblock, blocks));
            if core.health != Health::Healthy || !fits {
                drop(core);
                self.metrics.evicted_ram.add(self.ram.settle(pushed_out));
                return Ok(());
            }
            let (ticket, pinned) = self.register(&mut core, key, bytes, placement);
            drop(core);
            self.metrics.evicted_ram.add(self.ram.settle(pushed_out));
            (Waiting { store: self, key, ticket }, pinned)
        };
        let room = self.room(blocks).await;
        let mut core = self.core.lock();
        if core.health == Health::Healthy && core.has_ticket(&key, waiting.ticket) {
            core.queue.push_back(Job::Write { key, ticket: waiting.ticket, room });
            self.wake(core);
            std::mem::forget(waiting);
        } else {
            drop(core);
        }
        pinned
    }

    /// Makes a chunk pending.
    fn register(
        &self,
        core: &mut Core,
        key: ChunkKey,
        bytes: Bytes,
        mut placement: Placement,
    ) -> (u64, Result<(), PinLimit>) {
        core.take_pending(&key);
        let mut outcome = Ok(());
        if placement.pinned || core.pinned_files.contains_key(&key.file) {
            let (wanted, limit) = (footprint(bytes.len()), Self::pin_limit(core));
            let replaced = core.index.find(&key).filter(index::Chunk::pinned).map_or(0, |chunk| chunk.footprint());
            let pinned = (core.index.usage().pinned_bytes + core.pending_pinned).saturating_sub(replaced);
            placement.pinned = pinned + wanted <= limit;
            if placement.pinned {
                core.pending_pinned += wanted;
            } else {
                outcome = Err(PinLimit { wanted, pinned, limit });
            }
        }
        core.tickets += 1;
        let ticket = core.tickets;
        core.pending.insert(key, Pending { bytes, placement, ticket });
        (ticket, outcome)
    }

    /// The chunk's content changed: RAM has the new one, and a restart will not bring the old one back.
    pub async fn replace_in_ram(&self, key: ChunkKey, bytes: Bytes, placement: Placement) {
        if self.replaced_at_once(key, &bytes, placement) {
            return;
        }
        let room = self.room(2).await;
        let (done, settled) = oneshot::channel();
        self.replace_with_tombstone(key, bytes, placement, room, done);
        // An error is a store that failed meanwhile: it starts empty when it comes back.
        settled.await.ok();
    }

    /// Nothing has to be forgotten on the device, or can be.
    fn replaced_at_once(&self, key: ChunkKey, bytes: &Bytes, placement: Placement) -> bool {
        let core = self.core.lock();
        if core.needs_tombstone(&key) && core.health == Health::Healthy {
            return false;
        }
        let pushed_out = self.ram.insert(key, bytes.clone(), placement.expires);
        drop(core);
        self.metrics.evicted_ram.add(self.ram.settle(pushed_out));
        true
    }

    fn replace_with_tombstone(
        &self,
        key: ChunkKey,
        bytes: Bytes,
        placement: Placement,
        room: OwnedSemaphorePermit,
        done: oneshot::Sender<()>,
    ) {
        let mut core = self.core.lock();
        let pushed_out = self.ram.insert(key, bytes, placement.expires);
        self.forget_key(&mut core, &key);
        if core.health == Health::Healthy {
            let record = control(RecordKind::Tombstone, key);
            core.queue.push_back(Job::Control { record, room: Some(room), done: Some(done), unsettled: 0 });
        }
        self.wake(core);
        self.metrics.evicted_ram.add(self.ram.settle(pushed_out));
    }

    /// Takes a key out of everything in memory but RAM; how long its data was.
    fn forget_key(&self, core: &mut Core, key: &ChunkKey) -> Option<u64> {
        let pending = core.take_pending(key).map(|pending| pending.bytes.len() as u64);
        let indexed = core.index.remove(key).map(|chunk| u64::from(chunk.length()));
        if indexed.is_some() {
            self.metrics.evicted_removed.add(1);
        }
        pending.or(indexed)
    }

    /// Removes a chunk. After a [`Store::flush`] a restart does not bring it back.
    pub async fn remove(&self, key: &ChunkKey) -> Removed {
        let room = self.room(2).await;
        let mut core = self.core.lock();
        let needed = core.needs_tombstone(key);
        let in_ram = self.ram.remove(key);
        let on_device = self.forget_key(&mut core, key);
        if needed && core.health == Health::Healthy {
            core.queue.push_back(Job::Control {
                record: control(RecordKind::Tombstone, *key),
                room: Some(room),
                done: None,
                unsettled: 1,
            });
            core.unsettled += 1;
        }
        self.wake(core);
        in_ram.or(on_device).map_or(Removed::default(), |bytes| Removed { chunks: 1, bytes })
    }

    /// Removes all versions of a file, as [`Store::remove`] does a chunk. It is not pinned any more.
    pub async fn remove_file(&self, file: u128) -> Removed {
        let room = self.room(2).await;
        let mut core = self.core.lock();
        let mut chunks: HashMap<ChunkKey, u64> = self.ram.remove_file(file).into_iter().collect();
        let of_file = core.index.of_file(file, None).into_iter().map(|(key, _)| key);
        let keys: Vec<ChunkKey> = of_file.chain(core.pending.keys().filter(|key| key.file == file).copied()).collect();
        for key in &keys {
            if let Some(length) = self.forget_key(&mut core, key) {
                chunks.insert(*key, length);
            }
        }
        let pinned = core.pinned_files.remove(&file).is_some();
        if (!keys.is_empty() || pinned || core.unsettled > 0) && core.health == Health::Healthy {
            let record = control(RecordKind::FileTombstone, ChunkKey { file, version: 0, index: 0 });
            core.queue.push_back(Job::Control { record, room: Some(room), done: None, unsettled: 1 });
            core.unsettled += 1;
        }
        self.wake(core);
        Removed { chunks: chunks.len() as u64, bytes: chunks.values().sum() }
    }

    /// Pins a file's chunks, those here and those to come, or unpins them.
    ///
    /// # Errors
    /// Those here are too many; nothing was changed.
    pub async fn pin_file(&self, file: u128, pinned: bool) -> Result<(), PinLimit> {
        let room = self.room(2).await;
        let mut core = self.core.lock();
        let chunks = core.index.of_file(file, None);
        if pinned {
            let more = chunks.iter().filter(|(_, chunk)| !chunk.pinned()).map(|(_, chunk)| chunk.footprint()).sum();
            let held = core.index.usage().pinned_bytes + core.pending_pinned;
            let limit = Self::pin_limit(&core);
            if held + more > limit {
                return Err(PinLimit { wanted: more, pinned: held, limit });
            }
            core.pinned_files.entry(file).or_insert(0);
        } else {
            core.pinned_files.remove(&file);
        }
        for (key, _) in &chunks {
            core.index.pin(key, pinned);
        }
        Self::pin_pending(&mut core, file, pinned);
        if core.health == Health::Healthy {
            let kind = if pinned { RecordKind::Pin } else { RecordKind::Unpin };
            let record = control(kind, ChunkKey { file, version: 0, index: 0 });
            core.queue.push_back(Job::Control { record, room: Some(room), done: None, unsettled: 0 });
        }
        self.wake(core);
        Ok(())
    }

    /// Chunks on their way are bounded by the queue, so they may exceed the limit by as much.
    fn pin_pending(core: &mut Core, file: u128, pinned: bool) {
        let mut change = 0;
        for (_, pending) in core.pending.iter_mut().filter(|(key, _)| key.file == file) {
            if pending.placement.pinned != pinned {
                pending.placement.pinned = pinned;
                change += footprint(pending.bytes.len());
            }
        }
        let sum = core.pending_pinned;
        core.pending_pinned = if pinned { sum + change } else { sum.saturating_sub(change) };
    }
}
