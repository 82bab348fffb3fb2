//! The cache of chunks: RAM over NVMe.
//!
//! Owns: chunks of files under their keys, in two tiers, and when each goes. Never does: know a network, NFS, or what a
//! chunk means; fail a caller because a cache failed.
//!
//! Invariants:
//! * What is returned for a key is what was last kept under it; every byte from the device was checked on the way.
//! * While the device is healthy nothing handed over to be written is dropped: a full queue makes insertions wait.
//! * RAM accounts for at most what it was given; what waits to be written is bounded beside it.
//!
//! Reads of the device run on the runtime's blocking threads, at most [`READS_AT_ONCE`] of them: with O_DIRECT a read is one
//! system call that sleeps, so threads cost little, and a chunk is large enough that handing it over does not show. One
//! thread writes, since a log has one end.

use std::{collections::HashMap, sync::Arc, thread::JoinHandle, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

pub mod key;
pub mod metrics;
pub mod ram;
pub mod store;
#[cfg(test)]
mod tests;

pub use key::{CHUNK_MAX, ChunkKey, Placement, Present, Removed, Tier};
pub use store::{
    PinLimit, Unavailable,
    index::ExportUsage,
    open::{OpenError, StoreOptions},
};

use metrics::CacheMetrics;
use ram::Ram;
use store::{Limits, Store, writer::Opener};

/// Reads of the device under way at once; beyond that they wait, and devices do not get faster.
pub const READS_AT_ONCE: usize = 64;
/// Bytes that may wait to be written, by default.
pub const QUEUE_BYTES: u64 = 64 << 20;
/// Time between attempts to bring a failed store back.
pub const RETRY: Duration = Duration::from_secs(30);

/// What a cache is made of.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Bytes of RAM for chunks.
    pub ram_bytes: u64,
    /// Where the store is; none for RAM only.
    pub store: Option<StoreOptions>,
    /// Bytes on NVMe by export.
    pub quotas: HashMap<u64, u64>,
    /// Bytes that may wait to be written.
    pub queue_bytes: u64,
}

impl CacheOptions {
    /// RAM only.
    pub fn ram(ram_bytes: u64) -> Self {
        Self { ram_bytes, store: None, quotas: HashMap::new(), queue_bytes: QUEUE_BYTES }
    }
}

/// A tier, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Bytes it accounts for.
    pub bytes: u64,
    /// Number of chunks.
    pub chunks: u64,
    /// Bytes it may have.
    pub capacity: u64,
    /// Chunks returned from it.
    pub hits: u64,
    /// Chunks evicted, for whatever reason but removal.
    pub evictions: u64,
}

/// The cache at a moment.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// RAM.
    pub ram: TierStats,
    /// NVMe.
    pub nvme: TierStats,
    /// Chunks asked for that were nowhere.
    pub misses: u64,
    /// Chunks that did not read back as they were written.
    pub checksum_failures: u64,
    /// Reads and writes of the device that failed.
    pub store_errors: u64,
    /// Bytes that wait to be written.
    pub queued_bytes: u64,
    /// Bytes that are pinned.
    pub pinned_bytes: u64,
    /// Bytes of chunks copied when their segment was reclaimed.
    pub copied_bytes: u64,
    /// The store failed and is not back.
    pub degraded: bool,
    /// Bytes on NVMe by export.
    pub exports: Vec<ExportUsage>,
}

/// The cache. See the module.
#[derive(Debug)]
pub struct Cache {
    ram: Arc<Ram>,
    store: Option<Arc<Store>>,
    metrics: Arc<CacheMetrics>,
    reads: Arc<Semaphore>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

fn wall_clock() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl Cache {
    /// Opens the cache; reads what the store has.
    ///
    /// # Errors
    /// There is no store to be had. A cache of [`CacheOptions::ram`] works still.
    pub fn open(options: CacheOptions) -> Result<Arc<Self>, OpenError> {
        let opener: Option<Opener> = options.store.clone().map(|store| {
            let open = move |fresh| store::open::open(&store, fresh, wall_clock());
            Box::new(open) as Opener
        });
        Self::open_with(&options, opener, wall_clock, RETRY)
    }

    /// As [`Cache::open`], with a clock, a way to the device, and the time between looking after it.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(
        options: &CacheOptions,
        opener: Option<Opener>,
        clock: fn() -> u64,
        retry: Duration,
    ) -> Result<Arc<Self>, OpenError> {
        let metrics = Arc::new(CacheMetrics::default());
        let ram = Arc::new(Ram::new(options.ram_bytes, clock));
        metrics.ram.capacity.set(options.ram_bytes as f64);
        let (mut store, mut writer) = (None, None);
        if let Some(opener) = opener {
            let limits = Limits { queue_bytes: options.queue_bytes, quotas: options.quotas.clone(), clock, retry };
            let (started, thread) = Store::start(opener, limits, Arc::clone(&ram), Arc::clone(&metrics))?;
            (store, writer) = (Some(started), Some(thread));
        }
        let reads = Arc::new(Semaphore::new(READS_AT_ONCE));
        Ok(Arc::new(Self { ram, store, metrics, reads, writer: Mutex::new(writer) }))
    }

