//! Taking the oldest segment back.
//!
//! Owns: what is copied forward and what is evicted. Never does: pick another than the oldest.
//! Invariants: copies of chunks that were merely read fill at most half a segment, so every segment reclaimed gains at least
//! the other half less what is pinned in it; a chunk leaves the index only after the segment is marked free on the device.

use std::io;

use super::{
    Store, control,
    index::Chunk,
    layout::{Placed, Record, RecordKind},
    log::{Commit, Log, Sealed},
    medium::ReadError,
};
use crate::cache::key::ChunkKey;

/// Entries looked up under one hold of the lock.
const AT_ONCE: usize = 256;

impl Log {
    /// Copies what is worth it from the oldest segment, evicts the rest and frees it.
    ///
    /// # Errors
    /// The device's.
    pub fn reclaim_oldest(&mut self, store: &Store) -> io::Result<()> {
        let Some(oldest) = self.sealed.front().copied() else { return Ok(()) };
        let entries = self.medium.summary(oldest.slot, oldest.tag)?;
        let worth = entries.as_deref().map(|entries| self.worth_keeping(store, oldest, entries)).unwrap_or_default();
        self.reclaim(store, oldest, entries, &worth)
    }

    /// As [`Log::reclaim_oldest`], unless more than `blocks` blocks would have to be copied.
    ///
    /// # Errors
    /// The device's.
    pub fn reclaim_within(&mut self, store: &Store, blocks: u32) -> io::Result<()> {
        let Some(oldest) = self.sealed.front().copied() else { return Ok(()) };
        let entries = self.medium.summary(oldest.slot, oldest.tag)?;
        let worth = entries.as_deref().map(|entries| self.worth_keeping(store, oldest, entries)).unwrap_or_default();
        let pins = self.pins(store, oldest).len() as u64;
        let needed: u64 = worth.iter().map(|(record, _)| u64::from(record.blocks())).sum();
        if needed + 2 * pins > u64::from(blocks) {
            return Ok(());
        }
        self.reclaim(store, oldest, entries, &worth)
    }

    /// Frees the oldest segment with everything in it.
    ///
    /// # Errors
    /// The device's.
    pub fn discard_oldest(&mut self, store: &Store) -> io::Result<()> {
        let Some(oldest) = self.sealed.front().copied() else { return Ok(()) };
        let entries = self.medium.summary(oldest.slot, oldest.tag)?;
        self.free_segment(store, oldest, entries)
    }

    fn reclaim(
        &mut self,
        store: &Store,
        oldest: Sealed,
        entries: Option<Vec<Placed>>,
        worth: &[(Record, Chunk)],
    ) -> io::Result<()> {
        self.sealed.pop_front();
        for (record, chunk) in worth {
            self.copy(store, record, chunk)?;
        }
        for file in self.pins(store, oldest) {
            let record = control(RecordKind::Pin, ChunkKey { file, version: 0, index: 0 });
            self.append(store, record, &[], Commit::Control { _room: None, done: None, unsettled: 0 })?;
        }
        self.settle(store)?;
        self.sealed.push_front(oldest);
        self.free_segment(store, oldest, entries)
    }

    /// Files whose being pinned is said in that segment.
    fn pins(&self, store: &Store, segment: Sealed) -> Vec<u128> {
        let end = self.sealed.iter().find(|next| next.sequence > segment.sequence).map(|next| next.first_record);
        let end = end.or_else(|| self.open_entries().map(|(open, _)| open.first_record)).unwrap_or(self.next_record);
        let core = store.core.lock();
        let within = core.pinned_files.iter().filter(|(_, at)| (segment.first_record..end).contains(at));
        within.map(|(file, _)| *file).collect()
    }

    /// Chunks that are pinned, and those that were read, up to half a segment.
    fn worth_keeping(&self, store: &Store, segment: Sealed, entries: &[Placed]) -> Vec<(Record, Chunk)> {
        let mut budget = self.medium.superblock.segment_blocks / 2;
        let now = (store.limits.clock)();
        let mut worth = Vec::new();
        for some in entries.chunks(AT_ONCE) {
            let core = store.core.lock();
            for placed in some.iter().filter(|placed| placed.record.kind == RecordKind::Chunk) {
                let at = self.medium.block(segment.slot, placed.block);
                let chunk = core.index.find(&placed.record.key).filter(|chunk| u64::from(chunk.block) == at);
                let Some(chunk) = chunk.filter(|chunk| !chunk.expired(now)) else { continue };
                let blocks = placed.record.blocks();
                let read = blocks <= budget && (chunk.hit() || store.ram.contains(&placed.record.key));
                if chunk.pinned() {
                    worth.push((placed.record, chunk));
                } else if read {
                    budget -= blocks;
                    worth.push((placed.record, chunk));
                }
            }
        }
        worth
    }

    fn copy(&mut self, store: &Store, record: &Record, chunk: &Chunk) -> io::Result<()> {
        match self.medium.read_chunk(&record.key, chunk) {
            Ok(bytes) => {
                let record = Record { pinned: chunk.pinned(), ..*record };
                store.metrics.copied_bytes.add(chunk.footprint());
                self.append(store, record, &bytes, Commit::Copied { from: chunk.block })
            }
            Err(error) => {
                match error {
                    ReadError::Io(_) => store.metrics.errors_read.add(1),
                    ReadError::Corrupt => store.metrics.checksum_failures.add(1),
                }
                Ok(())
            }
        }
    }

    /// Marks it free on the device, then evicts what the index still has in it.
    fn free_segment(&mut self, store: &Store, segment: Sealed, entries: Option<Vec<Placed>>) -> io::Result<()> {
        let slot = segment.slot;
        self.medium.write_segment_header(slot, &segment.header(true))?;
        self.medium.device.sync()?;
        let (start, end) = (self.medium.block(slot, 0), self.medium.block(slot, self.medium.superblock.segment_blocks));
        let keys: Vec<ChunkKey> = match entries {
            Some(entries) => entries.iter().map(|placed| placed.record.key).collect(),
            None => {
                let core = store.core.lock();
                let within = core.index.all().filter(|(_, chunk)| (start..end).contains(&u64::from(chunk.block)));
                within.map(|(key, _)| key).collect()
            }
        };
        let now = (store.limits.clock)();
        for some in keys.chunks(AT_ONCE) {
            let mut core = store.core.lock();
            for key in some {
                let chunk = core.index.find(key).filter(|chunk| (start..end).contains(&u64::from(chunk.block)));
                if let Some(chunk) = chunk {
                    core.index.remove(key);
                    let expired = chunk.expired(now);
                    let metrics = &store.metrics;
                    if expired { &metrics.evicted_ttl } else { &metrics.evicted_capacity }.add(1);
                }
            }
        }
        self.sealed.pop_front();
        self.free.push_back(slot);
        Ok(())
    }
}
