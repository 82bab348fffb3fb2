//! The log: records appended to segments, in batches of a few megabytes.
//!
//! Owns: which segments are sealed, free and open, sequence numbers, and the batch that is being filled. Never does: decide
//! what is worth keeping (that is [`super::reclaim`]).
//!
//! Invariants:
//! * Segments are reused in the order they were sealed, so whatever a tombstone buries is gone before the tombstone is.
//! * A segment is on stable storage before the next one is opened, and marked free there before its chunks leave the index.
//! * A record is indexed only after it was written.

use std::{collections::VecDeque, io, sync::Arc};

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Store,
    aligned::AlignedBuffer,
    index::Chunk,
    layout::{
        BLOCK, Placed, RECORD_HEADER, Record, RecordKind, SEGMENT_HEADER_BLOCKS, SegmentHeader, Superblock,
        chunk_blocks, summary_blocks,
    },
    medium::Medium,
};
use crate::cache::key::CHUNK_MAX;

/// Blocks after which a batch is written: large writes are what devices do best, and more would only add delay.
const BATCH_BLOCKS: usize = 1024;
/// Segments kept free, so that a crash in the middle of reclaiming finds one.
pub const FREE_TARGET: usize = 2;

/// A segment that is not written to any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sealed {
    /// Where it is.
    pub slot: u32,
    /// Its sequence number.
    pub sequence: u64,
    /// Sequence number of its first record.
    pub first_record: u64,
    /// What its records carry.
    pub tag: u64,
}

impl Sealed {
    /// Its header, as it is or as free.
    pub fn header(&self, free: bool) -> SegmentHeader {
        let Self { sequence, first_record, tag, .. } = *self;
        SegmentHeader { sequence, first_record, tag, free }
    }
}

/// The segment that is written to.
#[derive(Debug)]
struct Open {
    sealed: Sealed,
    next_block: u32,
    entries: Vec<Placed>,
}

/// What is done once a record is written.
pub enum Commit {
    /// A new chunk.
    New { ticket: u64, _room: OwnedSemaphorePermit },
    /// A chunk that was copied from this block of the device.
    Copied { from: u32 },
    /// Anything else.
    Control { _room: Option<OwnedSemaphorePermit>, done: Option<oneshot::Sender<()>>, unsettled: usize },
    /// A list of this many tombstones nobody waits for.
    Forgotten(usize),
}

/// Records encoded but not written.
struct Batch {
    buffer: AlignedBuffer,
    first_block: u32,
    used: usize,
    entries: Vec<(Placed, Commit)>,
}

/// See the module.
pub struct Log {
    pub medium: Arc<Medium>,
    open: Option<Open>,
    /// Oldest first.
    pub sealed: VecDeque<Sealed>,
    /// In the order of their use.
    pub free: VecDeque<u32>,
    pub next_record: u64,
    pub next_segment: u64,
    /// Random: two runs do not tag segments alike.
    session: u64,
    batch: Batch,
    /// To be told once everything is on stable storage.
    pub waiting: Vec<oneshot::Sender<()>>,
    /// Tombstones written since the last sync that nobody waits for.
    forgotten: usize,
    /// The last record the checkpoint names, and how often it was written.
    checkpoint: u64,
    turn: u64,
}

/// Bytes that may be pinned: of the segments that are not kept free, what chunks of 1 MiB surely fit into.
pub fn pin_limit(superblock: &Superblock) -> u64 {
    let segments = u64::from(superblock.segments.saturating_sub(FREE_TARGET as u32 + 2));
    let left_over = chunk_blocks(1 << 20).min(superblock.segment_blocks / 4);
    let blocks = u64::from(superblock.segment_blocks - left_over);
    segments * blocks * BLOCK as u64 / 100 * super::PINNED_PERCENT
}

/// Whether a record of so many blocks fits a segment at all.
pub fn fits(superblock: &Superblock, blocks: u32) -> bool {
    SEGMENT_HEADER_BLOCKS + blocks + summary_blocks(1) < superblock.segment_blocks
}

