//! Against a server that is not ours: `FOREBAY_TEST_NFS4=host:port:/path cargo test --test nfs4_source -- --ignored`.
//!
//! The path must be writable for root. What one server has and another has not is printed, not judged.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use forebay_node::{
    client::{ReadAt, VectorClient, WriteAt},
    source::{
        Credentials, FileKind, NewObject, SeekWhat, SetAttributes, SetTime, Time, XattrSet,
        counters::SourceCounters,
        nfs4::{Nfs4Options, Nfs4Source},
        remote::{Place, RemoteSource, Want},
    },
};

use crate::{methods::pattern, up, user};

fn target() -> Option<(String, u16, String)> {
    let text = std::env::var("FOREBAY_TEST_NFS4").ok()?;
    let mut parts = text.splitn(3, ':');
    Some((parts.next()?.to_owned(), parts.next()?.parse().ok()?, parts.next()?.to_owned()))
}

async fn source(anonymous: bool, minor_versions: &[u32]) -> Option<Arc<Nfs4Source>> {
    let (host, port, path) = target()?;
    let mut options = Nfs4Options::new(host, port, path, format!("forebay real test {anonymous} {minor_versions:?}"));
    (options.anonymous, options.minor_versions) = (anonymous, minor_versions.to_vec());
    let source = Nfs4Source::connect(options, Arc::new(SourceCounters::new("real")));
    up(&source).await;
    Some(source)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server, named by FOREBAY_TEST_NFS4"]
async fn a_real_server_does_all_that_is_asked_of_it() {
    let _ = tracing_subscriber::fmt().with_env_filter("forebay_node=debug").try_init();
    for (anonymous, minor_versions) in [(true, &[2, 1][..]), (true, &[1][..]), (false, &[2][..])] {
        let source = source(anonymous, minor_versions).await.expect("FOREBAY_TEST_NFS4 is host:port:/path");
        println!("anonymous {anonymous}, minor versions {minor_versions:?}");
        all(&source).await;
        println!(
            "{:#?}",
            source.counters().snapshot().kinds.iter().map(|row| (row.kind, row.calls, row.retries)).collect::<Vec<_>>()
        );
        source.close().await;
    }
}

async fn all(source: &Nfs4Source) {
    let by = user(0);
    let export = source.root(&by).await.unwrap().id;
    let name = format!("forebay-{}", std::process::id());
    let set = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
    let dir = source.make(&by, &export, name.as_bytes(), &NewObject::Directory, &set).await.unwrap();
    println!("mkdir: {:?}", dir.directory);
    let dir = dir.object.id;
    let made = source
        .create(&by, &dir, b"file", true, &SetAttributes { mode: Some(0o640), ..Default::default() })
        .await
        .unwrap();
    assert!(made.created && made.object.attributes.mode == 0o640, "{made:?}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    assert!((made.object.attributes.modified.seconds - now).abs() < 60, "{made:?}");
    assert!(source.create(&by, &dir, b"file", true, &set).await.is_err());
    assert!(!source.create(&by, &dir, b"file", false, &set).await.unwrap().created);
    let file = made.object.id;
    let data = Bytes::from(pattern(3 << 20));
    for offset in [0, 1 << 20, 2 << 20] {
        let begun = Instant::now();
        let written =
            source.write(&by, &file, offset as u64, data.slice(offset..offset + (1 << 20)), false).await.unwrap();
        assert_eq!((written.count, written.changed.attributes.size), (1 << 20, offset as u64 + (1 << 20)));
        println!(
            "1 MiB written in {:?}, stable {}, before {:?}",
            begun.elapsed(),
            written.stable,
            written.changed.before
        );
    }
    source.commit(&by, &file).await.unwrap();
    for offset in [0_usize, 1 << 20, (2 << 20) + 5] {
        let begun = Instant::now();
        let read = source.read(&by, &file, offset as u64, 1 << 20).await.unwrap();
        assert_eq!(read.data.bytes, data.slice(offset..(offset + (1 << 20)).min(data.len())));
        println!("1 MiB read in {:?}, end {}", begun.elapsed(), read.data.eof);
    }
    names(source, dir, file).await;
    extras(source, dir, file).await;
    let many: Vec<_> = (0..300).map(|number| format!("n{number:03}")).collect();
    for name in &many {
        source.create(&by, &dir, name.as_bytes(), true, &SetAttributes::default()).await.unwrap();
    }
    let (mut listed, mut cookie, mut verifier) = (Vec::new(), 0, 0);
    loop {
        let page = source.read_directory(&by, &dir, cookie, verifier, 32 << 10).await.unwrap();
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
    let places: Vec<_> = listed.iter().map(|(name, _)| Place::Name(dir, name.clone().into())).collect();
    let before = source.counters().snapshot().round_trips;
    let seen = source.look_many(&by, &places, Want { access: true, read: 4096, open: false }).await.unwrap();
    println!("{} places in {} compounds", places.len(), source.counters().snapshot().round_trips - before);
    for ((name, id), seen) in listed.iter().zip(seen) {
        assert_eq!(seen.unwrap().object.unwrap().id, *id, "{name}");
    }
    for (name, _) in &listed {
        source.remove(&by, &dir, name.as_bytes()).await.unwrap();
    }
    source.remove(&by, &export, name.as_bytes()).await.unwrap();
    println!("space: {:?}", source.space(&by, &export).await.unwrap());
}

async fn names(source: &Nfs4Source, dir: forebay_node::source::ObjectId, file: forebay_node::source::ObjectId) {
    let by = user(0);
    let sub = source.make(&by, &dir, b"sub", &NewObject::Directory, &SetAttributes::default()).await.unwrap().object.id;
    assert_eq!(source.parent(&by, &sub).await.unwrap().id, dir);
    source.link(&by, &file, &sub, b"link").await.unwrap();
    source.rename(&by, (&sub, b"link"), (&dir, b"moved")).await.unwrap();
    let target = NewObject::Symlink { target: Bytes::from_static(b"a/b") };
    let link = source.make(&by, &dir, b"sym", &target, &SetAttributes::default()).await.unwrap().object;
    assert_eq!(
        (source.read_link(&by, &link.id).await.unwrap(), link.attributes.kind),
        (Bytes::from_static(b"a/b"), FileKind::Symlink)
    );
    let want = Want { access: true, read: 100, open: false };
    let seen = source.look(&by, &Place::Name(dir, "moved".into()), want).await.unwrap();
    println!("look: {seen:?}");
    let object = seen.object.unwrap();
    assert_eq!((object.id, object.data.unwrap().bytes.len(), object.attributes.links), (file, 100, 2));
    let there = source.look(&by, &Place::Name(dir, "sub".into()), want).await.unwrap().object.unwrap();
    assert_eq!(there.attributes.kind, FileKind::Directory);
    source.remove(&by, &dir, b"sub").await.unwrap();
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
    let denied = source.read(&user(1001), &file, 0, 10).await.unwrap_err();
    println!("read of another's file: {denied}");
    source.read(&user(1000), &file, 0, 10).await.unwrap();
    let cut = SetAttributes { size: Some(10), ..SetAttributes::default() };
    assert_eq!(source.set_attributes(&by, &file, &cut).await.unwrap().attributes.size, 10);
}

async fn extras(source: &Nfs4Source, dir: forebay_node::source::ObjectId, file: forebay_node::source::ObjectId) {
    let by = user(0);
    println!("seek data: {:?}", source.seek(&by, &file, 0, SeekWhat::Data).await);
    println!("seek hole: {:?}", source.seek(&by, &file, 0, SeekWhat::Hole).await);
    println!("allocate: {:?}", source.allocate(&by, &file, 0, 1 << 20, false).await.map(|done| done.attributes.size));
    println!("deallocate: {:?}", source.allocate(&by, &file, 0, 4096, true).await.map(|done| done.attributes.size));
    let value = Bytes::from_static(b"value");
    println!(
        "setxattr: {:?}",
        source.xattr_set(&by, &file, b"forebay", &value, XattrSet::Create).await.map(|done| done.before)
    );
    println!("getxattr: {:?}", source.xattr_get(&by, &file, b"forebay").await);
    println!("listxattrs: {:?}", source.xattr_list(&by, &file).await);
    println!(
        "unknown name: {:?}",
        source.look(&by, &Place::Name(dir, "none".into()), Want::default()).await.unwrap().object.unwrap_err()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server, named by FOREBAY_TEST_NFS4"]
async fn a_real_server_takes_many_small_files_at_a_time() {
    let (host, port, path) = target().expect("FOREBAY_TEST_NFS4 is host:port:/path");
    let client =
        VectorClient::connect(&host, port, &path, Credentials { uid: 0, gid: 0, groups: [].into() }).await.unwrap();
    let name = |number: usize| format!("small-{}-{number}", std::process::id());
    let writes: Vec<_> = (0..20)
        .map(|number| WriteAt {
            path: name(number),
            offset: 0,
            data: pattern(4096 + number)[number..].to_vec().into(),
            create: Some(0o644),
            sync: false,
        })
        .collect();
    let mut before = client.counters().snapshot().round_trips;
    let mut trips = || {
        let now = client.counters().snapshot().round_trips;
        now - std::mem::replace(&mut before, now)
    };
    for wrote in client.writev(&writes).await.unwrap() {
        assert_eq!(wrote.unwrap().count, 4096);
    }
    println!("20 files written in {} compounds", trips());
    let reads: Vec<_> = (0..20).map(|number| ReadAt { path: name(number), offset: 0, count: 4096 }).collect();
    for (number, read) in client.readv(&reads).await.unwrap().into_iter().enumerate() {
        assert!(read.unwrap().bytes == pattern(4096 + number)[number..], "file {number} is not what was written");
    }
    println!("20 files read in {} compounds", trips());
    client.close().await;
}

/// For a server that is killed and started again meanwhile, by hand: nothing fails, nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server, named by FOREBAY_TEST_NFS4, and somebody who restarts it within 25 seconds"]
async fn a_real_server_restarts_under_load() {
    let _ = tracing_subscriber::fmt().with_env_filter("forebay_node=debug").try_init();
    let source = source(false, &[2, 1]).await.expect("FOREBAY_TEST_NFS4 is host:port:/path");
    let (by, begun) = (user(0), Instant::now());
    let root = source.root(&by).await.unwrap().id;
    let name = |lane: u64| format!("lane-{}-{lane}", std::process::id());
    let lanes = (0..4_u64).map(|lane| {
        let (source, by, name) = (source.clone(), by.clone(), name(lane));
        async move {
            let none = SetAttributes::default();
            let file = source.create(&by, &root, name.as_bytes(), true, &none).await.unwrap().object.id;
            let (mut step, mut away) = (0_u64, 0);
            while begun.elapsed().as_secs() < 25 {
                let data = Bytes::from(step.to_be_bytes().repeat(512));
                source.write(&by, &file, (step % 64) * 4096, data.clone(), true).await.unwrap();
                match source.read(&by, &file, (step % 64) * 4096, 4096).await {
                    Ok(read) => assert!(read.data.bytes == data, "lane {lane}, step {step}"),
                    Err(forebay_node::source::SourceError::Unavailable) => away += 1,
                    Err(error) => panic!("lane {lane}, step {step}: {error}"),
                }
                let other = format!("{name}-{step}");
                assert!(source.create(&by, &root, other.as_bytes(), true, &none).await.unwrap().created);
                source.remove(&by, &root, other.as_bytes()).await.unwrap();
                step += 1;
            }
            source.remove(&by, &root, name.as_bytes()).await.unwrap();
            (step, away)
        }
    });
    println!("steps and unavailable reads of each lane: {:?}", futures_util::future::join_all(lanes).await);
    println!(
        "{:?}",
        source.counters().snapshot().kinds.iter().map(|row| (row.kind, row.calls, row.retries)).collect::<Vec<_>>()
    );
    source.close().await;
}
