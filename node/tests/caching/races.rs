//! Replies that are overtaken, and what must not be believed of them.

use crate::{Bench, superuser, user};
use forebay_node::source::{
    SetAttributes, SourceError,
    cached::{CachedOptions, Consistency, Policy},
};
use std::{ops::ControlFlow, os::unix::fs::PermissionsExt, sync::atomic::Ordering, time::Duration};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

type Entry = forebay_node::source::DirectoryEntry<forebay_node::source::File>;

#[tokio::test]
async fn a_question_begun_before_a_change_is_not_joined_after_it() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    bench.put("a", "x");
    std::fs::hard_link(bench.home.path().join("a"), bench.home.path().join("b")).unwrap();
    bench.settle().await;
    let file = bench.lookup("a").await.unwrap();
    let _ = bench.lookup("b").await.unwrap();
    tokio::time::sleep(ms(3100)).await;
    *bench.upstream.late.lock().unwrap() = Some(("getattr", ms(500)));
    let (c, f) = (bench.cached.clone(), file.clone());
    let first = tokio::spawn(async move { c.attributes(&superuser(), &f).await });
    tokio::time::sleep(ms(100)).await;
    bench.cached.remove(&superuser(), &bench.root, b"b", false).await.unwrap();
    let told = bench.cached.attributes(&superuser(), &file).await.unwrap();
    assert_eq!(first.await.unwrap().unwrap().links, 2);
    assert_eq!(told.links, 1, "REMOVE was answered before this GETATTR began");
}

#[tokio::test]
async fn an_overtaken_reply_proves_no_right_to_search() {
    let bench = Bench::new(Consistency::Scratch).await;
    std::fs::set_permissions(bench.home.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    bench.put("a", "x");
    std::fs::set_permissions(bench.home.path().join("a"), std::fs::Permissions::from_mode(0o644)).unwrap();
    bench.settle().await;
    bench.cat("a").await;
    let who = user(1000);
    *bench.upstream.late.lock().unwrap() = Some(("lookup", ms(300)));
    let (c, r, w) = (bench.cached.clone(), bench.root.clone(), who.clone());
    let first = tokio::spawn(async move { c.lookup_to_open(&w, &r, b"a").await.map(drop) });
    tokio::time::sleep(ms(100)).await;
    let set = SetAttributes { mode: Some(0o700), ..Default::default() };
    bench.cached.set_attributes(&superuser(), &bench.root, &set).await.unwrap();
    println!("first: {:?}", first.await.unwrap());
    println!("proven {:?}", bench.root.state().search_proven);
    bench.cached.access(&superuser(), &bench.root).await.unwrap();
    bench.cat("a").await;
    println!("proven {:?}", bench.root.state().search_proven);
    println!("name {:?}", bench.root.state().name(b"a"));
    bench.upstream.take_calls();
    let again = bench.cached.lookup_to_open(&who, &bench.root, b"a").await.map(drop);
    println!("{again:?} {:?}", bench.upstream.take_calls());
    assert_eq!(again, Err(SourceError::Errno(libc::EACCES)), "the directory is 0700 since before this OPEN");
}

#[tokio::test]
async fn rights_asked_in_the_tick_of_a_change_are_asked_again() {
    let mut options = CachedOptions { policy: Policy::preset(Consistency::CloseToOpen), ..Default::default() };
    (options.policy.acregmin, options.policy.acregmax) = (ms(100), ms(100));
    let bench = Bench::with(options).await;
    bench.put("a", "x");
    let path = bench.home.path().join("a");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::set_permissions(bench.home.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let file = bench.lookup("a").await.unwrap();
    // The source's clock does not tick between the two.
    let now = crate::common::upstream::attributes_of(&bench.upstream, file.id());
    *bench.upstream.frozen.lock().unwrap() = Some(now);
    assert!(bench.cached.access(&user(1000), &file).await.unwrap().read);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    for _ in 0..4 {
        bench.settle().await;
        assert_eq!(bench.cached.attributes(&superuser(), &file).await.unwrap().mode, 0o600);
    }
    assert!(!bench.cached.access(&user(1000), &file).await.unwrap().read, "eight seconds and four revalidations later");
}

#[tokio::test]
async fn a_reader_does_not_share_the_refusal_of_a_read_ahead() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    bench.put("f", vec![1; 8 << 20]);
    bench.settle().await;
    let file = bench.open("f").await.unwrap();
    bench.upstream.no_ahead.store(true, Ordering::Relaxed);
    for index in 0..8_u64 {
        let read = bench.cached.read(&superuser(), &file, index << 20, 1 << 20).await;
        assert!(read.is_ok(), "chunk {index}: {read:?}");
    }
}

#[tokio::test]
async fn a_page_of_hidden_names_does_not_end_a_listing() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    for n in 0..3000 {
        bench.put(&format!(".nfs.forebay-{n:05}"), "");
    }
    bench.put("a", "");
    let mut names = 0;
    let mut sink = |_: Entry| {
        names += 1;
        ControlFlow::Continue(())
    };
    let end = bench.cached.read_directory(&superuser(), &bench.root, 0, (8192, 1 << 15), true, &mut sink).await;
    assert!(end.is_ok() || names > 0, "{end:?}");
}

