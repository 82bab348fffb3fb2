//! Each method of the trait does what it says.

use std::{os::unix::fs::PermissionsExt, time::Duration};

use bytes::Bytes;
use forebay_node::source::{
    Credentials, FileKind, NewObject, SeekWhat, SetAttributes, SetTime, SourceError, Time, XattrSet,
    counters::Kind,
    remote::{OnBehalf, Place, Purpose, RemoteSource, Want},
};

use crate::{Bench, common::Lab, user};

const ENOENT: SourceError = SourceError::Errno(libc::ENOENT);
const EEXIST: SourceError = SourceError::Errno(libc::EEXIST);

fn name(dir: forebay_node::source::ObjectId, name: &str) -> Place {
    Place::Name(dir, Bytes::copy_from_slice(name.as_bytes()))
}

/// Bytes that tell where they are from.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes()).take(length).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_brings_directory_object_access_and_data_in_one_round_trip() {
    let bench = Bench::new().await;
    std::fs::write(bench.lab.path("file"), b"hello").unwrap();
    let (root, by) = (bench.root().await, user(0));
    let before = bench.source.counters().snapshot().round_trips;
    let want = Want { access: true, read: 100, open: false };
    let seen = bench.source.look(&by, &name(root, "file"), want).await.unwrap();
    assert_eq!(bench.source.counters().snapshot().round_trips, before + 1);
    assert_eq!(seen.directory.unwrap().kind, FileKind::Directory);
    let object = seen.object.unwrap();
    assert_eq!((object.attributes.size, object.attributes.kind), (5, FileKind::Regular));
    assert!(object.access.unwrap().read && object.access.unwrap().write);
    let data = object.data.unwrap();
    assert_eq!((&data.bytes[..], data.eof), (&b"hello"[..], true));
    let again = bench.source.look(&by, &Place::Object(object.id), want).await.unwrap();
    assert_eq!(again.object.unwrap().data.unwrap().bytes, data.bytes);
    let none = bench.source.look(&by, &name(root, "none"), want).await.unwrap();
    assert_eq!((none.directory.is_some(), none.object.unwrap_err()), (true, ENOENT));
    // READ of a directory fails, and spoils nothing.
    let dir = bench.source.look(&by, &Place::Object(root), want).await.unwrap().object.unwrap();
    assert_eq!((dir.data, dir.access.unwrap().execute), (None, true));
    let up = bench.source.parent(&by, &root).await;
    assert!(up.is_ok(), "{up:?}");
    let space = bench.source.space(&by, &root).await.unwrap();
    assert!(space.space_total > 0 && space.name_max == 255);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_is_written_committed_and_read_back_whatever_was_granted() {
    let small = |options: &mut forebay_node::source::nfs4::Nfs4Options| {
        (options.io_max, options.operations, options.slots, options.connections) = (16 << 10, 8, 3, 2);
    };
    for bench in [Bench::new().await, Bench::with(Lab::default(), small).await] {
        let (root, by, data) = (bench.root().await, user(0), Bytes::from(pattern((1 << 20) + 12_345)));
        let set = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
        let made = bench.source.create(&by, &root, b"file", true, &set).await.unwrap();
        assert!(made.created && made.directory.before != made.directory.after);
        assert_eq!((made.object.attributes.mode, made.object.attributes.kind), (0o640, FileKind::Regular));
        let file = made.object.id;
        let (mut offset, mut verifier) = (0, None);
        while offset < data.len() {
            let end = (offset + (1 << 20)).min(data.len());
            let written = bench.source.write(&by, &file, offset as u64, data.slice(offset..end), false).await.unwrap();
            assert!(written.count > 0);
            offset += written.count as usize;
            assert_eq!(written.changed.attributes.size, offset as u64);
            assert_eq!(*verifier.get_or_insert(written.verifier), written.verifier);
        }
        let committed = bench.source.commit(&by, &file).await.unwrap();
        assert_eq!(Some(committed.verifier), verifier);
        assert_eq!(std::fs::read(bench.lab.path("file")).unwrap(), data);
        for (offset, count) in
            [(0_usize, 1 << 20), (0, 10), (4096, 65_536), (777, 300_001), (1 << 20, 1 << 20), (2 << 20, 9)]
        {
            let read = bench.source.read(&by, &file, offset as u64, count).await.unwrap();
            let expected = data.get(offset..(offset + count as usize).min(data.len())).unwrap_or_default();
            assert_eq!(read.data.bytes, expected, "{offset}+{count}");
            assert_eq!(read.data.eof, offset + count as usize >= data.len(), "{offset}+{count}");
            assert_eq!(read.attributes.size, data.len() as u64);
        }
        let stable = bench.source.write(&by, &file, 0, Bytes::from_static(b"x"), true).await.unwrap();
        assert!(stable.stable && stable.changed.before.is_some());
        assert_ne!(stable.changed.before, Some(stable.changed.attributes.change));
        bench.source.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_made_linked_moved_and_removed() {
    let bench = Bench::new().await;
    let (root, by, source) = (bench.root().await, user(0), &bench.source);
    let set = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
    let dir = source.make(&by, &root, b"dir", &NewObject::Directory, &set).await.unwrap();
    assert!(dir.created && dir.object.attributes.kind == FileKind::Directory);
    assert_eq!(dir.directory.attributes.as_ref().unwrap().change, dir.directory.after);
    assert_eq!(source.make(&by, &root, b"dir", &NewObject::Directory, &set).await.unwrap_err(), EEXIST);
    let link = NewObject::Symlink { target: Bytes::from_static(b"dir/x") };
    let made = source.make(&by, &root, b"link", &link, &SetAttributes::default()).await.unwrap();
    assert_eq!(source.read_link(&by, &made.object.id).await.unwrap(), "dir/x");
    let fifo = source.make(&by, &root, b"fifo", &NewObject::Fifo, &set).await.unwrap();
    assert_eq!(fifo.object.attributes.kind, FileKind::Fifo);

    let file = source.create(&by, &root, b"file", true, &set).await.unwrap();
    assert_eq!(source.create(&by, &root, b"file", true, &set).await.unwrap_err(), EEXIST);
    let same = source.create(&by, &root, b"file", false, &set).await.unwrap();
    assert_eq!((same.created, same.object.id), (false, file.object.id));
    let other = source.create(&by, &root, b"dir", false, &set).await.unwrap();
    assert_eq!((other.created, other.object.attributes.kind), (false, FileKind::Directory));

    let linked = source.link(&by, &file.object.id, &dir.object.id, b"again").await.unwrap();
    assert_ne!(linked.before, linked.after);
    assert_eq!(bench.find(&by, dir.object.id, "again").await, file.object.id);
    let (from, to) = source.rename(&by, (&root, b"file"), (&dir.object.id, b"moved")).await.unwrap();
    assert!(from.attributes.is_some() && to.attributes.unwrap().change == to.after);
    assert_eq!(bench.find(&by, dir.object.id, "moved").await, file.object.id);
    let full = source.remove(&by, &root, b"dir").await.unwrap_err();
    assert_eq!(full, SourceError::Errno(libc::ENOTEMPTY));
    for (dir, name) in [(dir.object.id, &b"moved"[..]), (dir.object.id, b"again"), (root, b"dir"), (root, b"fifo")] {
        source.remove(&by, &dir, name).await.unwrap();
    }
    assert_eq!(source.remove(&by, &root, b"dir").await.unwrap_err(), ENOENT);
    let gone = source.look(&by, &Place::Object(file.object.id), Want::default()).await.unwrap();
    assert_eq!(gone.object.unwrap_err(), SourceError::Stale);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_are_set_and_a_new_file_has_the_times_of_its_making() {
    let bench = Bench::new().await;
    let (root, by, source) = (bench.root().await, user(0), &bench.source);
    let made = source.create(&by, &root, b"file", true, &SetAttributes::default()).await.unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    let attributes = made.object.attributes;
    assert!(
        (attributes.modified.seconds - now).abs() < 60 && (attributes.accessed.seconds - now).abs() < 60,
        "{attributes:?}"
    );
    let time = Time { seconds: 1_000_000, nanoseconds: 7 };
    let set = SetAttributes {
        size: Some(100),
        mode: Some(0o600),
        uid: Some(7),
        gid: Some(8),
        accessed: Some(SetTime::Now),
        modified: Some(SetTime::To(time)),
    };
    let changed = source.set_attributes(&by, &made.object.id, &set).await.unwrap();
    let told = changed.attributes;
    assert_eq!((told.size, told.mode, told.uid, told.gid, told.modified), (100, 0o600, 7, 8, time));
    assert_eq!(changed.before, Some(attributes.change));
    let late = SetAttributes { modified: Some(SetTime::To(time)), mode: Some(0o644), ..SetAttributes::default() };
    let made = source.create(&by, &root, b"late", true, &late).await.unwrap();
    assert_eq!(made.object.attributes.modified, time);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_read_in_pages_with_all_that_a_look_tells() {
    let bench = Bench::new().await;
    let expected: Vec<_> = (0..500).map(|number| format!("file{number:03}")).collect();
    for name in &expected {
        std::fs::write(bench.lab.path(name), name).unwrap();
    }
    let (root, by) = (bench.root().await, user(0));
    let (mut names, mut cookie, mut verifier, mut pages) = (Vec::new(), 0, 0, 0);
    loop {
        let page = bench.source.read_directory(&by, &root, cookie, verifier, 16 << 10).await.unwrap();
        pages += 1;
        assert_eq!(page.directory.kind, FileKind::Directory);
        for entry in &page.entries {
            let object = entry.object.as_ref().unwrap();
            assert_eq!((object.attributes.size, object.attributes.kind), (7, FileKind::Regular));
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        }
        cookie = page.entries.last().map_or(cookie, |entry| entry.cookie);
        verifier = page.verifier;
        if page.eof {
            break;
        }
    }
    names.sort();
    assert_eq!(names, expected);
    assert!(pages > 5, "{pages}");
    let object = bench.find(&by, root, "file007").await;
    let entry = bench.source.read_directory(&by, &root, 0, 0, 1 << 20).await.unwrap();
    let told = entry.entries.iter().find(|entry| entry.name == "file007").unwrap();
    assert_eq!(told.object.as_ref().unwrap().id, object);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holes_space_and_xattrs_in_minor_version_2_and_not_in_1() {
    let bench = Bench::new().await;
    let (root, by, source) = (bench.root().await, user(0), &bench.source);
    let file = source.create(&by, &root, b"file", true, &SetAttributes::default()).await.unwrap().object.id;
    source.write(&by, &file, 1 << 20, Bytes::from_static(b"end"), false).await.unwrap();
    assert_eq!(source.seek(&by, &file, 0, SeekWhat::Hole).await.unwrap(), Some(0));
    assert_eq!(source.seek(&by, &file, 0, SeekWhat::Data).await.unwrap(), Some(1 << 20));
    assert_eq!(source.seek(&by, &file, 9 << 20, SeekWhat::Data).await.unwrap(), None);
    let changed = source.allocate(&by, &file, 0, 2 << 20, false).await.unwrap();
    assert_eq!(changed.attributes.size, 2 << 20);
    source.allocate(&by, &file, 1 << 20, 1 << 20, true).await.unwrap();
    assert_eq!(&source.read(&by, &file, 1 << 20, 3).await.unwrap().data.bytes[..], b"\0\0\0");

    let value = Bytes::from_static(b"value");
    source.xattr_set(&by, &file, b"one", &value, XattrSet::Create).await.unwrap();
    let twice = source.xattr_set(&by, &file, b"one", &value, XattrSet::Create).await.unwrap_err();
    assert_eq!(twice, EEXIST);
    source.xattr_set(&by, &file, b"two", &value, XattrSet::Either).await.unwrap();
    assert_eq!(source.xattr_get(&by, &file, b"one").await.unwrap(), value);
    let mut names = source.xattr_list(&by, &file).await.unwrap();
    names.sort();
    assert_eq!(names, ["one", "two"]);
    source.xattr_remove(&by, &file, b"one").await.unwrap();
    assert_eq!(source.xattr_get(&by, &file, b"one").await.unwrap_err(), SourceError::Errno(libc::ENODATA));

    let old = Bench::with(Lab::default(), |options| options.minor_versions = vec![1]).await;
    let root = old.root().await;
    let file = old.source.create(&by, &root, b"file", true, &SetAttributes::default()).await.unwrap().object.id;
    assert_eq!(old.source.seek(&by, &file, 0, SeekWhat::Data).await.unwrap_err(), SourceError::UNSUPPORTED);
    assert_eq!(old.source.xattr_list(&by, &file).await.unwrap_err(), SourceError::UNSUPPORTED);
    assert_eq!(old.source.allocate(&by, &file, 0, 1, false).await.unwrap_err(), SourceError::UNSUPPORTED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_source_sees_the_user_and_judges() {
    let bench = Bench::new().await;
    let (root, source) = (bench.root().await, &bench.source);
    std::fs::set_permissions(bench.lab.path(""), std::fs::Permissions::from_mode(0o777)).unwrap();
    let made = source
        .create(&user(1000), &root, b"mine", true, &SetAttributes { mode: Some(0o600), ..Default::default() })
        .await
        .unwrap();
    assert_eq!((made.object.attributes.uid, made.object.attributes.gid), (1000, 1000));
    source.write(&user(1000), &made.object.id, 0, Bytes::from_static(b"secret"), false).await.unwrap();
    let denied = source.read(&user(1001), &made.object.id, 0, 10).await.unwrap_err();
    assert_eq!(denied, SourceError::Errno(libc::EACCES));
    let seen = source
        .look(&user(1001), &Place::Object(made.object.id), Want { access: true, read: 10, open: false })
        .await
        .unwrap();
    let object = seen.object.unwrap();
    assert_eq!((object.access.unwrap().read, object.data), (false, None));
    source
        .set_attributes(
            &user(0),
            &made.object.id,
            &SetAttributes { gid: Some(2000), mode: Some(0o640), ..Default::default() },
        )
        .await
        .unwrap();
    let member =
        OnBehalf { user: Credentials { uid: 1001, gid: 1001, groups: [5, 2000].into() }, purpose: Purpose::Ahead };
    assert_eq!(source.read(&member, &made.object.id, 0, 10).await.unwrap().data.bytes, "secret");
    let refused = source.write(&member, &made.object.id, 0, Bytes::from_static(b"x"), false).await.unwrap_err();
    assert_eq!(refused, SourceError::Errno(libc::EACCES));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_reply_owns_about_as_much_memory_as_it_holds() {
    let bench = Bench::new().await;
    std::fs::write(bench.lab.path("file"), pattern(1 << 20)).unwrap();
    let (root, by) = (bench.root().await, user(0));
    let file = bench.find(&by, root, "file").await;
    let read = bench.source.read(&by, &file, 0, 1 << 20).await.unwrap();
    assert_eq!(read.data.bytes.len(), 1 << 20);
    // The only owner may take the allocation as it is: what it can hold is what it pins.
    let mut owned = read.data.bytes.try_into_mut().unwrap();
    let spare = owned.try_reclaim(owned.len() + (8 << 10));
    assert!(!spare, "more than 8 KiB beside the data");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_done_is_counted() {
    let bench = Bench::new().await;
    std::fs::write(bench.lab.path("file"), b"12345").unwrap();
    let (root, by) = (bench.root().await, user(0));
    let file = bench.find(&by, root, "file").await;
    bench.source.read(&by, &file, 0, 5).await.unwrap();
    let _ = bench.source.read_link(&by, &file).await.unwrap_err();
    let snapshot = bench.source.counters().snapshot();
    assert_eq!((snapshot.kind(Kind::Read).calls, snapshot.kind(Kind::Read).errors), (1, 0));
    assert_eq!((snapshot.kind(Kind::ReadLink).calls, snapshot.kind(Kind::ReadLink).errors), (1, 1));
    assert_eq!(snapshot.read_bytes, 5);
    assert!(snapshot.up && snapshot.kind(Kind::Read).rtt > Duration::ZERO);
    crate::until("four connections", || bench.source.counters().snapshot().connections == 4).await;
}
