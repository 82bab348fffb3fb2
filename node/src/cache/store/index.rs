//! Where chunks are on the device.
//!
//! Owns: the map from keys to places, and the sums of what is in it. Never does: I/O, clocks.
//! Invariants: [`Usage`] is the sum over the entries; chunks of a file are sorted by index.
//!
//! Ten million entries must be affordable, so chunks of a file share one entry (16 bytes a chunk), a file of one chunk has
//! it in the entry itself (45 bytes with the table's own), and the table is cut into shards so that growing one stalls
//! nobody for long.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::{
    super::key::ChunkKey,
    layout::{self, BLOCK},
};

const SHARDS: usize = 256;
const LENGTH_BITS: u32 = 24;
const LENGTH_MASK: u32 = (1 << LENGTH_BITS) - 1;
const PINNED: u32 = 1 << 24;
const HIT: u32 = 1 << 25;

/// Where a chunk is, and how it is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chunk {
    index: u32,
    /// First block of its record, on the device.
    pub block: u32,
    length_and_flags: u32,
    /// Seconds since 1970 from which on it is a miss, 0 for never.
    pub expires: u32,
}

impl Chunk {
    /// A chunk that was not hit yet.
    pub fn new(index: u32, block: u32, length: u32, pinned: bool, expires: u32) -> Self {
        let flags = if pinned { PINNED } else { 0 };
        Self { index, block, length_and_flags: (length & LENGTH_MASK) | flags, expires }
    }

    /// Which chunk of the file.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Bytes of data.
    pub fn length(&self) -> u32 {
        self.length_and_flags & LENGTH_MASK
    }

    /// Blocks of its record.
    pub fn blocks(&self) -> u32 {
        layout::chunk_blocks(self.length())
    }

    /// Bytes on the device.
    pub fn footprint(&self) -> u64 {
        u64::from(self.blocks()) * BLOCK as u64
    }

    /// It is not evicted.
    pub fn pinned(&self) -> bool {
        self.length_and_flags & PINNED != 0
    }

    /// It was read since it was written.
    pub fn hit(&self) -> bool {
        self.length_and_flags & HIT != 0
    }

    /// It expired by `now`, seconds since 1970.
    pub fn expired(&self, now: u64) -> bool {
        self.expires != 0 && u64::from(self.expires) <= now
    }
}

/// One version of a file. With `many`, `chunk.block` is where its chunks are in the shard's lists.
#[derive(Clone, Copy, Debug)]
struct FileEntry {
    file: [u32; 4],
    version: [u32; 2],
    export: u16,
    many: bool,
    chunk: Chunk,
}

fn file_words(file: u128) -> [u32; 4] {
    [file as u32, (file >> 32) as u32, (file >> 64) as u32, (file >> 96) as u32]
}

fn version_words(version: u64) -> [u32; 2] {
    [version as u32, (version >> 32) as u32]
}

fn version_of(words: [u32; 2]) -> u64 {
    u64::from(words[0]) | u64::from(words[1]) << 32
}

#[derive(Debug, Default)]
struct Shard {
    files: HashTable<FileEntry>,
    lists: Vec<Vec<Chunk>>,
    vacant: Vec<u32>,
}

impl Shard {
    fn list(&mut self, at: u32) -> &mut Vec<Chunk> {
        &mut self.lists[at as usize]
    }

    fn chunks<'a>(&'a self, entry: &'a FileEntry) -> &'a [Chunk] {
        if entry.many { &self.lists[entry.chunk.block as usize] } else { std::slice::from_ref(&entry.chunk) }
    }

    fn new_list(&mut self, chunks: Vec<Chunk>) -> u32 {
        if let Some(at) = self.vacant.pop() {
            self.lists[at as usize] = chunks;
            return at;
        }
        self.lists.push(chunks);
        u32::try_from(self.lists.len() - 1).expect("fewer lists than blocks on the device")
    }
}

/// What an export has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportUsage {
    /// Its hash.
    pub export: u64,
    /// Bytes on the device.
    pub bytes: u64,
}

