//! Names: what may be one, links, removal, renames, climbing.

use std::fs;

use bytes::Bytes;

use super::*;
use crate::source::{FileKind, NewObject};

#[test]
fn what_is_not_one_component_is_refused() {
    on_each(|export| {
        let source = &export.source;
        let dir = source.root();
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b", b"\0"] {
            assert_eq!(source.lookup(&root(), &dir, name).map(|_| ()), Err(errno(libc::EINVAL)), "{name:?}");
            assert!(source.create(&root(), &dir, name, 0o644, false, &SetAttributes::default()).is_err());
            assert!(source.remove(&root(), &dir, name).is_err());
            assert!(source.rename(&root(), &dir, name, &dir, b"x").is_err());
            assert!(source.rename(&root(), &dir, b"x", &dir, name).is_err());
        }
        let long = [b'n'; 256];
        assert_eq!(source.lookup(&root(), &dir, &long).map(|_| ()), Err(errno(libc::ENAMETOOLONG)));
        let longest = export.file(&root(), &"n".repeat(255));
        assert_eq!(source.lookup(&root(), &dir, &long[..255]).map(|file| file.id()), Ok(longest.id()));
        assert_eq!(source.lookup(&root(), &longest, b"x").map(|_| ()), Err(errno(libc::ENOTDIR)));
    });
}

#[test]
fn symbolic_links_are_objects_and_never_followed() {
    on_each(|export| {
        let source = &export.source;
        let rest = SetAttributes::default();
        let object = NewObject::Symlink { target: Bytes::from_static(b"/etc/passwd") };
        let link = source.make(&user(ALICE, &[]), &source.root(), b"l", &object, 0o777, &rest).expect("new");
        assert_eq!(link.kind(), FileKind::Symlink);
        assert_eq!(source.read_link(&link), Ok(Bytes::from_static(b"/etc/passwd")));
        assert_eq!(source.lookup(&root(), &link, b"x").map(|_| ()), Err(errno(libc::ENOTDIR)));
        let (found, made) = source.create(&root(), &source.root(), b"l", 0o644, false, &rest).expect("there");
        assert!(!made && found.id() == link.id());
        assert_eq!(source.read(&link, 0, 10, &mut BytesMut::new(), false), Err(errno(libc::EINVAL)));
        let again = source.resolve(link.fsid(), link.handle()).expect("there");
        assert_eq!(again.id(), link.id());
        let own = SetAttributes { uid: Some(BOB), ..SetAttributes::default() };
        source.set_attributes(&root(), &link, &own, false).expect("root may");
        assert_eq!(source.attributes(&link).map(|a| a.uid), Ok(BOB));
        let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        assert_eq!(source.set_attributes(&root(), &link, &mode, false), Err(errno(libc::EOPNOTSUPP)));
        source.link(&root(), &link, &source.root(), b"l2").expect("a link to the link itself");
        assert!(fs::symlink_metadata(export.path("l2")).expect("there").is_symlink());
        for (name, object, kind) in [
            (&b"p"[..], NewObject::Fifo, FileKind::Fifo),
            (b"s", NewObject::Socket, FileKind::Socket),
            (b"b", NewObject::BlockDevice { major: 240, minor: 1 }, FileKind::BlockDevice),
        ] {
            let made = source.make(&root(), &source.root(), name, &object, 0o640, &rest).expect("new");
            assert_eq!(made.kind(), kind);
            assert_eq!(source.attributes(&made).map(|a| a.mode), Ok(0o640));
            assert!(source.write(&root(), &made, 0, b"x", false).is_err(), "no data of a device is ever touched");
        }
    });
}

