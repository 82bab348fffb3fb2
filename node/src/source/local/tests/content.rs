//! Data, change attribute, holes, copies, extended attributes.

use std::{collections::HashSet, os::unix::fs::FileExt};

use bytes::Bytes;

use super::*;
use crate::source::{Advice, NewObject, SeekWhat, XattrSet};

#[test]
fn reads_and_writes_and_the_end_of_the_file() {
    on_each(|export| {
        let source = &export.source;
        let file = export.file(&root(), "f");
        let data: Vec<u8> = (0..300_000_u32).map(|n| n as u8).collect();
        assert_eq!(source.write(&root(), &file, 0, &data, false), Ok(data.len()));
        assert_eq!(source.write(&root(), &file, data.len() as u64, b"end", true), Ok(3));
        source.commit(&file).expect("a disk");
        source.commit(&source.root()).expect("a disk");
        let mut buffer = BytesMut::from(&b"before"[..]);
        for nowait in [false, true] {
            buffer.truncate(6);
            let read = source.read(&file, 10, 1000, &mut buffer, nowait);
            assert_eq!(read, Ok(ReadOutcome::Done { bytes: 1000, eof: false }), "just written: in memory");
            assert_eq!((&buffer[..6], &buffer[6..]), (&b"before"[..], &data[10..1010]));
            buffer.truncate(6);
            let read = source.read(&file, 300_000, 3, &mut buffer, nowait);
            assert_eq!(read, Ok(ReadOutcome::Done { bytes: 3, eof: true }));
            let read = source.read(&file, 299_999, 1000, &mut buffer, nowait);
            assert_eq!(read, Ok(ReadOutcome::Done { bytes: 4, eof: true }));
            for offset in [300_003, 1 << 40, i64::MAX as u64, u64::MAX] {
                let read = source.read(&file, offset, 1000, &mut buffer, nowait);
                assert_eq!(read, Ok(ReadOutcome::Done { bytes: 0, eof: true }), "{offset}");
            }
            let read = source.read(&file, 0, 0, &mut buffer, nowait);
            assert_eq!(read, Ok(ReadOutcome::Done { bytes: 0, eof: false }));
        }
        assert_eq!(source.write(&root(), &file, u64::MAX, b"x", false), Err(errno(libc::EFBIG)));
        assert_eq!(source.write(&root(), &file, i64::MAX as u64, b"x", false), Err(errno(libc::EFBIG)));
        assert_eq!(source.write(&root(), &file, 0, b"", true), Ok(0));
        assert_eq!(source.read(&source.root(), 0, 1, &mut buffer, false), Err(errno(libc::EISDIR)));
        source.space(&file).expect("a file system");
    });
}

#[test]
fn every_change_is_seen() {
    on_each(|export| {
        let source = &export.source;
        let file = export.file(&root(), "f");
        let mut seen = HashSet::new();
        for n in 0..1_000_u32 {
            source.write(&root(), &file, 0, &n.to_be_bytes(), false).expect("space");
            assert!(seen.insert(source.attributes(&file).expect("there").change), "write {n}");
        }
        let mut seen = HashSet::new();
        let change = || source.attributes(&source.root()).expect("there").change;
        for n in 0..300 {
            export.file(&root(), "new");
            assert!(seen.insert(change()), "create {n}");
            source.rename(&root(), &source.root(), b"new", &source.root(), b"newer").expect("there");
            assert!(seen.insert(change()), "rename {n}");
            source.remove(&root(), &source.root(), b"newer").expect("there");
            assert!(seen.insert(change()), "remove {n}");
        }
        let idle = source.attributes(&file).expect("there").change;
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert_eq!(source.attributes(&file).expect("there").change, idle, "no change, no new value");
        for change in [
            SetAttributes { mode: Some(0o600), ..SetAttributes::default() },
            SetAttributes { uid: Some(ALICE), ..SetAttributes::default() },
            SetAttributes { size: Some(1), ..SetAttributes::default() },
        ] {
            let before = source.attributes(&file).expect("there").change;
            source.set_attributes(&root(), &file, &change, false).expect("root may");
            assert_ne!(source.attributes(&file).expect("there").change, before, "{change:?}");
        }
        let before = source.attributes(&file).expect("there").change;
        source.xattr_set(&root(), &file, b"k", b"v", XattrSet::Either).expect("space");
        assert_ne!(source.attributes(&file).expect("there").change, before);
    });
}

