//! Changes through the cache: written through, and seen by everybody at once.

use forebay_node::source::{SetAttributes, SourceError, cached::Consistency};

use crate::{Bench, superuser};

const MIB: usize = 1 << 20;

async fn create(bench: &Bench, name: &str) -> std::sync::Arc<forebay_node::source::cached::CachedFile> {
    let set = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
    let made = bench.cached.create(&superuser(), &bench.root, name.as_bytes(), true, &set).await.unwrap();
    assert!(made.1);
    made.0
}

#[tokio::test]
async fn what_was_written_is_read_back_without_a_question() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    let file = create(&bench, "f").await;
    bench.write(&file, 0, b"hello").await;
    bench.write(&file, 3, b"p!").await;
    bench.upstream.take_calls();
    assert_eq!(bench.read(&file, 0, 100).await, "help!");
    assert_eq!(bench.size(&file).await, 5);
    assert_eq!(bench.calls(), 0, "{:?}", bench.upstream.take_calls());
    assert_eq!(std::fs::read(bench.home.path().join("f")).unwrap(), b"help!", "written through");
}

#[tokio::test]
async fn writes_at_all_places_of_a_large_file_are_seen() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    let mut data = vec![7_u8; 4 * MIB + 100];
    bench.put("f", &data);
    bench.settle().await;
    assert_eq!(bench.cat("f").await, data);
    let file = bench.open("f").await.unwrap();
    for (offset, length) in [(0, 10), (MIB - 5, 10), (2 * MIB, MIB), (4 * MIB + 50, 200), (4 * MIB + 1000, 5)] {
        let part = vec![offset as u8 ^ 0x55; length];
        bench.write(&file, offset as u64, &part).await;
        data.resize(data.len().max(offset + length), 0);
        data[offset..offset + length].copy_from_slice(&part);
        assert!(bench.cat("f").await == data, "after a write at {offset}");
        assert!(std::fs::read(bench.home.path().join("f")).unwrap() == data);
    }
}

#[tokio::test]
async fn cutting_and_growing_leaves_no_old_bytes() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    bench.put("f", vec![9; 2 * MIB]);
    assert_eq!(bench.cat("f").await.len(), 2 * MIB);
    let file = bench.open("f").await.unwrap();
    for size in [MIB + 10, 5, 3 * MIB] {
        let set = SetAttributes { size: Some(size as u64), ..SetAttributes::default() };
        bench.cached.set_attributes(&superuser(), &file, &set).await.unwrap();
        assert!(bench.cat("f").await == std::fs::read(bench.home.path().join("f")).unwrap(), "size {size}");
    }
    assert_eq!(bench.cat("f").await[5..], vec![0; 3 * MIB - 5]);
}

#[tokio::test]
async fn a_foreign_change_between_ours_is_not_taken_for_ours() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    bench.put("f", "aaaaaaaa");
    bench.settle().await;
    assert_eq!(bench.cat("f").await, "aaaaaaaa");
    let file = bench.open("f").await.unwrap();
    bench.put("f", "bbbbbbbb");
    bench.write(&file, 0, b"XY").await;
    assert_eq!(bench.cat("f").await, "XYbbbbbb");
}

#[tokio::test]
async fn names_made_moved_and_removed_are_known_at_once() {
    let bench = Bench::new(Consistency::Scratch).await;
    let (who, root) = (superuser(), bench.root.clone());
    assert_eq!(bench.lookup("a").await.unwrap_err(), SourceError::Errno(libc::ENOENT));
    let file = create(&bench, "a").await;
    assert_eq!(bench.lookup("a").await.unwrap().id(), file.id());
    bench.cached.rename(&who, (&root, b"a"), (&root, b"b"), None).await.unwrap();
    assert_eq!(bench.lookup("a").await.unwrap_err(), SourceError::Errno(libc::ENOENT));
    assert_eq!(bench.lookup("b").await.unwrap().id(), file.id());
    bench.cached.link(&who, &file, &root, b"c").await.unwrap();
    assert_eq!(bench.cached.attributes(&who, &file).await.unwrap().links, 2);
    bench.cached.remove(&who, &root, b"b", false).await.unwrap();
    assert_eq!(bench.lookup("b").await.unwrap_err(), SourceError::Errno(libc::ENOENT));
    assert_eq!(bench.cached.attributes(&who, &file).await.unwrap().links, 1);
    assert_eq!(bench.lookup("c").await.unwrap().id(), file.id());
}

#[tokio::test]
async fn a_file_that_is_replaced_is_another_file() {
    let bench = Bench::new(Consistency::Scratch).await;
    let (who, root) = (superuser(), bench.root.clone());
    bench.put("old", "old data");
    bench.put("new", "new data");
    assert_eq!(bench.cat("old").await, "old data");
    assert_eq!(bench.cat("new").await, "new data");
    bench.cached.rename(&who, (&root, b"new"), (&root, b"old"), None).await.unwrap();
    assert_eq!(bench.cat("old").await, "new data");
    assert_eq!(bench.lookup("new").await.unwrap_err(), SourceError::Errno(libc::ENOENT));
}

#[tokio::test]
async fn a_removed_file_that_is_open_lives_under_a_hidden_name() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    let (who, root) = (superuser(), bench.root.clone());
    bench.put("f", "still here");
    let file = bench.open("f").await.unwrap();
    let (_, hidden) = bench.cached.remove(&who, &root, b"f", true).await.unwrap();
    assert_eq!(bench.lookup("f").await.unwrap_err(), SourceError::Errno(libc::ENOENT));
    assert_eq!(bench.read(&file, 0, 100).await, "still here");
    let left = || std::fs::read_dir(bench.home.path()).unwrap().count();
    assert_eq!(left(), 1);
    hidden.unwrap().remove();
    for _ in 0..100 {
        if left() == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the hidden name is still there");
}
