//! What is lost on the way is not lost, and nothing is done twice.

use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_node::source::{
    NewObject, SetAttributes, SourceError, XattrSet,
    counters::Kind,
    remote::{Health, Place, RemoteSource, Want},
};
use forebay_proto::nfs4::Status;

use crate::{
    Bench,
    common::{Lab, ops, run, status},
    connect, until, up, user,
};

/// Each change, its reply lost with the connection, is told as done once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_reply_is_lost_is_done_once_and_told_as_done() {
    let bench = Bench::new().await;
    let (root, by, source) = (bench.root().await, user(0), &bench.source);
    let none = SetAttributes::default();
    for round in 0..3 {
        bench.proxy.cut_after(1);
        let made = source.create(&by, &root, b"file", true, &none).await.unwrap();
        assert!(made.created);
        bench.proxy.cut_after(1);
        let dir = source.make(&by, &root, b"dir", &NewObject::Directory, &none).await.unwrap();
        assert!(dir.created);
        bench.proxy.cut_after(1);
        let written = source.write(&by, &made.object.id, 0, Bytes::from_static(b"abc"), round == 0).await.unwrap();
        assert_eq!((written.count, written.changed.attributes.size), (3, 3));
        bench.proxy.cut_after(1);
        source.link(&by, &made.object.id, &root, b"link").await.unwrap();
        bench.proxy.cut_after(1);
        source.rename(&by, (&root, b"file"), (&dir.object.id, b"moved")).await.unwrap();
        bench.proxy.cut_after(1);
        source.xattr_set(&by, &made.object.id, b"x", &Bytes::from_static(b"v"), XattrSet::Create).await.unwrap();
        bench.proxy.cut_after(1);
        source.xattr_remove(&by, &made.object.id, b"x").await.unwrap();
        bench.proxy.cut_before(1);
        source.commit(&by, &made.object.id).await.unwrap();
        for (dir, name) in [(dir.object.id, &b"moved"[..]), (root, b"link"), (root, b"dir")] {
            bench.proxy.cut_after(1);
            source.remove(&by, &dir, name).await.unwrap();
        }
        assert_eq!(std::fs::read_dir(bench.lab.path("")).unwrap().count(), 0);
    }
    let snapshot = source.counters().snapshot();
    assert!(snapshot.kind(Kind::Create).retries >= 3 && snapshot.kind(Kind::Remove).retries >= 9, "{snapshot:?}");
}

