//! Each method of the trait does what it says, whatever the server leaves out.

use std::collections::BTreeSet;

use bytes::Bytes;
use forebay_node::source::{
    Credentials, FileKind, NewObject, ObjectId, SeekWhat, SetAttributes, SetTime, SourceError, Time,
    counters::Kind,
    remote::{OnBehalf, Place, Purpose, RemoteSource, Want},
};
use forebay_proto::nfs3::{Lookup, Procedure};

use crate::{Bench, pattern, tree::Manners, user};

const ENOENT: SourceError = SourceError::Errno(libc::ENOENT);
const EEXIST: SourceError = SourceError::Errno(libc::EEXIST);

fn name(dir: ObjectId, name: &str) -> Place {
    Place::Name(dir, Bytes::copy_from_slice(name.as_bytes()))
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

/// A server that tells and takes as little as it may.
fn poor(manners: &mut Manners) {
    (manners.read_max, manners.write_max, manners.really, manners.page) = (1000, 600, 512, 7);
    (manners.post_attributes, manners.pre_attributes, manners.plus, manners.exclusive) = (false, false, false, false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_does_what_it_says_with_a_rich_server_and_a_poor_one() {
    for rich in [true, false] {
        let bench = Bench::with(
            |manners| {
                if !rich {
                    poor(manners)
                }
            },
            |options| options.connections = 2,
        )
        .await;
        println!("rich: {rich}");
        data(&bench).await;
        names(&bench).await;
        lists(&bench).await;
        let space = bench.source.space(&user(0), &bench.root().await).await.unwrap();
        assert_eq!((space.space_total, space.space_available, space.files_free, space.name_max), (6, 4, 2, 123));
        let unsupported = bench.source.seek(&user(0), &bench.root().await, 0, SeekWhat::Data).await;
        assert_eq!(unsupported, Err(SourceError::UNSUPPORTED));
        bench.source.close().await;
        let closed = bench.source.root(&user(0)).await;
        assert_eq!(closed, Err(SourceError::Unavailable));
    }
}

async fn data(bench: &Bench) {
    let (source, by, root) = (&bench.source, user(0), bench.root().await);
    let made = source.create(&by, &root, b"file", true, &mode(0o640)).await.unwrap();
    assert!(made.created);
    assert_eq!((made.object.attributes.mode, made.object.attributes.kind), (0o640, FileKind::Regular));
    assert_eq!(source.create(&by, &root, b"file", true, &mode(0)).await.unwrap_err(), EEXIST);
    let again = source.create(&by, &root, b"file", false, &mode(0)).await.unwrap();
    assert_eq!((again.created, again.object.id, again.object.attributes.mode), (false, made.object.id, 0o640));
    let other = source.create(&by, &root, b"other", false, &mode(0o600)).await.unwrap();
    assert!(other.created && other.object.attributes.mode == 0o600);

    let (file, data) = (made.object.id, Bytes::from(pattern(5000)));
    let written = source.write(&by, &file, 0, data.clone(), false).await.unwrap();
    assert_eq!((written.count, written.stable, written.changed.attributes.size), (5000, false, 5000));
    assert!(source.write(&by, &file, 5000, Bytes::from_static(b"x"), true).await.unwrap().stable);
    assert_eq!(source.commit(&by, &file).await.unwrap().verifier, written.verifier);
    for (offset, count) in [(0, 5000), (0, 5001), (0, 9000), (10, 1), (999, 2001), (4999, 100), (6000, 5), (0, 0)] {
        let read = source.read(&by, &file, offset, count).await.unwrap();
        let all = [&data[..], b"x"].concat();
        let end = (offset as usize + count as usize).min(all.len());
        let expected = all.get(offset as usize..end).unwrap_or_default();
        assert_eq!(read.data.bytes, expected, "{count} at {offset}");
        assert_eq!((read.data.eof, read.attributes.size), (offset as usize + count as usize >= all.len(), 5001));
    }
    let cut = SetAttributes { size: Some(3), uid: Some(5), gid: Some(6), ..SetAttributes::default() };
    let cut = source.set_attributes(&by, &file, &cut).await.unwrap().attributes;
    assert_eq!((cut.size, cut.uid, cut.gid), (3, 5, 6));
    let time = Time { seconds: 1_000_000_000, nanoseconds: 5 };
    let set = SetAttributes { modified: Some(SetTime::To(time)), accessed: Some(SetTime::Now), ..Default::default() };
    assert_eq!(source.set_attributes(&by, &file, &set).await.unwrap().attributes.modified, time);
    let stale = ObjectId { handle: forebay_node::source::SourceHandle::new(&[7; 16]).unwrap(), ..file };
    assert_eq!(source.read(&by, &stale, 0, 1).await.unwrap_err(), SourceError::Stale);
    let foreign = ObjectId { handle: forebay_node::source::SourceHandle::new(&[7; 65]).unwrap(), ..file };
    assert_eq!(source.read(&by, &foreign, 0, 1).await.unwrap_err(), SourceError::BadHandle);
}

async fn names(bench: &Bench) {
    let (source, by, root, none) = (&bench.source, user(0), bench.root().await, SetAttributes::default());
    let dir = source.make(&by, &root, b"dir", &NewObject::Directory, &none).await.unwrap();
    assert_eq!((dir.created, dir.object.attributes.kind), (true, FileKind::Directory));
    assert_eq!(source.make(&by, &root, b"dir", &NewObject::Directory, &none).await.unwrap_err(), EEXIST);
    let dir = dir.object.id;
    assert_eq!(source.parent(&by, &dir).await.unwrap().id, root);
    let target = NewObject::Symlink { target: Bytes::from_static(b"a/b") };
    let link = source.make(&by, &dir, b"sym", &target, &none).await.unwrap().object;
    assert_eq!(link.attributes.kind, FileKind::Symlink);
    assert_eq!(source.read_link(&by, &link.id).await.unwrap(), "a/b");
    let fifo = source.make(&by, &dir, b"fifo", &NewObject::Fifo, &none).await.unwrap().object;
    assert_eq!(fifo.attributes.kind, FileKind::Fifo);
    let file = bench.find(root, "file").await;
    source.link(&by, &file, &dir, b"link").await.unwrap();
    assert_eq!(source.link(&by, &file, &dir, b"link").await.unwrap_err(), EEXIST);
    let (from, to) = source.rename(&by, (&dir, b"link"), (&root, b"moved")).await.unwrap();
    assert!(from.attributes.unwrap().kind == FileKind::Directory && to.after > 0);
    let want = Want { access: true, read: 100, open: false };
    let seen = source.look(&by, &name(root, "moved"), want).await.unwrap();
    assert_eq!(seen.directory.unwrap().kind, FileKind::Directory);
    let object = seen.object.unwrap();
    assert_eq!((object.id, object.attributes.links), (file, 2));
    assert_eq!(object.data.unwrap().bytes, &pattern(3)[..]);
    assert!(object.access.unwrap().read && object.access.unwrap().write);
    for place in [Place::Object(dir), name(root, "dir")] {
        let there = source.look(&by, &place, want).await.unwrap().object.unwrap();
        assert_eq!((there.data, there.access.unwrap().execute), (None, true));
    }
    assert_eq!(source.look(&by, &name(root, "none"), want).await.unwrap().object.unwrap_err(), ENOENT);
    assert_eq!(source.remove(&by, &root, b"dir").await.unwrap_err(), SourceError::Errno(libc::ENOTEMPTY));
    for (dir, name) in [(dir, &b"sym"[..]), (dir, b"fifo"), (root, b"moved"), (root, b"dir")] {
        source.remove(&by, &dir, name).await.unwrap();
    }
    assert_eq!(source.remove(&by, &root, b"dir").await.unwrap_err(), ENOENT);
    let gone = source.look(&by, &Place::Object(dir), want).await.unwrap();
    assert_eq!(gone.object.unwrap_err(), SourceError::Stale);
}

async fn lists(bench: &Bench) {
    let (source, by, root) = (&bench.source, user(0), bench.root().await);
    let made: BTreeSet<String> = (0..40).map(|number| format!("n{number:02}")).collect();
    for name in &made {
        bench.server.tree.lock().put(name, name.as_bytes());
    }
    bench.server.tree.lock().manners.page = 7;
    let (mut listed, mut cookie, mut verifier) = (Vec::new(), 0, 0);
    loop {
        let page = source.read_directory(&by, &root, cookie, verifier, 4096).await.unwrap();
        assert!(page.entries.len() <= 7 && page.directory.kind == FileKind::Directory);
        listed.extend(
            page.entries
                .iter()
                .map(|entry| (String::from_utf8(entry.name.to_vec()).unwrap(), entry.object.as_ref().unwrap().id)),
        );
        (cookie, verifier) = (page.entries.last().unwrap().cookie, page.verifier);
        if page.eof {
            break;
        }
    }
    let names: BTreeSet<_> = listed.iter().map(|(name, _)| name.clone()).collect();
    assert!(names.is_superset(&made) && names.len() == listed.len() && listed.len() == 42, "{names:?}");
    let lost = source.read_directory(&by, &root, cookie, verifier + 1, 4096).await.unwrap_err();
    assert_eq!(lost, SourceError::BadCookie);
    let mut places: Vec<_> = listed.iter().map(|(listed, _)| name(root, listed)).collect();
    places.push(name(root, "none"));
    let seen = source.look_many(&by, &places, Want { access: true, read: 10, open: false }).await.unwrap();
    for ((name, id), seen) in listed.iter().zip(&seen) {
        let object = seen.as_ref().unwrap().object.as_ref().unwrap();
        assert_eq!(object.id, *id, "{name}");
        if made.contains(name) {
            assert_eq!(object.data.as_ref().unwrap().bytes, name.as_bytes());
        }
    }
    assert_eq!(seen.last().unwrap().as_ref().unwrap().object, Err(ENOENT));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_dots_alone_is_read_on_from() {
    let bench = Bench::with(|manners| manners.page = 1, |_| ()).await;
    bench.server.tree.lock().put("one", b"");
    let root = bench.root().await;
    let page = bench.source.read_directory(&user(0), &root, 0, 0, 4096).await.unwrap();
    assert_eq!((page.entries.len(), &page.entries[0].name[..], page.eof), (1, &b"one"[..], true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_known_of_a_directory_saves_asking_and_calls_go_side_by_side() {
    let bench = Bench::new().await;
    for number in 0..100 {
        bench.server.tree.lock().put(&format!("n{number}"), b"data");
    }
    let (root, by) = (bench.root().await, user(0));
    let trips = || bench.source.counters().snapshot().round_trips;
    let mut before = trips();
    let mut since = || trips() - std::mem::replace(&mut before, trips());
    bench.source.look(&by, &name(root, "n0"), Want::default()).await.unwrap();
    assert_eq!(since(), 1, "LOOKUP alone, since the root is known");
    bench.source.look(&by, &name(root, "n1"), Want { access: true, read: 100, open: false }).await.unwrap();
    assert_eq!(since(), 3, "LOOKUP, ACCESS, READ");
    let file = bench.find(root, "n2").await;
    since();
    bench.source.read(&by, &file, 0, 100).await.unwrap();
    assert_eq!(since(), 1, "READ alone, since the file is known");
    let places: Vec<_> = (0..100).map(|number| name(root, &format!("n{number}"))).collect();
    bench.source.look_many(&by, &places, Want::default()).await.unwrap();
    assert_eq!(since(), 100);
    let kinds = bench.source.counters().snapshot();
    assert_eq!((kinds.kind(Kind::Lookup).retries, kinds.kind(Kind::Read).calls), (0, 2));
    // A directory that nothing is known of is asked for once, not once for each name.
    bench.server.tree.lock().generation = 2;
    let old = bench.source.look_many(&by, &places, Want::default()).await.unwrap();
    assert!(old.iter().all(|seen| seen.as_ref().err() == Some(&SourceError::Stale)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_made_as_the_user_with_sixteen_groups_at_most() {
    let bench = Bench::new().await;
    let root = bench.root().await;
    bench.server.forget_calls();
    let user = Credentials { uid: 1234, gid: 5, groups: (0..40).collect::<Vec<_>>().into() };
    let by = OnBehalf { user, purpose: Purpose::Ahead };
    let _ = bench.source.look(&by, &name(root, "x"), Want::default()).await.unwrap();
    let knobs = bench.server.knobs.lock();
    let call = knobs.arrived.iter().find(|call| call.procedure == Lookup::NUMBER).unwrap();
    assert_eq!((call.uid, call.groups), (1234, 16));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_before_a_change_connects_to_what_was_known_unless_another_came_between() {
    let bench = Bench::new().await;
    let (source, by, root) = (&bench.source, user(0), bench.root().await);
    let none = SetAttributes::default();
    let mut known = source.root(&by).await.unwrap().attributes.change;
    for round in 0..6 {
        let other = round % 2 == 1;
        if other {
            bench.server.tree.lock().put(&format!("other{round}"), b"");
        }
        let name = format!("mine{round}");
        let change = match round {
            0 | 1 => source.create(&by, &root, name.as_bytes(), true, &none).await.unwrap().directory,
            2 | 3 => source.make(&by, &root, name.as_bytes(), &NewObject::Directory, &none).await.unwrap().directory,
            _ => source.remove(&by, &root, format!("mine{}", round - 2).as_bytes()).await.unwrap(),
        };
        assert!(change.atomic && change.after > change.before);
        assert_eq!(change.before == known, !other, "round {round}");
        assert_eq!(change.attributes.unwrap().change, change.after);
        known = change.after;
    }
    let file = bench.find(root, "mine0").await;
    let first = source.write(&by, &file, 0, Bytes::from_static(b"a"), false).await.unwrap().changed;
    let second = source.write(&by, &file, 0, Bytes::from_static(b"b"), false).await.unwrap().changed;
    assert_eq!(second.before, Some(first.attributes.change));
    let set = source.set_attributes(&by, &file, &mode(0o600)).await.unwrap();
    assert_eq!(set.before, Some(second.attributes.change));
    // In pieces side by side there is no before that is before all of them.
    bench.server.tree.lock().manners.write_max = 1000;
    let pieces = connect_again(&bench).await;
    let root = pieces.root(&by).await.unwrap().id;
    let object = pieces.look(&by, &name_of(root, "mine0"), Want::default()).await.unwrap().object.unwrap();
    let written = pieces.write(&by, &object.id, 0, Bytes::from(pattern(5000)), false).await.unwrap();
    assert_eq!((written.count, written.changed.before, written.changed.attributes.size), (5000, None, 5000));
}

fn name_of(dir: ObjectId, text: &str) -> Place {
    name(dir, text)
}

async fn connect_again(bench: &Bench) -> std::sync::Arc<forebay_node::source::nfs3::Nfs3Source> {
    let source = crate::connect(bench.server.address.port(), |_| ());
    crate::up(&source).await;
    source
}
