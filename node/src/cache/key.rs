//! What a chunk is called and how it is to be kept.
//!
//! Owns: the vocabulary of the cache. Never does: I/O.
//! Invariant: a key names one content for ever, unless [`super::Cache::replace_in_ram`] says that it changed.

/// Longest chunk the cache takes, in bytes. Callers use 1 MiB; the store has 24 bits for a length.
pub const CHUNK_MAX: usize = 8 << 20;

/// The name of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ChunkKey {
    /// Stable hash of the file's identity.
    pub file: u128,
    /// Version of the file's content.
    pub version: u64,
    /// Which chunk of the file, from 0.
    pub index: u32,
}

/// How a chunk is to be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Placement {
    /// Stable hash of the export, the unit of quotas.
    pub export: u64,
    /// Goes to NVMe too; otherwise to RAM only.
    pub durable: bool,
    /// Is not evicted from NVMe.
    pub pinned: bool,
    /// Seconds since 1970 from which on it is a miss.
    pub expires: Option<u64>,
}

/// Where a chunk is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Tier {
    /// In memory.
    Ram,
    /// On the device.
    Nvme,
}

/// What was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Removed {
    /// Chunks, one that was in both tiers counted once.
    pub chunks: u64,
    /// Their bytes of data.
    pub bytes: u64,
}

/// A chunk as [`super::Cache::file_presence`] tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Present {
    /// Which chunk of the file.
    pub index: u32,
    /// The fastest tier that has it.
    pub tier: Tier,
    /// Its length in bytes.
    pub length: u32,
}
