//! What the cache promises while nothing fails: tiers, quotas, pins, expiry, order, waiting.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use super::{cache_on, content, durable, formatted, key, opener, options, superblock, without_ram};
use crate::cache::{Cache, CacheOptions, Placement, Removed, Tier, ram::weight_of};

#[tokio::test]
async fn a_chunk_is_in_ram_at_once_and_on_the_device_after_a_flush() {
    let device = formatted(&superblock(512, 8));
    let cache = cache_on(&device, &options(4 << 20));
    let (name, bytes) = (key(1, 0), content(1, 1 << 20));
    cache.insert(name, bytes.clone(), durable()).await.unwrap();
    assert_eq!(cache.ram(&name).unwrap().as_ptr(), bytes.as_ptr(), "RAM copies");
    cache.flush().await.unwrap();
    drop(cache);
    let cache = cache_on(&device, &options(4 << 20));
    assert_eq!(cache.ram(&name), None);
    assert_eq!(cache.contains(&name), Some(Tier::Nvme));
    assert_eq!(cache.get(&name).await, Some((bytes.clone(), Tier::Nvme)));
    assert_eq!(cache.ram(&name), Some(bytes), "a chunk that was read is promoted");
}

#[tokio::test]
async fn ram_only_chunks_never_reach_the_device() {
    let device = formatted(&superblock(512, 8));
    let cache = cache_on(&device, &options(4 << 20));
    cache.insert(key(1, 0), content(1, 5000), Placement::default()).await.unwrap();
    cache.flush().await.unwrap();
    assert_eq!(cache.contains(&key(1, 0)), Some(Tier::Ram));
    drop(cache);
    assert_eq!(without_ram(&device).contains(&key(1, 0)), None);
}

#[tokio::test]
async fn ram_accounts_for_no_more_than_it_was_given() {
    for ram_bytes in [0, 1, 5000, 1 << 20, 3 << 20, 300 << 20] {
        let cache = Cache::open(CacheOptions::ram(ram_bytes)).unwrap();
        for index in 0..600 {
            let length = (index as usize * 7919) % (1 << 20);
            cache.insert(key(1, index), content(0, length), Placement::default()).await.unwrap();
            let stats = cache.stats().ram;
            assert!(stats.bytes <= ram_bytes, "{} of {ram_bytes}", stats.bytes);
        }
        let listed: u64 = cache.file_presence(1, 7).map(|present| weight_of(present.length.into())).sum();
        assert_eq!(listed, cache.stats().ram.bytes, "the list of the file's chunks is wrong");
        let chunks = cache.stats().ram.chunks;
        let bytes = cache.file_presence(1, 7).map(|present| u64::from(present.length)).sum();
        let removed = cache.remove_file(1).await;
        assert_eq!(removed, Removed { chunks, bytes });
        assert_eq!((cache.stats().ram.bytes, cache.file_presence(1, 7).count()), (0, 0));
    }
}

#[tokio::test]
async fn small_chunks_are_packed() {
    let device = formatted(&superblock(512, 16));
    let cache = without_ram(&device);
    for index in 0..500_u32 {
        cache.insert(key(u128::from(index), 0), content(u64::from(index), 100), durable()).await.unwrap();
    }
    cache.flush().await.unwrap();
    assert_eq!(cache.stats().nvme.bytes, 500 * 4096);
    let writes = device.writes.load(Ordering::Relaxed);
    assert!(writes < 250, "{writes} writes for 500 chunks of 100 bytes");
    for index in 0..500_u32 {
        let (bytes, _) = cache.get(&key(u128::from(index), 0)).await.unwrap();
        assert_eq!(bytes, content(u64::from(index), 100));
    }
}

