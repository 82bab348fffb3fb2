//! File systems mounted below the export, in a mount namespace of the test's own.

use std::{fs, ops::ControlFlow, os::unix::fs::MetadataExt};

use rustix::mount::{MountFlags, MountPropagationFlags};

use super::*;
use crate::source::EntryObject;

#[test]
fn mounts_are_crossed_and_found_again_after_a_restart() {
    std::thread::spawn(|| {
        // SAFETY: only this thread leaves the namespace, and it ends with the test.
        if unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_FS) } != 0 {
            eprintln!("skipped: mount namespaces are not allowed here");
            return;
        }
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", private).expect("own namespace");
        for parent in ["/var/tmp", "/dev/shm"] {
            cross(parent);
        }
    })
    .join()
    .expect("the test");
}

fn mount_tmpfs(path: &std::path::Path) {
    rustix::mount::mount("forebay-test", path, "tmpfs", MountFlags::empty(), c"mode=0777").expect("own namespace");
}

fn cross(parent: &str) {
    let export = export_at(parent, LocalOptions::default());
    let source = &export.source;
    fs::create_dir_all(export.path("d/mnt")).expect("new");
    let covered = fs::metadata(export.path("d/mnt")).expect("there").ino();
    let d = source.lookup(&root(), &source.root(), b"d").expect("there");
    let under = source.lookup(&root(), &d, b"mnt").expect("there");
    mount_tmpfs(&export.path("d/mnt"));
    fs::write(export.path("d/mnt/inside"), b"tmpfs").expect("space");
    fs::create_dir(export.path("d/mnt/sub")).expect("space");
    mount_tmpfs(&export.path("d/mnt/sub"));
    fs::write(export.path("d/mnt/sub/deep"), b"").expect("space");

    let mounted = source.lookup(&root(), &d, b"mnt").expect("crossed");
    assert_ne!(mounted.fsid(), d.fsid());
    let attributes = source.attributes(&mounted).expect("there");
    assert_eq!(attributes.mounted_on_fileid, covered);
    assert_ne!(attributes.fileid, covered);
    assert_eq!(source.attributes(&under).map(|a| a.fileid), Ok(covered), "what is covered keeps its handle");
    let inside = source.lookup(&user(ALICE, &[]), &mounted, b"inside").expect("there");
    assert_eq!(export.read(&inside), b"tmpfs");
    let sub = source.lookup(&root(), &mounted, b"sub").expect("crossed");
    let deep = source.lookup(&root(), &sub, b"deep").expect("there");
    let up = |dir: &LocalFile| source.parent(&root(), dir).map(|parent| parent.map(|dir| dir.id()));
    assert_eq!(up(&sub), Ok(Some(mounted.id())));
    assert_eq!(up(&mounted), Ok(Some(d.id())));
    let moved = source.rename(&root(), &mounted, b"inside", &d, b"x");
    assert_eq!(moved, Err(errno(libc::EXDEV)));
    assert_eq!(source.remove(&root(), &d, b"mnt"), Err(errno(libc::EBUSY)));

    let mut fileids = Vec::new();
    let listed = source.read_directory(&root(), &d, 0, 10, true, &mut |entry| {
        let EntryObject::Open(file) = entry.file.expect("asked for").expect("there") else {
            panic!("a mount point is another file system's: it has to be opened");
        };
        fileids.push((entry.fileid, file.id()));
        ControlFlow::Continue(())
    });
    assert_eq!((listed, fileids), (Ok(true), vec![(covered, mounted.id())]));

    let restarted = LocalSource::open(export.directory.path(), LocalOptions::default()).expect("there");
    for file in [&inside, &deep, &mounted, &sub] {
        let again = restarted.resolve(file.fsid(), file.handle()).expect("found below the export");
        assert_eq!(again.id(), file.id());
        // Not all of them: within a clock tick the change attribute may differ, since another change could be hidden.
        let told = |source: &LocalSource, file: &LocalFile| {
            source.attributes(file).map(|a| (a.fileid, a.mounted_on_fileid, a.kind, a.size, a.changed))
        };
        assert_eq!(told(&restarted, &again), told(source, file));
    }
    // Mounted after the first scan, and only ever named by its handle.
    fs::create_dir(export.path("late")).expect("new");
    mount_tmpfs(&export.path("late"));
    let late = source.lookup(&root(), &source.root(), b"late").expect("crossed").id();
    restarted.resolve(late.fsid, &late.handle).expect("the mount table has changed");
}
