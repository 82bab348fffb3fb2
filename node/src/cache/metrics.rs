//! Metrics of the cache, as handles: nothing is named by a string where chunks are read.
//!
//! Owns: every `forebay_cache_*` metric, and the same numbers for [`super::Cache::stats`]. Never does: decide anything.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use metrics::{Counter, Gauge, counter, gauge};

/// A counter that can be read back.
#[derive(Debug)]
pub struct Count {
    handle: Counter,
    value: AtomicU64,
}

impl Count {
    fn new(handle: Counter) -> Self {
        Self { handle, value: AtomicU64::new(0) }
    }

    /// Adds.
    pub fn add(&self, count: u64) {
        if count != 0 {
            self.handle.increment(count);
            self.value.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// The sum so far.
    pub fn sum(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// Gauges of a tier.
#[derive(Debug)]
#[allow(missing_docs, reason = "named as the metrics are, see docs/metrics.md")]
pub struct TierGauges {
    pub bytes: Gauge,
    pub chunks: Gauge,
    pub capacity: Gauge,
}

impl TierGauges {
    fn new(tier: &'static str) -> Self {
        Self {
            bytes: gauge!("forebay_cache_bytes", "tier" => tier),
            chunks: gauge!("forebay_cache_chunks", "tier" => tier),
            capacity: gauge!("forebay_cache_capacity_bytes", "tier" => tier),
        }
    }
}

/// All of them.
#[derive(Debug)]
#[allow(missing_docs, reason = "named as the metrics are, see docs/metrics.md")]
pub struct CacheMetrics {
    pub ram: TierGauges,
    pub nvme: TierGauges,
    pub hits_ram: Count,
    pub hits_nvme: Count,
    pub misses: Count,
    pub evicted_ram: Count,
    pub evicted_capacity: Count,
    pub evicted_quota: Count,
    pub evicted_ttl: Count,
    pub evicted_removed: Count,
    pub checksum_failures: Count,
    pub errors_read: Count,
    pub errors_write: Count,
    pub errors_open: Count,
    pub recovered_damage: Count,
    pub copied_bytes: Count,
    pub written_bytes: Count,
    pub degraded: Gauge,
    pub queue_bytes: Gauge,
    pub pinned_bytes: Gauge,
    insert_wait: Gauge,
}

fn evictions(tier: &'static str, reason: &'static str) -> Count {
    Count::new(counter!("forebay_cache_evictions_total", "tier" => tier, "reason" => reason))
}

fn errors(kind: &'static str) -> Count {
    Count::new(counter!("forebay_cache_store_errors_total", "kind" => kind))
}

impl Default for CacheMetrics {
    fn default() -> Self {
        Self {
            ram: TierGauges::new("ram"),
            nvme: TierGauges::new("nvme"),
            hits_ram: Count::new(counter!("forebay_cache_hits_total", "tier" => "ram")),
            hits_nvme: Count::new(counter!("forebay_cache_hits_total", "tier" => "nvme")),
            misses: Count::new(counter!("forebay_cache_misses_total")),
            evicted_ram: evictions("ram", "capacity"),
            evicted_capacity: evictions("nvme", "capacity"),
            evicted_quota: evictions("nvme", "quota"),
            evicted_ttl: evictions("nvme", "ttl"),
            evicted_removed: evictions("nvme", "removed"),
            checksum_failures: Count::new(counter!("forebay_cache_checksum_failures_total")),
            errors_read: errors("read"),
            errors_write: errors("write"),
            errors_open: errors("open"),
            recovered_damage: Count::new(counter!("forebay_cache_recovery_damaged_total")),
            copied_bytes: Count::new(counter!("forebay_cache_copied_bytes_total")),
            written_bytes: Count::new(counter!("forebay_cache_written_bytes_total")),
            degraded: gauge!("forebay_cache_store_degraded"),
            queue_bytes: gauge!("forebay_cache_write_queue_bytes"),
            pinned_bytes: gauge!("forebay_cache_pinned_bytes"),
            insert_wait: gauge!("forebay_cache_insert_wait_seconds_total"),
        }
    }
}

impl CacheMetrics {
    /// An insertion waited for the device. The facade's counters are whole numbers, so the sum of seconds is a gauge that
    /// only grows.
    pub fn waited(&self, time: Duration) {
        self.insert_wait.increment(time.as_secs_f64());
    }
}
