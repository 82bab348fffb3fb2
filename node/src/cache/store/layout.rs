//! Bytes of the store: superblock, segment header and footer, record header, summary entry. See `docs/cache-format.md`.
//!
//! Owns: encoding and decoding, as pure functions over bytes. Never does: I/O, allocation by what bytes say.
//! Invariants: numbers are little endian; every structure ends with the hash of what is before it; decoding never panics;
//! a decoded length is within its bounds.

use xxhash_rust::xxh3::xxh3_64;

use super::super::key::{CHUNK_MAX, ChunkKey};

/// Everything on the device is a whole number of these.
pub const BLOCK: usize = 4096;
/// What this binary writes, and the newest it reads.
pub const FORMAT_VERSION: u32 = 1;
/// Blocks before the first segment.
pub const FIRST_SEGMENT_BLOCK: u64 = 16;
/// Blocks at the beginning of a segment: its header twice.
pub const SEGMENT_HEADER_BLOCKS: u32 = 2;
/// Bytes before a record's payload.
pub const RECORD_HEADER: usize = 128;
/// Bytes of a summary entry.
pub const SUMMARY_ENTRY: usize = 64;
/// Keys that fit one list of tombstones: it is one block, written twice.
pub const TOMBSTONES_MAX: usize = (BLOCK - RECORD_HEADER) / KEY_BYTES;

const KEY_BYTES: usize = 28;
const SUPERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"FBCACHE\n");
const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"FBSEGMT\n");
const FOOTER_MAGIC: u64 = u64::from_le_bytes(*b"FBFOOTR\n");
const CHECKPOINT_MAGIC: u64 = u64::from_le_bytes(*b"FBCHKPT\n");
const RECORD_MAGIC: u64 = u64::from_le_bytes(*b"FBRECRD\n");

/// Why bytes are not what they should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// Another magic number.
    #[error("not a structure of a Forebay cache")]
    Foreign,
    /// Written by a newer binary.
    #[error("format version {0}")]
    Version(u32),
    /// A hash or bound does not hold.
    #[error("damaged")]
    Damaged,
}

/// Reads numbers off the front.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Damaged)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    fn u128(&mut self) -> Result<u128, DecodeError> {
        self.array().map(u128::from_le_bytes)
    }
}

/// Checks the hash that follows the first `len` bytes.
fn check_hash(bytes: &[u8], len: usize) -> Result<(), DecodeError> {
    let covered = bytes.get(..len).ok_or(DecodeError::Damaged)?;
    let stated = Fields(&bytes[len..]).u64()?;
    if xxh3_64(covered) == stated { Ok(()) } else { Err(DecodeError::Damaged) }
}

fn push_hash(out: &mut Vec<u8>) {
    let hash = xxh3_64(out);
    out.extend_from_slice(&hash.to_le_bytes());
}

/// The beginning of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Names this store; in everything below, so that what an earlier store left is not taken for ours.
    pub uuid: u128,
    /// Blocks of a segment.
    pub segment_blocks: u32,
    /// Number of segments.
    pub segments: u32,
    /// Seconds since 1970 when it was made.
    pub created: u64,
}

impl Superblock {
    const HASHED: usize = 48;

    /// One block.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK);
        out.extend_from_slice(&SUPERBLOCK_MAGIC.to_le_bytes());
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&u32::try_from(BLOCK).expect("a small constant").to_le_bytes());
        out.extend_from_slice(&self.uuid.to_le_bytes());
        out.extend_from_slice(&self.segment_blocks.to_le_bytes());
        out.extend_from_slice(&self.segments.to_le_bytes());
        out.extend_from_slice(&self.created.to_le_bytes());
        push_hash(&mut out);
        out.resize(BLOCK, 0);
        out
    }

    /// # Errors
    /// The version is judged before the hash, which a newer format may have elsewhere.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields(bytes);
        if fields.u64()? != SUPERBLOCK_MAGIC {
            return Err(DecodeError::Foreign);
        }
        let version = fields.u32()?;
        if version != FORMAT_VERSION {
            return Err(DecodeError::Version(version));
        }
        check_hash(bytes, Self::HASHED)?;
        let block = fields.u32()?;
        let superblock = Self {
            uuid: fields.u128()?,
            segment_blocks: fields.u32()?,
            segments: fields.u32()?,
            created: fields.u64()?,
        };
        let sane = block as usize == BLOCK && superblock.segment_blocks >= 8 && superblock.segments >= 4;
        if sane && superblock.blocks() <= u64::from(u32::MAX) { Ok(superblock) } else { Err(DecodeError::Damaged) }
    }

    /// Blocks of the whole store.
    pub fn blocks(&self) -> u64 {
        FIRST_SEGMENT_BLOCK + u64::from(self.segments) * u64::from(self.segment_blocks)
    }

    /// The first block of a segment.
    pub fn segment_start(&self, slot: u32) -> u64 {
        FIRST_SEGMENT_BLOCK + u64::from(slot) * u64::from(self.segment_blocks)
    }

    /// The segment a block is in.
    pub fn slot_of(&self, block: u32) -> Option<u32> {
        let slot = u64::from(block).checked_sub(FIRST_SEGMENT_BLOCK)? / u64::from(self.segment_blocks);
        u32::try_from(slot).ok().filter(|slot| *slot < self.segments)
    }
}

