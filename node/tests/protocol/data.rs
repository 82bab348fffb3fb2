//! READ, WRITE, COMMIT and 4.2's holes, space, copies and xattrs (RFC 7862 §15, RFC 8276 §8.4).

use forebay_proto::nfs4::{
    Op, OpReply, StableHow, Stateid, Status,
    ops::{
        commit::CommitArgs,
        copy::CopyReply,
        read_plus::ReadPlusContent,
        seek::SeekContent,
        setxattr::SetXattrOption::{self, Create, Either, Replace},
    },
};

use crate::common::{Lab, done, ops::*, run, status};

const ANONYMOUS: Stateid = Stateid::ANONYMOUS;
const MEGABYTE: u64 = 1 << 20;

#[tokio::test]
async fn what_is_written_is_read_and_the_end_is_told() {
    let lab = Lab::default();
    let running = lab.start().await;
    let session = running.client("a").await;
    let stateid = value!(done(&session, at_then("data", [create("o", "file", BOTH)])).await, Open).stateid;
    let at_file = |op| at_then("data/file", [op]);
    let written = value!(done(&session, at_file(write(stateid, 5, "hello"))).await, Write);
    let committed = Op::Commit(CommitArgs { offset: 0, count: 0 });
    assert_eq!(value!(done(&session, at_file(committed)).await, Commit), written.verifier);
    for (offset, count, expected, eof) in [
        (0, 100, &b"\0\0\0\0\0hello"[..], true),
        (0, 5, b"\0\0\0\0\0", false),
        (5, 5, b"hello", true),
        (5, 4, b"hell", false),
        (10, 1, b"", true),
        (u64::MAX, 1, b"", true),
        (3, 0, b"", false),
    ] {
        let found = value!(done(&session, at_file(read(stateid, offset, count))).await, Read);
        assert_eq!((&found.data[..], found.eof), (expected, eof), "{offset} {count}");
    }
    for (op, expected) in [
        (write(stateid, u64::MAX, "x"), Status::Inval),
        (write(stateid, i64::MAX as u64, "x"), Status::Fbig),
        (write(stateid, 0, ""), Status::Ok),
        (Op::Commit(CommitArgs { offset: u64::MAX, count: 1 }), Status::Inval),
    ] {
        assert_eq!(status(&session, at_file(op.clone())).await, expected, "{op:?}");
    }
    for op in [read(ANONYMOUS, 0, 1), write(ANONYMOUS, 0, "x"), Op::Commit(CommitArgs { offset: 0, count: 0 })] {
        assert_eq!(status(&session, at_then("data", [op.clone()])).await, Status::IsDir, "{op:?}");
    }
}

/// A file of a megabyte of data, a megabyte of hole, and a megabyte of data again.
async fn sparse(lab: &Lab) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(lab.path("sparse")).unwrap();
    let data = vec![7; MEGABYTE as usize];
    file.write_all_at(&data, 0).unwrap();
    file.write_all_at(&data, 2 * MEGABYTE).unwrap();
}

#[tokio::test]
async fn seek_finds_data_and_holes() {
    let lab = Lab::default();
    sparse(&lab).await;
    let running = lab.start().await;
    let session = running.client("a").await;
    let size = 3 * MEGABYTE;
    for (offset, what, expected) in [
        (0, SeekContent::Data, Ok((0, false))),
        (0, SeekContent::Hole, Ok((MEGABYTE, false))),
        (MEGABYTE, SeekContent::Data, Ok((2 * MEGABYTE, false))),
        (MEGABYTE + 5, SeekContent::Hole, Ok((MEGABYTE + 5, false))),
        (2 * MEGABYTE, SeekContent::Hole, Ok((size, true))),
        (size, SeekContent::Data, Err(Status::Nxio)),
        (size, SeekContent::Hole, Err(Status::Nxio)),
        (u64::MAX, SeekContent::Data, Err(Status::Nxio)),
    ] {
        let replies = run(&session, at_then("data/sparse", [seek(ANONYMOUS, offset, what)])).await;
        let Some(OpReply::Seek(found)) = replies.last() else { panic!("{replies:?}") };
        assert_eq!(found.clone().map(|found| (found.offset, found.eof)), expected, "{offset} {what:?}");
    }
}