impl Log {
    /// A log whose segments are known. No segment is open.
    pub fn new(
        medium: Arc<Medium>,
        sealed: VecDeque<Sealed>,
        free: VecDeque<u32>,
        next: (u64, u64),
        session: u64,
    ) -> Self {
        let blocks = BATCH_BLOCKS + chunk_blocks(CHUNK_MAX as u32) as usize;
        let batch = Batch { buffer: AlignedBuffer::zeroed(blocks), first_block: 0, used: 0, entries: Vec::new() };
        let (next_record, next_segment) = next;
        Self {
            medium,
            open: None,
            sealed,
            free,
            next_record,
            next_segment,
            session,
            batch,
            waiting: Vec::new(),
            forgotten: 0,
            checkpoint: 0,
            turn: next_segment,
        }
    }

    fn has_room(&self, blocks: u32) -> bool {
        self.open.as_ref().is_some_and(|open| {
            let summary = summary_blocks(open.entries.len() + 1);
            open.next_block + blocks + summary < self.medium.superblock.segment_blocks
        })
    }

    /// Blocks of records the open segment still takes, about.
    pub fn room(&self) -> u32 {
        let segment = self.medium.superblock.segment_blocks;
        self.open.as_ref().map_or(0, |open| {
            let left = segment.saturating_sub(open.next_block + summary_blocks(open.entries.len()) + 2);
            // A summary takes a 64th of what it sums up, at most.
            left - left / 32
        })
    }

    /// Entries of the open segment, with its slot.
    pub fn open_entries(&self) -> Option<(Sealed, &[Placed])> {
        self.open.as_ref().map(|open| (open.sealed, open.entries.as_slice()))
    }

    /// Appends a record, whose sequence number is given here.
    ///
    /// # Errors
    /// The device's.
    pub fn append(&mut self, store: &Store, record: Record, payload: &[u8], commit: Commit) -> io::Result<()> {
        let blocks = record.blocks();
        // What is reclaimed for a new segment may fill it again, if it was all pinned; not all of the store can be.
        let mut rolls = self.medium.superblock.segments;
        while !self.has_room(blocks) {
            rolls = rolls.checked_sub(1).ok_or_else(|| io::Error::other("no segment has room for a record"))?;
            self.roll(store)?;
        }
        if self.batch.used >= BATCH_BLOCKS {
            self.write_batch(store)?;
        }
        let record = Record { sequence: self.next_record, ..record };
        self.next_record += 1;
        let uuid = self.medium.superblock.uuid;
        let Some(open) = self.open.as_mut() else { return Err(io::Error::other("no segment is open")) };
        if self.batch.used == 0 {
            self.batch.first_block = open.next_block;
        }
        let at = self.batch.used * BLOCK;
        let memory = &mut self.batch.buffer[at..at + blocks as usize * BLOCK];
        let hash = xxh3_64(payload);
        if record.kind == RecordKind::Chunk {
            encode_record(memory, &record.encode(uuid, open.sealed.tag, hash, false), payload);
        } else {
            for (number, copy) in memory.chunks_exact_mut(BLOCK).enumerate() {
                encode_record(copy, &record.encode(uuid, open.sealed.tag, hash, number == 1), payload);
            }
        }
        let placed = Placed { block: open.next_block, record };
        open.entries.push(placed);
        open.next_block += blocks;
        self.batch.used += blocks as usize;
        self.batch.entries.push((placed, commit));
        Ok(())
    }

    /// Writes the batch and indexes what is in it.
    ///
    /// # Errors
    /// The device's.
    pub fn write_batch(&mut self, store: &Store) -> io::Result<()> {
        let (Some(open), true) = (self.open.as_ref(), self.batch.used > 0) else { return Ok(()) };
        let slot = open.sealed.slot;
        let bytes = &self.batch.buffer[..self.batch.used * BLOCK];
        self.medium.device.write(self.medium.block(slot, self.batch.first_block), bytes)?;
        store.metrics.written_bytes.add(bytes.len() as u64);
        self.batch.used = 0;
        let medium = Arc::clone(&self.medium);
        let entries = std::mem::take(&mut self.batch.entries);
        let mut core = store.core.lock();
        for (placed, commit) in entries {
            let block = u32::try_from(medium.block(slot, placed.block)).expect("the superblock bounds blocks");
            match commit {
                Commit::New { ticket, .. } => core.commit_new(&placed.record, ticket, block),
                Commit::Copied { from } => core.commit_copied(&placed.record, from, block),
                Commit::Control { done, unsettled, .. } => {
                    self.forgotten += unsettled;
                    self.waiting.extend(done);
                    core.commit_control(&placed.record);
                }
                Commit::Forgotten(count) => self.forgotten += count,
            }
        }
        Ok(())
    }