/// The beginning of a segment, in each of its first two blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// Place in the order of segments, from 1.
    pub sequence: u64,
    /// Sequence number of its first record.
    pub first_record: u64,
    /// What its records carry. Unlike the sequence number it is never used again, not even by a store that lost its end.
    pub tag: u64,
    /// Its records are to be ignored.
    pub free: bool,
}

impl SegmentHeader {
    const HASHED: usize = 56;

    /// One block.
    pub fn encode(&self, uuid: u128) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK);
        out.extend_from_slice(&SEGMENT_MAGIC.to_le_bytes());
        out.extend_from_slice(&uuid.to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.first_record.to_le_bytes());
        out.extend_from_slice(&self.tag.to_le_bytes());
        out.extend_from_slice(&u64::from(self.free).to_le_bytes());
        push_hash(&mut out);
        out.resize(BLOCK, 0);
        out
    }

    /// # Errors
    /// `Foreign` for zeros and for a segment of another store, `Damaged` for what should be one.
    pub fn decode(bytes: &[u8], uuid: u128) -> Result<Self, DecodeError> {
        let mut fields = Fields(bytes);
        let magic = fields.u64()?;
        if magic != SEGMENT_MAGIC {
            // Zeros are a segment that was never written; anything else may have been one.
            let blank = bytes.iter().take(Self::HASHED).all(|byte| *byte == 0);
            return Err(if blank { DecodeError::Foreign } else { DecodeError::Damaged });
        }
        check_hash(bytes, Self::HASHED)?;
        if fields.u128()? != uuid {
            return Err(DecodeError::Foreign);
        }
        Ok(Self { sequence: fields.u64()?, first_record: fields.u64()?, tag: fields.u64()?, free: fields.u64()? != 0 })
    }
}

/// How far the log is known to be on stable storage, in the block after the superblocks and the one after that in turn: a
/// log that ends earlier has lost its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// Sequence number of the last record.
    pub record: u64,
}

impl Checkpoint {
    /// The first of its two blocks.
    pub const BLOCK: u64 = 2;
    const HASHED: usize = 32;

    /// One block.
    pub fn encode(&self, uuid: u128) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK);
        out.extend_from_slice(&CHECKPOINT_MAGIC.to_le_bytes());
        out.extend_from_slice(&uuid.to_le_bytes());
        out.extend_from_slice(&self.record.to_le_bytes());
        push_hash(&mut out);
        out.resize(BLOCK, 0);
        out
    }

    /// # Errors
    /// Not a checkpoint of that store.
    pub fn decode(bytes: &[u8], uuid: u128) -> Result<Self, DecodeError> {
        let mut fields = Fields(bytes);
        if fields.u64()? != CHECKPOINT_MAGIC {
            return Err(DecodeError::Foreign);
        }
        check_hash(bytes, Self::HASHED)?;
        if fields.u128()? != uuid {
            return Err(DecodeError::Foreign);
        }
        Ok(Self { record: fields.u64()? })
    }
}

/// The last block of a sealed segment: where its summary is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footer {
    /// That of the segment's header.
    pub tag: u64,
    /// Block of the summary within the segment.
    pub summary_block: u32,
    /// Number of its entries.
    pub entries: u32,
    /// Hash of the entries.
    pub summary_hash: u64,
}

impl Footer {
    const HASHED: usize = 48;

