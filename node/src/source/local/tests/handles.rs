//! Handles: identity through renames and restarts, staleness, forgery.

use std::fs;

use super::*;
use crate::source::{FileKind, SOURCE_HANDLE_MAX, SourceFsid, SourceHandle};

#[test]
fn a_rename_keeps_the_handle_and_a_restart_finds_it() {
    on_each(|export| {
        let source = &export.source;
        let file = export.file(&root(), "a");
        source.write(&root(), &file, 0, b"hello", true).expect("space");
        fs::create_dir(export.path("d")).expect("new");
        let d = source.lookup(&root(), &source.root(), b"d").expect("there");
        assert_eq!(source.rename(&root(), &source.root(), b"a", &d, b"b"), Ok(None));
        let found = source.lookup(&root(), &d, b"b").expect("renamed");
        assert_eq!(found.id(), file.id());

        let restarted = LocalSource::open(export.directory.path(), LocalOptions::default()).expect("still there");
        let again = restarted.resolve(file.fsid(), file.handle()).expect("same object");
        assert_eq!(again.kind(), FileKind::Regular);
        assert_eq!(restarted.attributes(&again).map(|a| a.size), Ok(5));
        assert!(restarted.resolve(source.root().fsid(), source.root().handle()).expect("root").is_root());
        let before = source.attributes(&source.root()).expect("root").fileid;
        assert_eq!(restarted.attributes(&restarted.root()).map(|a| a.fileid), Ok(before));
    });
}

#[test]
fn a_removed_file_is_stale_unless_pinned() {
    on_each(|export| {
        let source = &export.source;
        let gone = export.file(&root(), "gone");
        let id = source.remove(&root(), &source.root(), b"gone").expect("removable");
        assert_eq!(id, gone.id());
        assert_eq!(source.attributes(&gone), Err(SourceError::Stale));
        assert_eq!(source.resolve(id.fsid, &id.handle).map(|_| ()), Err(SourceError::Stale));

        let open = export.file(&root(), "open");
        open.pin();
        open.pin();
        source.write(&root(), &open, 0, b"kept", false).expect("space");
        source.remove(&root(), &source.root(), b"open").expect("removable");
        assert_eq!(export.read(&open), b"kept");
        assert_eq!(source.attributes(&open).map(|a| a.links), Ok(0));
        let again = source.resolve(open.fsid(), open.handle()).expect("pinned");
        open.unpin();
        assert_eq!(source.write(&root(), &again, 4, b"!", false), Ok(1));
        open.unpin();
        assert_eq!(source.attributes(&again), Err(SourceError::Stale));
        let (fsid, handle) = (open.fsid(), *open.handle());
        drop((open, again));
        assert_eq!(source.resolve(fsid, &handle).map(|_| ()), Err(SourceError::Stale));
    });
}

#[test]
fn files_deleted_behind_the_sources_back_are_let_go() {
    on_each(|export| {
        let file = export.file(&root(), "f");
        fs::remove_file(export.path("f")).expect("there");
        let (fsid, handle) = (file.fsid(), *file.handle());
        drop(file);
        assert_eq!(export.source.release_deleted(), 1);
        assert_eq!(export.source.resolve(fsid, &handle).map(|_| ()), Err(SourceError::Stale));
    });
}

#[test]
fn bad_handles_of_all_lengths_are_refused() {
    on_each(|export| {
        let file = export.file(&root(), "f");
        let good = file.handle().as_bytes();
        for len in 0..=SOURCE_HANDLE_MAX {
            for fill in [0_u8, 1, 0x81, 0xff] {
                let bytes = vec![fill; len];
                let handle = SourceHandle::new(&bytes).expect("fits");
                let result = export.source.resolve(file.fsid(), &handle);
                assert!(matches!(result, Err(SourceError::BadHandle | SourceError::Stale)), "{handle:?} {result:?}");
            }
            let mut bytes = good.to_vec();
            bytes.resize(len, 0);
            let handle = SourceHandle::new(&bytes).expect("fits");
            let result = export.source.resolve(file.fsid(), &handle);
            assert_eq!(result.is_ok(), len == good.len(), "{handle:?} {result:?}");
        }
        let result = export.source.resolve(SourceFsid(file.fsid().0 ^ 1), file.handle());
        assert_eq!(result.map(|_| ()), Err(SourceError::Stale));
    });
}

#[test]
fn few_descriptors_are_enough_for_many_files() {
    let export = export_at("/dev/shm", LocalOptions { max_open_files: Some(16), ..LocalOptions::default() });
    let files: Vec<_> = (0..200).map(|n| export.file(&root(), &format!("f{n}")).id()).collect();
    let open = fs::read_dir("/proc/self/fd").expect("proc");
    let ours = open
        .flatten()
        .filter(|entry| fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(export.directory.path())));
    let count = ours.count();
    assert!(count <= 40, "{count} descriptors for 200 files");
    for id in files {
        let file = export.source.resolve(id.fsid, &id.handle).expect("there");
        assert_eq!(export.source.attributes(&file).map(|a| a.size), Ok(0));
    }
    assert!(size_of::<LocalFile>() <= 350, "{}", size_of::<LocalFile>());
}

#[test]
fn opening_says_what_is_wrong() {
    let file = tempfile::NamedTempFile::new().expect("temporary");
    let error = LocalSource::open(file.path(), LocalOptions::default()).expect_err("a file").to_string();
    assert!(error.contains("not a directory"), "{error}");
    let error = LocalSource::open("/proc".as_ref(), LocalOptions::default()).expect_err("no handles").to_string();
    assert!(error.contains("handle"), "{error}");
    let error = LocalSource::open("/nowhere".as_ref(), LocalOptions::default()).expect_err("missing").to_string();
    assert!(error.contains("no such directory"), "{error}");
}