#[test]
fn holes_space_and_copies() {
    on_each(|export| {
        let source = &export.source;
        let file = export.file(&root(), "sparse");
        source.write(&root(), &file, 1 << 20, &[7; 4096], false).expect("space");
        assert_eq!(source.seek(&file, 0, SeekWhat::Hole), Ok(Some(0)));
        assert_eq!(source.seek(&file, 0, SeekWhat::Data), Ok(Some(1 << 20)));
        assert_eq!(source.seek(&file, 1 << 20, SeekWhat::Hole), Ok(Some((1 << 20) + 4096)));
        assert_eq!(source.seek(&file, 1 << 30, SeekWhat::Data), Ok(None));
        assert_eq!(source.seek(&file, u64::MAX, SeekWhat::Hole), Ok(None));
        source.deallocate(&root(), &file, 1 << 20, 4096).expect("ext4 and tmpfs can");
        assert_eq!(source.seek(&file, 0, SeekWhat::Data), Ok(None));
        source.allocate(&root(), &file, 2 << 20, 8192).expect("ext4 and tmpfs can");
        assert_eq!(source.attributes(&file).map(|a| a.size), Ok((2 << 20) + 8192));
        assert!(source.allocate(&root(), &file, u64::MAX, 2).is_err());
        assert!(source.deallocate(&root(), &file, 0, 0).is_err());

        let from = export.file(&root(), "from");
        let data: Vec<u8> = (0..100_000_u32).map(|n| (n / 7) as u8).collect();
        source.write(&root(), &from, 0, &data, false).expect("space");
        let to = export.file(&user(ALICE, &[]), "to");
        assert_eq!(source.copy_range(&root(), &from, 10, &to, 5, u64::MAX), Err(errno(libc::EFBIG)).or(Ok(99_990)));
        let mut copied = vec![0; 99_990];
        std::fs::File::open(export.path("to")).and_then(|file| file.read_exact_at(&mut copied, 5)).expect("there");
        assert_eq!(copied, data[10..]);
        assert_eq!(source.copy_range(&root(), &from, 0, &from, 50, 100), Err(errno(libc::EINVAL)));
        assert_eq!(source.copy_range(&root(), &from, u64::MAX, &to, 0, 100), Ok(0));
        assert!(source.copy_range(&root(), &from, 0, &to, u64::MAX, 100).is_err());
        source.advise(&from, 0, u64::MAX, Advice::WillNeed).expect("never fails");
    });
}

#[test]
fn copies_between_file_systems_go_by_hand() {
    let disk = export_at("/var/tmp", LocalOptions::default());
    let memory = export_at("/dev/shm", LocalOptions::default());
    let from = disk.file(&root(), "from");
    disk.source.write(&root(), &from, 0, &[9; 3_000_000], false).expect("space");
    let to = memory.file(&root(), "to");
    assert_eq!(memory.source.copy_range(&root(), &from, 0, &to, 0, 3_000_000), Ok(3_000_000));
    assert_eq!(memory.source.attributes(&to).map(|a| a.size), Ok(3_000_000));
}

#[test]
fn extended_attributes_of_the_user_namespace() {
    on_each(|export| {
        let source = &export.source;
        let alice = user(ALICE, &[]);
        let rest = SetAttributes::default();
        let dir = source.make(&alice, &source.root(), b"d", &NewObject::Directory, 0o755, &rest).expect("new");
        for object in [export.file(&alice, "f"), dir] {
            assert_eq!(source.xattr_get(&alice, &object, b"k"), Err(errno(libc::ENODATA)));
            source.xattr_set(&alice, &object, b"k", b"value", XattrSet::Create).expect("own");
            let twice = source.xattr_set(&alice, &object, b"k", b"v", XattrSet::Create);
            assert_eq!(twice, Err(errno(libc::EEXIST)));
            let missing = source.xattr_set(&alice, &object, b"none", b"v", XattrSet::Replace);
            assert_eq!(missing, Err(errno(libc::ENODATA)));
            source.xattr_set(&alice, &object, b"big", &[1; 2_000], XattrSet::Either).expect("own");
            assert_eq!(source.xattr_get(&alice, &object, b"big").map(|value| value.len()), Ok(2_000));
            let mut names = source.xattr_list(&alice, &object).expect("own");
            names.sort();
            assert_eq!(names, [Bytes::from_static(b"big"), Bytes::from_static(b"k")]);
            let foreign = source.xattr_set(&user(BOB, &[]), &object, b"k", b"v", XattrSet::Either);
            assert_eq!(foreign, Err(errno(libc::EACCES)));
            source.xattr_remove(&alice, &object, b"k").expect("own");
            assert_eq!(source.xattr_get(&alice, &object, b"k"), Err(errno(libc::ENODATA)));
            for name in [&b""[..], b"a\0b"] {
                assert_eq!(source.xattr_get(&alice, &object, name), Err(errno(libc::EINVAL)));
            }
            assert!(source.xattr_get(&alice, &object, &[b'x'; 251]).is_err());
            assert!(source.xattr_set(&alice, &object, b"k", &vec![0; 65_537], XattrSet::Either).is_err());
        }
    });
}
