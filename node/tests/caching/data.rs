//! Data: fetched once, by whoever comes first.

use std::sync::atomic::Ordering;

use forebay_node::source::cached::Consistency;

use crate::{Bench, superuser};

const MIB: usize = 1 << 20;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|place| (place * 7 + place / 251) as u8).collect()
}

#[tokio::test]
async fn a_small_file_costs_one_round_trip_cold_and_none_warm() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    bench.put("f", pattern(20_000));
    bench.settle().await;
    assert_eq!(bench.cat("f").await, pattern(20_000));
    assert_eq!(bench.calls(), 1, "LOOKUP, ACCESS, GETATTR and READ go together");
    bench.upstream.take_calls();
    assert_eq!(bench.cat("f").await, pattern(20_000));
    assert_eq!(bench.calls(), 0);
}

#[tokio::test]
async fn every_byte_of_a_large_file_leaves_the_source_once_however_it_is_read() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    let data = pattern(5 * MIB + 12_345);
    bench.put("f", &data);
    bench.settle().await;
    bench.upstream.delay_us.store(2000, Ordering::Relaxed);
    let file = bench.open("f").await.unwrap();
    // Eight readers at once, in steps that cross chunks.
    let readers = (0..8_usize).map(|reader| {
        let (bench, file, data) = (&bench, &file, &data);
        async move {
            let step = 300_000 + reader * 10_001;
            let mut at = 0;
            while at < data.len() {
                let part = bench.read(file, at as u64, step).await;
                assert_eq!(part, data[at..(at + step).min(data.len())]);
                at += part.len();
            }
        }
    });
    futures_util::future::join_all(readers).await;
    let small_look = 32 << 10;
    let read = bench.upstream.read_bytes.load(Ordering::Relaxed) as usize;
    assert!((data.len()..=data.len() + small_look).contains(&read), "{read} of {}", data.len());
}

#[tokio::test]
async fn a_sequential_reader_finds_what_he_will_want_already_fetched() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    bench.put("f", pattern(32 * MIB));
    bench.settle().await;
    bench.upstream.delay_us.store(20_000, Ordering::Relaxed);
    let file = bench.open("f").await.unwrap();
    for chunk in 0..32 {
        bench.read(&file, (chunk * MIB) as u64, MIB).await;
    }
    // A reader who asks for one chunk after the other would have one call under way.
    let most = bench.upstream.most_under_way.load(Ordering::Relaxed);
    assert!(most >= 4, "{most} at once");
    assert_eq!(bench.upstream.take_calls()["read"], 32);
}

#[tokio::test]
async fn many_who_open_one_file_at_once_ask_once() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    bench.put("f", pattern(4096));
    bench.settle().await;
    bench.upstream.delay_us.store(5000, Ordering::Relaxed);
    let all = (0..50).map(|_| bench.cat("f"));
    futures_util::future::join_all(all).await;
    assert!(bench.calls() <= 2, "{:?}", bench.upstream.take_calls());
}

#[tokio::test]
async fn the_end_of_a_file_is_told_as_it_is() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    for size in [0, 1, MIB - 1, MIB, MIB + 1, 2 * MIB] {
        let name = format!("f{size}");
        bench.put(&name, pattern(size));
        let file = bench.open(&name).await.unwrap();
        for offset in [0, size.saturating_sub(1), size, size + 1, MIB] {
            for count in [0, 1, MIB, 3 * MIB] {
                let (bytes, eof) = bench.cached.read(&superuser(), &file, offset as u64, count).await.unwrap();
                let end = (offset + count).min(size);
                assert_eq!(bytes, pattern(size)[offset.min(end)..end], "{size} {offset} {count}");
                assert_eq!(eof, offset + count >= size || offset >= size, "{size} {offset} {count}");
            }
        }
    }
}

#[tokio::test]
async fn a_file_that_becomes_shorter_or_is_gone_while_it_is_read_is_not_invented() {
    let bench = Bench::new(Consistency::Scratch).await;
    bench.put("f", pattern(3 * MIB));
    bench.settle().await;
    let file = bench.open("f").await.unwrap();
    bench.put("f", pattern(MIB / 2));
    let (bytes, eof) = bench.cached.read(&superuser(), &file, 0, 2 * MIB).await.unwrap();
    assert_eq!((bytes.len(), eof), (MIB / 2, true));
    assert_eq!(bytes, pattern(MIB / 2));
    bench.put("g", pattern(3 * MIB));
    let file = bench.open("g").await.unwrap();
    std::fs::remove_file(bench.home.path().join("g")).unwrap();
    let read = bench.cached.read(&superuser(), &file, 2 * MIB as u64, MIB).await;
    assert_eq!(read, Err(forebay_node::source::SourceError::Stale));
}
