//! Finding out, at start, what is on the device.
//!
//! Owns: reading the log back into an index. Never does: trust what a crash or a flipped bit may have left.
//!
//! Invariants:
//! * Records are applied in the order of their sequence numbers, so the last word on a key counts.
//! * Sequence numbers have no gaps. Where one is missing and a tombstone may have been lost with it, everything older is
//!   forgotten: a chunk less is a miss, a chunk that was removed is an error.

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::Arc,
};

use super::{
    aligned::AlignedBuffer,
    index::{Chunk, Index},
    layout::{BLOCK, DecodeError, Placed, Record, RecordKind, SEGMENT_HEADER_BLOCKS, SegmentHeader},
    log::{Log, Sealed},
    medium::Medium,
};

/// Threads that read summaries: recovery waits for the device, not for the processor.
const READERS: usize = 8;
/// Blocks read at once while headers are looked for.
const WINDOW: u32 = 64;

/// What was found.
pub struct Recovered {
    pub index: Index,
    pub pinned_files: HashMap<u128, u64>,
    pub log: Log,
    /// Segments or stretches that could not be read.
    pub damaged: u64,
}

/// Records of a segment.
struct Contents {
    entries: Vec<Placed>,
    /// Found record by record, for want of a summary.
    scanned: bool,
    /// Where the summary is, or was, if that is known.
    summary_at: Option<u32>,
}

/// Reads the store back. `session` is random.
///
/// # Errors
/// The device's.
pub fn recover(medium: Arc<Medium>, now: u64, session: u64) -> io::Result<Recovered> {
    let slots: Vec<u32> = (0..medium.superblock.segments).collect();
    let headers = in_parallel(&slots, |slot| medium.segment_header(*slot))?;
    let (mut live, mut free, mut unknown) = (Vec::new(), VecDeque::new(), Vec::new());
    let mut used = Vec::new();
    for (slot, header) in slots.into_iter().zip(headers) {
        match header {
            Ok(SegmentHeader { sequence, first_record, tag, free: false }) => {
                medium.set_tag(slot, tag);
                live.push(Sealed { slot, sequence, first_record, tag });
            }
            Ok(header) => used.push((header.sequence, header.first_record, slot)),
            Err(DecodeError::Foreign) => free.push_back(slot),
            Err(_) => {
                unknown.push(slot);
                free.push_back(slot);
            }
        }
    }
    live.sort_unstable_by_key(|segment| segment.sequence);
    used.sort_unstable();
    let after_free = used.last().map_or((0, 0), |(sequence, record, _)| (*sequence, *record));
    free.extend(used.into_iter().map(|(_, _, slot)| slot));
    let mut replay = Replay::new(&medium, now);
    replay.run(&live, unknown.len())?;
    let discarded = live.partition_point(|segment| segment.sequence < replay.discard_before);
    make_durable(&medium, &live[..discarded], &replay.reseal, &unknown)?;
    let next_record = match live.last() {
        Some(last) => last.first_record.max(replay.last_record + 1),
        // Nothing is left: beyond anything the freed segments can have held.
        None => after_free.1 + u64::from(medium.superblock.segment_blocks),
    };
    let next_record = next_record.max(medium.checkpoint()? + 1);
    let next_segment = live.last().map_or(0, |segment| segment.sequence).max(after_free.0) + 1;
    let mut pinned_files = std::mem::take(&mut replay.pinned_files);
    if replay.discard_before > 0 {
        // The records that said so may be gone; the writer says it again.
        pinned_files.values_mut().for_each(|written| *written = 0);
    }
    let Replay { index, damaged, .. } = replay;
    free.extend(live.drain(..discarded).map(|segment| segment.slot));
    let log = Log::new(Arc::clone(&medium), live.into(), free, (next_record, next_segment), session);
    Ok(Recovered { index, pinned_files, log, damaged })
}

/// Makes what was forgotten stay so: a second recovery must not see more than the first. Oldest first, since what is newer
/// may have tombstones for it; summaries last, since what they leave out is why.
fn make_durable(
    medium: &Medium,
    discarded: &[Sealed],
    reseal: &[(Sealed, u32, Vec<Placed>)],
    unknown: &[u32],
) -> io::Result<()> {
    for segment in discarded {
        medium.write_segment_header(segment.slot, &segment.header(true))?;
        medium.device.sync()?;
    }
    for (segment, end, entries) in reseal {
        medium.write_summary(segment.slot, segment.tag, *end, entries)?;
    }
    for slot in unknown {
        medium.write_segment_header(*slot, &SegmentHeader { sequence: 0, first_record: 0, tag: 0, free: true })?;
    }
    medium.device.sync()
}