#[test]
fn hard_links_renames_and_removals() {
    on_each(|export| {
        let source = &export.source;
        let dir = source.root();
        let file = export.file(&root(), "a");
        source.link(&root(), &file, &dir, b"b").expect("same file system");
        assert_eq!(source.attributes(&file).map(|a| a.links), Ok(2));
        assert_eq!(source.rename(&root(), &dir, b"a", &dir, b"b"), Ok(None), "one object: nothing happens");
        assert!(export.path("a").exists() && export.path("b").exists());
        let other = export.file(&root(), "c");
        assert_eq!(source.rename(&root(), &dir, b"a", &dir, b"c"), Ok(Some(other.id())));
        assert_eq!(source.attributes(&other), Err(SourceError::Stale));
        assert_eq!(source.link(&root(), &dir, &dir, b"d"), Err(errno(libc::EISDIR)));
        fs::create_dir_all(export.path("d/e")).expect("new");
        assert_eq!(source.remove(&root(), &dir, b"d"), Err(errno(libc::ENOTEMPTY)));
        let d = source.lookup(&root(), &dir, b"d").expect("there");
        let e = source.lookup(&root(), &d, b"e").expect("there");
        assert_eq!(source.remove(&root(), &d, b"e"), Ok(e.id()));
        assert_eq!(source.attributes(&e), Err(SourceError::Stale));
        assert!(source.create(&root(), &e, b"x", 0o644, false, &SetAttributes::default()).is_err());
        assert_eq!(source.remove(&root(), &dir, b"nothing"), Err(errno(libc::ENOENT)));
        let (same, made) = source.create(&root(), &dir, b"b", 0o600, false, &SetAttributes::default()).expect("there");
        assert!(!made && same.id() == file.id());
        let taken = source.create(&root(), &dir, b"b", 0o600, true, &SetAttributes::default());
        assert_eq!(taken.map(|_| ()), Err(errno(libc::EEXIST)));
    });
}

#[test]
fn nobody_climbs_out_of_the_export() {
    on_each(|export| {
        let outside = tempfile::tempdir_in(export.directory.path().parent().expect("not /")).expect("temporary");
        open_to_all(outside.path());
        fs::create_dir_all(export.path("a/b/c")).expect("new");
        let source = &export.source;
        let at = |dir: &LocalFile, name: &[u8]| source.lookup(&root(), dir, name).expect("there");
        let a = at(&source.root(), b"a");
        let b = at(&a, b"b");
        let c = at(&b, b"c");
        let up = |dir: &LocalFile| source.parent(&user(ALICE, &[]), dir).map(|parent| parent.map(|dir| dir.id()));
        assert_eq!(up(&c), Ok(Some(b.id())));
        assert_eq!(up(&a), Ok(Some(source.root().id())));
        assert_eq!(up(&source.root()), Ok(None));
        fs::rename(export.path("a/b"), outside.path().join("b")).expect("same file system");
        assert_eq!(up(&c), Err(SourceError::Stale), "inside what was moved out");
        assert_eq!(up(&b), Err(SourceError::Stale), "where it was moved to");
        let restarted = LocalSource::open(export.directory.path(), LocalOptions::default()).expect("there");
        let b = restarted.resolve(b.fsid(), b.handle()).expect("it exists");
        assert_eq!(restarted.parent(&root(), &b).map(|_| ()), Err(SourceError::Stale));
        fs::rename(outside.path().join("b"), export.path("back")).expect("same file system");
        assert_eq!(up(&b), Ok(Some(source.root().id())));
    });
}

/// A name that is given to one file after the other never is without one, to whoever looks it up or lists.
#[test]
fn a_name_that_is_replaced_again_and_again_is_always_there() {
    on_each(|export| {
        let (stop, cred) = (std::sync::atomic::AtomicBool::new(false), root());
        std::fs::write(export.path("name"), "x").expect("a new file");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0.. {
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                    let fresh = export.path(&format!("fresh{number}"));
                    std::fs::write(&fresh, "x").expect("a new file");
                    std::fs::rename(fresh, export.path("name")).expect("within a directory");
                }
            });
            let end = std::time::Instant::now() + std::time::Duration::from_millis(700);
            while std::time::Instant::now() < end {
                let found = export.source.lookup(&cred, &export.source.root(), b"name");
                if found.is_err() {
                    stop.store(true, std::sync::atomic::Ordering::Relaxed);
                }
                assert!(found.is_ok(), "{found:?}");
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    });
}