    /// Puts everything on stable storage and tells those who wait for it.
    ///
    /// # Errors
    /// The device's.
    pub fn settle(&mut self, store: &Store) -> io::Result<()> {
        self.write_batch(store)?;
        self.medium.device.sync()?;
        if self.checkpoint + 1 < self.next_record {
            // Not synced itself: after a power cut it may say less, never more.
            self.turn += 1;
            self.checkpoint = self.next_record - 1;
            self.medium.write_checkpoint(self.checkpoint, self.turn)?;
        }
        let forgotten = std::mem::take(&mut self.forgotten);
        let mut core = store.core.lock();
        core.unsettled = core.unsettled.saturating_sub(forgotten);
        drop(core);
        self.waiting.drain(..).for_each(|done| {
            done.send(()).ok();
        });
        Ok(())
    }

    /// Something waits for [`Log::settle`].
    pub fn unsettled(&self) -> bool {
        !self.waiting.is_empty() || self.forgotten > 0
    }

    /// Writes the summary of the open segment, and everything to stable storage.
    ///
    /// # Errors
    /// The device's.
    pub fn seal(&mut self, store: &Store) -> io::Result<()> {
        self.write_batch(store)?;
        if let Some(open) = self.open.take() {
            let Sealed { slot, tag, .. } = open.sealed;
            self.medium.write_summary(slot, tag, open.next_block, &open.entries)?;
            self.sealed.push_back(open.sealed);
        }
        self.settle(store)
    }

    /// Seals the open segment, opens the next and reclaims another for later.
    fn roll(&mut self, store: &Store) -> io::Result<()> {
        self.seal(store)?;
        let slot = match self.free.pop_front() {
            Some(slot) => slot,
            // Two crashes in the middle of reclaiming: nothing can be copied, there is nowhere to.
            None => {
                self.discard_oldest(store)?;
                self.free.pop_front().ok_or_else(|| io::Error::other("the store has no segments"))?
            }
        };
        let (sequence, first_record) = (self.next_segment, self.next_record);
        let tag = self.session.wrapping_add(sequence);
        let sealed = Sealed { slot, sequence, first_record, tag };
        self.next_segment += 1;
        self.medium.write_segment_header(slot, &sealed.header(false))?;
        self.medium.set_tag(slot, tag);
        self.open = Some(Open { sealed, next_block: SEGMENT_HEADER_BLOCKS, entries: Vec::new() });
        if self.free.len() < FREE_TARGET {
            self.reclaim_oldest(store)?;
        }
        let half = self.medium.superblock.segment_blocks / 2;
        if self.free.len() < FREE_TARGET && self.room() > half {
            self.reclaim_within(store, half)?;
        }
        Ok(())
    }
}

/// Header, payload, zeros.
fn encode_record(memory: &mut [u8], header: &[u8; RECORD_HEADER], payload: &[u8]) {
    let (head, rest) = memory.split_at_mut(RECORD_HEADER);
    head.copy_from_slice(header);
    let (data, padding) = rest.split_at_mut(payload.len());
    data.copy_from_slice(payload);
    padding.fill(0);
}

impl super::Core {
    fn commit_new(&mut self, record: &Record, ticket: u64, block: u32) {
        if !self.has_ticket(&record.key, ticket) {
            return;
        }
        if let Some(pending) = self.take_pending(&record.key) {
            let pinned = pending.placement.pinned;
            let chunk = Chunk::new(record.key.index, block, record.length, pinned, record.expires);
            self.index.insert(&record.key, record.export, chunk);
        }
    }

    fn commit_copied(&mut self, record: &Record, from: u32, block: u32) {
        let current = self.index.find(&record.key).filter(|chunk| chunk.block == from);
        if let Some(current) = current {
            let chunk = Chunk::new(record.key.index, block, record.length, current.pinned(), record.expires);
            self.index.insert(&record.key, record.export, chunk);
        }
    }

    fn commit_control(&mut self, record: &Record) {
        if let (RecordKind::Pin, Some(sequence)) = (record.kind, self.pinned_files.get_mut(&record.key.file)) {
            *sequence = record.sequence;
        }
    }
}
