//! Names that are no names are refused by every operation that takes one, and no name leads out of an export (§14).

use std::os::unix::ffi::OsStrExt;

use forebay_proto::nfs4::{
    Attr, Op, Status, ops::create::CreateType, ops::open::CreateHow, ops::setxattr::SetXattrOption,
};

use crate::common::{Lab, done, ops::*, run, status};

type NameOp = fn(&[u8]) -> Op;

fn open_bytes(file: &[u8], how: Option<CreateHow>) -> Op {
    let Op::Open(mut args) = open("o", "x", READ, 0) else { unreachable!("an OPEN") };
    args.claim = forebay_proto::nfs4::ops::open::OpenClaim::Null(name(file));
    if let Some(how) = how {
        args.how = forebay_proto::nfs4::ops::open::OpenHow::Create(how);
    }
    Op::Open(args)
}

/// Every operation that takes a name, whether it makes one, and how it is told.
const OPERATIONS: &[(&str, bool, NameOp)] = &[
    ("LOOKUP", false, |file| lookup(file)),
    ("OPEN", false, |file| open_bytes(file, None)),
    ("REMOVE", false, |file| remove(file)),
    ("RENAME from", false, |file| rename(file, "new")),
    ("SECINFO", false, |file| secinfo(file)),
    ("RENAME to", true, |file| rename("there", file)),
    ("LINK", true, |file| link(file)),
    ("CREATE directory", true, |file| make(CreateType::Directory, file)),
    ("CREATE fifo", true, |file| make(CreateType::Fifo, file)),
    ("OPEN unchecked", true, |file| open_bytes(file, Some(CreateHow::Unchecked(fattr(&mode(0o600)))))),
    ("OPEN guarded", true, |file| open_bytes(file, Some(CreateHow::Guarded(fattr(&mode(0o600)))))),
    ("OPEN exclusive", true, |file| open_bytes(file, Some(CreateHow::Exclusive([1; 8])))),
];

#[tokio::test]
async fn what_is_no_name_is_refused_by_every_operation_that_takes_one() {
    let lab = Lab::default();
    std::fs::write(lab.path("there"), "").unwrap();
    std::fs::create_dir(lab.path("inside")).unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    let long = [b'a'; 256];
    let rows: [(&[u8], Status); 10] = [
        (b"", Status::Inval),
        (b".", Status::BadName),
        (b"..", Status::BadName),
        (b"a/b", Status::BadChar),
        (b"/", Status::BadChar),
        (b"../there", Status::BadChar),
        (b"a\0", Status::BadChar),
        (b"\0", Status::BadChar),
        (&long, Status::NameTooLong),
        (b"\xff\xfe\xc0\x80", Status::Inval),
    ];
    for &(operation, _, op) in OPERATIONS {
        for (bad, expected) in rows {
            // RENAME and LINK take a saved filehandle: the same directory, or the file that is to be linked.
            let saved = if operation == "LINK" { at("data/there") } else { at("data/inside") };
            let saved = if operation == "RENAME to" { at("data") } else { saved };
            let ops = saved.into_iter().chain([Op::SaveFh(())]).chain(at_then("data/inside", [op(bad)]));
            assert_eq!(status(&session, ops).await, expected, "{operation} of {:?}", bad.escape_ascii().to_string());
        }
    }
    assert_eq!(std::fs::read_dir(lab.path("inside")).unwrap().count(), 0);
    assert!(lab.path("there").exists());
}

#[tokio::test]
async fn names_of_255_bytes_and_of_any_language_are_names() {
    let lab = Lab::default();
    let running = lab.start().await;
    let session = running.client("a").await;
    let long = "ä".repeat(127) + "b";
    for file in [long.as_str(), "日本語", "...", "..a", " ", "a\nb", "*", "-rf", "COM1", "a\\b"] {
        assert_eq!(status(&session, at_then("data", [guarded("o", file)])).await, Status::Ok, "{file:?}");
        assert!(lab.path(file).exists(), "{file:?}");
        assert_eq!(status(&session, at_then("data", [lookup(file)])).await, Status::Ok);
        assert_eq!(status(&session, at_then("data", [remove(file)])).await, Status::Ok);
    }
}