#[tokio::test]
async fn read_plus_tells_holes_and_sends_data() {
    let lab = Lab::default();
    sparse(&lab).await;
    let running = lab.start().await;
    let session = running.client("a").await;
    let (mut at, mut data, mut holes) = (0, 0, 0);
    loop {
        let found = value!(done(&session, at_then("data/sparse", [read_plus(ANONYMOUS, at, 1 << 19)])).await, ReadPlus);
        for piece in found.contents.iter() {
            match piece {
                ReadPlusContent::Data(piece) => {
                    assert!(piece.offset == at && piece.data.iter().all(|byte| *byte == 7));
                    data += piece.data.len() as u64;
                    at += piece.data.len() as u64;
                }
                ReadPlusContent::Hole(hole) => {
                    assert_eq!(hole.offset, at);
                    holes += hole.length;
                    at += hole.length;
                }
            }
        }
        if found.eof {
            break;
        }
        assert!(!found.contents.is_empty(), "progress");
    }
    assert_eq!((at, data, holes), (3 * MEGABYTE, 2 * MEGABYTE, MEGABYTE));
}

#[tokio::test]
async fn space_is_allocated_and_given_back() {
    use std::os::unix::fs::MetadataExt;
    let lab = Lab::default();
    let running = lab.start().await;
    let session = running.client("a").await;
    let stateid = value!(done(&session, at_then("data", [create("o", "file", BOTH)])).await, Open).stateid;
    let reader = value!(done(&session, at_then("data", [open("r", "file", READ, 0)])).await, Open).stateid;
    let at_file = |op| at_then("data/file", [op]);
    done(&session, at_file(allocate(stateid, 0, MEGABYTE))).await;
    let found = || std::fs::metadata(lab.path("file")).map(|found| (found.len(), found.blocks() * 512)).unwrap();
    assert!(found().0 == MEGABYTE && found().1 >= MEGABYTE, "{:?}", found());
    done(&session, at_file(write(stateid, 0, vec![1; 4096]))).await;
    done(&session, at_file(deallocate(stateid, 0, MEGABYTE))).await;
    assert!(found().0 == MEGABYTE && found().1 < MEGABYTE, "{:?}", found());
    assert!(std::fs::read(lab.path("file")).unwrap().iter().all(|byte| *byte == 0));
    for (op, expected) in [
        (allocate(reader, 0, 1), Status::OpenMode),
        (deallocate(reader, 0, 1), Status::OpenMode),
        (allocate(stateid, u64::MAX, 2), Status::Inval),
        (allocate(stateid, i64::MAX as u64, 2), Status::Fbig),
    ] {
        assert_eq!(status(&session, at_file(op.clone())).await, expected, "{op:?}");
    }
}

