//! What an export's options allow: read-only, client networks, squashing.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use forebay_node::files::{ExportOptions, Squash};
use forebay_proto::nfs4::{
    Attr, Attributes, Op, Stateid, Status, access as bits, attr::Principal, ops::create::CreateType,
    ops::setxattr::SetXattrOption,
};

use crate::common::{Lab, done, ops::*, status, trusting};

#[tokio::test]
async fn a_read_only_export_refuses_every_change() {
    let lab = Lab::new(vec![("/ro", ExportOptions { read_only: true, ..trusting() }), ("/rw", trusting())]);
    std::fs::write(lab.path("file"), "content").unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    let anonymous = Stateid::ANONYMOUS;
    let in_directory = [
        remove("file"),
        make(CreateType::Directory, "new"),
        symlink("new", "x"),
        create("o", "new", READ),
        create("o", "file", READ),
        exclusive("o", "new", [1; 8]),
        open("o", "file", WRITE, 0),
        open("o", "file", BOTH, 0),
        setattr(anonymous, &mode(0o777)),
        setxattr(SetXattrOption::Either, "x", "y"),
    ];
    for op in in_directory {
        assert_eq!(status(&session, at_then("ro", [op.clone()])).await, Status::Rofs, "{op:?}");
    }
    let on_file = [
        write(anonymous, 0, "x"),
        setattr(anonymous, &size(0)),
        setattr(anonymous, &Attributes { owner: Some(Principal::Id(1)), ..Attributes::default() }),
        setxattr(SetXattrOption::Either, "x", "y"),
        removexattr("x"),
        allocate(anonymous, 0, 9),
        deallocate(anonymous, 0, 9),
        open_fh("o", WRITE, 0),
    ];
    for op in on_file {
        assert_eq!(status(&session, at_then("ro/file", [op.clone()])).await, Status::Rofs, "{op:?}");
    }
    let saved = |path, op| at_then(path, [Op::SaveFh(())]).into_iter().chain(at_then("ro", [op]));
    assert_eq!(status(&session, saved("ro", rename("file", "new"))).await, Status::Rofs);
    assert_eq!(status(&session, saved("ro/file", link("new"))).await, Status::Rofs);
    let copied = at_then("ro/file", [Op::SaveFh(()), copy((anonymous, 0), (anonymous, 0), 1)]);
    assert_eq!(status(&session, copied).await, Status::Rofs);
    let granted = value!(done(&session, at_then("ro/file", [access(0x3f)])).await, Access).access;
    assert_eq!(granted & (bits::MODIFY | bits::EXTEND | bits::DELETE), 0);
    assert_eq!(status(&session, at_then("ro", [open("o", "file", READ, 0)])).await, Status::Ok);
    // The pseudo file system is always so.
    for op in [remove("ro"), make(CreateType::Directory, "new"), create("o", "new", BOTH), setattr(anonymous, &mode(0))]
    {
        assert_eq!(status(&session, at_then("", [op.clone()])).await, Status::Rofs, "{op:?}");
    }
    assert_eq!(std::fs::read(lab.path("file")).unwrap(), b"content");
    assert_eq!(std::fs::read_dir(lab.path("")).unwrap().count(), 1);
}

/// A client outside the export's networks does not see it, nor anything through a handle that another told it.
#[tokio::test]
async fn an_export_for_other_networks_is_not_there() {
    let seen = Lab::new(vec![("/data", ExportOptions { clients: vec!["127.0.0.0/8".parse().unwrap()], ..trusting() })]);
    let running = seen.start().await;
    let session = running.client("a").await;
    let handle = value!(done(&session, at_then("data", [getfh()])).await, GetFh).handle;
    drop((session, running));
    let elsewhere = ExportOptions { clients: vec!["192.0.2.0/24".parse().unwrap()], ..trusting() };
    let hidden = Lab::new(vec![("/data", elsewhere)]);
    let running = hidden.start().await;
    let session = running.client("a").await;
    assert_eq!(status(&session, at("data")).await, Status::NoEnt);
    let told = status(&session, [putfh(&handle), getattr(&[Attr::Size])]).await;
    assert!(matches!(told, Status::Access | Status::Stale), "{told:?}");
}

#[tokio::test]
async fn squashing_decides_whose_files_are_made() {
    let anonymous = ExportOptions { anonymous_uid: 4000, anonymous_gid: 4001, ..trusting() };
    let rows = [
        ("/none", Squash::None, (0, 0), (1000, 1000)),
        ("/root", Squash::Root, (4000, 4001), (1000, 1000)),
        ("/all", Squash::All, (4000, 4001), (4000, 4001)),
    ];
    let exports = rows.map(|(name, squash, ..)| (name, ExportOptions { squash, ..anonymous.clone() })).to_vec();
    let lab = Lab::new(exports);
    let running = lab.start().await;
    let (root, user) = (running.client_as("root", 0).await, running.client_as("user", 1000).await);
    for (name, _, by_root, by_user) in rows {
        let directory = lab.home().join(&name[1..]);
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o777)).unwrap();
        for (session, file, expected) in [(&root, "root", by_root), (&user, "user", by_user)] {
            done(session, at_then(name, [create("o", file, BOTH)])).await;
            done(session, at_then(name, [make(CreateType::Directory, format!("{file}-dir"))])).await;
            for made in [file.to_owned(), format!("{file}-dir")] {
                let found = std::fs::metadata(directory.join(&made)).unwrap();
                assert_eq!((found.uid(), found.gid()), expected, "{name} {made}");
            }
        }
    }
    // Who is nobody cannot make devices, nor give files away.
    let device = || make(CreateType::CharDevice(forebay_proto::nfs4::DeviceNumbers { major: 1, minor: 3 }), "null");
    assert_eq!(status(&root, at_then("root", [device()])).await, Status::Perm);
    assert_eq!(status(&user, at_then("none", [device()])).await, Status::Perm);
    assert_eq!(status(&root, at_then("none", [device()])).await, Status::Ok);
    let away = setattr(Stateid::ANONYMOUS, &Attributes { owner: Some(Principal::Id(1)), ..Attributes::default() });
    assert_eq!(status(&root, at_then("root/root", [away])).await, Status::Perm);
}
