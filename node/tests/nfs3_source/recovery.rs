//! What is lost on the way is not lost, and nothing is done twice.

use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_node::source::{
    NewObject, SetAttributes, SourceError,
    counters::Kind,
    remote::{Health, Place, RemoteSource, Want},
};
use forebay_proto::nfs3::{
    Create, GetAttr, Link, Mkdir, Procedure, Read, Remove, Rename, Rmdir, SetAttr, Status, Symlink, Write,
};

use crate::{Bench, connect, server::Server, until, up, user};

/// Each change is run, its reply lost with all connections. Whether the server knows the call again or not, it is told
/// as done, and was done once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_reply_is_lost_is_done_once_and_told_as_done() {
    for remembers in [true, false] {
        let bench = Bench::new().await;
        bench.server.knobs.lock().remembers = remembers;
        let (source, by, root, none) = (&bench.source, user(0), bench.root().await, SetAttributes::default());
        let lose = |procedure: u32| {
            bench.server.forget_calls();
            bench.server.knobs.lock().lose_reply_of = Some(procedure);
        };
        // The same call, the same transaction id.
        let sent_twice = |procedure: u32| {
            let knobs = bench.server.knobs.lock();
            let xids: Vec<_> =
                knobs.arrived.iter().filter(|call| call.procedure == procedure).map(|call| call.xid).collect();
            assert!(xids.len() == 2 && xids[0] == xids[1], "{procedure}: {xids:?}");
        };
        lose(Create::NUMBER);
        let made = source.create(&by, &root, b"file", true, &none).await.unwrap();
        assert!(made.created && made.object.attributes.mode == 0o644);
        sent_twice(Create::NUMBER);
        lose(Create::NUMBER);
        assert!(source.create(&by, &root, b"unchecked", false, &none).await.unwrap().created);
        sent_twice(Create::NUMBER);
        lose(Mkdir::NUMBER);
        let dir = source.make(&by, &root, b"dir", &NewObject::Directory, &none).await.unwrap();
        assert!(dir.created);
        sent_twice(Mkdir::NUMBER);
        lose(Symlink::NUMBER);
        let target = NewObject::Symlink { target: Bytes::from_static(b"to") };
        assert!(source.make(&by, &root, b"sym", &target, &none).await.unwrap().created);
        sent_twice(Symlink::NUMBER);
        lose(Write::NUMBER);
        let written = source.write(&by, &made.object.id, 0, Bytes::from_static(b"abc"), false).await.unwrap();
        // It may have been run twice: what was before is not known.
        assert_eq!((written.count, written.changed.attributes.size, written.changed.before), (3, 3, None));
        sent_twice(Write::NUMBER);
        lose(SetAttr::NUMBER);
        let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        assert_eq!(source.set_attributes(&by, &made.object.id, &set).await.unwrap().attributes.mode, 0o600);
        lose(Link::NUMBER);
        source.link(&by, &made.object.id, &root, b"link").await.unwrap();
        sent_twice(Link::NUMBER);
        lose(Rename::NUMBER);
        source.rename(&by, (&root, b"file"), (&dir.object.id, b"moved")).await.unwrap();
        sent_twice(Rename::NUMBER);
        lose(Remove::NUMBER);
        source.remove(&by, &dir.object.id, b"moved").await.unwrap();
        sent_twice(Remove::NUMBER);
        lose(Rmdir::NUMBER);
        source.remove(&by, &root, b"dir").await.unwrap();
        sent_twice(Rmdir::NUMBER);
        for name in [&b"unchecked"[..], b"sym", b"link"] {
            source.remove(&by, &root, name).await.unwrap();
        }
        assert_eq!(bench.server.tree.lock().nodes.len(), 1, "the root alone is left");
        assert!(source.counters().snapshot().kind(Kind::Remove).retries >= 2);
        assert_eq!(bench.server.knobs.lock().mounts, 1, "connections that are lost are no reason to mount again");
    }
}

