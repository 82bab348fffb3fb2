//! Permissions are the caller's, and nobody else's.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
};

use super::*;
use crate::{
    source::local::Identity,
    source::{AccessMask, NewObject, SetTime, Time},
};

fn with_mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

#[test]
fn another_users_private_file_is_refused() {
    on_each(|export| {
        let source = &export.source;
        let alice = user(ALICE, &[]);
        let bob = user(BOB, &[]);
        let file = export.file(&alice, "private");
        source.set_attributes(&alice, &file, &with_mode(0o600), false).expect("own file");
        assert_eq!(source.access(&bob, &file), Ok(AccessMask::default()));
        let own = source.access(&alice, &file).expect("works");
        assert_eq!((own.read, own.write, own.execute), (true, true, false));
        let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
        assert_eq!(source.set_attributes(&bob, &file, &cut, false), Err(errno(libc::EACCES)));
        assert_eq!(source.set_attributes(&bob, &file, &with_mode(0o666), false), Err(errno(libc::EPERM)));
        let give = SetAttributes { uid: Some(BOB), ..SetAttributes::default() };
        assert_eq!(source.set_attributes(&alice, &file, &give, false), Err(errno(libc::EPERM)));
        assert_eq!(source.xattr_get(&bob, &file, b"x"), Err(errno(libc::EACCES)));
        assert_eq!(source.xattr_list(&bob, &file), Err(errno(libc::EACCES)));

        fs::create_dir(export.path("locked")).expect("new");
        fs::set_permissions(export.path("locked"), fs::Permissions::from_mode(0o700)).expect("own");
        fs::write(export.path("locked/f"), b"").expect("new");
        let locked = source.lookup(&bob, &source.root(), b"locked").expect("its parent is open to all");
        assert_eq!(source.lookup(&bob, &locked, b"f").map(|_| ()), Err(errno(libc::EACCES)));
        source.lookup(&root(), &locked, b"f").expect("root may");
        assert_eq!(source.lookup(&bob, &locked, b"f").map(|_| ()), Err(errno(libc::EACCES)), "cached or not");
        let rest = SetAttributes::default();
        assert!(source.create(&bob, &locked, b"g", 0o644, false, &rest).is_err());
        assert!(source.remove(&bob, &locked, b"f").is_err());
        assert!(source.rename(&bob, &locked, b"f", &source.root(), b"f").is_err());
        assert!(source.link(&bob, &file, &locked, b"l").is_err());
        let listed = source.read_directory(&bob, &locked, 0, 10, true, &mut |_| panic!("nothing to see"));
        assert_eq!(listed, Err(errno(libc::EACCES)));
        let device = NewObject::CharDevice { major: 1, minor: 3 };
        assert_eq!(
            source.make(&bob, &source.root(), b"null", &device, 0o666, &rest).map(|_| ()),
            Err(errno(libc::EPERM))
        );
    });
}

/// What the kernel says, asked as the caller.
fn kernel_access(cred: &Credentials, file: &LocalFile) -> AccessMask {
    let _as_caller = Identity::assume(cred).expect("root may");
    let may = |mode| crate::source::local::sys::effective_access(file.as_fd(), mode).is_ok();
    AccessMask { read: may(libc::R_OK), write: may(libc::W_OK), execute: may(libc::X_OK) }
}