#[tokio::test]
async fn replaced_and_removed_chunks_do_not_come_back() {
    let device = formatted(&superblock(512, 8));
    let cache = without_ram(&device);
    for index in 0..4 {
        cache.insert(key(1, index), content(1, 9000), durable()).await.unwrap();
        cache.insert(key(2, index), content(2, 9000), durable()).await.unwrap();
    }
    cache.flush().await.unwrap();
    cache.replace_in_ram(key(1, 0), content(9, 9000), durable()).await;
    // On stable storage already, without a flush.
    let image = device.after_power_cut(&mut super::Dice::new(0));
    let after = without_ram(&std::sync::Arc::new(super::TestDevice::new(image)));
    assert_eq!(after.contains(&key(1, 0)), None);
    assert_eq!(after.contains(&key(1, 1)), Some(Tier::Nvme));

    assert_eq!(cache.remove(&key(1, 1)).await, Removed { chunks: 1, bytes: 9000 });
    assert_eq!(cache.remove(&key(1, 1)).await, Removed::default());
    assert_eq!(cache.remove_file(2).await, Removed { chunks: 4, bytes: 36_000 });
    cache.flush().await.unwrap();
    drop(cache);
    let cache = without_ram(&device);
    let left: Vec<u32> = cache.file_presence(1, 7).map(|present| present.index).collect();
    assert_eq!(left, [2, 3]);
    assert_eq!(cache.file_presence(2, 7).count(), 0);
}

#[tokio::test]
async fn a_replacement_waits_for_the_removal_before_it() {
    let device = formatted(&superblock(512, 8));
    let cache = without_ram(&device);
    for round in 0..20 {
        cache.insert(key(round, 0), content(1, 9000), durable()).await.unwrap();
        cache.flush().await.unwrap();
        if round % 2 == 0 {
            cache.remove(&key(round, 0)).await;
        } else {
            cache.remove_file(round).await;
        }
        cache.replace_in_ram(key(round, 0), content(2, 9000), durable()).await;
        let after = without_ram(&std::sync::Arc::new(super::TestDevice::new(device.bytes())));
        assert_eq!(after.contains(&key(round, 0)), None);
    }
}

#[tokio::test]
async fn an_export_over_its_quota_loses_its_own_oldest_chunks() {
    let device = formatted(&superblock(64, 64));
    let quotas = HashMap::from([(5, 20 * 12_288)]);
    let cache = cache_on(&device, &CacheOptions { quotas, ..options(1) });
    let other = Placement { export: 6, ..durable() };
    let limited = Placement { export: 5, ..durable() };
    for index in 0..60 {
        cache.insert(key(1, index), content(1, 10_000), limited).await.unwrap();
        cache.insert(key(2, index), content(2, 10_000), other).await.unwrap();
        cache.flush().await.unwrap();
    }
    let left: Vec<u32> = cache.file_presence(1, 7).map(|present| present.index).collect();
    assert_eq!(left, (40..60).collect::<Vec<u32>>());
    assert_eq!(cache.file_presence(2, 7).count(), 60);
    assert_eq!(cache.stats().nvme.evictions, 40);
    drop(cache);
    // What was evicted for a quota is not brought back by a restart, quota or not.
    let cache = without_ram(&device);
    assert!(cache.file_presence(1, 7).count() <= 21);
}

#[tokio::test]
async fn pinned_chunks_stay_and_too_many_are_refused() {
    let shape = superblock(64, 16);
    let device = formatted(&shape);
    let cache = without_ram(&device);
    for index in 0..20 {
        cache.insert(key(1, index), content(1, 10_000), durable()).await.unwrap();
    }
    cache.flush().await.unwrap();
    cache.pin_file(1, true).await.unwrap();
    for index in 0..1000 {
        cache.insert(key(2, index), content(2, 10_000), durable()).await.unwrap();
    }
    cache.flush().await.unwrap();
    assert_eq!(cache.file_presence(1, 7).count(), 20);
    assert!(cache.file_presence(2, 7).count() < 320);
    drop(cache);
    let cache = without_ram(&device);
    // Pinned over the restart: also what is added now.
    cache.insert(key(1, 20), content(1, 10_000), durable()).await.unwrap();
    for index in 0..1000 {
        cache.insert(key(3, index), content(3, 10_000), durable()).await.unwrap();
    }
    cache.flush().await.unwrap();
    assert_eq!(cache.file_presence(1, 7).count(), 21);
    assert_eq!(cache.stats().pinned_bytes, 21 * 12_288);

    let mut refused = None;
    for index in 0..1000 {
        if let Err(limit) = cache.insert(key(1, 100 + index), content(1, 10_000), durable()).await {
            refused = Some(limit);
        }
    }
    cache.flush().await.unwrap();
    let limit = refused.expect("more than the store was pinned");
    assert!(limit.to_string().contains("80 %"), "{limit}");
    assert!(cache.stats().pinned_bytes <= limit.limit);
    cache.pin_file(1, false).await.unwrap();
    assert_eq!(cache.stats().pinned_bytes, 0);
}