/// What was refused because somebody else was first is not taken for our own doing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_that_was_not_our_doing_is_told_as_one() {
    let bench = Bench::new().await;
    let (source, by, root, none) = (&bench.source, user(0), bench.root().await, SetAttributes::default());
    bench.server.tree.lock().put("taken", b"");
    let other = bench.find(root, "taken").await;
    bench.server.tree.lock().put("linked", b"");
    let exist = SourceError::Errno(libc::EEXIST);
    let lose = |procedure: u32| bench.server.knobs.lock().lose_reply_of = Some(procedure);
    lose(Create::NUMBER);
    assert_eq!(source.create(&by, &root, b"taken", true, &none).await.unwrap_err(), exist);
    lose(Create::NUMBER);
    assert!(!source.create(&by, &root, b"taken", false, &none).await.unwrap().created);
    lose(Mkdir::NUMBER);
    assert_eq!(source.make(&by, &root, b"taken", &NewObject::Directory, &none).await.unwrap_err(), exist);
    lose(Link::NUMBER);
    assert_eq!(source.link(&by, &other, &root, b"linked").await.unwrap_err(), exist);
    lose(Rename::NUMBER);
    let renamed = source.rename(&by, (&root, b"never there"), (&root, b"nor here")).await;
    assert_eq!(renamed.unwrap_err(), SourceError::Errno(libc::ENOENT));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_needs_time_is_given_it() {
    let bench = Bench::new().await;
    bench.server.tree.lock().put("file", b"data");
    let (source, by, root) = (&bench.source, user(0), bench.root().await);
    let file = bench.find(root, "file").await;
    bench.server.knobs.lock().jukebox.insert(Read::NUMBER, 3);
    bench.server.forget_calls();
    assert_eq!(source.read(&by, &file, 0, 10).await.unwrap().data.bytes, "data");
    let xids: Vec<_> = bench.server.knobs.lock().arrived.iter().map(|call| call.xid).collect();
    assert_eq!(xids.len(), 4);
    assert!(xids.windows(2).all(|pair| pair[0] != pair[1]), "what was not run is another call: {xids:?}");
    // With a look data is taken along if it is at hand.
    bench.server.knobs.lock().jukebox.insert(Read::NUMBER, 1000);
    let want = Want { access: true, read: 10, open: false };
    let seen = source.look(&by, &Place::Name(root, Bytes::from_static(b"file")), want).await.unwrap();
    assert_eq!(seen.object.unwrap().data, None);
    assert_eq!(source.read(&by, &file, 0, 10).await.unwrap_err(), SourceError::Unavailable);
    // A change waits for ever, beyond any deadline.
    bench.server.knobs.lock().jukebox.insert(Remove::NUMBER, 9);
    let begun = Instant::now();
    source.remove(&by, &root, b"file").await.unwrap();
    assert!(begun.elapsed() > Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_stalls_is_given_up_in_time_then_at_once_and_comes_back() {
    let bench = Bench::with(|_| (), |options| options.call_timeout = Duration::from_secs(2)).await;
    let (source, by, root) = (bench.source.clone(), user(0), bench.root().await);
    bench.server.stall(true);
    let begun = Instant::now();
    let place = Place::Object(root);
    assert_eq!(source.look(&by, &place, Want::default()).await.unwrap_err(), SourceError::Unavailable);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(1900) && took < Duration::from_millis(2600), "{took:?}");
    until("it is known to be down", || source.health() == Health::Down).await;
    let begun = Instant::now();
    assert_eq!(source.look(&by, &place, Want::default()).await.unwrap_err(), SourceError::Unavailable);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    // A change waits.
    let changing = tokio::spawn({
        let (source, by) = (source.clone(), by.clone());
        async move { source.create(&by, &root, b"late", true, &SetAttributes::default()).await }
    });
    tokio::time::sleep(Duration::from_millis(3000)).await;
    assert!(!changing.is_finished());
    bench.server.stall(false);
    assert!(changing.await.unwrap().unwrap().created);
    up(&source).await;
    source.look(&by, &place, Want::default()).await.unwrap();
    assert!(!source.counters().snapshot().kinds.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_is_down_at_the_start_is_found_when_it_comes() {
    // A port that nobody has.
    let address = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let source = connect(address.port(), |options| options.mount_port = None);
    assert_eq!(source.health(), Health::Down);
    let begun = Instant::now();
    assert_eq!(source.root(&user(0)).await.unwrap_err(), SourceError::Unavailable);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    let server = Server::start_at(address).await;
    up(&source).await;
    assert_eq!(source.root(&user(0)).await.unwrap().attributes.fileid, 1);
    assert!(source.counters().snapshot().up);
    drop(server);
    until("it is down again", || source.health() == Health::Down).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_root_that_turned_stale_is_mounted_again_and_a_refusal_is_told() {
    let bench = Bench::new().await;
    let (source, by) = (&bench.source, user(0));
    let old = bench.root().await;
    bench.server.cut();
    source.look(&by, &Place::Object(old), Want::default()).await.unwrap().object.unwrap();
    assert_eq!(bench.server.knobs.lock().mounts, 1);
    bench.server.tree.lock().generation = 2;
    let new = bench.root().await;
    assert!(new != old && bench.server.knobs.lock().mounts == 2);
    // The path is gone: that is told, and found out again.
    bench.server.tree.lock().generation = 3;
    bench.server.knobs.lock().refuse_mount = Some(Status::Access);
    assert_eq!(source.root(&by).await.unwrap_err(), SourceError::Errno(libc::EACCES));
    assert_eq!(source.health(), Health::Up, "it answers");
    bench.server.knobs.lock().refuse_mount = None;
    for _ in 0..100 {
        match source.root(&by).await {
            Ok(_) => return,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    panic!("the root did not come back");
}

/// The server loses a reply, and goes on answering others on the same connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_is_lost_without_its_connection_is_sent_again() {
    let bench =
        Bench::with(|_| (), |options| (options.call_timeout, options.connections) = (Duration::from_millis(300), 1))
            .await;
    bench.server.tree.lock().put("file", b"");
    let (source, by, root) = (bench.source.clone(), user(0), bench.root().await);
    bench.server.knobs.lock().swallow_reply_of = Some(Remove::NUMBER);
    let removing = tokio::spawn({
        let (source, by) = (source.clone(), by.clone());
        async move { source.remove(&by, &root, b"file").await }
    });
    while !removing.is_finished() {
        source.look(&by, &Place::Object(root), Want::default()).await.unwrap().object.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    removing.await.unwrap().unwrap();
    let knobs = bench.server.knobs.lock();
    let xids: Vec<_> =
        knobs.arrived.iter().filter(|call| call.procedure == Remove::NUMBER).map(|call| call.xid).collect();
    assert!(xids.len() == 2 && xids[0] == xids[1], "{xids:?}");
    assert_eq!(source.counters().snapshot().connections, 1);
}

/// Calls that were given up leave nothing behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_dropped_leave_their_slots() {
    let bench = Bench::with(|_| (), |options| (options.slots, options.connections) = (4, 1)).await;
    let (source, by, root) = (bench.source.clone(), user(0), bench.root().await);
    bench.server.stall(true);
    for _ in 0..20 {
        let place = Place::Object(root);
        let look = source.look(&by, &place, Want::default());
        assert!(tokio::time::timeout(Duration::from_millis(20), look).await.is_err());
    }
    bench.server.stall(false);
    bench.server.forget_calls();
    source.look(&by, &Place::Object(root), Want::default()).await.unwrap().object.unwrap();
    assert!(bench.server.calls_of(GetAttr::NUMBER) >= 1);
}

/// A server takes longer for one WRITE than a call may take; nothing is lost on the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_write_does_not_undo_a_later_one() {
    let bench = Bench::with(|_| (), |options| options.call_timeout = Duration::from_secs(1)).await;
    let (source, by, root) = (&bench.source, user(0), bench.root().await);
    let made = source.create(&by, &root, b"file", false, &SetAttributes::default()).await.unwrap();
    bench.server.forget_calls();
    bench.server.knobs.lock().slow = Some((Write::NUMBER, Duration::from_secs(4)));
    let began = Instant::now();
    source.write(&by, &made.object.id, 0, Bytes::from_static(b"old"), true).await.unwrap();
    let first = began.elapsed();
    source.write(&by, &made.object.id, 0, Bytes::from_static(b"new"), true).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let read = source.read(&by, &made.object.id, 0, 3).await.unwrap();
    println!(
        "first answered after {first:?}, {} WRITEs run, file says {:?}",
        bench.server.calls_of(Write::NUMBER),
        read.data.bytes
    );
    assert_eq!(&read.data.bytes[..], b"new");
}
