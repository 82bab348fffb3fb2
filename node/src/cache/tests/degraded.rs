//! A device that fails costs chunks, never a caller.

use std::{sync::atomic::Ordering, time::Duration};

use super::{cache_on, content, durable, formatted, key, options, superblock, without_ram};
use crate::cache::{Tier, Unavailable};

/// Waits until it holds, ten seconds at most.
async fn eventually(mut holds: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came true");
}

#[tokio::test]
async fn a_failed_write_degrades_the_store_to_ram_and_it_comes_back_empty() {
    let device = formatted(&superblock(256, 8));
    let cache = cache_on(&device, &options(4 << 20));
    cache.insert(key(1, 0), content(1, 50_000), durable()).await.unwrap();
    cache.flush().await.unwrap();
    device.fail_writes.store(true, Ordering::Relaxed);
    cache.insert(key(1, 1), content(2, 50_000), durable()).await.unwrap();
    assert_eq!(cache.flush().await, Err(Unavailable));
    assert!(cache.stats().degraded);
    assert_eq!(cache.stats().nvme.chunks, 0);
    // RAM goes on, and nobody waits for the device.
    for index in 2..40 {
        cache.insert(key(1, index), content(3, 50_000), durable()).await.unwrap();
        cache.replace_in_ram(key(1, index), content(4, 50_000), durable()).await;
        assert_eq!(cache.ram(&key(1, index)), Some(content(4, 50_000)));
    }
    cache.remove(&key(1, 0)).await;
    device.fail_writes.store(false, Ordering::Relaxed);
    eventually(|| !cache.stats().degraded).await;
    assert_eq!(cache.stats().nvme.chunks, 0);
    cache.insert(key(2, 0), content(5, 50_000), durable()).await.unwrap();
    cache.flush().await.unwrap();
    drop(cache);
    // What was removed while it was degraded is not there after a restart either.
    let cache = without_ram(&device);
    assert_eq!(cache.contains(&key(1, 0)), None);
    assert_eq!(cache.contains(&key(2, 0)), Some(Tier::Nvme));
}

#[tokio::test]
async fn a_failed_read_is_a_miss_and_the_chunk_is_there_when_reads_work_again() {
    let device = formatted(&superblock(256, 8));
    let cache = without_ram(&device);
    cache.insert(key(1, 0), content(1, 50_000), durable()).await.unwrap();
    cache.flush().await.unwrap();
    device.fail_reads.store(true, Ordering::Relaxed);
    assert_eq!(cache.get(&key(1, 0)).await, None);
    assert_eq!(cache.stats().store_errors, 1);
    device.fail_reads.store(false, Ordering::Relaxed);
    assert!(cache.get(&key(1, 0)).await.is_some());
}

#[tokio::test]
async fn a_store_that_is_no_longer_where_it_was_is_given_up() {
    let device = formatted(&superblock(256, 8));
    let cache = without_ram(&device);
    device.gone.store(true, Ordering::Relaxed);
    eventually(|| cache.stats().degraded).await;
    device.gone.store(false, Ordering::Relaxed);
    eventually(|| !cache.stats().degraded).await;
}

#[tokio::test]
async fn waiting_insertions_end_when_the_device_fails() {
    let device = formatted(&superblock(256, 8));
    device.write_delay_ms.store(50, Ordering::Relaxed);
    let cache = cache_on(&device, &crate::cache::CacheOptions { queue_bytes: 100_000, ..options(1) });
    let mut tasks = Vec::new();
    for index in 0..20 {
        let cache = std::sync::Arc::clone(&cache);
        tasks.push(tokio::spawn(async move { cache.insert(key(1, index), content(1, 90_000), durable()).await }));
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    device.fail_writes.store(true, Ordering::Relaxed);
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(10), task).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test]
async fn pins_outlast_a_failure() {
    let device = formatted(&superblock(64, 16));
    let cache = without_ram(&device);
    cache.pin_file(1, true).await.unwrap();
    cache.flush().await.unwrap();
    device.fail_writes.store(true, Ordering::Relaxed);
    cache.insert(key(1, 0), content(1, 1000), durable()).await.unwrap();
    eventually(|| cache.stats().degraded).await;
    device.fail_writes.store(false, Ordering::Relaxed);
    eventually(|| !cache.stats().degraded).await;
    cache.close().await;
    drop(cache);
    let cache = without_ram(&device);
    cache.insert(key(1, 1), content(1, 1000), durable()).await.unwrap();
    cache.flush().await.unwrap();
    assert_eq!(cache.stats().pinned_bytes, 4096);
}
