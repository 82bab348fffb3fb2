//! READDIR: pages come from the source once, and make what they tell of known.

use std::{collections::BTreeSet, ops::ControlFlow, time::Duration};

use forebay_node::source::{
    EntryObject,
    cached::{CachedOptions, Consistency, Policy},
};

use crate::{Bench, superuser};

/// All names, asked for in calls of at most `max` entries.
async fn list(bench: &Bench, max: usize) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut cookie = 0;
    loop {
        let mut last = cookie;
        let mut sink = |entry: forebay_node::source::DirectoryEntry<forebay_node::source::File>| {
            last = entry.cookie;
            assert!(matches!(entry.file, Some(Ok(EntryObject::Told { .. }))));
            assert!(names.insert(String::from_utf8(entry.name.to_vec()).unwrap()), "told twice");
            ControlFlow::Continue(())
        };
        let who = superuser();
        let end = bench.cached.read_directory(&who, &bench.root, cookie, (max, 1 << 20), true, &mut sink).await;
        let end = end.unwrap();
        assert!(end || last != cookie, "no progress");
        cookie = last;
        if end {
            return names;
        }
    }
}

#[tokio::test]
async fn a_listing_is_whole_however_it_is_cut_and_costs_nothing_again() {
    // Each place at which a call stopped is weighed with all of its page that comes after it: here is room for some hundreds.
    let policy = Policy::preset(Consistency::Scratch);
    let bench = Bench::with(CachedOptions { policy, metadata_bytes: 4 << 30, ..CachedOptions::default() }).await;
    let expected: BTreeSet<_> = (0..3000).map(|number| format!("file-{number}")).collect();
    expected.iter().for_each(|name| bench.put(name, "x"));
    bench.settle().await;
    for max in [7, 100, 10_000] {
        assert_eq!(list(&bench, max).await, expected);
    }
    bench.upstream.take_calls();
    assert_eq!(list(&bench, 50).await, expected);
    assert_eq!(bench.calls(), 0, "{:?}", bench.upstream.take_calls());
    // Every file is known by name and attributes now.
    for name in expected.iter().take(50) {
        let file = bench.lookup(name).await.unwrap();
        assert_eq!(bench.size(&file).await, 1);
    }
    assert_eq!(bench.calls(), 0, "{:?}", bench.upstream.take_calls());
}

#[tokio::test]
async fn what_is_made_and_removed_through_us_is_in_the_next_listing() {
    let bench = Bench::new(Consistency::Scratch).await;
    bench.put("a", "");
    assert_eq!(list(&bench, 100).await.len(), 1);
    let set = forebay_node::source::SetAttributes { mode: Some(0o600), ..Default::default() };
    bench.cached.create(&superuser(), &bench.root, b"b", true, &set).await.unwrap();
    assert_eq!(list(&bench, 100).await.len(), 2);
    bench.cached.remove(&superuser(), &bench.root, b"a", false).await.unwrap();
    assert_eq!(list(&bench, 100).await, BTreeSet::from(["b".to_owned()]));
    // A file that is removed while it is open is not seen by the name it has until it is closed.
    let (_, hidden) = bench.cached.remove(&superuser(), &bench.root, b"b", true).await.unwrap();
    assert!(list(&bench, 100).await.is_empty());
    drop(hidden);
}

#[tokio::test]
async fn after_the_window_a_listing_shows_what_others_made() {
    let mut options = forebay_node::source::cached::CachedOptions::default();
    options.policy.acdirmin = Duration::from_millis(200);
    let bench = Bench::with(options).await;
    bench.put("a", "");
    assert_eq!(list(&bench, 100).await.len(), 1);
    bench.put("b", "");
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(list(&bench, 100).await.len(), 2);
}

#[tokio::test]
async fn who_opens_one_small_file_after_the_other_finds_the_next_ones_fetched_many_at_a_time() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    let expected: BTreeSet<_> = (0..300).map(|number| format!("file-{number:03}")).collect();
    expected.iter().for_each(|name| bench.put(name, name.repeat(100)));
    bench.settle().await;
    let mut order = Vec::new();
    let mut sink = |entry: forebay_node::source::DirectoryEntry<forebay_node::source::File>| {
        order.push(String::from_utf8(entry.name.to_vec()).unwrap());
        ControlFlow::Continue(())
    };
    let who = superuser();
    let listing = bench.cached.read_directory(&who, &bench.root, 0, (1000, 1 << 20), true, &mut sink);
    assert!(listing.await.unwrap());
    bench.upstream.take_calls();
    bench.upstream.delay_us.store(2000, std::sync::atomic::Ordering::Relaxed);
    for name in &order {
        assert_eq!(bench.cat(name).await, name.repeat(100));
    }
    let calls = bench.upstream.take_calls();
    let all: u64 = calls.values().sum();
    assert!(all <= 20, "{calls:?} for 300 files");
}