/// Sums over all entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of chunks.
    pub chunks: u64,
    /// Bytes on the device.
    pub bytes: u64,
    /// Of these, pinned.
    pub pinned_bytes: u64,
    /// By export.
    pub exports: Vec<ExportUsage>,
}

/// The map. See the module.
#[derive(Debug)]
pub struct Index {
    shards: Vec<Shard>,
    hasher: RandomState,
    usage: Usage,
}

impl Default for Index {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        Self { shards, hasher: RandomState::new(), usage: Usage::default() }
    }
}

impl Index {
    fn hash(&self, file: u128) -> (u64, usize) {
        let hash = self.hasher.hash_one(file);
        (hash, (hash >> 40) as usize % SHARDS)
    }

    /// The sums.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    fn export_slot(&mut self, export: u64) -> u16 {
        if let Some(slot) = self.usage.exports.iter().position(|known| known.export == export) {
            return slot as u16;
        }
        // Nobody has this many exports; those beyond are counted together in the last slot.
        if self.usage.exports.len() > usize::from(u16::MAX) {
            return u16::MAX;
        }
        self.usage.exports.push(ExportUsage { export, bytes: 0 });
        (self.usage.exports.len() - 1) as u16
    }

    fn count(&mut self, chunk: &Chunk, export: u16, add: bool) {
        let footprint = chunk.footprint();
        let change = |sum: &mut u64, by: u64| *sum = if add { *sum + by } else { sum.saturating_sub(by) };
        change(&mut self.usage.chunks, 1);
        change(&mut self.usage.bytes, footprint);
        if chunk.pinned() {
            change(&mut self.usage.pinned_bytes, footprint);
        }
        if let Some(usage) = self.usage.exports.get_mut(usize::from(export)) {
            change(&mut usage.bytes, footprint);
        }
    }

    /// The chunk, and the export it counts for.
    pub fn find(&self, key: &ChunkKey) -> Option<Chunk> {
        let (hash, at) = self.hash(key.file);
        let shard = &self.shards[at];
        let (file, version) = (file_words(key.file), version_words(key.version));
        let entry = shard.files.find(hash, |entry| entry.file == file && entry.version == version)?;
        let chunks = shard.chunks(entry);
        chunks.binary_search_by_key(&key.index, |chunk| chunk.index).ok().map(|at| chunks[at])
    }

    /// Changes a chunk in place: its hit and pinned flags.
    fn change(&mut self, key: &ChunkKey, change: impl FnOnce(&mut Chunk)) {
        let (hash, at) = self.hash(key.file);
        let shard = &mut self.shards[at];
        let (file, version) = (file_words(key.file), version_words(key.version));
        let Some(entry) = shard.files.find_mut(hash, |entry| entry.file == file && entry.version == version) else {
            return;
        };
        if !entry.many {
            if entry.chunk.index == key.index {
                change(&mut entry.chunk);
            }
            return;
        }
        let list = &mut shard.lists[entry.chunk.block as usize];
        if let Ok(at) = list.binary_search_by_key(&key.index, |chunk| chunk.index) {
            change(&mut list[at]);
        }
    }

    /// It was read.
    pub fn touch(&mut self, key: &ChunkKey) {
        self.change(key, |chunk| chunk.length_and_flags |= HIT);
    }

    /// Pins or unpins a chunk.
    pub fn pin(&mut self, key: &ChunkKey, pinned: bool) {
        let mut changed = 0;
        self.change(key, |chunk| {
            if chunk.pinned() != pinned {
                chunk.length_and_flags ^= PINNED;
                changed = chunk.footprint();
            }
        });
        let sum = &mut self.usage.pinned_bytes;
        *sum = if pinned { *sum + changed } else { sum.saturating_sub(changed) };
    }

    /// Adds a chunk, in place of one with the same key.
    pub fn insert(&mut self, key: &ChunkKey, export: u64, chunk: Chunk) -> Option<Chunk> {
        let old = self.remove(key);
        let export = self.export_slot(export);
        let (hash, at) = self.hash(key.file);
        let (file, version) = (file_words(key.file), version_words(key.version));
        let hasher = &self.hasher;
        let shard = &mut self.shards[at];
        let found = shard.files.find_mut(hash, |entry| entry.file == file && entry.version == version);
        let slot = match found {
            None => {
                let entry = FileEntry { file, version, export, many: false, chunk };
                shard.files.insert_unique(hash, entry, |entry| hasher.hash_one(file_of(entry.file)));
                export
            }
            Some(&mut FileEntry { many: true, export, chunk: Chunk { block, .. }, .. }) => {
                let list = shard.list(block);
                let at = list.partition_point(|other| other.index < chunk.index);
                list.insert(at, chunk);
                export
            }
            Some(entry) => {
                let (first, export) = (entry.chunk, entry.export);
                let list = if first.index < chunk.index { vec![first, chunk] } else { vec![chunk, first] };
                let block = shard.new_list(list);
                if let Some(entry) = shard.files.find_mut(hash, |entry| entry.file == file && entry.version == version)
                {
                    entry.many = true;
                    entry.chunk = Chunk { block, ..Chunk::default() };
                }
                export
            }
        };
        self.count(&chunk, slot, true);
        old
    }

    /// Takes a chunk out.
    pub fn remove(&mut self, key: &ChunkKey) -> Option<Chunk> {
        let (hash, at) = self.hash(key.file);
        let shard = &mut self.shards[at];
        let (file, version) = (file_words(key.file), version_words(key.version));
        let same = |entry: &FileEntry| entry.file == file && entry.version == version;
        let entry = *shard.files.find(hash, same)?;
        let (chunk, empty) = if entry.many {
            let list = shard.list(entry.chunk.block);
            let at = list.binary_search_by_key(&key.index, |chunk| chunk.index).ok()?;
            (list.remove(at), list.is_empty())
        } else if entry.chunk.index == key.index {
            (entry.chunk, true)
        } else {
            return None;
        };
        if empty {
            if let Ok(occupied) = shard.files.find_entry(hash, same) {
                occupied.remove();
            }
            if entry.many {
                *shard.list(entry.chunk.block) = Vec::new();
                shard.vacant.push(entry.chunk.block);
            }
        }
        self.count(&chunk, entry.export, false);
        Some(chunk)
    }

    /// Chunks of a file, of one version or all.
    pub fn of_file(&self, file: u128, version: Option<u64>) -> Vec<(ChunkKey, Chunk)> {
        let (hash, at) = self.hash(file);
        let shard = &self.shards[at];
        let words = file_words(file);
        let mut found = Vec::new();
        for entry in shard.files.iter_hash(hash) {
            let entry_version = version_of(entry.version);
            if entry.file == words && version.is_none_or(|version| version == entry_version) {
                let key = |chunk: &Chunk| ChunkKey { file, version: entry_version, index: chunk.index };
                found.extend(shard.chunks(entry).iter().map(|chunk| (key(chunk), *chunk)));
            }
        }
        found
    }

    /// All chunks. Takes as long as there are many: for damage and tests.
    pub fn all(&self) -> impl Iterator<Item = (ChunkKey, Chunk)> + '_ {
        self.shards.iter().flat_map(|shard| {
            shard.files.iter().flat_map(move |entry| {
                let (file, version) = (file_of(entry.file), version_of(entry.version));
                shard.chunks(entry).iter().map(move |chunk| (ChunkKey { file, version, index: chunk.index }, *chunk))
            })
        })
    }

    /// Bytes of memory the tables take.
    pub fn memory(&self) -> usize {
        let lists = |shard: &Shard| -> usize {
            let chunks: usize = shard.lists.iter().map(|list| list.capacity() * size_of::<Chunk>()).sum();
            chunks + shard.lists.capacity() * size_of::<Vec<Chunk>>() + shard.vacant.capacity() * 4
        };
        self.shards.iter().map(|shard| shard.files.allocation_size() + lists(shard)).sum()
    }
}

fn file_of(words: [u32; 4]) -> u128 {
    words.iter().rev().fold(0, |file, word| file << 32 | u128::from(*word))
}
