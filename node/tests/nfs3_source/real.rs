//! Against a server that is not ours: `FOREBAY_TEST_NFS3=host:port:mountport:/path cargo test --test nfs3_source -- --ignored`.
//! Ports may be left empty: then they are found out.
//!
//! The path must be writable for root. What one server has and another has not is printed, not judged.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use forebay_node::source::{
    FileKind, NewObject, ObjectId, SetAttributes, SetTime, SourceError, Time,
    counters::SourceCounters,
    nfs3::{Nfs3Options, Nfs3Source},
    remote::{Place, RemoteSource, Want},
};

use crate::{pattern, up, user};

fn target() -> Option<Nfs3Options> {
    let text = std::env::var("FOREBAY_TEST_NFS3").ok()?;
    let parts: Vec<_> = text.splitn(4, ':').collect();
    let [host, port, mount_port, path] = parts[..] else { return None };
    let mut options = Nfs3Options::new(host, path);
    (options.port, options.mount_port) = (port.parse().ok(), mount_port.parse().ok());
    Some(options)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server, named by FOREBAY_TEST_NFS3"]
async fn a_real_server_does_all_that_is_asked_of_it() {
    let _ = tracing_subscriber::fmt().with_env_filter("forebay_node=debug").try_init();
    let options = target().expect("FOREBAY_TEST_NFS3 is host:port:mountport:/path");
    let source = Nfs3Source::connect(options, Arc::new(SourceCounters::new("real")));
    up(&source).await;
    all(&source).await;
    for row in source.counters().snapshot().kinds {
        println!("{:?}: {} calls, {} errors, {} again", row.kind, row.calls, row.errors, row.retries);
    }
    source.close().await;
}

async fn all(source: &Nfs3Source) {
    let by = user(0);
    let export = source.root(&by).await.unwrap().id;
    let name = format!("forebay-{}", std::process::id());
    let set = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
    let dir = source.make(&by, &export, name.as_bytes(), &NewObject::Directory, &set).await.unwrap();
    println!("mkdir: {:?}", dir.directory);
    let dir = dir.object.id;
    let set = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
    let made = source.create(&by, &dir, b"file", true, &set).await.unwrap();
    assert!(made.created && made.object.attributes.mode == 0o640, "{made:?}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    assert!((made.object.attributes.modified.seconds - now).abs() < 60, "{made:?}");
    assert!((made.object.attributes.accessed.seconds - now).abs() < 60, "{made:?}");
    let taken = source.create(&by, &dir, b"file", true, &set).await.unwrap_err();
    assert_eq!(taken, SourceError::Errno(libc::EEXIST));
    assert!(!source.create(&by, &dir, b"file", false, &set).await.unwrap().created);
    let file = made.object.id;
    data(source, &file).await;
    names(source, dir, file).await;
    listing(source, dir).await;
    source.remove(&by, &export, name.as_bytes()).await.unwrap();
    println!("space: {:?}", source.space(&by, &export).await.unwrap());
}

async fn data(source: &Nfs3Source, file: &ObjectId) {
    let (by, data) = (user(0), Bytes::from(pattern(3 << 20)));
    for offset in [0, 1 << 20, 2 << 20] {
        let begun = Instant::now();
        let part = data.slice(offset..offset + (1 << 20));
        let written = source.write(&by, file, offset as u64, part, false).await.unwrap();
        assert_eq!((written.count, written.changed.attributes.size), (1 << 20, offset as u64 + (1 << 20)));
        println!(
            "1 MiB written in {:?}, stable {}, before {:?}",
            begun.elapsed(),
            written.stable,
            written.changed.before
        );
    }
    source.commit(&by, file).await.unwrap();
    for offset in [0_usize, 1 << 20, (2 << 20) + 5] {
        let begun = Instant::now();
        let read = source.read(&by, file, offset as u64, 1 << 20).await.unwrap();
        assert_eq!(read.data.bytes, data.slice(offset..(offset + (1 << 20)).min(data.len())));
        println!("1 MiB read in {:?}, end {}", begun.elapsed(), read.data.eof);
    }
    let end = source.read(&by, file, 3 << 20, 10).await.unwrap();
    assert!(end.data.eof && end.data.bytes.is_empty());
}

async fn names(source: &Nfs3Source, dir: ObjectId, file: ObjectId) {
    let (by, none) = (user(0), SetAttributes::default());
    let sub = source.make(&by, &dir, b"sub", &NewObject::Directory, &none).await.unwrap().object.id;
    assert_eq!(source.parent(&by, &sub).await.unwrap().id, dir);
    println!("link: {:?}", source.link(&by, &file, &sub, b"link").await.unwrap());
    println!("rename: {:?}", source.rename(&by, (&sub, b"link"), (&dir, b"moved")).await.unwrap());
    let target = NewObject::Symlink { target: Bytes::from_static(b"a/b") };
    let link = source.make(&by, &dir, b"sym", &target, &none).await.unwrap().object;
    assert_eq!(
        (source.read_link(&by, &link.id).await.unwrap(), link.attributes.kind),
        (Bytes::from_static(b"a/b"), FileKind::Symlink)
    );
    for (name, object) in [("fifo", NewObject::Fifo), ("socket", NewObject::Socket)] {
        let made = source.make(&by, &dir, name.as_bytes(), &object, &none).await.unwrap().object;
        println!("{name}: {:?}", made.attributes.kind);
        source.remove(&by, &dir, name.as_bytes()).await.unwrap();
    }
    let null = NewObject::CharDevice { major: 1, minor: 3 };
    println!("device: {:?}", source.make(&by, &dir, b"null", &null, &none).await.map(|made| made.object.attributes));
    let _ = source.remove(&by, &dir, b"null").await;
    let want = Want { access: true, read: 100, open: false };
    let seen = source.look(&by, &Place::Name(dir, "moved".into()), want).await.unwrap();
    println!("look: {:?} {:?}", seen.directory, seen.object.as_ref().map(|object| (&object.attributes, object.access)));
    let object = seen.object.unwrap();
    assert_eq!((object.id, object.data.unwrap().bytes.len(), object.attributes.links), (file, 100, 2));
    let none = source.look(&by, &Place::Name(dir, "none".into()), want).await.unwrap();
    assert_eq!(none.object.unwrap_err(), SourceError::Errno(libc::ENOENT));
    let sub_is_full = source.link(&by, &file, &sub, b"x").await;
    assert!(sub_is_full.is_ok());
    assert_eq!(source.remove(&by, &dir, b"sub").await.unwrap_err(), SourceError::Errno(libc::ENOTEMPTY));
    source.remove(&by, &sub, b"x").await.unwrap();
    println!("rmdir: {:?}", source.remove(&by, &dir, b"sub").await.unwrap());
    let gone = source.look(&by, &Place::Object(sub), want).await.unwrap().object.unwrap_err();
    assert_eq!(gone, SourceError::Stale);
    let time = Time { seconds: 1_000_000_000, nanoseconds: 5 };
    let set = SetAttributes {
        uid: Some(1000),
        gid: Some(1000),
        mode: Some(0o600),
        modified: Some(SetTime::To(time)),
        ..SetAttributes::default()
    };
    let changed = source.set_attributes(&by, &file, &set).await.unwrap();
    println!("setattr: {changed:?}");
    assert_eq!((changed.attributes.uid, changed.attributes.gid, changed.attributes.mode), (1000, 1000, 0o600));
    assert_eq!(changed.attributes.modified, time);
    let denied = source.read(&user(1001), &file, 0, 10).await.unwrap_err();
    assert_eq!(denied, SourceError::Errno(libc::EACCES));
    let seen = source.look(&user(1001), &Place::Name(dir, "moved".into()), want).await.unwrap().object.unwrap();
    assert!(seen.data.is_none() && !seen.access.unwrap().read);
    source.read(&user(1000), &file, 0, 10).await.unwrap();
    let cut = SetAttributes { size: Some(10), ..SetAttributes::default() };
    assert_eq!(source.set_attributes(&by, &file, &cut).await.unwrap().attributes.size, 10);
}

async fn listing(source: &Nfs3Source, dir: ObjectId) {
    let by = user(0);
    let many: Vec<_> = (0..300).map(|number| format!("n{number:03}")).collect();
    for name in &many {
        source.create(&by, &dir, name.as_bytes(), true, &SetAttributes::default()).await.unwrap();
    }
    let (mut listed, mut cookie, mut verifier, mut pages) = (Vec::new(), 0, 0, 0);
    loop {
        let page = source.read_directory(&by, &dir, cookie, verifier, 16 << 10).await.unwrap();
        pages += 1;
        listed.extend(
            page.entries
                .iter()
                .map(|entry| (String::from_utf8(entry.name.to_vec()).unwrap(), entry.object.as_ref().unwrap().id)),
        );
        (cookie, verifier) = (page.entries.last().map_or(cookie, |entry| entry.cookie), page.verifier);
        if page.eof {
            break;
        }
    }
    println!("{} entries in {pages} pages", listed.len());
    assert_eq!(listed.len(), 300 + 3);
    println!("a wrong cookie: {:?}", source.read_directory(&by, &dir, 12_345, 6, 4096).await.map(|page| page.eof));
    let places: Vec<_> = listed.iter().map(|(name, _)| Place::Name(dir, name.clone().into())).collect();
    let (before, begun) = (source.counters().snapshot().round_trips, Instant::now());
    let seen = source.look_many(&by, &places, Want { access: true, read: 4096, open: false }).await.unwrap();
    let calls = source.counters().snapshot().round_trips - before;
    println!("{} places in {calls} calls and {:?}", places.len(), begun.elapsed());
    for ((name, id), seen) in listed.iter().zip(seen) {
        assert_eq!(seen.unwrap().object.unwrap().id, *id, "{name}");
    }
    for (name, _) in &listed {
        source.remove(&by, &dir, name.as_bytes()).await.unwrap();
    }
}
