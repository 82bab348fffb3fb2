//! Permissions: operations are done as the caller (§4 of the design), data also by what was opened (§18.16.3).

use std::os::unix::fs::{PermissionsExt, chown};

use forebay_proto::nfs4::{Op, Stateid, Status, access as bits, ops::create::CreateType};

use crate::common::{Lab, credential, done, ops::*, run, status};

const OWNER: u32 = 1000;
const OTHER: u32 = 2000;

fn file(lab: &Lab, name: &str, mode: u32) {
    std::fs::write(lab.path(name), "content").unwrap();
    chown(lab.path(name), Some(OWNER), Some(OWNER)).unwrap();
    std::fs::set_permissions(lab.path(name), PermissionsExt::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn a_private_file_is_its_owners_alone() {
    let lab = Lab::default();
    file(&lab, "private", 0o600);
    let running = lab.start().await;
    let (its_owner, other) = (running.client_as("owner", OWNER).await, running.client_as("other", OTHER).await);
    let anonymous = Stateid::ANONYMOUS;
    for op in [
        read(anonymous, 0, 1),
        read(Stateid::READ_BYPASS, 0, 1),
        read_plus(anonymous, 0, 1),
        write(anonymous, 0, "x"),
        setattr(anonymous, &size(0)),
        allocate(anonymous, 0, 100),
        deallocate(anonymous, 0, 1),
        open_fh("o", READ, 0),
        open_fh("o", WRITE, 0),
        getxattr("x"),
    ] {
        assert_eq!(status(&other, at_then("data/private", [op.clone()])).await, Status::Access, "{op:?}");
    }
    for access in [READ, WRITE, BOTH] {
        assert_eq!(status(&other, at_then("data", [open("o", "private", access, 0)])).await, Status::Access);
        assert_eq!(status(&other, at_then("data", [create("o", "private", access)])).await, Status::Access);
        assert_eq!(status(&its_owner, at_then("data", [open("o", "private", access, 0)])).await, Status::Ok);
    }
    let asked = bits::READ | bits::MODIFY | bits::EXTEND | bits::EXECUTE;
    let granted =
        |session| async move { value!(done(session, at_then("data/private", [access(asked)])).await, Access).access };
    assert_eq!((granted(&its_owner).await, granted(&other).await), (bits::READ | bits::MODIFY | bits::EXTEND, 0));
    assert_eq!(std::fs::read(lab.path("private")).unwrap(), b"content");
}

#[tokio::test]
async fn another_users_call_with_ones_stateid_gets_what_that_user_may() {
    let lab = Lab::default();
    file(&lab, "private", 0o600);
    let running = lab.start().await;
    let session = running.client_as("owner", OWNER).await;
    let opened = value!(done(&session, at_then("data", [open("o", "private", BOTH, 0)])).await, Open).stateid;
    // The same session, another user: as when a program of another user gets hold of a client's stateid.
    let stranger = running.connection(OTHER).await;
    for (number, op) in (1..).zip([read(opened, 0, 1), write(opened, 0, "x"), setattr(opened, &size(0))]) {
        let ops: Vec<_> = std::iter::once(super::slots::sequence(session.id, 60, number, false))
            .chain(at_then("data/private", [op.clone()]))
            .collect();
        assert_eq!(stranger.compound(2, &ops).await.unwrap().0, Status::Access, "{op:?}");
    }
    assert_eq!(stranger.credential(), &credential(OTHER));
}

#[tokio::test]
async fn what_was_opened_stays_readable_and_writable_whatever_the_mode_becomes() {
    let lab = Lab::default();
    file(&lab, "file", 0o666);
    let running = lab.start().await;
    let other = running.client_as("other", OTHER).await;
    let opened = value!(done(&other, at_then("data", [open("o", "file", BOTH, 0)])).await, Open).stateid;
    std::fs::set_permissions(lab.path("file"), PermissionsExt::from_mode(0o600)).unwrap();
    for op in [read(opened, 0, 1), write(opened, 0, "x"), setattr(opened, &size(1))] {
        assert_eq!(status(&other, at_then("data/file", [op.clone()])).await, Status::Ok, "{op:?}");
    }
    assert_eq!(status(&other, at_then("data", [open("p", "file", READ, 0)])).await, Status::Access);
}

#[tokio::test]
async fn a_program_that_may_only_be_run_may_be_read_to_run_it() {
    let lab = Lab::default();
    file(&lab, "program", 0o711);
    let running = lab.start().await;
    let other = running.client_as("other", OTHER).await;
    let opened = value!(done(&other, at_then("data", [open("o", "program", READ, 0)])).await, Open).stateid;
    assert_eq!(status(&other, at_then("data/program", [read(opened, 0, 1)])).await, Status::Ok);
    assert_eq!(status(&other, at_then("data", [open("o", "program", WRITE, 0)])).await, Status::Access);
}

#[tokio::test]
async fn directories_are_searched_listed_and_changed_only_by_who_may() {
    let lab = Lab::default();
    std::fs::create_dir(lab.path("private")).unwrap();
    file(&lab, "private/file", 0o666);
    chown(lab.path("private"), Some(OWNER), Some(OWNER)).unwrap();
    let running = lab.start().await;
    let other = running.client_as("other", OTHER).await;
    // Mode; may look up, list, make.
    for (mode, may_search, may_list) in
        [(0o700, false, false), (0o711, true, false), (0o744, false, true), (0o755, true, true)]
    {
        std::fs::set_permissions(lab.path("private"), PermissionsExt::from_mode(mode)).unwrap();
        let verdict = |may: bool| if may { Status::Ok } else { Status::Access };
        let rows = [
            (lookup("file"), may_search),
            (open("o", "file", READ, 0), may_search),
            (readdir(0, [0; 8], 4096, &[]), may_list),
            (create("o", "new", READ), false),
            (make(CreateType::Directory, "new"), false),
            (symlink("new", "x"), false),
            (remove("file"), false),
        ];
        for (op, may) in rows {
            let found = status(&other, at_then("data/private", [op.clone()])).await;
            assert_eq!(found, verdict(may), "{mode:o} {op:?}");
        }
        let moved = at_then("data/private", [Op::SaveFh(()), rename("file", "new")]);
        assert_eq!(status(&other, moved).await, Status::Access, "{mode:o}");
    }
}

#[tokio::test]
async fn in_a_sticky_directory_others_files_stay() {
    let lab = Lab::default();
    std::fs::set_permissions(lab.path(""), PermissionsExt::from_mode(0o1777)).unwrap();
    file(&lab, "file", 0o666);
    let running = lab.start().await;
    let other = running.client_as("other", OTHER).await;
    let found = run(&other, at_then("data", [remove("file")])).await.pop().unwrap().status();
    assert!(matches!(found, Status::Perm | Status::Access), "{found:?}");
    assert!(lab.path("file").exists());
}
