//! GETATTR, SETATTR, VERIFY (§5, §18.7, §18.30, §18.31).

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use forebay_proto::nfs4::{
    Attr, Attributes, Bitmap, NfsTime, Op, OpReply, Stateid, Status,
    attr::{Fattr, ModeMasked, Principal, SetTime},
    ops::{getattr::GetAttrArgs, verify::VerifyArgs},
};
use forebay_proto::xdr::{Opaque, Xdr};

use crate::common::{Lab, done, ops::*, run, status};

const NOBODY_IN_PARTICULAR: u32 = 1000;

fn set(attributes: Attributes) -> Vec<Op> {
    at_then("data/file", [setattr(Stateid::ANONYMOUS, &attributes)])
}

fn owner(owner: Principal) -> Attributes {
    Attributes { owner: Some(owner), ..Attributes::default() }
}

fn time(seconds: i64, nanoseconds: u32) -> Attributes {
    let time = SetTime::ClientTime(NfsTime { seconds, nanoseconds });
    Attributes { time_modify_set: Some(time), ..Attributes::default() }
}

#[tokio::test]
async fn what_may_be_set_is_set_and_told_and_what_may_not_is_refused() {
    let lab = Lab::default();
    std::fs::write(lab.path("file"), "content").unwrap();
    let running = lab.start().await;
    let root = running.client("root").await;
    let name = |name: &'static str| owner(Principal::Name(Opaque::new(name).unwrap()));
    let masked = |mode, mask| Attributes { mode_set_masked: Some(ModeMasked { mode, mask }), ..Attributes::default() };
    for (attributes, expected) in [
        (mode(0o4755), Status::Ok),
        (mode(0o10_000), Status::Inval),
        (masked(0o070, 0o077), Status::Ok),
        (Attributes { mode: Some(0), ..masked(0, 0) }, Status::Inval),
        (owner(Principal::Id(5)), Status::Ok),
        (owner(Principal::Id(u32::MAX)), Status::BadOwner),
        (name("root"), Status::BadOwner),
        (name("root@example.org"), Status::BadOwner),
        (time(86_400, 999_999_999), Status::Ok),
        (time(0, 1_000_000_000), Status::Inval),
        (size(3), Status::Ok),
        (size(u64::MAX), Status::Fbig),
        (Attributes { change: Some(1), ..Attributes::default() }, Status::Inval),
        (Attributes { fileid: Some(1), ..Attributes::default() }, Status::Inval),
        (Attributes { layout_block_size: Some(1), ..Attributes::default() }, Status::AttrNotSupp),
        (Attributes::default(), Status::Ok),
    ] {
        let replies = run(&root, set(attributes.clone())).await;
        let Some(OpReply::SetAttr(reply)) = replies.last() else { panic!("{replies:?}") };
        assert_eq!(reply.status, expected, "{attributes:?}");
        let told = if expected == Status::Ok { attributes.mask() } else { Bitmap::EMPTY };
        assert_eq!(reply.attributes_set, told, "{attributes:?}");
    }
    let found = std::fs::metadata(lab.path("file")).unwrap();
    assert_eq!((found.uid(), found.len(), found.mode() & 0o077), (5, 3, 0o070));
}

#[tokio::test]
async fn malformed_values_are_bad_xdr_and_bits_beyond_are_not_supported() {
    let lab = Lab::default();
    std::fs::write(lab.path("file"), "").unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    let raw = |mask, values: &'static [u8]| {
        let attributes = Fattr { mask, values: Opaque::new(values).unwrap() };
        Op::SetAttr(forebay_proto::nfs4::ops::setattr::SetAttrArgs { stateid: Stateid::ANONYMOUS, attributes })
    };
    let beyond = Bitmap::from_bytes([4, 0, 0, 0, 1].map(u32::to_be_bytes).concat().into()).unwrap();
    for (op, expected) in [
        (raw(Bitmap::of(&[Attr::Mode]), &[0, 0]), Status::BadXdr),
        (raw(Bitmap::of(&[Attr::Mode]), &[0, 0, 1, 0, 0, 0, 0, 0]), Status::BadXdr),
        (raw(Bitmap::EMPTY, &[0, 0, 1, 0]), Status::BadXdr),
        (raw(beyond, &[]), Status::AttrNotSupp),
    ] {
        assert_eq!(status(&session, at_then("data/file", [op.clone()])).await, expected, "{op:?}");
    }
    let ask = |attributes| at_then("data/file", [Op::GetAttr(GetAttrArgs { attributes })]);
    assert_eq!(status(&session, ask(Bitmap::of(&[Attr::TimeModifySet]))).await, Status::Inval);
    let told = value!(done(&session, ask(beyond.union(&Bitmap::of(&[Attr::Size])))).await, GetAttr);
    assert_eq!(told.mask, Bitmap::of(&[Attr::Size]), "what is unknown is left out");
}