#[tokio::test]
async fn copy_copies_ranges_within_the_server() {
    let lab = Lab::default();
    std::fs::write(lab.path("from"), (0..100_000_u32).flat_map(u32::to_be_bytes).collect::<Vec<_>>()).unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    let from = value!(done(&session, at_then("data", [open("o", "from", READ, 0)])).await, Open).stateid;
    let to = value!(done(&session, at_then("data", [create("o", "to", BOTH)])).await, Open).stateid;
    let copied = |from, to, count| {
        at_then("data/from", [Op::SaveFh(())]).into_iter().chain(at_then("data/to", [copy(from, to, count)]))
    };
    for (source, target, count, expected) in [
        (0, 0, 0, Ok(400_000)),
        (4, 400_000, 8, Ok(8)),
        (400_000, 0, 0, Ok(0)),
        (0, 0, 400_001, Err(Status::Inval)),
        (400_001, 0, 1, Err(Status::Inval)),
        (u64::MAX, 0, 2, Err(Status::Inval)),
        (0, u64::MAX, 2, Err(Status::Inval)),
        (0, i64::MAX as u64, 4, Err(Status::Fbig)),
    ] {
        let replies = run(&session, copied((from, source), (to, target), count)).await;
        let found = match replies.last() {
            Some(OpReply::Copy(CopyReply::Ok(done))) => {
                // A client that finds another verifier at COMMIT copies again, for ever.
                let commit = Op::Commit(CommitArgs { offset: 0, count: 0 });
                let committed = value!(crate::common::done(&session, at_then("data/to", [commit])).await, Commit);
                let unstable = done.response.committed == StableHow::Unstable;
                assert!(!unstable || done.response.verifier == committed);
                assert!(unstable || done.response.count == 0);
                Ok(done.response.count)
            }
            Some(OpReply::Copy(failed)) => Err(failed.status()),
            other => panic!("{other:?}"),
        };
        assert_eq!(found, expected, "{source} {target} {count}");
    }
    let (source, copy_of) = (std::fs::read(lab.path("from")).unwrap(), std::fs::read(lab.path("to")).unwrap());
    assert!(copy_of[..400_000] == source[..] && copy_of[400_000..] == source[4..12]);
    let onto_itself = |target| at_then("data/from", [Op::SaveFh(()), copy((from, 0), (ANONYMOUS, target), 100)]);
    assert_eq!(status(&session, onto_itself(50)).await, Status::Inval, "the ranges overlap");
    assert_eq!(status(&session, copied((from, 0), (from, 0), 1)).await, Status::BadStateid);
}

#[tokio::test]
async fn xattrs_are_set_listed_and_removed_as_asked() {
    let lab = Lab::default();
    std::fs::write(lab.path("file"), "").unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    let at_file = |op| at_then("data/file", [op]);
    let set = |option: SetXattrOption, value: &'static str| at_file(setxattr(option, "one", value));
    for (ops, expected) in [
        (at_file(getxattr("one")), Status::NoXattr),
        (set(Replace, "x"), Status::NoXattr),
        (set(Create, "first"), Status::Ok),
        (set(Create, "x"), Status::Exist),
        (set(Replace, "second"), Status::Ok),
        (set(Either, "third"), Status::Ok),
        (at_file(removexattr("two")), Status::NoXattr),
        (at_file(setxattr(Either, "big", vec![0; 70_000])), Status::Xattr2Big),
        (at_then("", [getxattr("one")]), Status::NoXattr),
        (at_then("", [setxattr(Either, "one", "x")]), Status::Rofs),
    ] {
        assert_eq!(status(&session, ops.clone()).await, expected, "{ops:?}");
    }
    assert_eq!(&value!(done(&session, at_file(getxattr("one"))).await, GetXattr).value[..], b"third");
    for number in 0..40 {
        done(&session, at_file(setxattr(Create, format!("name-{number:02}"), "v"))).await;
    }
    let (mut cookie, mut names) = (0, Vec::new());
    loop {
        let listed = value!(done(&session, at_file(listxattrs(cookie, 120))).await, ListXattrs);
        names.extend(listed.names.iter().map(|name| name.to_vec()));
        cookie = listed.cookie;
        if listed.eof {
            break;
        }
    }
    let mut expected: Vec<_> = (0..40).map(|number| format!("name-{number:02}").into_bytes()).collect();
    expected.push(b"one".to_vec());
    names.sort();
    assert_eq!(names, expected);
    assert_eq!(status(&session, at_file(listxattrs(0, 20))).await, Status::TooSmall);
    assert_eq!(status(&session, at_file(listxattrs(10_000, 4096))).await, Status::BadCookie);
    done(&session, at_file(removexattr("one"))).await;
    assert_eq!(status(&session, at_file(getxattr("one"))).await, Status::NoXattr);
}
