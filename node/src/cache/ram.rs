//! The tier in memory.
//!
//! Owns: the bytes kept in RAM, and which chunks of a file are among them. Never does: I/O, waiting.
//! Invariant: [`weight_of`] the entries' lengths, summed, is at most the capacity, always.

use std::collections::HashMap;

use bytes::Bytes;
use parking_lot::Mutex;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter, sync::Cache};

use super::key::ChunkKey;

/// What an entry costs beside its allocation: two maps' slots.
const ENTRY_OVERHEAD: u64 = 256;

/// Memory that a chunk of so many bytes takes: what it came in is a little longer than it, and the allocator rounds that up.
/// Measured with mimalloc: 1.17 bytes a byte for chunks of 1 MiB.
pub const fn weight_of(length: u64) -> u64 {
    length + length / 6 + ENTRY_OVERHEAD
}

/// Locks over which files are spread.
const FILE_SHARDS: usize = 64;

#[derive(Clone, Debug)]
struct Entry {
    bytes: Bytes,
    expires: u64,
}

#[derive(Clone, Debug)]
struct Weight;

impl Weighter<ChunkKey, Entry> for Weight {
    fn weight(&self, _: &ChunkKey, entry: &Entry) -> u64 {
        weight_of(entry.bytes.len() as u64)
    }
}

/// Collects what a request evicted, so that megabytes are freed after the locks.
#[derive(Clone, Debug)]
struct Collect;

impl Lifecycle<ChunkKey, Entry> for Collect {
    type RequestState = Vec<(ChunkKey, Entry)>;

    fn begin_request(&self) -> Self::RequestState {
        Vec::new()
    }

    fn on_evict(&self, evicted: &mut Self::RequestState, key: ChunkKey, entry: Entry) {
        evicted.push((key, entry));
    }
}

type Versions = Vec<(u64, u32)>;

/// What an insertion pushed out. Hand it to [`Ram::settle`] after other locks are released.
#[derive(Debug)]
#[must_use = "the list of a file's chunks is put right by `settle`"]
pub struct PushedOut(Vec<(ChunkKey, Entry)>);

/// The tier. See the module.
pub struct Ram {
    cache: Cache<ChunkKey, Entry, Weight, DefaultHashBuilder, Collect>,
    files: Vec<Mutex<HashMap<u128, Versions>>>,
    hasher: DefaultHashBuilder,
    capacity: u64,
    clock: fn() -> u64,
}

impl std::fmt::Debug for Ram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ram").field("capacity", &self.capacity).field("weight", &self.cache.weight()).finish()
    }
}

impl Ram {
    /// A tier of `capacity` bytes; `clock` tells seconds since 1970.
    pub fn new(capacity: u64, clock: fn() -> u64) -> Self {
        // A shard must hold many chunks of 1 MiB, or chance would decide what stays.
        let shards = usize::try_from((capacity / (64 << 20)).clamp(1, 64)).unwrap_or(1);
        let shards = if shards.is_power_of_two() { shards } else { shards.next_power_of_two() / 2 };
        let items = usize::try_from(capacity / (256 << 10)).unwrap_or(usize::MAX).max(shards * 32);
        let options = OptionsBuilder::new()
            .shards(shards)
            .estimated_items_capacity(items)
            // Shares are rounded up.
            .weight_capacity(capacity.saturating_sub(shards as u64))
            .build()
            .expect("both capacities are set");
        let hasher = DefaultHashBuilder::default();
        Self {
            cache: Cache::with_options(options, Weight, hasher.clone(), Collect),
            files: (0..FILE_SHARDS).map(|_| Mutex::default()).collect(),
            hasher,
            capacity,
            clock,
        }
    }

    fn files(&self, file: u128) -> &Mutex<HashMap<u128, Versions>> {
        &self.files[self.hasher.hash_one(file) as usize % FILE_SHARDS]
    }

    /// The chunk, if it is here and has not expired.
    pub fn find(&self, key: &ChunkKey) -> Option<Bytes> {
        let entry = self.cache.get(key)?;
        if entry.expires != 0 && entry.expires <= (self.clock)() {
            return None;
        }
        Some(entry.bytes)
    }

    /// Whether it is here, without counting as a use.
    pub fn contains(&self, key: &ChunkKey) -> bool {
        self.cache.peek(key).is_some_and(|entry| entry.expires == 0 || entry.expires > (self.clock)())
    }

    /// Keeps a chunk, in place of one of that name. `expires` is in seconds since 1970.
    pub fn insert(&self, key: ChunkKey, bytes: Bytes, expires: Option<u64>) -> PushedOut {
        let entry = Entry { bytes, expires: expires.map_or(0, |at| at.max(1)) };
        let mut files = self.files(key.file).lock();
        let pushed_out = PushedOut(self.cache.insert_with_lifecycle(key, entry));
        if self.cache.contains_key(&key) {
            let chunks = files.entry(key.file).or_default();
            if let Err(at) = chunks.binary_search(&(key.version, key.index)) {
                chunks.insert(at, (key.version, key.index));
            }
        }
        pushed_out
    }

    /// Puts the lists of files right after an insertion; says how many chunks were evicted.
    pub fn settle(&self, pushed_out: PushedOut) -> u64 {
        let mut evicted = 0;
        for (key, _) in &pushed_out.0 {
            let mut files = self.files(key.file).lock();
            if !self.cache.contains_key(key) {
                evicted += 1;
                Self::unlist(&mut files, key);
            }
        }
        evicted
    }

    fn unlist(files: &mut HashMap<u128, Versions>, key: &ChunkKey) {
        let Some(chunks) = files.get_mut(&key.file) else { return };
        if let Ok(at) = chunks.binary_search(&(key.version, key.index)) {
            chunks.remove(at);
        }
        if chunks.is_empty() {
            files.remove(&key.file);
        }
    }

    /// Takes a chunk out; its length.
    pub fn remove(&self, key: &ChunkKey) -> Option<u64> {
        let mut files = self.files(key.file).lock();
        let (_, entry) = self.cache.remove(key)?;
        Self::unlist(&mut files, key);
        drop(files);
        Some(entry.bytes.len() as u64)
    }

    /// Takes a file's chunks out, of all versions.
    pub fn remove_file(&self, file: u128) -> Vec<(ChunkKey, u64)> {
        let mut files = self.files(file).lock();
        let chunks = files.remove(&file).unwrap_or_default();
        let mut removed = Vec::with_capacity(chunks.len());
        for (version, index) in chunks {
            let key = ChunkKey { file, version, index };
            if let Some((_, entry)) = self.cache.remove(&key) {
                removed.push((key, entry.bytes.len() as u64));
            }
        }
        removed
    }

    /// Chunks of a version of a file, with their lengths.
    pub fn of_file(&self, file: u128, version: u64) -> Vec<(u32, u32)> {
        let chunks = self.files(file).lock().get(&file).cloned().unwrap_or_default();
        let of_version = chunks.into_iter().filter(|(of, _)| *of == version);
        of_version
            .filter_map(|(_, index)| {
                let entry = self.cache.peek(&ChunkKey { file, version, index })?;
                Some((index, u32::try_from(entry.bytes.len()).ok()?))
            })
            .collect()
    }

    /// Bytes it accounts for.
    pub fn weight(&self) -> u64 {
        self.cache.weight()
    }

    /// Number of chunks.
    pub fn chunks(&self) -> u64 {
        self.cache.len() as u64
    }

    /// Bytes it may account for.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }
}
