//! Everything at once: after all of it, and at each answer, nothing is older than it may be.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use forebay_node::source::cached::Consistency;

use crate::{Bench, superuser};

const FILES: u64 = 6;
const SIZE: usize = 2 << 20;

/// A small generator, so that a failure can be run again.
struct Seed(u64);

impl Seed {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// Each file has one writer through the cache; readers know the number of the last write that was answered before they
/// asked, and must not see an older one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_reader_sees_what_was_there_before_an_answered_write() {
    let seed: u64 = std::process::id().into();
    println!("seed {seed}");
    let bench = Arc::new(Bench::new(Consistency::CloseToOpen).await);
    let answered: Arc<Vec<std::sync::atomic::AtomicU64>> = Arc::new((0..FILES).map(|_| 0.into()).collect());
    for number in 0..FILES {
        bench.put(&format!("f{number}"), vec![0; SIZE]);
    }
    bench.upstream.delay_us.store(300, Ordering::Relaxed);
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for number in 0..FILES {
        let (bench, answered, stop) = (bench.clone(), answered.clone(), stop.clone());
        tasks.push(tokio::spawn(async move {
            let mut seed = Seed(seed ^ number);
            let file = bench.open(&format!("f{number}")).await.unwrap();
            let mut version = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                version += 1;
                // All cells of the file at once or one after another: a reader may look at any.
                for cell in 0..2 {
                    let data = Bytes::copy_from_slice(&version.to_be_bytes());
                    let at = cell * (SIZE as u64 - 8);
                    bench.cached.write(&superuser(), &file, at, data, false).await.unwrap();
                }
                answered[number as usize].store(version, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_micros(seed.next(3000))).await;
            }
        }));
    }
    for reader in 0..8_u64 {
        let (bench, answered, stop) = (bench.clone(), answered.clone(), stop.clone());
        tasks.push(tokio::spawn(async move {
            let mut seed = Seed(seed ^ (reader << 32));
            let mut seen = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let number = seed.next(FILES);
                let least = answered[number as usize].load(Ordering::SeqCst);
                let file = bench.open(&format!("f{number}")).await.unwrap();
                let at = seed.next(2) * (SIZE as u64 - 8);
                let bytes = bench.read(&file, at, 8).await;
                let version = u64::from_be_bytes(bytes[..8].try_into().unwrap());
                assert!(version >= least, "file {number} at {at}: {version} after {least}");
                seen += 1;
            }
            assert!(seen > 100, "{seen} reads are no test");
        }));
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
}

/// Writers through the cache and beside it, on the same files; once they are done and the window is over, the cache
/// shows what the source has.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn after_writes_through_and_beside_the_cache_both_sides_are_equal() {
    let seed: u64 = std::process::id().into();
    println!("seed {seed}");
    let bench = Arc::new(Bench::new(Consistency::CloseToOpen).await);
    for number in 0..FILES {
        bench.put(&format!("f{number}"), vec![0; 100_000]);
    }
    let mut tasks = Vec::new();
    for writer in 0..6_u64 {
        let bench = bench.clone();
        tasks.push(tokio::spawn(async move {
            let mut seed = Seed(seed ^ (writer << 40));
            for _ in 0..150 {
                let name = format!("f{}", seed.next(FILES));
                let (offset, length) = (seed.next(120_000), seed.next(9000) as usize + 1);
                let data = vec![seed.next(256) as u8; length];
                if writer % 2 == 0 {
                    let file = bench.open(&name).await.unwrap();
                    bench.write(&file, offset, &data).await;
                    bench.read(&file, seed.next(100_000), 5000).await;
                } else {
                    use std::os::unix::fs::FileExt;
                    let file = std::fs::File::options().write(true).open(bench.home.path().join(&name)).unwrap();
                    file.write_all_at(&data, offset).unwrap();
                    bench.cat(&name).await;
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(1050)).await;
    for number in 0..FILES {
        let name = format!("f{number}");
        let there = std::fs::read(bench.home.path().join(&name)).unwrap();
        assert!(bench.cat(&name).await == there, "{name} differs");
    }
    bench.settle().await;
    for number in 0..FILES {
        let name = format!("f{number}");
        let there = std::fs::read(bench.home.path().join(&name)).unwrap();
        assert!(bench.cat(&name).await == there, "{name} differs later");
    }
}
