//! How long what is known is believed.

use std::time::Duration;

use forebay_node::source::cached::{CachedOptions, Consistency, Policy};

use crate::{Bench, superuser};

/// Knobs as small as a test can wait for.
fn quick(consistency: Consistency) -> CachedOptions {
    let seconds = Duration::from_millis;
    let policy = Policy {
        acregmin: seconds(800),
        acregmax: seconds(3200),
        acdirmin: seconds(800),
        acdirmax: seconds(3200),
        ..Policy::preset(consistency)
    };
    CachedOptions { policy, ..CachedOptions::default() }
}

#[tokio::test]
async fn within_the_window_nothing_is_asked_and_after_it_one_question_is() {
    let bench = Bench::with(quick(Consistency::CloseToOpen)).await;
    bench.put("f", "old");
    let file = bench.lookup("f").await.unwrap();
    bench.upstream.take_calls();
    for _ in 0..10 {
        assert_eq!(bench.size(&file).await, 3);
    }
    assert_eq!(bench.calls(), 0);
    bench.put("f", "newer");
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert_eq!(bench.size(&file).await, 5, "the window is over");
    assert_eq!(bench.calls(), 1);
}

#[tokio::test]
async fn the_window_grows_while_nothing_changes() {
    let bench = Bench::with(quick(Consistency::Scratch)).await;
    bench.put("f", "same");
    bench.settle().await;
    let file = bench.lookup("f").await.unwrap();
    bench.upstream.take_calls();
    // Windows of 0.8, 1.6, 3.2, 3.2 s, where fixed ones of 0.8 s would be over every time.
    let began = std::time::Instant::now();
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        bench.size(&file).await;
    }
    let (asked, took) = (bench.calls(), began.elapsed().as_secs_f64());
    let most = 2 + (took / 3.2) as u64;
    assert!((1..=most).contains(&asked), "{asked} in {took} s");
}

#[tokio::test]
async fn an_open_sees_what_was_closed_before_it() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    bench.put("f", "one");
    assert_eq!(bench.cat("f").await, "one");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    bench.put("f", "two!");
    let file = bench.lookup("f").await.unwrap();
    assert_eq!(bench.size(&file).await, 3, "without an open the window of three seconds counts");
    assert_eq!(bench.cat("f").await, "two!");
}

#[tokio::test]
async fn opens_within_a_second_share_one_question() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    bench.put("f", vec![1; 4096]);
    bench.settle().await;
    assert_eq!(bench.cat("f").await.len(), 4096);
    bench.upstream.take_calls();
    let began = std::time::Instant::now();
    for _ in 0..20 {
        bench.cat("f").await;
    }
    assert!(bench.calls() <= began.elapsed().as_secs());
    bench.upstream.take_calls();
    tokio::time::sleep(Duration::from_millis(1050)).await;
    let began = std::time::Instant::now();
    for _ in 0..20 {
        bench.cat("f").await;
    }
    let asked = bench.calls();
    assert!((1..=1 + began.elapsed().as_secs()).contains(&asked), "{:?}", bench.upstream.take_calls());
}

#[tokio::test]
async fn strict_asks_each_time_and_is_never_wrong() {
    let bench = Bench::new(Consistency::Strict).await;
    for round in 0..50_usize {
        bench.put("f", vec![round as u8; round + 1]);
        let file = bench.lookup("f").await.unwrap();
        assert_eq!(bench.size(&file).await, round as u64 + 1);
        assert_eq!(bench.read(&file, 0, 100).await, vec![round as u8; round + 1]);
    }
}

#[tokio::test]
async fn scratch_asks_nothing_for_a_warm_tree() {
    let bench = Bench::new(Consistency::Scratch).await;
    for number in 0..20 {
        bench.put(&format!("f{number}"), format!("file {number}"));
    }
    bench.settle().await;
    for number in 0..20 {
        bench.cat(&format!("f{number}")).await;
    }
    bench.upstream.take_calls();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    for number in 0..20 {
        assert_eq!(bench.cat(&format!("f{number}")).await, format!("file {number}"));
    }
    assert_eq!(bench.calls(), 0, "{:?}", bench.upstream.take_calls());
}

#[tokio::test]
async fn rights_are_each_users_own_and_end_when_the_mode_changes() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::with(quick(Consistency::CloseToOpen)).await;
    bench.put("f", "secret");
    let path = bench.home.path().join("f");
    std::fs::set_permissions(bench.home.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let file = bench.lookup("f").await.unwrap();
    let stranger = crate::user(77);
    assert!(bench.cached.access(&superuser(), &file).await.unwrap().read);
    assert!(!bench.cached.access(&stranger, &file).await.unwrap().read);
    bench.upstream.take_calls();
    assert!(!bench.cached.access(&stranger, &file).await.unwrap().read);
    assert_eq!(bench.calls(), 0);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert!(bench.cached.access(&stranger, &file).await.unwrap().read);
    // A change of mode through us counts at once.
    let set = forebay_node::source::SetAttributes { mode: Some(0o600), ..Default::default() };
    bench.cached.set_attributes(&superuser(), &file, &set).await.unwrap();
    assert!(!bench.cached.access(&stranger, &file).await.unwrap().read);
}
