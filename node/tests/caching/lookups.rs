//! Names: which answers are believed.

use std::time::Duration;

use forebay_node::source::{SourceError, cached::Consistency};

use crate::{Bench, user};

const NO_ENTRY: SourceError = SourceError::Errno(libc::ENOENT);

#[tokio::test]
async fn new_files_are_found_at_once_although_they_were_missed_before() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    for number in 0..20 {
        let name = format!("f{number}");
        assert_eq!(bench.lookup(&name).await.unwrap_err(), NO_ENTRY);
        bench.put(&name, "now");
        assert_eq!(bench.lookup(&name).await.unwrap().state().attributes.size, 3);
    }
}

#[tokio::test]
async fn in_scratch_a_missing_name_is_believed_within_the_window() {
    let bench = Bench::new(Consistency::Scratch).await;
    bench.settle().await;
    // The right to search is asked once.
    bench.cached.access(&crate::superuser(), &bench.root).await.unwrap();
    assert_eq!(bench.lookup("missing").await.unwrap_err(), NO_ENTRY);
    bench.upstream.take_calls();
    for _ in 0..10 {
        assert_eq!(bench.lookup("missing").await.unwrap_err(), NO_ENTRY);
    }
    assert_eq!(bench.calls(), 0, "{:?}", bench.upstream.take_calls());
}

#[tokio::test]
async fn a_name_that_was_replaced_behind_us_is_the_new_file_at_its_open() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    bench.put("f", "first");
    let before = bench.open("f").await.unwrap();
    bench.put("tmp", "second");
    std::fs::rename(bench.home.path().join("tmp"), bench.home.path().join("f")).unwrap();
    tokio::time::sleep(Duration::from_millis(1050)).await;
    let after = bench.open("f").await.unwrap();
    assert_ne!(before.id(), after.id());
    assert_eq!(bench.cat("f").await, "second");
}

#[tokio::test]
async fn a_stale_object_is_looked_up_again_by_its_name() {
    let bench = Bench::new(Consistency::Scratch).await;
    bench.put("f", "first");
    let file = bench.open("f").await.unwrap();
    std::fs::remove_file(bench.home.path().join("f")).unwrap();
    bench.put("f", "second");
    // Whoever finds out tells everybody.
    file.state().asked = None;
    assert_eq!(bench.cached.attributes(&crate::superuser(), &file).await, Err(SourceError::Stale));
    assert_eq!(bench.cat("f").await, "second");
}

#[tokio::test]
async fn who_may_not_search_finds_nothing_that_others_found() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new(Consistency::Scratch).await;
    bench.put("f", "x");
    std::fs::set_permissions(bench.home.path(), PermissionsExt::from_mode(0o700)).unwrap();
    bench.open("f").await.unwrap();
    let (stranger, root) = (user(5), bench.root.clone());
    for _ in 0..2 {
        let found = bench.cached.lookup(&stranger, &root, b"f").await;
        assert_eq!(found.unwrap_err(), SourceError::Errno(libc::EACCES));
        let opened = bench.cached.lookup_to_open(&stranger, &root, b"f").await;
        assert_eq!(opened.unwrap_err(), SourceError::Errno(libc::EACCES));
    }
}
