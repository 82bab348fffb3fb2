//! A source that does not answer.

use std::{sync::atomic::Ordering, time::Duration};

use forebay_node::source::{
    SourceError,
    cached::{CachedOptions, Consistency, Policy},
};

use crate::{Bench, superuser};

#[tokio::test]
async fn what_the_policy_allows_is_served_and_the_rest_waits() {
    let policy = Policy {
        acregmin: Duration::from_millis(100),
        acregmax: Duration::from_millis(100),
        acdirmin: Duration::from_millis(100),
        acdirmax: Duration::from_millis(100),
        serve_stale: Duration::from_millis(1500),
        ..Policy::preset(Consistency::CloseToOpen)
    };
    let bench = Bench::with(CachedOptions { policy, ..CachedOptions::default() }).await;
    bench.put("known", "known data");
    bench.put("other", "other data");
    bench.settle().await;
    assert_eq!(bench.cat("known").await, "known data");
    let file = bench.open("known").await.unwrap();
    bench.upstream.down.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(bench.cat("known").await, "known data", "the window is over, but the source cannot be asked");
    assert_eq!(bench.open("other").await.unwrap_err(), SourceError::Unavailable);
    let write = bench.cached.write(&superuser(), &file, 0, "x".into(), false).await;
    assert_eq!(write.unwrap_err(), SourceError::Unavailable);
    bench.upstream.down.store(false, Ordering::Relaxed);
    assert_eq!(bench.cat("known").await, "known data");
    bench.upstream.down.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(1600)).await;
    assert_eq!(bench.open("known").await.unwrap_err(), SourceError::Unavailable, "serve_stale bounds it");
    bench.upstream.down.store(false, Ordering::Relaxed);
    assert_eq!(bench.cat("known").await, "known data", "and all is well again");
    assert_eq!(bench.cat("other").await, "other data");
}

#[tokio::test]
async fn strict_serves_nothing_it_cannot_ask_about() {
    let bench = Bench::new(Consistency::Strict).await;
    bench.put("f", "data");
    assert_eq!(bench.cat("f").await, "data");
    bench.upstream.down.store(true, Ordering::Relaxed);
    assert_eq!(bench.open("f").await.unwrap_err(), SourceError::Unavailable);
}

#[tokio::test]
async fn a_write_whose_outcome_is_not_known_leaves_nothing_to_believe() {
    let bench = Bench::new(Consistency::Scratch).await;
    bench.put("f", "before");
    bench.settle().await;
    assert_eq!(bench.cat("f").await, "before");
    let file = bench.open("f").await.unwrap();
    bench.upstream.down.store(true, Ordering::Relaxed);
    bench.cached.write(&superuser(), &file, 0, "x".into(), false).await.unwrap_err();
    bench.put("f", "xefore");
    bench.upstream.down.store(false, Ordering::Relaxed);
    assert_eq!(bench.cat("f").await, "xefore");
}