#[tokio::test]
async fn a_file_with_a_name_that_is_not_utf8_can_be_seen_used_and_removed() {
    let lab = Lab::default();
    let raw = b"caf\xe9";
    let path = lab.path("").join(std::ffi::OsStr::from_bytes(raw));
    std::fs::write(&path, "latin").unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    let listed = value!(done(&session, at_then("data", [readdir(0, [0; 8], 4096, &[Attr::Size])])).await, ReadDir);
    assert!(listed.entries.iter().any(|entry| entry.name[..] == raw[..]), "{listed:?}");
    done(&session, at_then("data", [lookup(raw), getattr(&[Attr::Size])])).await;
    done(&session, at_then("data", [remove(raw)])).await;
    assert!(!path.exists());
}

/// The server follows no symbolic link, whatever it points to: it gives clients the text.
#[tokio::test]
async fn no_link_and_no_path_leads_out_of_the_export() {
    let lab = Lab::default();
    std::fs::write(lab.home().join("secret"), "outside").unwrap();
    let outside = lab.home().join("secret");
    let running = lab.start().await;
    let session = running.client("a").await;
    for (file, target) in [("up", "../secret"), ("absolute", outside.to_str().unwrap()), ("here", "."), ("above", "..")]
    {
        done(&session, at_then("data", [symlink(file, target)])).await;
        let linked = at(&format!("data/{file}"));
        let told = value!(done(&session, linked.clone().into_iter().chain([Op::ReadLink(())])).await, ReadLink);
        assert_eq!(&told.target[..], target.as_bytes());
        let anonymous = forebay_proto::nfs4::Stateid::ANONYMOUS;
        for (op, expected) in [
            (lookup("secret"), Status::Symlink),
            (lookup("data"), Status::Symlink),
            (Op::LookupP(()), Status::Symlink),
            (read(anonymous, 0, 10), Status::Symlink),
            (write(anonymous, 0, "x"), Status::Symlink),
            (setattr(anonymous, &size(0)), Status::Symlink),
            (readdir(0, [0; 8], 4096, &[]), Status::Symlink),
            (create("o", "x", READ), Status::Symlink),
            (open_fh("o", READ, 0), Status::Symlink),
        ] {
            let found = status(&session, linked.clone().into_iter().chain([op.clone()])).await;
            assert_eq!(found, expected, "{op:?} through {file}");
        }
        let by_name = run(&session, at_then("data", [open("o", file, READ, 0)])).await;
        assert_eq!(by_name.last().unwrap().status(), Status::Symlink);
        let through = status(&session, at_then("data", [create("o", file, WRITE)])).await;
        assert!(matches!(through, Status::Symlink | Status::Exist), "{file}: {through:?}");
        done(&session, linked.into_iter().chain([setattr(anonymous, &Default::default())])).await;
    }
    assert_eq!(std::fs::read(outside).unwrap(), b"outside");
}

#[tokio::test]
async fn above_an_exports_root_is_the_pseudo_file_system_and_above_that_nothing() {
    let lab = Lab::new(vec![("/a", crate::common::trusting()), ("/deep/b", crate::common::trusting())]);
    let running = lab.start().await;
    let session = running.client("a").await;
    let handle = |ops: Vec<Op>| async { value!(done(&session, ops.into_iter().chain([getfh()])).await, GetFh).handle };
    let root = handle(at("")).await;
    assert_eq!(handle(at_then("a", [Op::LookupP(())])).await, root);
    assert_eq!(handle(at_then("deep/b", [Op::LookupP(()), Op::LookupP(())])).await, root);
    assert_eq!(handle(at_then("deep/b", [Op::LookupP(())])).await, handle(at("deep")).await);
    assert_eq!(status(&session, at_then("", [Op::LookupP(())])).await, Status::NoEnt);
    std::fs::create_dir(lab.path("sub")).unwrap();
    assert_eq!(handle(at_then("a/sub", [Op::LookupP(())])).await, handle(at("a")).await);
}

#[tokio::test]
async fn xattr_names_are_judged_too() {
    let lab = Lab::default();
    std::fs::write(lab.path("file"), "").unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    let long = [b'x'; 251];
    let rows: [(&[u8], Status); 4] =
        [(b"", Status::Inval), (b"a\0b", Status::Inval), (b"\xff", Status::Inval), (&long, Status::NameTooLong)];
    for (bad, expected) in rows {
        for op in [setxattr(SetXattrOption::Either, bad, "v"), getxattr(bad), removexattr(bad)] {
            assert_eq!(status(&session, at_then("data/file", [op.clone()])).await, expected, "{op:?}");
        }
    }
}