/// Runs `read` over `items`, some at a time; answers in order.
fn in_parallel<I: Sync, T: Send>(items: &[I], read: impl Fn(&I) -> io::Result<T> + Sync) -> io::Result<Vec<T>> {
    let share = items.len().div_ceil(READERS).max(1);
    std::thread::scope(|scope| {
        let read = &read;
        let threads: Vec<_> = items
            .chunks(share)
            .map(|share| scope.spawn(move || share.iter().map(read).collect::<io::Result<Vec<T>>>()))
            .collect();
        let mut all = Vec::with_capacity(items.len());
        for thread in threads {
            all.extend(thread.join().map_err(|_| io::Error::other("a reader panicked"))??);
        }
        Ok(all)
    })
}

/// The index as it grows.
struct Replay<'a> {
    medium: &'a Medium,
    now: u64,
    index: Index,
    pinned_files: HashMap<u128, u64>,
    damaged: u64,
    last_record: u64,
    /// Something was lost: segments before this one are not to be seen again.
    discard_before: u64,
    /// The segment and the entry that are being applied.
    position: (u64, usize),
    /// Entries of the segment before this one are not to be seen again.
    keep_from: usize,
    /// Segments that need a summary, where it begins, and what is to be in it.
    reseal: Vec<(Sealed, u32, Vec<Placed>)>,
}

impl<'a> Replay<'a> {
    fn new(medium: &'a Medium, now: u64) -> Self {
        Self {
            medium,
            now,
            index: Index::default(),
            pinned_files: HashMap::new(),
            damaged: 0,
            last_record: 0,
            discard_before: 0,
            position: (0, 0),
            keep_from: 0,
            reseal: Vec::new(),
        }
    }

    /// Applies all segments, oldest first. `unknown` slots have no readable header: if the gaps in the order of segments do
    /// not account for them, one may have been the newest. The checkpoint tells if the end is missing.
    fn run(&mut self, live: &[Sealed], unknown: usize) -> io::Result<()> {
        let mut gaps = 0;
        for (at, some) in live.chunks(READERS).enumerate() {
            let contents = in_parallel(some, |segment| read_segment(self.medium, *segment))?;
            for (within, (segment, contents)) in some.iter().zip(contents).enumerate() {
                let at = at * READERS + within;
                self.position = (segment.sequence, 0);
                self.keep_from = 0;
                if at > 0 && live[at - 1].sequence + 1 != segment.sequence {
                    gaps += 1;
                    self.forget_older();
                }
                let next = live.get(at + 1).filter(|next| next.sequence == segment.sequence + 1);
                self.apply_segment(*segment, contents, next.map(|next| next.first_record))?;
            }
        }
        if unknown > gaps || self.last_record < self.medium.checkpoint()? {
            self.position = (u64::MAX, 0);
            self.forget_older();
        }
        Ok(())
    }

    fn forget_older(&mut self) {
        self.damaged += 1;
        self.index = Index::default();
        (self.discard_before, self.keep_from) = self.position;
    }

    fn apply_segment(&mut self, segment: Sealed, contents: Contents, end: Option<u64>) -> io::Result<()> {
        let mut expected = (segment.first_record, SEGMENT_HEADER_BLOCKS);
        for (at, placed) in contents.entries.iter().enumerate() {
            self.position = (segment.sequence, at);
            if contents.scanned {
                self.check_gap(expected, placed.record.sequence, Some(placed.block));
            }
            expected = (placed.record.sequence + 1, placed.block + placed.record.blocks());
            self.apply(segment, placed)?;
        }
        self.position = (segment.sequence, contents.entries.len());
        if let (true, Some(end)) = (contents.scanned, end) {
            self.check_gap(expected, end, contents.summary_at);
        }
        self.last_record = self.last_record.max(expected.0.saturating_sub(1));
        if contents.scanned || self.keep_from > 0 {
            let at = contents.summary_at.unwrap_or(expected.1);
            self.reseal.push((segment, at, contents.entries[self.keep_from..].to_vec()));
        }
        Ok(())
    }