#[tokio::test]
async fn a_listing_is_not_shared_with_who_may_not_search() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    bench.put("a", "x");
    bench.settle().await;
    std::fs::set_permissions(bench.home.path(), std::fs::Permissions::from_mode(0o744)).unwrap();
    let told = |out: &'static str, bench: Bench, who| async move {
        let mut entries = Vec::new();
        let mut sink = |e: Entry| {
            entries.push(format!("{:?}", e.file.unwrap().map(|_| "told")));
            ControlFlow::Continue(())
        };
        let end = bench.cached.read_directory(&who, &bench.root, 0, (100, 1 << 15), true, &mut sink).await;
        println!("{out}: {end:?} {entries:?}");
        (bench, entries)
    };
    let (bench, direct) = told("alone", bench, user(1000)).await;
    bench.cached.forget_all();
    let (bench, _root) = told("root", bench, superuser()).await;
    let (_, after) = told("after root", bench, user(1000)).await;
    assert_eq!(direct, after);
}

#[tokio::test]
async fn the_tail_of_an_overtaken_page_is_not_kept() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    for n in 0..40 {
        bench.put(&format!("f{n:02}"), "");
    }
    bench.settle().await;
    *bench.upstream.late.lock().unwrap() = Some(("readdir", ms(400)));
    let (c, r) = (bench.cached.clone(), bench.root.clone());
    let first = tokio::spawn(async move {
        let mut last = (0, String::new());
        let mut seen = Vec::new();
        let mut sink = |e: Entry| {
            last = (e.cookie, String::from_utf8(e.name.to_vec()).unwrap());
            seen.push(last.1.clone());
            ControlFlow::Continue(())
        };
        c.read_directory(&superuser(), &r, 0, (10, 1 << 15), true, &mut sink).await.unwrap();
        (last.0, seen)
    });
    tokio::time::sleep(ms(100)).await;
    // Everything is removed through us, and answered.
    for n in 0..40 {
        bench.cached.remove(&superuser(), &bench.root, format!("f{n:02}").as_bytes(), false).await.unwrap();
    }
    let (cookie, _) = first.await.unwrap();
    let mut names = Vec::new();
    let mut sink = |e: Entry| {
        names.push(String::from_utf8(e.name.to_vec()).unwrap());
        ControlFlow::Continue(())
    };
    bench.cached.read_directory(&superuser(), &bench.root, cookie, (100, 1 << 15), true, &mut sink).await.unwrap();
    assert!(names.is_empty(), "removed through us before this READDIR began: {names:?}");
}

#[tokio::test]
async fn a_late_answer_says_nothing_about_the_new_state() {
    let mut options = CachedOptions { policy: Policy::preset(Consistency::Scratch), ..Default::default() };
    (options.policy.acdirmin, options.policy.acdirmax) = (ms(200), ms(200));
    let bench = Bench::with(options).await;
    bench.put("a", "old");
    bench.put("b", "new");
    bench.settle().await;
    *bench.upstream.late.lock().unwrap() = Some(("lookup", ms(3000)));
    let (c, r) = (bench.cached.clone(), bench.root.clone());
    let first = tokio::spawn(async move { c.lookup(&superuser(), &r, b"a").await.map(drop) });
    tokio::time::sleep(ms(100)).await;
    std::fs::rename(bench.home.path().join("a"), bench.home.path().join("old")).unwrap();
    std::fs::rename(bench.home.path().join("b"), bench.home.path().join("a")).unwrap();
    bench.settle().await;
    bench.cached.attributes(&superuser(), &bench.root).await.unwrap();
    first.await.unwrap().unwrap();
    for _ in 0..3 {
        tokio::time::sleep(ms(1000)).await;
        bench.cached.attributes(&superuser(), &bench.root).await.unwrap();
    }
    let file = bench.lookup("a").await.unwrap();
    assert_eq!(bench.read(&file, 0, 10).await, "new", "six seconds after the change, windows of 200 ms");
}