#[tokio::test]
async fn chunks_that_are_read_survive_those_that_are_not() {
    let device = formatted(&superblock(64, 16));
    let cache = without_ram(&device);
    for index in 0..1500 {
        cache.insert(key(1, index), content(1, 10_000), durable()).await.unwrap();
        cache.flush().await.unwrap();
        for hot in 0..10 {
            assert!(index < hot || cache.get(&key(1, hot)).await.is_some(), "{hot} at {index}");
        }
    }
    assert!(cache.stats().copied_bytes > 0);
}

static CLOCK: AtomicU64 = AtomicU64::new(1000);

fn moved_clock() -> u64 {
    CLOCK.load(Ordering::Relaxed)
}

#[tokio::test]
async fn expired_chunks_are_misses_in_both_tiers_and_after_a_restart() {
    let device = formatted(&superblock(64, 16));
    let open =
        |ram| Cache::open_with(&options(ram), Some(opener(&device)), moved_clock, Duration::from_secs(1)).unwrap();
    for ram in [1, 1 << 20] {
        CLOCK.store(1000, Ordering::Relaxed);
        let cache = open(ram);
        let placement = Placement { expires: Some(1010), ..durable() };
        cache.insert(key(1, 0), content(1, 10_000), placement).await.unwrap();
        assert!(cache.get(&key(1, 0)).await.is_some());
        cache.flush().await.unwrap();
        assert!(cache.get(&key(1, 0)).await.is_some());
        CLOCK.store(1010, Ordering::Relaxed);
        assert_eq!(cache.contains(&key(1, 0)), None);
        assert_eq!(cache.ram(&key(1, 0)), None);
        assert_eq!(cache.get(&key(1, 0)).await, None);
        drop(cache);
        assert_eq!(open(ram).get(&key(1, 0)).await, None);
    }
}

#[tokio::test]
async fn insertions_wait_for_a_slow_device_and_nothing_is_dropped() {
    let device = formatted(&superblock(1024, 8));
    device.write_delay_ms.store(20, Ordering::Relaxed);
    let cache = cache_on(&device, &CacheOptions { queue_bytes: 300_000, ..options(1) });
    let started = Instant::now();
    let mut most = 0;
    for index in 0..100 {
        cache.insert(key(1, index), content(u64::from(index), 100_000), durable()).await.unwrap();
        most = most.max(cache.stats().queued_bytes);
    }
    assert!(most <= 300_000, "{most} bytes were queued");
    assert!(started.elapsed() > Duration::from_millis(300), "nobody waited");
    cache.flush().await.unwrap();
    assert_eq!(cache.stats().nvme.chunks, 100);
    for index in 0..100 {
        assert_eq!(cache.get(&key(1, index)).await.unwrap().0, content(u64::from(index), 100_000));
    }
}

#[tokio::test]
async fn an_insertion_given_up_while_it_waits_leaves_nothing_behind() {
    let device = formatted(&superblock(1024, 8));
    device.write_delay_ms.store(100, Ordering::Relaxed);
    let cache = cache_on(&device, &CacheOptions { queue_bytes: 200_000, ..options(1) });
    for index in 0..2 {
        cache.insert(key(1, index), content(1, 90_000), durable()).await.unwrap();
    }
    let third = cache.insert(key(1, 2), content(1, 90_000), durable());
    assert!(tokio::time::timeout(Duration::from_millis(10), third).await.is_err());
    assert_eq!(cache.contains(&key(1, 2)), None);
    cache.flush().await.unwrap();
    assert_eq!(cache.stats().nvme.chunks, 2);
    assert_eq!(cache.stats().queued_bytes, 0);
}

#[test]
fn the_index_costs_little() {
    let mut index = crate::cache::store::index::Index::default();
    for file in 0..100_000_u32 {
        let chunk = crate::cache::store::index::Chunk::new(0, file + 16, 100, false, 0);
        index.insert(&key(u128::from(file) << 64, 0), 1, chunk);
    }
    let of_small = index.memory() / 100_000;
    for number in 0..100_000_u32 {
        let chunk = crate::cache::store::index::Chunk::new(number, number + 16, 100, false, 0);
        index.insert(&key(77, number), 1, chunk);
    }
    let of_large = index.memory() / 100_000 - of_small;
    println!("{of_small} bytes for a file of one chunk, {of_large} for a chunk of a large file");
    assert!(of_small <= 104 && of_large <= 33);
}
