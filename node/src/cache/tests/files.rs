//! Real files: what is opened, what is refused, full and vanishing file systems, flipped bits.

use std::{
    collections::HashMap,
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Dice, content, durable, key, now};
use crate::cache::{
    Cache, CacheOptions, StoreOptions,
    store::{
        layout::BLOCK,
        open::{self, FILE_NAME, OpenError},
        writer::Opener,
    },
};

pub fn at(path: &Path, bytes: u64) -> CacheOptions {
    let store = StoreOptions { bytes: Some(bytes), ..StoreOptions::at(path) };
    CacheOptions { store: Some(store), ..CacheOptions::ram(1) }
}

#[tokio::test]
async fn a_store_in_a_directory_is_made_found_again_and_grown() {
    let dir = tempfile::tempdir().unwrap();
    for bytes in [32 << 20, 32 << 20, 64 << 20] {
        let cache = Cache::open(at(dir.path(), bytes)).unwrap();
        assert!(cache.stats().nvme.capacity > bytes / 10 * 8 && cache.stats().nvme.capacity <= bytes);
        let before = cache.get(&key(1, 0)).await;
        assert_eq!(before.is_some(), cache.stats().nvme.chunks > 0);
        cache.insert(key(1, cache.stats().nvme.chunks as u32), content(1, 1 << 20), durable()).await.unwrap();
        cache.flush().await.unwrap();
        cache.close().await;
    }
    let cache =
        Cache::open(CacheOptions { store: Some(StoreOptions::at(dir.path())), ..CacheOptions::ram(1) }).unwrap();
    assert_eq!(cache.stats().nvme.chunks, 3);
}

#[tokio::test]
async fn a_store_is_locked_while_it_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(at(dir.path(), 32 << 20)).unwrap();
    assert!(matches!(Cache::open(at(dir.path(), 32 << 20)), Err(OpenError::Locked { .. })));
    drop(cache);
    Cache::open(at(dir.path(), 32 << 20)).unwrap();
}

#[test]
fn what_is_not_ours_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(FILE_NAME);
    let mut ext4 = vec![0_u8; 1 << 20];
    ext4[1080..1082].copy_from_slice(b"\x53\xef");
    let mut unknown = vec![0_u8; 1 << 20];
    unknown[70_000] = 1;
    for (bytes, said) in [(ext4, "ext4"), (unknown, "unknown kind"), (vec![7; 100], "100 bytes")] {
        fs::write(&file, &bytes).unwrap();
        let error = Cache::open(at(dir.path(), 32 << 20)).unwrap_err();
        assert!(matches!(error, OpenError::Foreign { .. }) && error.to_string().contains(said), "{error}");
        assert_eq!(fs::read(&file).unwrap(), bytes);
    }
    let mut newer = super::superblock(1024, 8).encode();
    newer[8] = 9;
    let bytes = [newer.clone(), newer, vec![0; 1 << 20]].concat();
    fs::write(&file, &bytes).unwrap();
    let error = Cache::open(at(dir.path(), 32 << 20)).unwrap_err();
    assert!(error.to_string().contains("format version 9, this binary reads version 1"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), bytes);
}

#[test]
fn unusable_paths_are_errors_that_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let missing = Cache::open(at(&dir.path().join("missing"), 32 << 20)).unwrap_err();
    assert!(matches!(missing, OpenError::Missing { .. }), "{missing}");
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    assert!(matches!(Cache::open(at(&file, 32 << 20)), Err(OpenError::NotUsable { .. })));
    assert!(matches!(Cache::open(at(dir.path(), 1 << 20)), Err(OpenError::TooSmall { .. })));
    let huge = Cache::open(at(dir.path(), 1 << 43)).unwrap_err();
    assert!(matches!(huge, OpenError::NoSpace { .. } | OpenError::Io { .. }), "{huge}");
    assert!(fs::metadata(dir.path().join(FILE_NAME)).map_or(0, |metadata| metadata.len()) == 0);
}

#[tokio::test]
async fn a_shortened_store_starts_empty() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(at(dir.path(), 32 << 20)).unwrap();
    cache.insert(key(1, 0), content(1, 1 << 20), durable()).await.unwrap();
    cache.close().await;
    drop(cache);
    File::options().write(true).open(dir.path().join(FILE_NAME)).unwrap().set_len(9 << 20).unwrap();
    let cache = Cache::open(at(dir.path(), 32 << 20)).unwrap();
    assert_eq!(cache.stats().nvme.chunks, 0);
    cache.insert(key(1, 0), content(1, 1 << 20), durable()).await.unwrap();
    cache.flush().await.unwrap();
    assert!(cache.get(&key(1, 0)).await.is_some());
}

/// As [`Cache::open`], looking after the store all the time.
fn open_impatient(options: &CacheOptions) -> Arc<Cache> {
    let store = options.store.clone().unwrap();
    let opener: Opener = Box::new(move |fresh| open::open(&store, fresh, now()));
    Cache::open_with(options, Some(opener), now, Duration::from_millis(50)).unwrap()
}