    /// The chunk if it is in RAM: the bytes themselves, not a copy.
    pub fn ram(&self, key: &ChunkKey) -> Option<Bytes> {
        let bytes = self.ram.find(key)?;
        self.metrics.hits_ram.add(1);
        Some(bytes)
    }

    /// The chunk, from RAM or else from the device, and then it is in RAM.
    pub async fn get(self: &Arc<Self>, key: &ChunkKey) -> Option<(Bytes, Tier)> {
        let found = match self.ram.find(key) {
            Some(bytes) => Some((bytes, Tier::Ram)),
            None => self.below_ram(key).await,
        };
        match found {
            Some((_, Tier::Ram)) => self.metrics.hits_ram.add(1),
            Some((_, Tier::Nvme)) => self.metrics.hits_nvme.add(1),
            None => self.metrics.misses.add(1),
        }
        found
    }

    async fn below_ram(&self, key: &ChunkKey) -> Option<(Bytes, Tier)> {
        let store = Arc::clone(self.store.as_ref()?);
        match store.in_memory(key) {
            Ok(found) => found.map(|bytes| (bytes, Tier::Ram)),
            Err(store::OnDevice) => {
                let permit = Arc::clone(&self.reads).acquire_owned().await.ok()?;
                let key = *key;
                // An error is a runtime that ends, or a read that panicked: a miss either way.
                let read = move || {
                    let _permit = permit;
                    store.read(&key)
                };
                tokio::task::spawn_blocking(read).await.ok().flatten()
            }
        }
    }

    /// Where the chunk is. Reads nothing.
    pub fn contains(&self, key: &ChunkKey) -> Option<Tier> {
        if self.ram.contains(key) {
            return Some(Tier::Ram);
        }
        self.store.as_ref()?.contains(key)
    }

    /// Keeps a chunk: in RAM at once, and on the device by and by if it is durable. Waits while the queue to the device is
    /// full. The content must be what the key names; see [`Cache::replace_in_ram`] for content that changed.
    ///
    /// # Errors
    /// It was kept, but not pinned.
    pub async fn insert(&self, key: ChunkKey, bytes: Bytes, placement: Placement) -> Result<(), PinLimit> {
        match &self.store {
            Some(store) if placement.durable && bytes.len() <= CHUNK_MAX => store.insert(key, bytes, placement).await,
            _ => {
                let pushed_out = self.ram.insert(key, bytes, placement.expires);
                self.metrics.evicted_ram.add(self.ram.settle(pushed_out));
                Ok(())
            }
        }
    }

    /// The content of a chunk changed by a write through us: RAM has the new one, and the one on the device is forgotten for
    /// good, on stable storage, when this returns. Costs a sync of the device if there is something to forget.
    pub async fn replace_in_ram(&self, key: ChunkKey, bytes: Bytes, placement: Placement) {
        match &self.store {
            Some(store) => store.replace_in_ram(key, bytes, placement).await,
            None => {
                let pushed_out = self.ram.insert(key, bytes, placement.expires);
                self.metrics.evicted_ram.add(self.ram.settle(pushed_out));
            }
        }
    }

    /// Removes a chunk. After a [`Cache::flush`] a restart does not bring it back.
    pub async fn remove(&self, key: &ChunkKey) -> Removed {
        match &self.store {
            Some(store) => store.remove(key).await,
            None => self.ram.remove(key).map_or(Removed::default(), |bytes| Removed { chunks: 1, bytes }),
        }
    }

