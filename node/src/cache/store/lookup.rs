//! Finding and reading chunks.
//!
//! Owns: the way from a key to checked bytes, and what follows when they do not check. Never does: hold the lock while the
//! device reads. Invariant: a chunk enters RAM under the same hold of the lock under which its place was seen unchanged.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    Core, Store, index,
    medium::{Medium, ReadError},
};
use crate::cache::key::{ChunkKey, Present, Tier};

/// Where a read looks next.
enum Lookup {
    Missing,
    InMemory(Bytes),
    OnDevice(Arc<Medium>, index::Chunk),
}

/// [`Store::read`] has to be called.
#[derive(Debug, Clone, Copy)]
pub struct OnDevice;

impl Store {
    fn look_up(&self, key: &ChunkKey) -> Lookup {
        let mut core = self.core.lock();
        let now = (self.limits.clock)();
        if let Some(pending) = core.pending.get(key) {
            let expired = pending.placement.expires.is_some_and(|at| at <= now);
            return if expired { Lookup::Missing } else { Lookup::InMemory(pending.bytes.clone()) };
        }
        let (Some(chunk), Some(medium)) = (core.index.find(key), core.medium.clone()) else { return Lookup::Missing };
        if chunk.expired(now) {
            // Its record expires with it: no tombstone.
            core.index.remove(key);
            self.metrics.evicted_ttl.add(1);
            return Lookup::Missing;
        }
        core.index.touch(key);
        Lookup::OnDevice(medium, chunk)
    }

    /// A chunk that waits to be written, or what [`Store::read`] has to be called for.
    pub fn in_memory(&self, key: &ChunkKey) -> Result<Option<Bytes>, OnDevice> {
        match self.look_up(key) {
            Lookup::Missing => Ok(None),
            Lookup::InMemory(bytes) => Ok(Some(bytes)),
            Lookup::OnDevice(..) => Err(OnDevice),
        }
    }

    /// Reads and checks a chunk, and keeps it in RAM. Blocks for the device.
    pub fn read(&self, key: &ChunkKey) -> Option<(Bytes, Tier)> {
        // A chunk that was moved while it was read is looked up again; it cannot be moved often.
        for _ in 0..4 {
            let (medium, chunk) = match self.look_up(key) {
                Lookup::Missing => return None,
                Lookup::InMemory(bytes) => return Some((bytes, Tier::Ram)),
                Lookup::OnDevice(medium, chunk) => (medium, chunk),
            };
            let read = medium.read_chunk(key, &chunk);
            let mut core = self.core.lock();
            let same_place = core.index.find(key).is_some_and(|now| now.block == chunk.block);
            let same_medium = core.medium.as_ref().is_some_and(|now| Arc::ptr_eq(now, &medium));
            match read {
                Err(ReadError::Io(error)) => {
                    drop(core);
                    self.metrics.errors_read.add(1);
                    tracing::debug!(%error, "a chunk could not be read from the cache store");
                    return None;
                }
                _ if !(same_place && same_medium) => {}
                Err(ReadError::Corrupt) => {
                    self.drop_corrupt(&mut core, key);
                    self.wake(core);
                    return None;
                }
                Ok(bytes) => {
                    let expires = (chunk.expires != 0).then(|| u64::from(chunk.expires));
                    let pushed_out = self.ram.insert(*key, bytes.clone(), expires);
                    drop(core);
                    self.metrics.evicted_ram.add(self.ram.settle(pushed_out));
                    return Some((bytes, Tier::Nvme));
                }
            }
        }
        None
    }

    /// What does not read back is never tried again, not even after a restart.
    fn drop_corrupt(&self, core: &mut Core, key: &ChunkKey) {
        core.index.remove(key);
        core.forget_later(*key);
        self.metrics.checksum_failures.add(1);
    }

    /// Whether a chunk is here, beside RAM.
    pub fn contains(&self, key: &ChunkKey) -> Option<Tier> {
        let core = self.core.lock();
        let now = (self.limits.clock)();
        if let Some(pending) = core.pending.get(key) {
            return pending.placement.expires.is_none_or(|at| at > now).then_some(Tier::Ram);
        }
        core.index.find(key).filter(|chunk| !chunk.expired(now)).map(|_| Tier::Nvme)
    }

    /// Chunks of a version of a file.
    pub fn of_file(&self, file: u128, version: u64) -> Vec<Present> {
        let core = self.core.lock();
        let now = (self.limits.clock)();
        let on_device = core.index.of_file(file, Some(version)).into_iter().filter(|(_, chunk)| !chunk.expired(now));
        let mut found: Vec<Present> = on_device
            .map(|(key, chunk)| Present { index: key.index, tier: Tier::Nvme, length: chunk.length() })
            .collect();
        for (key, pending) in core.pending.iter().filter(|(key, _)| key.file == file && key.version == version) {
            let length = u32::try_from(pending.bytes.len()).unwrap_or(u32::MAX);
            found.push(Present { index: key.index, tier: Tier::Ram, length });
        }
        found
    }
}
