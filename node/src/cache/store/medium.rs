//! A device with the geometry of a store on it.
//!
//! Owns: reading and checking records, segment headers and summaries. Never does: change the index, choose where to write.
//! Invariant: bytes leave here only if their record names the chunk that was asked for and their hash holds.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    super::key::ChunkKey,
    aligned::AlignedBuffer,
    device::Device,
    index::Chunk,
    layout::{
        self, BLOCK, Checkpoint, DecodeError, Footer, Placed, RECORD_HEADER, Record, RecordKind, SEGMENT_HEADER_BLOCKS,
        SegmentHeader, Superblock,
    },
};

/// Data shorter than this is copied out of its blocks, which would be mostly padding.
const COPY_BELOW: u32 = 64 << 10;

/// Why a chunk could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// The device said no.
    Io(io::Error),
    /// What is there is not what was written.
    Corrupt,
}

/// See the module.
#[derive(Debug)]
pub struct Medium {
    /// Where everything is.
    pub device: Arc<dyn Device>,
    /// How it is laid out.
    pub superblock: Superblock,
    /// The tag of the segment in each slot, 0 for none.
    tags: Vec<AtomicU64>,
}

impl Medium {
    /// A device that carries this superblock.
    pub fn new(device: Arc<dyn Device>, superblock: Superblock) -> Self {
        let tags = (0..superblock.segments).map(|_| AtomicU64::new(0)).collect();
        Self { device, superblock, tags }
    }

    /// The tag of the segment in a slot.
    pub fn tag(&self, slot: u32) -> u64 {
        self.tags.get(slot as usize).map_or(0, |tag| tag.load(Ordering::Acquire))
    }

    /// A slot has another segment now.
    pub fn set_tag(&self, slot: u32, tag: u64) {
        if let Some(place) = self.tags.get(slot as usize) {
            place.store(tag, Ordering::Release);
        }
    }

    /// The block on the device of a block of a segment.
    pub fn block(&self, slot: u32, block: u32) -> u64 {
        self.superblock.segment_start(slot) + u64::from(block)
    }

    /// The chunk's bytes, checked.
    ///
    /// # Errors
    /// See [`ReadError`]. A chunk that was moved meanwhile reads as corrupt.
    pub fn read_chunk(&self, key: &ChunkKey, chunk: &Chunk) -> Result<Bytes, ReadError> {
        let slot = self.superblock.slot_of(chunk.block).ok_or(ReadError::Corrupt)?;
        let tag = self.tag(slot);
        let buffer = self.device.read(u64::from(chunk.block), chunk.blocks() as usize).map_err(ReadError::Io)?;
        let header = Record::decode(&buffer, self.superblock.uuid, tag).map_err(|_| ReadError::Corrupt)?;
        let record = &header.record;
        let expected = record.kind == RecordKind::Chunk && record.key == *key && record.length == chunk.length();
        let end = RECORD_HEADER + chunk.length() as usize;
        let payload = buffer.get(RECORD_HEADER..end).ok_or(ReadError::Corrupt)?;
        if !expected || xxh3_64(payload) != header.payload_hash {
            return Err(ReadError::Corrupt);
        }
        if chunk.length() < COPY_BELOW {
            return Ok(Bytes::copy_from_slice(payload));
        }
        Ok(Bytes::from_owner(buffer).slice(RECORD_HEADER..end))
    }

    /// The header of the segment in a slot, from whichever of its two copies is newer.
    ///
    /// # Errors
    /// The device's.
    pub fn segment_header(&self, slot: u32) -> io::Result<Result<SegmentHeader, DecodeError>> {
        let bytes = self.device.read(self.block(slot, 0), SEGMENT_HEADER_BLOCKS as usize)?;
        let mut best: Result<SegmentHeader, DecodeError> = Err(DecodeError::Damaged);
        for copy in bytes.chunks_exact(BLOCK) {
            let header = SegmentHeader::decode(copy, self.superblock.uuid);
            best = match (header, best) {
                (Ok(new), Ok(old)) if (new.sequence, new.free) <= (old.sequence, old.free) => Ok(old),
                (Ok(new), _) => Ok(new),
                (_, Ok(old)) => Ok(old),
                // Both are written at once: if one never was, neither was anything that counts.
                (Err(DecodeError::Foreign), _) | (_, Err(DecodeError::Foreign)) => Err(DecodeError::Foreign),
                (Err(error), Err(_)) => Err(error),
            };
        }
        Ok(best)
    }