async fn until_degraded(cache: &Cache, degraded: bool) {
    let started = Instant::now();
    while cache.stats().degraded != degraded {
        assert!(started.elapsed() < Duration::from_secs(10), "degraded is still {}", !degraded);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_removed_directory_degrades_the_store_and_it_comes_back_with_the_directory() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("cache");
    fs::create_dir(&dir).unwrap();
    let cache = open_impatient(&at(&dir, 32 << 20));
    cache.insert(key(1, 0), content(1, 1 << 20), durable()).await.unwrap();
    fs::remove_dir_all(&dir).unwrap();
    until_degraded(&cache, true).await;
    cache.insert(key(1, 1), content(1, 1 << 20), durable()).await.unwrap();
    fs::create_dir(&dir).unwrap();
    until_degraded(&cache, false).await;
    cache.insert(key(1, 2), content(2, 1 << 20), durable()).await.unwrap();
    cache.flush().await.unwrap();
    assert_eq!(cache.get(&key(1, 2)).await.unwrap().0, content(2, 1 << 20));
}

/// A file whose space was not reserved, on a file system of 24 MiB: it runs out while chunks are written.
#[tokio::test]
async fn a_full_file_system_degrades_the_store() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root may mount");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let status =
        std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(dir.path()).status();
    if !status.is_ok_and(|status| status.success()) {
        println!("skipped: tmpfs cannot be mounted here");
        return;
    }
    let reserved = Cache::open(at(dir.path(), 40 << 20)).unwrap_err();
    assert!(matches!(reserved, OpenError::NoSpace { .. }), "{reserved}");
    let cache = open_impatient(&at(dir.path(), 21 << 20));
    // Another takes the space back: a hole in our file has to be filled again, and cannot be.
    let file = File::options().write(true).open(dir.path().join(FILE_NAME)).unwrap();
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, hole, 64 << 10, 16 << 20).unwrap();
    let other = File::create(dir.path().join("other")).unwrap();
    while other.write_all_at(&[1; 65_536], other.metadata().unwrap().len()).is_ok() {}
    for index in 0..8 {
        cache.insert(key(1, index), content(1, 1 << 20), durable()).await.unwrap();
    }
    assert!(cache.flush().await.is_err());
    assert!(cache.stats().degraded && cache.stats().store_errors > 0);
    drop((cache, file, other));
    assert!(std::process::Command::new("umount").arg(dir.path()).status().unwrap().success());
}

/// One bit in a million is wrong, all over a store of 200 MiB: no wrong byte is returned, and nearly all chunks without one
/// are.
#[tokio::test]
async fn flipped_bits_are_misses() {
    const CHUNKS: u32 = 128;
    let dir = tempfile::tempdir().unwrap();
    let options = at(dir.path(), 208 << 20);
    let cache = Cache::open(options.clone()).unwrap();
    let bytes: Vec<bytes::Bytes> = (0..4).map(|seed| content(seed, 1 << 20)).collect();
    let small: Vec<bytes::Bytes> = (0..16).map(|seed| content(seed, 3000)).collect();
    for index in 0..CHUNKS {
        cache.insert(key(1, index), bytes[index as usize % 4].clone(), durable()).await.unwrap();
        for more in 0..32 {
            cache.insert(key(2, index * 32 + more), small[more as usize % 16].clone(), durable()).await.unwrap();
        }
    }
    cache.close().await;
    drop(cache);
    let mut dice = Dice::new(5);
    let file = File::options().read(true).write(true).open(dir.path().join(FILE_NAME)).unwrap();
    let length = file.metadata().unwrap().len();
    let flips = length * 8 / 1_000_000;
    for _ in 0..flips {
        let at = 2 * BLOCK as u64 + dice.below(length - 2 * BLOCK as u64);
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1 << dice.below(8)], at).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    let cache = Cache::open(options).unwrap();
    let mut found = HashMap::from([(1_u32, 0), (2, 0)]);
    for index in 0..CHUNKS {
        if let Some((read, _)) = cache.get(&key(1, index)).await {
            assert!(read == bytes[index as usize % 4], "wrong bytes in chunk {index}");
            *found.get_mut(&1).unwrap() += 1;
        }
        for more in 0..32 {
            if let Some((read, _)) = cache.get(&key(2, index * 32 + more)).await {
                assert!(read == small[more as usize % 16], "wrong bytes in a small chunk");
                *found.get_mut(&2).unwrap() += 1;
            }
        }
    }
    println!("{flips} flips: {found:?} chunks read, {} checksum failures", cache.stats().checksum_failures);
    assert!(cache.stats().checksum_failures > 0);
    // A flip in a million leaves about 97 of 100 small chunks whole.
    assert!(found[&2] > 32 * CHUNKS * 9 / 10, "{found:?}");
}
