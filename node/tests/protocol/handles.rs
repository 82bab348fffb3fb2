//! Filehandles: only what the server gave is one, for as long as the object is there (§4.2).

use bytes::Bytes;
use forebay_proto::nfs4::{Attr, Attributes, FileHandle, Status, attr::Principal};

#[path = "../properties/filehandle.rs"]
mod properties;

use crate::common::{Lab, done, ops::*, status, trusting};
use forebay_node::files::{ExportOptions, Squash};

#[tokio::test]
async fn a_handle_with_any_bit_changed_any_byte_cut_or_added_is_bad() {
    let lab = Lab::default();
    std::fs::write(lab.path("file"), "").unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    for path in ["", "data", "data/file"] {
        let handle = value!(done(&session, at_then(path, [getfh()])).await, GetFh).handle;
        let mut altered: Vec<Vec<u8>> = (0..handle.len() * 8)
            .map(|bit| {
                let mut bytes = handle.to_vec();
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes
            })
            .collect();
        altered.extend((0..handle.len()).map(|length| handle[..length].to_vec()));
        altered.push([&handle[..], &[0]].concat());
        altered.push(vec![0; 128]);
        for bytes in altered {
            let handle = FileHandle::new(Bytes::from(bytes)).unwrap();
            assert_eq!(status(&session, [putfh(&handle)]).await, Status::BadHandle, "{path}: {handle:?}");
        }
        assert_eq!(status(&session, [putfh(&handle), getattr(&[Attr::Type])]).await, Status::Ok);
    }
}

#[tokio::test]
async fn a_handle_outlives_renames_and_restarts_and_is_stale_when_its_file_is_gone() {
    let lab = Lab::default();
    std::fs::create_dir(lab.path("directory")).unwrap();
    std::fs::write(lab.path("file"), "same").unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    let handle = value!(done(&session, at_then("data/file", [getfh()])).await, GetFh).handle;
    std::fs::rename(lab.path("file"), lab.path("directory/moved")).unwrap();
    assert_eq!(status(&session, [putfh(&handle), getattr(&[Attr::Size])]).await, Status::Ok);
    drop(session);
    running.stop().await;
    let running = lab.start().await;
    let session = running.client("a").await;
    let replies = done(&session, [putfh(&handle), read(forebay_proto::nfs4::Stateid::ANONYMOUS, 0, 9)]).await;
    assert_eq!(&value!(replies, Read).data[..], b"same");
    done(&session, at_then("data/directory", [remove("moved")])).await;
    // A new file may well get the old one's inode; it is another object still.
    for number in 0..50 {
        std::fs::write(lab.path(&format!("new-{number}")), "new").unwrap();
    }
    assert_eq!(status(&session, [putfh(&handle), getattr(&[Attr::Size])]).await, Status::Stale);
    assert_eq!(status(&session, [putfh(&handle), open_fh("o", READ, 0)]).await, Status::Stale);
}

/// Two exports of one directory: a handle does what its own export allows, however it is come by.
#[tokio::test]
async fn a_handle_stays_bound_to_the_export_it_came_from() {
    let squashed = ExportOptions { squash: Squash::All, anonymous_uid: 4000, anonymous_gid: 4001, ..trusting() };
    let lab = Lab::new(vec![("/open", trusting()), ("/squashed", squashed)]);
    std::fs::set_permissions(lab.home().join("squashed"), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::write(lab.home().join("squashed/private"), "private").unwrap();
    std::fs::set_permissions(lab.home().join("squashed/private"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    let directory = value!(done(&session, at_then("squashed", [getfh()])).await, GetFh).handle;
    let private = value!(done(&session, at_then("squashed/private", [getfh()])).await, GetFh).handle;
    let anonymous = forebay_proto::nfs4::Stateid::ANONYMOUS;
    assert_eq!(
        status(&session, [putfh(&private), read(anonymous, 0, 9)]).await,
        Status::Access,
        "root is nobody there"
    );
    let ops =
        at_then("open", [putfh(&directory), create("o", "made", BOTH), getattr(&[Attr::Owner, Attr::OwnerGroup])]);
    let told = Attributes::from_fattr(&value!(done(&session, ops).await, GetAttr)).unwrap();
    assert_eq!((told.owner, told.owner_group), (Some(Principal::Id(4000)), Some(Principal::Id(4001))));
    // Nothing is moved or linked from one into the other.
    let save = [putfh(&private), forebay_proto::nfs4::Op::SaveFh(())];
    let into_open = save.into_iter().chain(at_then("open", [link("linked")]));
    assert_eq!(status(&session, into_open).await, Status::Xdev);
    let save = [putfh(&directory), forebay_proto::nfs4::Op::SaveFh(())];
    let into_open = save.into_iter().chain(at_then("open", [rename("private", "moved")]));
    assert_eq!(status(&session, into_open).await, Status::Xdev);
}

#[test]
fn any_bytes_are_refused_and_any_handle_comes_back() {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    for _ in 0..20_000 {
        let mut bytes = [0; 72];
        for byte in &mut bytes {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            *byte = random as u8;
        }
        properties::filehandle(&bytes[..random as usize % 73]);
    }
}

#[tokio::test]
async fn an_export_may_have_all_its_handles_in_the_table() {
    let tabled = ExportOptions { table_handles: true, ..trusting() };
    let lab = Lab::new(vec![("/data", tabled), ("/plain", trusting())]);
    std::fs::write(lab.path("file"), "same").unwrap();
    std::fs::write(lab.path("../plain/file"), "").unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    let handle = value!(done(&session, at_then("data/file", [getfh()])).await, GetFh).handle;
    let proposals = running.server.namespace.handle_proposals();
    assert!(proposals >= 1);
    // The root of an export, told by a listing of the pseudo directory above it.
    let page = readdir(0, [0; 8], 65_536, &[Attr::FileHandle]);
    let page = value!(done(&session, at_then("", [page])).await, ReadDir);
    for entry in &page.entries {
        let root = Attributes::from_fattr(&entry.attributes).unwrap().filehandle.unwrap();
        assert_eq!(status(&session, [putfh(&root), getattr(&[Attr::Type])]).await, Status::Ok);
    }
    let proposals = running.server.namespace.handle_proposals();
    let again = value!(done(&session, at_then("data/file", [getfh()])).await, GetFh).handle;
    assert_eq!((&again, running.server.namespace.handle_proposals()), (&handle, proposals), "known by now");
    done(&session, at_then("plain/file", [getfh()])).await;
    std::fs::rename(lab.path("file"), lab.path("moved")).unwrap();
    drop(session);
    running.stop().await;
    let running = lab.start().await;
    let session = running.client("a").await;
    let replies = done(&session, [putfh(&handle), read(forebay_proto::nfs4::Stateid::ANONYMOUS, 0, 9)]).await;
    assert_eq!(&value!(replies, Read).data[..], b"same");
}