    /// Writes both copies of a segment's header.
    ///
    /// # Errors
    /// The device's.
    pub fn write_segment_header(&self, slot: u32, header: &SegmentHeader) -> io::Result<()> {
        let mut blocks = AlignedBuffer::zeroed(SEGMENT_HEADER_BLOCKS as usize);
        let encoded = header.encode(self.superblock.uuid);
        blocks.chunks_exact_mut(BLOCK).for_each(|block| block.copy_from_slice(&encoded));
        self.device.write(self.block(slot, 0), &blocks)
    }

    /// Notes that everything up to `record` is on stable storage.
    ///
    /// # Errors
    /// The device's.
    pub fn write_checkpoint(&self, record: u64, turn: u64) -> io::Result<()> {
        let mut block = AlignedBuffer::zeroed(1);
        block.copy_from_slice(&Checkpoint { record }.encode(self.superblock.uuid));
        self.device.write(Checkpoint::BLOCK + turn % 2, &block)
    }

    /// Up to which record everything was on stable storage, at least.
    ///
    /// # Errors
    /// The device's.
    pub fn checkpoint(&self) -> io::Result<u64> {
        let bytes = self.device.read(Checkpoint::BLOCK, 2)?;
        let copies = bytes.chunks_exact(BLOCK).filter_map(|copy| Checkpoint::decode(copy, self.superblock.uuid).ok());
        Ok(copies.map(|checkpoint| checkpoint.record).max().unwrap_or(0))
    }

    /// The footer of a sealed segment.
    ///
    /// # Errors
    /// The device's.
    pub fn footer(&self, slot: u32, tag: u64) -> io::Result<Option<Footer>> {
        let last = self.superblock.segment_blocks - 1;
        let bytes = self.device.read(self.block(slot, last), 1)?;
        Ok(Footer::decode(&bytes, self.superblock.uuid, tag, self.superblock.segment_blocks).ok())
    }

    /// What is in a sealed segment; `None` if its summary cannot be trusted.
    ///
    /// # Errors
    /// The device's.
    pub fn summary(&self, slot: u32, tag: u64) -> io::Result<Option<Vec<Placed>>> {
        let Some(footer) = self.footer(slot, tag)? else { return Ok(None) };
        if footer.entries == 0 {
            return Ok(Some(Vec::new()));
        }
        let blocks = layout::summary_blocks(footer.entries as usize);
        let bytes = self.device.read(self.block(slot, footer.summary_block), blocks as usize)?;
        let last = self.superblock.segment_blocks;
        let within = |placed: &Placed| u64::from(placed.block) + u64::from(placed.record.blocks()) < u64::from(last);
        Ok(layout::decode_summary(&bytes, &footer).ok().filter(|entries| entries.iter().all(within)))
    }

    /// Writes summary and footer of a segment whose records end before `end`.
    ///
    /// # Errors
    /// The device's.
    pub fn write_summary(&self, slot: u32, tag: u64, end: u32, entries: &[Placed]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(entries.len() * layout::SUMMARY_ENTRY);
        entries.iter().for_each(|placed| placed.encode(&mut bytes));
        let blocks = layout::summary_blocks(entries.len());
        if !bytes.is_empty() {
            let mut buffer = AlignedBuffer::zeroed(blocks as usize);
            buffer[..bytes.len()].copy_from_slice(&bytes);
            self.device.write(self.block(slot, end), &buffer)?;
        }
        let footer = Footer {
            tag,
            summary_block: end,
            entries: u32::try_from(entries.len()).expect("fewer entries than blocks"),
            summary_hash: xxh3_64(&bytes),
        };
        let mut block = AlignedBuffer::zeroed(1);
        block.copy_from_slice(&footer.encode(self.superblock.uuid));
        self.device.write(self.block(slot, self.superblock.segment_blocks - 1), &block)
    }

    /// The keys of a list of tombstones, from whichever of its two copies is whole.
    ///
    /// # Errors
    /// The device's.
    pub fn tombstones(&self, slot: u32, placed: &Placed) -> io::Result<Option<Vec<ChunkKey>>> {
        let bytes = self.device.read(self.block(slot, placed.block), 2)?;
        let tag = self.tag(slot);
        Ok(bytes.chunks_exact(BLOCK).find_map(|copy| {
            let header = Record::decode(copy, self.superblock.uuid, tag).ok()?;
            let payload = copy.get(RECORD_HEADER..RECORD_HEADER + header.record.length as usize)?;
            let whole = header.record.sequence == placed.record.sequence && xxh3_64(payload) == header.payload_hash;
            layout::decode_keys(payload).ok().filter(|_| whole)
        }))
    }
}