#[tokio::test]
async fn what_is_replaced_while_open_is_hidden_whether_its_name_is_remembered_or_not() {
    let bench = Bench::new(Consistency::CloseToOpen).await;
    bench.put("a", "new");
    bench.put("b", "old");
    bench.settle().await;
    bench.lookup("a").await.unwrap();
    let open = bench.open("b").await.unwrap();
    // FileNode::rename has just looked it up; then two creations at once make the directory forget its names.
    let set = SetAttributes { mode: Some(0o600), ..Default::default() };
    bench.upstream.delay_us.store(20_000, Ordering::Relaxed);
    let who = superuser();
    let (x, y) = tokio::join!(
        bench.cached.create(&who, &bench.root, b"x", true, &set),
        bench.cached.create(&who, &bench.root, b"y", true, &set)
    );
    x.unwrap();
    y.unwrap();
    let done = bench.cached.rename(&who, (&bench.root, b"a"), (&bench.root, b"b"), Some(&open)).await.unwrap();
    assert!(done.2.is_some(), "`hide` was asked for");
    assert_eq!(bench.cached.read(&who, &open, 0, 10).await.unwrap().0, "old");
}

#[tokio::test]
async fn seek_believes_no_size_of_any_age() {
    let mut options = CachedOptions { policy: Policy::preset(Consistency::CloseToOpen), ..Default::default() };
    (options.policy.acregmin, options.policy.acregmax) = (ms(50), ms(50));
    options.policy.serve_stale = ms(0);
    let bench = Bench::with(options).await;
    bench.put("a", "x");
    bench.settle().await;
    let file = bench.open("a").await.unwrap();
    bench.upstream.down.store(true, Ordering::Relaxed);
    tokio::time::sleep(ms(200)).await;
    println!("{:?}", bench.cached.attributes(&superuser(), &file).await.map(|a| a.size));
    // serve_stale: 300 ms beyond a window of 400 ms.
}

#[tokio::test]
async fn serve_stale_counts_beyond_the_window() {
    let mut options = CachedOptions { policy: Policy::preset(Consistency::CloseToOpen), ..Default::default() };
    (options.policy.acregmin, options.policy.acregmax) = (ms(400), ms(400));
    options.policy.serve_stale = ms(400);
    let bench = Bench::with(options).await;
    bench.put("a", "x");
    bench.settle().await;
    let file = bench.open("a").await.unwrap();
    bench.upstream.down.store(true, Ordering::Relaxed);
    tokio::time::sleep(ms(500)).await;
    assert!(
        bench.cached.attributes(&superuser(), &file).await.is_ok(),
        "100 ms beyond the window, 400 ms are promised"
    );
}

#[tokio::test]
async fn a_record_let_go_does_not_bring_an_old_state_back() {
    let options =
        CachedOptions { metadata_bytes: 1, policy: Policy::preset(Consistency::CloseToOpen), ..Default::default() };
    let bench = Bench::with(options).await;
    bench.put("a", "old");
    std::fs::hard_link(bench.home.path().join("a"), bench.home.path().join("b")).unwrap();
    for n in 0..6000 {
        bench.put(&format!("d/f{n}"), "");
    }
    bench.settle().await;
    *bench.upstream.late.lock().unwrap() = Some(("lookup", ms(3000)));
    let (c, r) = (bench.cached.clone(), bench.root.clone());
    let first = tokio::spawn(async move { c.lookup_to_open(&superuser(), &r, b"a").await.map(drop) });
    tokio::time::sleep(ms(1100)).await;
    let file = bench.cached.lookup(&superuser(), &bench.root, b"b").await.unwrap();
    bench.write(&file, 0, b"longer than it was").await;
    let (fsid, handle) = (file.id().fsid, file.id().handle);
    drop(file);
    let dir = bench.lookup("d").await.unwrap();
    let (mut cookie, mut all) = (0, 0);
    loop {
        let at = cookie;
        let mut sink = |e: Entry| {
            cookie = e.cookie;
            all += 1;
            ControlFlow::Continue(())
        };
        if bench.cached.read_directory(&superuser(), &dir, at, (8000, 1 << 20), true, &mut sink).await.unwrap() {
            break;
        }
    }
    println!("{all} {:?}", bench.cached.resolve_now(fsid, &handle).is_some());
    first.await.unwrap().unwrap();
    let file = match bench.cached.resolve_now(fsid, &handle) {
        Some(f) => f,
        None => bench.cached.resolve(&superuser(), fsid, &handle).await.unwrap(),
    };
    assert_eq!(bench.size(&file).await, 18, "the write was answered long ago");
}