    /// Between a record and the next one found, some may be missing. One that was not two blocks long was a chunk, and only
    /// a miss; anything else may have been a tombstone.
    fn check_gap(&mut self, (sequence, block): (u64, u32), found: u64, at: Option<u32>) {
        let missing = found.saturating_sub(sequence);
        if missing == 0 {
            return;
        }
        let blocks = at.map(|at| at.saturating_sub(block));
        if missing == 1 && blocks.is_some_and(|blocks| blocks != 2) {
            self.damaged += 1;
        } else {
            self.forget_older();
        }
    }

    fn apply(&mut self, segment: Sealed, placed: &Placed) -> io::Result<()> {
        let record = &placed.record;
        let key = record.key;
        match record.kind {
            RecordKind::Chunk => {
                let block = self.medium.block(segment.slot, placed.block);
                let block = u32::try_from(block).expect("the superblock bounds blocks");
                let pinned = record.pinned || self.pinned_files.contains_key(&key.file);
                let chunk = Chunk::new(key.index, block, record.length, pinned, record.expires);
                if chunk.expired(self.now) {
                    self.index.remove(&key);
                } else {
                    self.index.insert(&key, record.export, chunk);
                }
            }
            RecordKind::Tombstone => {
                self.index.remove(&key);
            }
            RecordKind::FileTombstone => {
                self.pinned_files.remove(&key.file);
                for (key, _) in self.index.of_file(key.file, None) {
                    self.index.remove(&key);
                }
            }
            RecordKind::Pin => {
                self.pinned_files.insert(key.file, record.sequence);
                self.pin(key.file, true);
            }
            RecordKind::Unpin => {
                self.pinned_files.remove(&key.file);
                self.pin(key.file, false);
            }
            RecordKind::TombstoneList => match self.medium.tombstones(segment.slot, placed)? {
                Some(keys) => keys.iter().for_each(|key| {
                    self.index.remove(key);
                }),
                None => self.forget_older(),
            },
        }
        Ok(())
    }

    fn pin(&mut self, file: u128, pinned: bool) {
        for (key, _) in self.index.of_file(file, None) {
            self.index.pin(&key, pinned);
        }
    }
}

/// The summary of a segment, or what its record headers tell.
fn read_segment(medium: &Medium, segment: Sealed) -> io::Result<Contents> {
    let footer = medium.footer(segment.slot, segment.tag)?;
    let summary_at = footer.map(|footer| footer.summary_block);
    if let Some(entries) = medium.summary(segment.slot, segment.tag)? {
        return Ok(Contents { entries, scanned: false, summary_at });
    }
    scan(medium, segment, summary_at)
}

/// Looks for record headers. Blocks that are none are stepped over one by one, since a damaged record may be followed by
/// whole ones.
fn scan(medium: &Medium, segment: Sealed, summary_at: Option<u32>) -> io::Result<Contents> {
    let end = summary_at.unwrap_or(medium.superblock.segment_blocks - 1);
    let mut window: Option<(u32, AlignedBuffer)> = None;
    let mut entries: Vec<Placed> = Vec::new();
    let mut block = SEGMENT_HEADER_BLOCKS;
    while block < end {
        let within = |start: u32, buffer: &AlignedBuffer| (block - start) as usize * BLOCK < buffer.len();
        if !window.as_ref().is_some_and(|(start, buffer)| *start <= block && within(*start, buffer)) {
            let blocks = WINDOW.min(end - block);
            window = Some((block, medium.device.read(medium.block(segment.slot, block), blocks as usize)?));
        }
        let Some((start, buffer)) = &window else { break };
        let bytes = &buffer[(block - start) as usize * BLOCK..];
        let header = Record::decode(bytes, medium.superblock.uuid, segment.tag).ok();
        let newest = entries.last().map_or(0, |placed| placed.record.sequence);
        let header = header.filter(|header| header.record.sequence > newest);
        let Some(header) = header else {
            block += 1;
            continue;
        };
        // The first copy of a control record may be the damaged one.
        let first = if header.copy { (block - 1).max(SEGMENT_HEADER_BLOCKS) } else { block };
        let next = first + header.record.blocks();
        if next > end {
            break;
        }
        entries.push(Placed { block: first, record: header.record });
        block = next;
    }
    Ok(Contents { entries, scanned: true, summary_at })
}
