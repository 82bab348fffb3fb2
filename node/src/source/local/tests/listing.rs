//! READDIR while the directory changes.

use std::{
    collections::HashMap,
    fs,
    ops::ControlFlow,
    sync::atomic::{AtomicBool, Ordering},
};

use super::*;
use crate::source::{EntryObject, FileKind};

/// Lists from `cookie` in steps of `step`; names with their cookies, in order.
fn list(export: &Export, mut cookie: u64, step: usize, want_files: bool) -> Vec<(String, u64)> {
    let source = &export.source;
    let mut all = Vec::new();
    loop {
        let mut took = 0;
        let end = source.read_directory(&root(), &source.root(), cookie, usize::MAX, want_files, &mut |entry| {
            if took == step {
                return ControlFlow::Break(());
            }
            assert!(entry.cookie > 2);
            assert_eq!(entry.file.is_some(), want_files);
            if let Some(Ok(object)) = &entry.file {
                let kind = match object {
                    EntryObject::Open(file) => file.kind(),
                    EntryObject::Told { attributes, .. } => attributes.kind,
                };
                assert_eq!(Some(kind), entry.kind);
            }
            took += 1;
            cookie = entry.cookie;
            all.push((String::from_utf8(entry.name.to_vec()).expect("ours"), entry.cookie));
            ControlFlow::Continue(())
        });
        if end.expect("a directory") {
            return all;
        }
        assert!(took > 0, "a step makes progress");
    }
}

#[test]
fn ten_thousand_entries_are_seen_once_while_others_come_and_go() {
    for (parent, want_files) in [("/var/tmp", false), ("/dev/shm", false), ("/var/tmp", true)] {
        let export = export_at(parent, LocalOptions::default());
        for n in 0..10_000 {
            fs::write(export.path(&format!("stable{n}")), b"").expect("space");
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in (0..500).cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let path = export.path(&format!("moving{n}"));
                    if fs::remove_file(&path).is_err() {
                        fs::write(&path, b"").expect("space");
                    }
                }
            });
            for step in [7, 100, 1_000] {
                let mut counts: HashMap<String, u32> = HashMap::new();
                for (name, _) in list(&export, 0, step, want_files) {
                    *counts.entry(name).or_default() += 1;
                }
                let stable = (0..10_000).all(|n| counts.get(&format!("stable{n}")) == Some(&1));
                assert!(stable, "{parent} in steps of {step}");
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn a_listing_goes_on_from_any_cookie_also_after_a_restart() {
    on_each(|export| {
        for n in 0..2_000 {
            fs::write(export.path(&format!("f{n}")), b"").expect("space");
        }
        let all = list(export, 0, usize::MAX, false);
        assert_eq!(all.len(), 2_000);
        let restarted = LocalSource::open(export.directory.path(), LocalOptions::default()).expect("there");
        for start in [0, 1, 999, 1_500, 1_998, 1_999] {
            let rest = list(export, all[start].1, 33, false);
            assert_eq!(rest[..], all[start + 1..], "from {start}");
            let mut names = Vec::new();
            let root_dir = restarted.root();
            let end = restarted.read_directory(&root(), &root_dir, all[start].1, usize::MAX, false, &mut |entry| {
                names.push((String::from_utf8(entry.name.to_vec()).expect("ours"), entry.cookie));
                ControlFlow::Continue(())
            });
            assert_eq!(end, Ok(true));
            assert_eq!(names[..], all[start + 1..], "restarted, from {start}");
        }
        for cookie in [1, 2] {
            let bad = export
                .source
                .read_directory(&root(), &export.source.root(), cookie, 1, false, &mut |_| ControlFlow::Continue(()));
            assert_eq!(bad, Err(errno(libc::EINVAL)));
        }
        for cookie in [u64::MAX, 1 << 63, (1 << 63) + 2, 3] {
            let any = export
                .source
                .read_directory(&root(), &export.source.root(), cookie, 10, false, &mut |_| ControlFlow::Continue(()));
            assert!(!matches!(any, Err(SourceError::BadHandle)), "no panic: {any:?}");
        }
    });
}

#[test]
fn max_entries_and_empty_directories() {
    on_each(|export| {
        let source = &export.source;
        let mut count = 0;
        let mut counting = |_: crate::source::DirectoryEntry<_>| {
            count += 1;
            ControlFlow::Continue(())
        };
        assert_eq!(source.read_directory(&root(), &source.root(), 0, 10, true, &mut counting), Ok(true));
        for n in 0..5 {
            export.file(&root(), &format!("f{n}"));
        }
        assert_eq!(source.read_directory(&root(), &source.root(), 0, 3, true, &mut counting), Ok(false));
        assert_eq!(source.read_directory(&root(), &source.root(), 0, 0, true, &mut counting), Ok(false));
        assert_eq!(count, 3);
        let file = export.file(&root(), "x");
        assert_eq!(file.kind(), FileKind::Regular);
        let refused = source.read_directory(&root(), &file, 0, 1, false, &mut |_| ControlFlow::Continue(()));
        assert_eq!(refused, Err(errno(libc::ENOTDIR)));
    });
}

#[test]
fn handle_and_attributes_of_an_entry_are_of_one_object_while_names_change_places() {
    on_each(|export| {
        let source = &export.source;
        let path = export.directory.path();
        for name in ["a", "b"] {
            std::fs::write(path.join(name), name).expect("writable");
        }
        let over = std::sync::atomic::AtomicBool::new(false);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(relaxed) {
                    for (from, to) in [("a", "t"), ("b", "a"), ("t", "b")] {
                        std::fs::rename(path.join(from), path.join(to)).expect("there");
                    }
                    // Now and then the directory is quiet, and the quick way is taken.
                    std::thread::sleep(std::time::Duration::from_micros(300));
                }
            });
            let mut quick = 0;
            for _ in 0..4000 {
                source
                    .read_directory(&root(), &source.root(), 0, 10, true, &mut |entry| {
                        if let Some(Ok(EntryObject::Told { id, attributes })) = entry.file {
                            let file = source.resolve(id.fsid, &id.handle).expect("never removed");
                            let now = source.attributes(&file).expect("there");
                            assert_eq!((now.fileid, now.size), (attributes.fileid, attributes.size));
                            quick += 1;
                        }
                        ControlFlow::Continue(())
                    })
                    .expect("a directory");
            }
            over.store(true, relaxed);
            eprintln!("{quick} entries told without opening them");
        });
    });
}
