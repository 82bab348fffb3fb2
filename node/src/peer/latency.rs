//! How long a peer takes, so that a caller knows when to ask somebody else too.
//!
//! Owns: a distribution of times in which old ones count less and less. Never does: read a clock.
//! Invariant: recording is a few relaxed atomic operations; a reader sees a distribution that is at most a little blurred.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// Buckets: each is 2^(1/4) wide, from 16 µs to 16 s. Finer would not help with so few samples.
const BUCKETS: usize = 80;
/// The upper end of the first bucket.
const FIRST_US: f64 = 16.0;
/// When this many are counted all are halved: what was longer ago than about as many requests hardly counts.
const KEPT: u32 = 512;
/// Fewer samples than this tell nothing.
const ENOUGH: u32 = 16;

/// Recent times.
#[derive(Debug)]
pub struct Latency {
    buckets: [AtomicU32; BUCKETS],
    count: AtomicU32,
    /// Exponentially weighted mean in microseconds; 0 before the first.
    mean_us: AtomicU32,
}

impl Default for Latency {
    fn default() -> Self {
        let buckets = std::array::from_fn(|_| AtomicU32::new(0));
        Self { buckets, count: AtomicU32::new(0), mean_us: AtomicU32::new(0) }
    }
}

impl Latency {
    /// Adds one.
    pub fn record(&self, time: Duration) {
        let us = u32::try_from(time.as_micros()).unwrap_or(u32::MAX).max(1);
        self.buckets[bucket(us)].fetch_add(1, Ordering::Relaxed);
        let mean = self.mean_us.load(Ordering::Relaxed);
        // An eighth of the difference, as TCP does for round trips. Two at once may lose one: it is a mean.
        let next = if mean == 0 { us } else { mean - mean / 8 + us / 8 };
        self.mean_us.store(next.max(1), Ordering::Relaxed);
        if self.count.fetch_add(1, Ordering::Relaxed) + 1 >= KEPT {
            self.halve();
        }
    }

    fn halve(&self) {
        let mut left = 0;
        for bucket in &self.buckets {
            let half = bucket.load(Ordering::Relaxed) / 2;
            bucket.store(half, Ordering::Relaxed);
            left += half;
        }
        self.count.store(left, Ordering::Relaxed);
    }

    /// The mean of late, if anything was recorded.
    pub fn mean(&self) -> Option<Duration> {
        let us = self.mean_us.load(Ordering::Relaxed);
        (us > 0).then(|| Duration::from_micros(u64::from(us)))
    }

    /// A time that the given share of requests did not exceed, rounded up to a bucket's end; `None` while too little is
    /// known.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let counts = self.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed));
        let total: u32 = counts.iter().sum();
        if total < ENOUGH {
            return None;
        }
        let wanted = f64::from(total) * share.clamp(0.0, 1.0);
        let mut seen = 0;
        let place = counts.iter().position(|count| {
            seen += count;
            f64::from(seen) >= wanted
        });
        Some(Duration::from_secs_f64(end_us(place.unwrap_or(BUCKETS - 1)) / 1e6))
    }
}

fn end_us(bucket: usize) -> f64 {
    FIRST_US * (bucket as f64 / 4.0).exp2()
}

fn bucket(us: u32) -> usize {
    let place = ((f64::from(us) / FIRST_US).log2() * 4.0).ceil().max(0.0);
    (place as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn quantiles_are_within_a_bucket() {
        let latency = Latency::default();
        (1..=400_u32).for_each(|ms| latency.record(MS * ms));
        for (share, ms) in [(0.5, 200.0), (0.95, 380.0), (1.0, 400.0)] {
            let told = latency.quantile(share).unwrap().as_secs_f64() * 1e3;
            assert!(told >= ms && told <= ms * 1.2, "{share}: {told}");
        }
    }

    #[test]
    fn little_says_nothing_and_extremes_fit() {
        let latency = Latency::default();
        assert_eq!((latency.mean(), latency.quantile(0.5)), (None, None));
        (0..15).for_each(|_| latency.record(Duration::ZERO));
        assert_eq!((latency.mean(), latency.quantile(0.5)), (Some(Duration::from_micros(1)), None));
        latency.record(Duration::MAX);
        assert_eq!(latency.quantile(0.5), Some(Duration::from_micros(16)));
        assert!(latency.quantile(1.0).unwrap() > Duration::from_secs(10));
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let latency = Latency::default();
        (0..500).for_each(|_| latency.record(MS * 100));
        (0..2_000).for_each(|_| latency.record(MS));
        assert!(latency.quantile(0.95).unwrap() < MS * 2);
        assert!(latency.mean().unwrap() < MS * 2);
    }
}