#[test]
fn what_is_decided_here_is_what_the_kernel_says() {
    on_each(|export| {
        let source = &export.source;
        let rest = SetAttributes::default();
        let dir = source.make(&root(), &source.root(), b"d", &NewObject::Directory, 0o755, &rest).expect("new");
        let callers = [
            user(ALICE, &[]),
            user(BOB, &[]),
            user(BOB, &[ALICE]),
            user(BOB, &[1, 2, 3]),
            Credentials { uid: BOB, gid: ALICE, groups: Arc::from([9]) },
            user(0, &[7]),
            root(),
        ];
        let check = |file: &LocalFile, what: &str| {
            for cred in &callers {
                let expected = kernel_access(cred, file);
                assert_eq!(source.access(cred, file), Ok(expected), "{what} {cred:?}");
                if file.kind() == crate::source::FileKind::Directory {
                    let refused = source.lookup(cred, file, b"missing").map(|_| ()).expect_err("missing");
                    let expected = if expected.execute { libc::ENOENT } else { libc::EACCES };
                    assert_eq!(refused, errno(expected), "{what} {cred:?}");
                }
            }
        };
        for file in [export.file(&root(), "f"), dir] {
            let own = SetAttributes { uid: Some(ALICE), gid: Some(ALICE), ..SetAttributes::default() };
            source.set_attributes(&root(), &file, &own, false).expect("root may");
            for mode in (0..0o1000).step_by(13).chain([0o070, 0o007, 0o700, 0o705]) {
                source.set_attributes(&root(), &file, &with_mode(mode), false).expect("root may");
                check(&file, "changed");
                if mode % 5 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(25));
                    check(&file, "settled");
                    check(&file, "known");
                }
            }
            // user::rwx, user:BOB:---, group::r-x, mask::rwx, other::rwx
            let entry = |tag: u16, perm: u16, id: u32| {
                [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
            };
            let none = u32::MAX;
            let acl = [
                2_u32.to_le_bytes().to_vec(),
                entry(1, 7, none),
                entry(2, 0, BOB),
                entry(4, 5, none),
                entry(16, 7, none),
                entry(32, 7, none),
            ]
            .concat();
            let name = if file.kind() == crate::source::FileKind::Directory { "d" } else { "f" };
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(export.path(name), "system.posix_acl_access", &acl, flags).expect("ACLs work here");
            check(&file, "ACL");
            std::thread::sleep(std::time::Duration::from_millis(25));
            check(&file, "settled ACL");
            assert_eq!(source.access(&callers[1], &file), Ok(AccessMask::default()));
        }
    });
}

#[test]
fn supplementary_groups_count_and_do_not_stay() {
    on_each(|export| {
        let source = &export.source;
        let file = export.file(&root(), "team");
        let set = SetAttributes { gid: Some(777), mode: Some(0o060), ..SetAttributes::default() };
        source.set_attributes(&root(), &file, &set, false).expect("root may");
        for _ in 0..3 {
            let member = source.access(&user(ALICE, &[5, 777]), &file).expect("works");
            assert!(member.read && member.write && !member.execute);
            assert_eq!(source.access(&user(ALICE, &[5]), &file), Ok(AccessMask::default()));
            assert_eq!(source.access(&user(ALICE, &[]), &file), Ok(AccessMask::default()));
        }
    });
}

#[test]
fn a_write_clears_suid_unless_root_writes() {
    on_each(|export| {
        let source = &export.source;
        let alice = user(ALICE, &[]);
        let file = export.file(&alice, "tool");
        source.set_attributes(&alice, &file, &with_mode(0o6777), false).expect("own");
        source.write(&root(), &file, 0, b"x", false).expect("space");
        assert_eq!(source.attributes(&file).map(|a| a.mode), Ok(0o6777));
        source.write(&user(BOB, &[]), &file, 0, b"y", false).expect("space");
        assert_eq!(source.attributes(&file).map(|a| a.mode), Ok(0o777));
    });
}

#[test]
fn an_open_for_write_outlives_the_mode() {
    on_each(|export| {
        let source = &export.source;
        let alice = user(ALICE, &[]);
        let file = export.file(&alice, "log");
        source.write(&alice, &file, 0, b"0123456789", false).expect("space");
        source.set_attributes(&alice, &file, &with_mode(0o444), false).expect("own");
        let cut = SetAttributes { size: Some(4), ..SetAttributes::default() };
        assert_eq!(source.set_attributes(&alice, &file, &cut, false), Err(errno(libc::EACCES)));
        source.set_attributes(&alice, &file, &cut, true).expect("open for write");
        assert_eq!(source.attributes(&file).map(|a| a.size), Ok(4));
        let huge = SetAttributes { size: Some(u64::MAX), ..SetAttributes::default() };
        assert_eq!(source.set_attributes(&alice, &file, &huge, true), Err(errno(libc::EFBIG)));
    });
}