    /// One block.
    pub fn encode(&self, uuid: u128) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK);
        out.extend_from_slice(&FOOTER_MAGIC.to_le_bytes());
        out.extend_from_slice(&uuid.to_le_bytes());
        out.extend_from_slice(&self.tag.to_le_bytes());
        out.extend_from_slice(&self.summary_block.to_le_bytes());
        out.extend_from_slice(&self.entries.to_le_bytes());
        out.extend_from_slice(&self.summary_hash.to_le_bytes());
        push_hash(&mut out);
        out.resize(BLOCK, 0);
        out
    }

    /// # Errors
    /// Not the footer of that segment, or its summary would not lie within `segment_blocks`.
    pub fn decode(bytes: &[u8], uuid: u128, tag: u64, segment_blocks: u32) -> Result<Self, DecodeError> {
        let mut fields = Fields(bytes);
        if fields.u64()? != FOOTER_MAGIC {
            return Err(DecodeError::Foreign);
        }
        check_hash(bytes, Self::HASHED)?;
        if fields.u128()? != uuid || fields.u64()? != tag {
            return Err(DecodeError::Foreign);
        }
        let footer = Self { tag, summary_block: fields.u32()?, entries: fields.u32()?, summary_hash: fields.u64()? };
        let end = u64::from(footer.summary_block) + u64::from(summary_blocks(footer.entries as usize));
        if end < u64::from(segment_blocks) { Ok(footer) } else { Err(DecodeError::Damaged) }
    }
}

/// Blocks of a summary of `entries`.
pub fn summary_blocks(entries: usize) -> u32 {
    u32::try_from((entries * SUMMARY_ENTRY).div_ceil(BLOCK)).unwrap_or(u32::MAX)
}

/// What a record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RecordKind {
    /// The content of a chunk.
    Chunk = 1,
    /// A chunk is gone.
    Tombstone = 2,
    /// All chunks of a file, of any version, are gone.
    FileTombstone = 3,
    /// A file's chunks are pinned.
    Pin = 4,
    /// They are not any more.
    Unpin = 5,
    /// The chunks whose keys are the payload are gone.
    TombstoneList = 6,
}

impl RecordKind {
    fn decode(byte: u8) -> Result<Self, DecodeError> {
        Ok(match byte {
            1 => Self::Chunk,
            2 => Self::Tombstone,
            3 => Self::FileTombstone,
            4 => Self::Pin,
            5 => Self::Unpin,
            6 => Self::TombstoneList,
            _ => return Err(DecodeError::Damaged),
        })
    }
}

/// A record without its payload: what its header and its summary entry both tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// What it says.
    pub kind: RecordKind,
    /// The chunk is pinned.
    pub pinned: bool,
    /// Order of all records of the store, from 1, without gaps.
    pub sequence: u64,
    /// What it says it of; only `file` where it is of a file.
    pub key: ChunkKey,
    /// Bytes of payload.
    pub length: u32,
    /// The export it counts for.
    pub export: u64,
    /// Seconds since 1970 from which on it is a miss, 0 for never.
    pub expires: u32,
}

/// A chunk of nothing, to be filled in.
pub const CHUNK_RECORD_DEFAULTS: Record = Record {
    kind: RecordKind::Chunk,
    pinned: false,
    sequence: 0,
    key: ChunkKey { file: 0, version: 0, index: 0 },
    length: 0,
    export: 0,
    expires: 0,
};

impl Record {
    /// Blocks it takes. All but chunks are written twice, for they must not be lost to a flipped bit.
    pub fn blocks(&self) -> u32 {
        if self.kind == RecordKind::Chunk { chunk_blocks(self.length) } else { 2 }
    }

    fn check(self) -> Result<Self, DecodeError> {
        let bound = match self.kind {
            RecordKind::Chunk => CHUNK_MAX,
            RecordKind::TombstoneList => TOMBSTONES_MAX * KEY_BYTES,
            _ => 0,
        };
        if self.length as usize <= bound { Ok(self) } else { Err(DecodeError::Damaged) }
    }

    /// The 128 bytes before the payload; `copy` for the second of two.
    pub fn encode(&self, uuid: u128, tag: u64, payload_hash: u64, copy: bool) -> [u8; RECORD_HEADER] {
        let mut out = Vec::with_capacity(RECORD_HEADER);
        out.extend_from_slice(&RECORD_MAGIC.to_le_bytes());
        out.extend_from_slice(&uuid.to_le_bytes());
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.key.file.to_le_bytes());
        out.extend_from_slice(&self.key.version.to_le_bytes());
        out.extend_from_slice(&self.key.index.to_le_bytes());
        out.extend_from_slice(&self.length.to_le_bytes());
        out.extend_from_slice(&self.export.to_le_bytes());
        out.extend_from_slice(&self.expires.to_le_bytes());
        out.extend_from_slice(&[self.kind as u8, u8::from(self.pinned) | u8::from(copy) << 1]);
        out.resize(112, 0);
        out.extend_from_slice(&payload_hash.to_le_bytes());
        push_hash(&mut out);
        *out.first_chunk().expect("128 bytes were pushed")
    }

    /// What is before a payload.
    ///
    /// # Errors
    /// Not a record of that segment of that store.
    pub fn decode(bytes: &[u8], uuid: u128, tag: u64) -> Result<RecordHeader, DecodeError> {
        let mut fields = Fields(bytes);
        if fields.u64()? != RECORD_MAGIC {
            return Err(DecodeError::Foreign);
        }
        check_hash(bytes, RECORD_HEADER - 8)?;
        if fields.u128()? != uuid || fields.u64()? != tag {
            return Err(DecodeError::Foreign);
        }
        let sequence = fields.u64()?;
        let key = ChunkKey { file: fields.u128()?, version: fields.u64()?, index: fields.u32()? };
        let (length, export, expires) = (fields.u32()?, fields.u64()?, fields.u32()?);
        let (kind, flags) = (RecordKind::decode(fields.u8()?)?, fields.u8()?);
        let payload_hash = Fields(bytes.get(112..).ok_or(DecodeError::Damaged)?).u64()?;
        let record = Self { kind, pinned: flags & 1 != 0, sequence, key, length, export, expires };
        Ok(RecordHeader { record: record.check()?, payload_hash, copy: flags & 2 != 0 })
    }
}