    /// Removes all versions of a file, as [`Cache::remove`] does a chunk. It is not pinned any more.
    pub async fn remove_file(&self, file: u128) -> Removed {
        match &self.store {
            Some(store) => store.remove_file(file).await,
            None => {
                let removed = self.ram.remove_file(file);
                Removed { chunks: removed.len() as u64, bytes: removed.iter().map(|(_, bytes)| bytes).sum() }
            }
        }
    }

    /// Pins a file's chunks on the device, those there and those to come, or unpins them. Survives restarts.
    ///
    /// # Errors
    /// There would be too many; nothing was changed. Without a store there is nothing to pin to.
    pub async fn pin_file(&self, file: u128, pinned: bool) -> Result<(), PinLimit> {
        match &self.store {
            Some(store) => store.pin_file(file, pinned).await,
            None if pinned => Err(PinLimit { wanted: 0, pinned: 0, limit: 0 }),
            None => Ok(()),
        }
    }

    /// Chunks of a version of a file, by index.
    pub fn file_presence(&self, file: u128, version: u64) -> impl Iterator<Item = Present> {
        let below = self.store.as_ref().map(|store| store.of_file(file, version)).unwrap_or_default();
        let mut found: std::collections::BTreeMap<u32, Present> =
            below.into_iter().map(|present| (present.index, present)).collect();
        for (index, length) in self.ram.of_file(file, version) {
            found.insert(index, Present { index, tier: Tier::Ram, length });
        }
        found.into_values()
    }

    /// Waits until all that was handed over is on stable storage.
    ///
    /// # Errors
    /// The store is degraded.
    pub async fn flush(&self) -> Result<(), Unavailable> {
        match &self.store {
            Some(store) => store.flush().await,
            None => Ok(()),
        }
    }

    /// What is where. Also sets the gauges: call it before metrics are rendered.
    pub fn stats(&self) -> Stats {
        let metrics = &self.metrics;
        let snapshot = self.store.as_ref().map(|store| store.snapshot());
        let ram = TierStats {
            bytes: self.ram.weight(),
            chunks: self.ram.chunks(),
            capacity: self.ram.capacity(),
            hits: metrics.hits_ram.sum(),
            evictions: metrics.evicted_ram.sum(),
        };
        metrics.ram.bytes.set(ram.bytes as f64);
        metrics.ram.chunks.set(ram.chunks as f64);
        if let Some(store) = &self.store {
            store.publish();
        }
        let usage = snapshot.as_ref().map(|snapshot| snapshot.usage.clone()).unwrap_or_default();
        let evicted = [&metrics.evicted_capacity, &metrics.evicted_quota, &metrics.evicted_ttl];
        let nvme = TierStats {
            bytes: usage.bytes,
            chunks: usage.chunks,
            capacity: snapshot.as_ref().map_or(0, |snapshot| snapshot.capacity),
            hits: metrics.hits_nvme.sum(),
            evictions: evicted.iter().map(|count| count.sum()).sum(),
        };
        Stats {
            ram,
            nvme,
            misses: metrics.misses.sum(),
            checksum_failures: metrics.checksum_failures.sum(),
            store_errors: metrics.errors_read.sum() + metrics.errors_write.sum() + metrics.errors_open.sum(),
            queued_bytes: snapshot.as_ref().map_or(0, |snapshot| snapshot.queued),
            pinned_bytes: usage.pinned_bytes,
            copied_bytes: metrics.copied_bytes.sum(),
            degraded: snapshot.is_some_and(|snapshot| snapshot.degraded),
            exports: usage.exports,
        }
    }

    /// Bytes of memory the index of the device takes. Walks it.
    pub fn index_memory(&self) -> usize {
        self.store.as_ref().map_or(0, |store| store.index_memory())
    }

    /// Writes what is queued, seals the log so that the next start is quick, and ends the writer. Chunks inserted afterwards
    /// are in RAM only.
    pub async fn close(&self) {
        if let Some(store) = &self.store {
            store.stop();
        }
        let writer = self.writer.lock().take();
        if let Some(writer) = writer {
            tokio::task::spawn_blocking(move || writer.join()).await.ok();
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        // The writer ends by itself; it is waited for so that the store's lock is free when the cache is gone.
        if let Some(store) = &self.store {
            store.stop();
        }
        if let Some(writer) = self.writer.lock().take() {
            writer.join().ok();
        }
    }
}
