//! Measurements, not tests: run with `--release -- --ignored --nocapture measure`.

use std::{hint::black_box, sync::Arc, time::Instant};

use bytes::Bytes;

use super::{content, durable, key};
use crate::cache::{Cache, CacheOptions, Placement, StoreOptions, Tier};

/// `FOREBAY_MEASURE_DIR` is where the store is made; compare with
/// `fio --rw=read --bs=1M --direct=1 --ioengine=psync` of the same size there.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn measure() {
    let dir = std::env::var_os("FOREBAY_MEASURE_DIR").expect("set FOREBAY_MEASURE_DIR");
    const CHUNKS: u32 = 1024;
    let store = StoreOptions { bytes: Some(2 << 30), ..StoreOptions::at(dir) };
    let cache = Cache::open(CacheOptions { store: Some(store), ..CacheOptions::ram(16 << 20) }).unwrap();
    let bytes = content(1, 1 << 20);
    let started = Instant::now();
    for index in 0..CHUNKS {
        cache.insert(key(1, index), bytes.clone(), durable()).await.unwrap();
    }
    cache.flush().await.unwrap();
    println!("write, flushed: {:.2} GB/s", rate(CHUNKS, started));
    assert_eq!(cache.stats().nvme.chunks, u64::from(CHUNKS));
    let started = Instant::now();
    for index in 0..CHUNKS {
        let (read, tier) = cache.get(&key(1, index)).await.unwrap();
        assert!(tier == Tier::Ram || read.len() == 1 << 20);
    }
    println!("read, one at a time: {:.2} GB/s", rate(CHUNKS, started));
    let started = Instant::now();
    let tasks = (0..4).map(|number| tokio::spawn(read_share(Arc::clone(&cache), number, CHUNKS)));
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    println!("read, four at a time: {:.2} GB/s", rate(CHUNKS, started));
    measure_ram().await;
}

async fn read_share(cache: Arc<Cache>, number: u32, chunks: u32) {
    for index in (number..chunks).step_by(4) {
        cache.get(&key(1, index)).await.unwrap();
    }
}

fn rate(chunks: u32, started: Instant) -> f64 {
    f64::from(chunks) * f64::from(1 << 20) / 1e9 / started.elapsed().as_secs_f64()
}

async fn measure_ram() {
    let cache = Cache::open(CacheOptions::ram(1 << 30)).unwrap();
    for index in 0..100_000 {
        cache.insert(key(1, index), Bytes::from_static(&[0; 4096]), Placement::default()).await.unwrap();
    }
    let started = Instant::now();
    let mut found = 0;
    for round in 0..10_u32 {
        for index in 0..100_000_u32 {
            let index = index.wrapping_mul(7919).wrapping_add(round) % 100_000;
            found += u64::from(black_box(cache.ram(&key(1, index))).is_some());
        }
    }
    println!("ram(): {} ns, {found} found", started.elapsed().as_nanos() / 1_000_000);
}