#[test]
fn times_modes_and_owners_are_set_as_asked() {
    on_each(|export| {
        let source = &export.source;
        let alice = user(ALICE, &[44]);
        let rest = SetAttributes { gid: Some(44), ..SetAttributes::default() };
        let (file, made) = source.create(&alice, &source.root(), b"f", 0o666, true, &rest).expect("new");
        let attributes = source.attributes(&file).expect("there");
        assert!(made);
        assert_eq!((attributes.mode, attributes.uid, attributes.gid), (0o666, ALICE, 44), "whatever the umask");
        let rest = SetAttributes { uid: Some(BOB), ..SetAttributes::default() };
        let (tool, _) = source.create(&root(), &source.root(), b"tool", 0o4755, true, &rest).expect("root may");
        assert_eq!(source.attributes(&tool).map(|a| (a.mode, a.uid)), Ok((0o4755, BOB)));
        let time = Time { seconds: -5, nanoseconds: 7 };
        let set = SetAttributes { modified: Some(SetTime::To(time)), ..SetAttributes::default() };
        source.set_attributes(&alice, &file, &set, false).expect("own");
        assert_eq!(source.attributes(&file).map(|a| a.modified), Ok(time));
        assert_eq!(source.set_attributes(&user(BOB, &[]), &file, &set, false), Err(errno(libc::EPERM)));
        let now = SetAttributes { modified: Some(SetTime::Now), ..SetAttributes::default() };
        source.set_attributes(&user(BOB, &[]), &file, &now, false).expect("who may write may touch");
        assert!(source.attributes(&file).expect("there").modified > time);
        let bad = SetTime::To(Time { seconds: 0, nanoseconds: u32::MAX });
        let bad = SetAttributes { accessed: Some(bad), uid: None, ..SetAttributes::default() };
        assert_eq!(source.set_attributes(&alice, &file, &bad, false), Err(errno(libc::EINVAL)));
        let nobody = SetAttributes { uid: Some(u32::MAX), ..SetAttributes::default() };
        assert_eq!(source.set_attributes(&root(), &file, &nobody, false), Err(errno(libc::EINVAL)));
        let refused = SetAttributes { uid: Some(BOB), ..SetAttributes::default() };
        assert!(source.create(&alice, &source.root(), b"g", 0o644, true, &refused).is_err());
        assert!(!export.path("g").exists(), "a file that could not be finished is taken back");
        let sub = source.make(&alice, &source.root(), b"s", &NewObject::Directory, 0o3775, &SetAttributes::default());
        assert_eq!(sub.and_then(|sub| source.attributes(&sub)).map(|a| a.mode), Ok(0o3775));
    });
}

#[test]
fn one_identity_at_a_time_and_root_again_after() {
    let alice = user(ALICE, &[3]);
    {
        let _identity = Identity::assume(&alice).expect("root may");
        assert!(Identity::assume(&root()).is_err());
        assert!(Identity::assume(&alice).is_err());
    }
    let unwound = std::panic::catch_unwind(|| {
        let _identity = Identity::assume(&user(ALICE, &[])).expect("root may");
        panic!("on purpose");
    });
    assert!(unwound.is_err());
    let status = fs::read_to_string("/proc/thread-self/status").expect("proc");
    let fsuid = status.lines().find(|line| line.starts_with("Uid:")).and_then(|line| line.split_whitespace().last());
    assert_eq!(fsuid, Some("0"));
    assert!(Identity::assume(&user(u32::MAX, &[])).is_err());
}

#[test]
fn threads_never_leak_an_identity() {
    for parent in ["/var/tmp", "/dev/shm"] {
        let export = export_at(parent, LocalOptions::default());
        std::thread::scope(|scope| {
            for thread in 0..8_u32 {
                let export = &export;
                scope.spawn(move || {
                    for round in 0..250_u32 {
                        let uid = if (thread + round) % 5 == 0 { 0 } else { 20_000 + (thread * 31 + round) % 17 };
                        let cred = user(uid, &[30_000 + uid]);
                        let file = export.file(&cred, &format!("{uid}-{thread}-{round}"));
                        export.source.write(&cred, &file, 0, b"x", false).expect("space");
                        let _refused = export.source.remove(&cred, &export.source.root(), b"nothing");
                        let _refused =
                            export.source.set_attributes(&cred, &export.source.root(), &with_mode(0o777), false);
                    }
                });
            }
        });
        let mut count = 0;
        for entry in fs::read_dir(export.directory.path()).expect("there").flatten() {
            let name = entry.file_name().into_string().expect("ours");
            let uid: u32 = name.split('-').next().and_then(|uid| uid.parse().ok()).expect("ours");
            let metadata = entry.metadata().expect("there");
            assert_eq!((metadata.uid(), metadata.gid()), (uid, uid), "{name}");
            count += 1;
        }
        assert_eq!(count, 2_000);
    }
}