/// The reply is lost, and then the server's memory of it: what shows at the source that it was done is told as done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_session_is_lost_too_is_told_as_what_it_came_to() {
    let mut bench = Bench::with(Lab::default().grace(Duration::from_millis(300)), |_| ()).await;
    let (root, by) = (bench.root().await, user(0));
    std::fs::create_dir(bench.lab.path("dir")).unwrap();
    std::fs::write(bench.lab.path("gone"), b"").unwrap();
    std::fs::write(bench.lab.path("old"), b"").unwrap();
    let dir = bench.find(&by, root, "dir").await;
    let old = bench.find(&by, root, "old").await;
    let none = SetAttributes::default();
    for change in 0..6 {
        bench.proxy.cut_after(1);
        let (source, work_by) = (bench.source.clone(), by.clone());
        let set = none.clone();
        let work = tokio::spawn(async move {
            match change {
                0 => source.remove(&work_by, &root, b"gone").await.map(drop),
                1 => source
                    .make(&work_by, &root, b"made", &NewObject::Directory, &set)
                    .await
                    .map(|made| assert!(made.created)),
                2 => source.rename(&work_by, (&root, b"old"), (&dir, b"new")).await.map(drop),
                3 => source.link(&work_by, &old, &root, b"linked").await.map(drop),
                4 => source.create(&work_by, &root, b"created", true, &set).await.map(|made| assert!(made.created)),
                _ => source
                    .make(&work_by, &root, b"sym", &NewObject::Symlink { target: Bytes::from_static(b"to") }, &set)
                    .await
                    .map(drop),
            }
        });
        // It has arrived, its reply has not: now the server starts anew.
        until("it arrived", || bench.proxy.accepted() > 0).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        bench.restart().await;
        work.await.unwrap().unwrap_or_else(|error| panic!("change {change}: {error}"));
        up(&bench.source).await;
    }
    let mut names: Vec<_> = std::fs::read_dir(bench.lab.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["created", "dir", "linked", "made", "sym"]);
    assert!(bench.lab.path("dir/new").exists());
    let gone = bench.source.remove(&by, &root, b"gone").await.unwrap_err();
    assert_eq!(gone, SourceError::Errno(libc::ENOENT), "what was sent once is told as it is");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_reads_and_writes_go_through_cuts_without_loss() {
    let bench = Bench::new().await;
    let (root, by) = (bench.root().await, user(0));
    let file = bench.source.create(&by, &root, b"file", true, &SetAttributes::default()).await.unwrap().object.id;
    bench.proxy.delay(Duration::from_millis(1));
    let tasks: Vec<_> = (0..16_u64)
        .map(|lane| {
            let (source, by) = (bench.source.clone(), by.clone());
            tokio::spawn(async move {
                for step in 0..30_u64 {
                    let at = (lane * 30 + step) * 4096;
                    let data = Bytes::from(vec![(at / 4096 % 251) as u8 + 1; 4096]);
                    let written = source.write(&by, &file, at, data.clone(), false).await.unwrap();
                    assert_eq!(written.count, 4096);
                    assert_eq!(source.read(&by, &file, at, 4096).await.unwrap().data.bytes, data);
                }
            })
        })
        .collect();
    let cutting = async {
        for _ in 0..12 {
            tokio::time::sleep(Duration::from_millis(60)).await;
            bench.proxy.cut();
        }
    };
    cutting.await;
    for task in tasks {
        task.await.unwrap();
    }
    let data = std::fs::read(bench.lab.path("file")).unwrap();
    assert_eq!(data.len(), 16 * 30 * 4096);
    assert!(
        data.chunks(4096).enumerate().all(|(page, bytes)| bytes.iter().all(|byte| *byte == (page % 251) as u8 + 1))
    );
    // No slot was lost on the way: as many calls at once as there are slots all end.
    let all = (0..128).map(|_| bench.source.read(&by, &file, 0, 10));
    for read in futures_util::future::join_all(all).await {
        read.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_is_down_at_the_start_is_used_when_it_comes() {
    let lab = Lab::default();
    let running = lab.start().await;
    let proxy = crate::proxy::Proxy::start(running.address).await;
    proxy.refuse(true);
    let source = connect(&proxy, |_| ());
    assert_eq!(source.health(), Health::Down);
    let begun = Instant::now();
    assert_eq!(source.root(&user(0)).await.unwrap_err(), SourceError::Unavailable);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    proxy.refuse(false);
    up(&source).await;
    source.root(&user(0)).await.unwrap();
    source.close().await;
    assert_eq!(source.health(), Health::Down);
    assert_eq!(source.root(&user(0)).await.unwrap_err(), SourceError::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_stalls_is_unavailable_in_time_and_changes_wait_for_it() {
    let bench = Bench::with(Lab::default(), |options| options.call_timeout = Duration::from_secs(1)).await;
    let (root, by) = (bench.root().await, user(0));
    bench.proxy.stall(true);
    let waiting = tokio::spawn({
        let (source, by) = (bench.source.clone(), by.clone());
        async move { source.make(&by, &root, b"dir", &NewObject::Directory, &SetAttributes::default()).await }
    });
    let begun = Instant::now();
    let place = Place::Object(root);
    let looks = (0..200).map(|_| bench.source.look(&by, &place, Want::default()));
    for look in futures_util::future::join_all(looks).await {
        assert_eq!(look.unwrap_err(), SourceError::Unavailable);
    }
    let took = begun.elapsed();
    assert!(took > Duration::from_millis(900) && took < Duration::from_millis(1500), "{took:?}");
    until("it is known to be down", || bench.source.health() == Health::Down).await;
    let begun = Instant::now();
    assert_eq!(bench.source.look(&by, &place, Want::default()).await.unwrap_err(), SourceError::Unavailable);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(!waiting.is_finished());
    bench.proxy.stall(false);
    let begun = Instant::now();
    assert!(waiting.await.unwrap().unwrap().created);
    up(&bench.source).await;
    println!("back after {:?}", begun.elapsed());
    // Every slot that was in doubt is in use again.
    let all = (0..128).map(|_| bench.source.look(&by, &place, Want::default()));
    for look in futures_util::future::join_all(all).await {
        look.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_given_up_leave_their_slots_usable() {
    let bench = Bench::with(Lab::default(), |options| (options.slots, options.connections) = (4, 1)).await;
    let (root, by) = (bench.root().await, user(0));
    bench.proxy.delay(Duration::from_millis(20));
    let place = Place::Object(root);
    for _ in 0..20 {
        let looks = (0..4).map(|_| bench.source.look(&by, &place, Want::default()));
        let given_up = tokio::time::timeout(Duration::from_millis(5), futures_util::future::join_all(looks)).await;
        assert!(given_up.is_err(), "the proxy delays longer than that");
    }
    bench.source.look(&by, &place, Want::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_restarts_and_the_session_is_made_anew() {
    let mut bench = Bench::with(Lab::default().grace(Duration::from_secs(1)), |_| ()).await;
    let (root, by) = (bench.root().await, user(0));
    std::fs::write(bench.lab.path("file"), b"hello").unwrap();
    let file = bench.find(&by, root, "file").await;
    bench.restart().await;
    assert_eq!(bench.source.read(&by, &file, 0, 5).await.unwrap().data.bytes, "hello");
    // During grace a creation waits; after it, it is done.
    let made = bench.source.create(&by, &root, b"new", true, &SetAttributes::default()).await.unwrap();
    assert!(made.created);
}

/// A mandatory share reservation of another client refuses anonymous reads: LOCKED, and OPEN is refused as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_client_denies_is_busy_until_it_closes() {
    let bench = Bench::new().await;
    std::fs::write(bench.lab.path("file"), b"hello").unwrap();
    let (root, by) = (bench.root().await, user(0));
    let file = bench.find(&by, root, "file").await;
    let other = bench.running.as_ref().unwrap().client("other").await;
    let opened = value!(run(&other, ops::at_then("/data", [ops::open("o", "file", ops::BOTH, ops::READ)])).await, Open);
    assert_eq!(bench.source.read(&by, &file, 0, 5).await.unwrap_err(), SourceError::Errno(libc::EBUSY));
    bench.source.write(&by, &file, 0, Bytes::from_static(b"J"), false).await.unwrap();
    assert_eq!(status(&other, ops::at_then("/data/file", [ops::close(opened.stateid)])).await, Status::Ok);
    assert_eq!(bench.source.read(&by, &file, 0, 5).await.unwrap().data.bytes, "Jello");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_line_is_shared_by_connections_and_loses_nothing() {
    let bench = Bench::new().await;
    std::fs::write(bench.lab.path("file"), crate::methods::pattern(1 << 20)).unwrap();
    let (root, by) = (bench.root().await, user(0));
    let file = bench.find(&by, root, "file").await;
    bench.proxy.bandwidth(4 << 20);
    let begun = Instant::now();
    let reads = (0..4).map(|_| bench.source.read(&by, &file, 0, 1 << 20));
    for read in futures_util::future::join_all(reads).await {
        assert_eq!(read.unwrap().data.bytes, crate::methods::pattern(1 << 20));
    }
    // Each connection has the whole rate: one after the other on one of them it would take four times as long.
    assert!(begun.elapsed() < Duration::from_millis(700), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_wait_while_the_source_is_away_and_are_done_when_it_is_back() {
    let mut bench = Bench::with(Lab::default().grace(Duration::from_millis(200)), |_| ()).await;
    let (root, by) = (bench.root().await, user(0));
    bench.proxy.refuse(true);
    bench.proxy.cut();
    bench.running.take().unwrap().stop().await;
    let making: Vec<_> = (0..50)
        .map(|number| {
            let (source, by) = (bench.source.clone(), by.clone());
            tokio::spawn(async move {
                let name = format!("dir{number}");
                source.make(&by, &root, name.as_bytes(), &NewObject::Directory, &SetAttributes::default()).await
            })
        })
        .collect();
    until("it is known to be down", || bench.source.health() == Health::Down).await;
    let place = Place::Object(root);
    let begun = Instant::now();
    assert_eq!(bench.source.look(&by, &place, Want::default()).await.unwrap_err(), SourceError::Unavailable);
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert!(making.iter().all(|make| !make.is_finished()));
    let running = bench.lab.start().await;
    bench.proxy.retarget(running.address);
    bench.running = Some(running);
    bench.proxy.refuse(false);
    for make in making {
        assert!(make.await.unwrap().unwrap().created);
    }
    assert_eq!(std::fs::read_dir(bench.lab.path("")).unwrap().count(), 50);
}

/// Grace is a minute here: what is read and written right after the restart goes through opens that were reclaimed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opens_that_are_kept_survive_the_servers_restart() {
    let mut bench = Bench::with(Lab::default(), |options| options.anonymous = false).await;
    let (root, by) = (bench.root().await, user(0));
    std::fs::write(bench.lab.path("file"), b"hello").unwrap();
    let file = bench.find(&by, root, "file").await;
    bench.source.write(&by, &file, 0, Bytes::from_static(b"J"), false).await.unwrap();
    assert_eq!(bench.source.read(&by, &file, 0, 5).await.unwrap().data.bytes, "Jello");
    let opened = bench.source.counters().snapshot().kind(Kind::Open).calls;
    assert_eq!(opened, 2, "one for reading, one for writing");
    bench.restart().await;
    // Another client is still expected to reclaim: grace goes on, and who opens anew has to wait.
    bench.source.write(&by, &file, 0, Bytes::from_static(b"C"), false).await.unwrap();
    assert_eq!(bench.source.read(&by, &file, 0, 5).await.unwrap().data.bytes, "Cello");
    assert_eq!(bench.source.counters().snapshot().kind(Kind::Open).calls, opened + 2, "each reclaimed once");
    bench.source.close().await;
}

/// As many changes as may be under way wait for a source that restarts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_that_wait_do_not_keep_the_source_from_coming_back() {
    let count = 8192;
    let mut bench = Bench::with(Lab::default().grace(Duration::from_millis(300)), |_| ()).await;
    let (root, by) = (bench.root().await, user(0));
    bench.proxy.refuse(true);
    bench.proxy.cut();
    let mut waiting = Vec::new();
    for number in 0..count {
        let (source, by) = (bench.source.clone(), by.clone());
        waiting.push(tokio::spawn(async move { source.remove(&by, &root, format!("n{number}").as_bytes()).await }));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    bench.restart().await;
    let began = Instant::now();
    let mut done = 0;
    while began.elapsed() < Duration::from_secs(25) {
        done = waiting.iter().filter(|task| task.is_finished()).count();
        if done == count {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("{count}: {done} done after {:?}, {:?}", began.elapsed(), bench.source.health());
    assert_eq!(done, count);
}