#[tokio::test]
async fn only_the_owner_changes_mode_and_times_and_only_root_gives_files_away() {
    let lab = Lab::default();
    std::fs::write(lab.path("file"), "").unwrap();
    std::os::unix::fs::chown(lab.path("file"), Some(NOBODY_IN_PARTICULAR), Some(NOBODY_IN_PARTICULAR)).unwrap();
    std::fs::set_permissions(lab.path("file"), PermissionsExt::from_mode(0o666)).unwrap();
    let running = lab.start().await;
    let its_owner = running.client_as("owner", NOBODY_IN_PARTICULAR).await;
    let other = running.client_as("other", 2000).await;
    let group = |gid| Attributes { owner_group: Some(Principal::Id(gid)), ..Attributes::default() };
    let now = Attributes { time_modify_set: Some(SetTime::ServerTime), ..Attributes::default() };
    for (attributes, by_owner, by_other) in [
        (mode(0o666), Status::Ok, Status::Perm),
        (owner(Principal::Id(2000)), Status::Perm, Status::Perm),
        (group(0), Status::Perm, Status::Perm),
        (group(NOBODY_IN_PARTICULAR), Status::Ok, Status::Perm),
        (time(7, 0), Status::Ok, Status::Perm),
        // Whoever may write may say "now".
        (now, Status::Ok, Status::Ok),
        (size(1), Status::Ok, Status::Ok),
    ] {
        let found = (status(&its_owner, set(attributes.clone())).await, status(&other, set(attributes.clone())).await);
        assert_eq!(found, (by_owner, by_other), "{attributes:?}");
    }
    std::fs::set_permissions(lab.path("file"), PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(status(&other, set(size(0))).await, Status::Access);
}

#[tokio::test]
async fn a_size_is_set_by_an_open_for_writing_whatever_the_mode_is_by_now() {
    let lab = Lab::default();
    std::fs::set_permissions(lab.path(""), PermissionsExt::from_mode(0o777)).unwrap();
    let running = lab.start().await;
    let session = running.client_as("a", NOBODY_IN_PARTICULAR).await;
    let writer = value!(done(&session, at_then("data", [create("w", "file", BOTH)])).await, Open).stateid;
    let reader = value!(done(&session, at_then("data", [open("r", "file", READ, 0)])).await, Open).stateid;
    done(&session, set(mode(0o400))).await;
    let by = |stateid| at_then("data/file", [setattr(stateid, &size(9))]);
    assert_eq!(status(&session, by(writer)).await, Status::Ok);
    assert_eq!(status(&session, by(reader)).await, Status::OpenMode);
    assert_eq!(std::fs::metadata(lab.path("file")).unwrap().len(), 9);
    assert_eq!(status(&session, at_then("data", [setattr(Stateid::ANONYMOUS, &size(0))])).await, Status::IsDir);
}

#[tokio::test]
async fn a_write_or_truncation_by_another_takes_suid_and_sgid_away() {
    let lab = Lab::default();
    let running = lab.start().await;
    let other = running.client_as("other", 2000).await;
    for op in [write(Stateid::ANONYMOUS, 0, "x"), setattr(Stateid::ANONYMOUS, &size(1))] {
        std::fs::write(lab.path("file"), "content").unwrap();
        std::fs::set_permissions(lab.path("file"), PermissionsExt::from_mode(0o6777)).unwrap();
        done(&other, at_then("data/file", [op.clone()])).await;
        let left = std::fs::metadata(lab.path("file")).unwrap().mode() & 0o7777;
        assert_eq!(left, 0o777, "{op:?}");
    }
}

#[tokio::test]
async fn verify_and_nverify_compare_what_getattr_tells() {
    let lab = Lab::default();
    std::fs::write(lab.path("file"), "content").unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    let told = value!(done(&session, at_then("data/file", [getattr(&[Attr::Size, Attr::Change])])).await, GetAttr);
    let verify = |attributes: Fattr| Op::Verify(VerifyArgs { attributes });
    let nverify = |attributes: Fattr| Op::NVerify(VerifyArgs { attributes });
    let never = Fattr { mask: Bitmap::of(&[Attr::TimeModifySet]), values: Opaque::new(vec![0; 4]).unwrap() };
    let unserved = fattr(&Attributes { layout_block_size: Some(1), ..Attributes::default() });
    for (op, expected) in [
        (verify(told.clone()), Status::Ok),
        (nverify(told), Status::Same),
        (verify(fattr(&size(1))), Status::NotSame),
        (nverify(fattr(&size(1))), Status::Ok),
        (verify(never.clone()), Status::Inval),
        (nverify(never), Status::Inval),
        (verify(unserved), Status::AttrNotSupp),
    ] {
        assert_eq!(status(&session, at_then("data/file", [op.clone()])).await, expected, "{op:?}");
    }
}

/// Every attribute that is said to be supported has a value, on every kind of object; and the change attribute changes.
#[tokio::test]
async fn what_is_supported_is_told_and_change_changes() {
    let lab = Lab::default();
    std::fs::write(lab.path("file"), "content").unwrap();
    std::os::unix::fs::symlink("x", lab.path("link")).unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    let write_only = [Attr::TimeAccessSet, Attr::TimeModifySet, Attr::ModeSetMasked];
    for path in ["", "data", "data/file", "data/link"] {
        let told = value!(done(&session, at_then(path, [getattr(&[Attr::SupportedAttrs])])).await, GetAttr);
        let mut supported = Attributes::from_fattr(&told).unwrap().supported_attrs.unwrap();
        write_only.into_iter().for_each(|attr| supported.remove(attr));
        // Not every file system keeps the time of creation.
        supported.remove(Attr::TimeCreate);
        let ops = at_then(path, [Op::GetAttr(GetAttrArgs { attributes: supported })]);
        let told = value!(done(&session, ops).await, GetAttr);
        assert_eq!(told.mask, supported, "{path}");
    }
    let change = || async {
        let told = value!(done(&session, at_then("data/file", [getattr(&[Attr::Change])])).await, GetAttr);
        Attributes::from_fattr(&told).unwrap().change.unwrap()
    };
    let mut seen = vec![change().await];
    for op in [
        write(Stateid::ANONYMOUS, 0, "x"),
        write(Stateid::ANONYMOUS, 0, "x"),
        setattr(Stateid::ANONYMOUS, &mode(0o600)),
    ] {
        done(&session, at_then("data/file", [op.clone()])).await;
        let now = change().await;
        assert!(!seen.contains(&now), "{op:?}");
        seen.push(now);
    }
}