/// What is before a payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// What it says.
    pub record: Record,
    /// Hash of the payload.
    pub payload_hash: u64,
    /// It is the second of two.
    pub copy: bool,
}

/// Blocks of a chunk's record.
pub fn chunk_blocks(length: u32) -> u32 {
    u32::try_from((RECORD_HEADER + length as usize).div_ceil(BLOCK)).expect("24 bits of length")
}

/// A record and where it is within its segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Its first block, counted from the segment's.
    pub block: u32,
    /// What it says.
    pub record: Record,
}

impl Placed {
    /// Appends 64 bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let record = &self.record;
        out.extend_from_slice(&self.block.to_le_bytes());
        out.extend_from_slice(&[record.kind as u8, u8::from(record.pinned)]);
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&record.key.index.to_le_bytes());
        out.extend_from_slice(&record.length.to_le_bytes());
        out.extend_from_slice(&record.key.file.to_le_bytes());
        out.extend_from_slice(&record.key.version.to_le_bytes());
        out.extend_from_slice(&record.export.to_le_bytes());
        out.extend_from_slice(&u64::from(record.expires).to_le_bytes());
        out.extend_from_slice(&record.sequence.to_le_bytes());
    }

    /// # Errors
    /// A bound does not hold.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields(bytes);
        let block = fields.u32()?;
        let (kind, flags, _) = (RecordKind::decode(fields.u8()?)?, fields.u8()?, fields.u16()?);
        let (index, length) = (fields.u32()?, fields.u32()?);
        let key = ChunkKey { file: fields.u128()?, version: fields.u64()?, index };
        let export = fields.u64()?;
        let expires = u32::try_from(fields.u64()?).map_err(|_| DecodeError::Damaged)?;
        let sequence = fields.u64()?;
        let record = Record { kind, pinned: flags & 1 != 0, sequence, key, length, export, expires }.check()?;
        Ok(Self { block, record })
    }
}

/// The entries of a summary whose footer is known.
///
/// # Errors
/// The hash does not hold, or an entry is not within its bounds.
pub fn decode_summary(bytes: &[u8], footer: &Footer) -> Result<Vec<Placed>, DecodeError> {
    let bytes = bytes.get(..footer.entries as usize * SUMMARY_ENTRY).ok_or(DecodeError::Damaged)?;
    if xxh3_64(bytes) != footer.summary_hash {
        return Err(DecodeError::Damaged);
    }
    bytes.chunks_exact(SUMMARY_ENTRY).map(Placed::decode).collect()
}

/// The payload of a list of tombstones.
pub fn encode_keys(keys: &[ChunkKey]) -> Vec<u8> {
    let mut out = Vec::with_capacity(keys.len() * KEY_BYTES);
    for key in keys {
        out.extend_from_slice(&key.file.to_le_bytes());
        out.extend_from_slice(&key.version.to_le_bytes());
        out.extend_from_slice(&key.index.to_le_bytes());
    }
    out
}

/// The keys of a list of tombstones.
///
/// # Errors
/// The bytes are not a whole number of keys.
pub fn decode_keys(bytes: &[u8]) -> Result<Vec<ChunkKey>, DecodeError> {
    if !bytes.len().is_multiple_of(KEY_BYTES) {
        return Err(DecodeError::Damaged);
    }
    bytes
        .chunks_exact(KEY_BYTES)
        .map(|key| {
            let mut fields = Fields(key);
            Ok(ChunkKey { file: fields.u128()?, version: fields.u64()?, index: fields.u32()? })
        })
        .collect()
}
