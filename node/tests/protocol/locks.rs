//! Byte-range locks (§9.1 to §9.5, §18.10 to §18.12).

use forebay_node::client::Session;
use forebay_proto::nfs4::{
    LockType, OpReply, Stateid, Status,
    ops::lock::{LockDenied, LockReply},
};

use super::stateids::value_of_lock;
use crate::common::{Lab, Running, done, ops::*, run, status};

const END: u64 = u64::MAX;

struct Two {
    _running: Running,
    one: Session,
    other: Session,
    open_one: Stateid,
    open_other: Stateid,
}

async fn two(lab: &Lab) -> Two {
    let running = lab.start().await;
    let (one, other) = (running.client("one").await, running.client("other").await);
    let open_one = value!(done(&one, at_then("data", [create("o", "file", BOTH)])).await, Open).stateid;
    let open_other = value!(done(&other, at_then("data", [create("o", "file", BOTH)])).await, Open).stateid;
    Two { _running: running, one, other, open_one, open_other }
}

fn file(op: forebay_proto::nfs4::Op) -> Vec<forebay_proto::nfs4::Op> {
    at_then("data/file", [op])
}

/// What is in the way of a lock of the whole file.
async fn in_the_way(session: &Session, who: &str) -> Option<LockDenied> {
    match run(session, file(lockt(who, LockType::Write, 0, END))).await.pop() {
        Some(OpReply::LockT(LockReply::Ok(()))) => None,
        Some(OpReply::LockT(LockReply::Denied(denied))) => Some(denied),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_denied_lock_tells_whose_lock_is_where() {
    let lab = Lab::default();
    let two = two(&lab).await;
    done(&two.one, file(lock(two.open_one, "holder", LockType::Write, 10, 20))).await;
    let denied = match run(&two.other, file(lock(two.open_other, "p", LockType::Read, 25, 100))).await.pop() {
        Some(OpReply::Lock(LockReply::Denied(denied))) => denied,
        other => panic!("{other:?}"),
    };
    assert_eq!((denied.offset, denied.length, denied.kind), (10, 20, LockType::Write));
    assert_eq!((denied.owner.clientid, &denied.owner.owner[..]), (two.one.clientid, &b"holder"[..]));
    assert_eq!(in_the_way(&two.other, "p").await, Some(denied));
    assert_eq!(in_the_way(&two.one, "holder").await, None, "one's own is not in the way");
    assert!(in_the_way(&two.one, "another").await.is_some(), "another owner's of the same client is");
}

#[tokio::test]
async fn readers_share_and_a_writer_is_alone() {
    let lab = Lab::default();
    let two = two(&lab).await;
    let mut next = 0;
    for (held, wanted, fits) in [
        (LockType::Read, LockType::Read, true),
        (LockType::ReadWait, LockType::ReadWait, true),
        (LockType::Read, LockType::Write, false),
        (LockType::Write, LockType::Read, false),
        (LockType::WriteWait, LockType::WriteWait, false),
    ] {
        next += 100;
        done(&two.one, file(lock(two.open_one, "a", held, next, 10))).await;
        let expected = if fits { Status::Ok } else { Status::Denied };
        for (offset, length, expected) in [
            (next, 10, expected),
            (next + 9, 1, expected),
            (next - 5, 6, expected),
            (next + 10, 5, Status::Ok),
            (next - 5, 5, Status::Ok),
        ] {
            let found = status(&two.other, file(lock(two.open_other, "b", wanted, offset, length))).await;
            assert_eq!(found, expected, "{held:?} {wanted:?} {offset} {length}");
        }
    }
}

/// POSIX semantics: an unlock in the middle leaves two ends, and neighbours become one again.
#[tokio::test]
async fn locks_split_and_merge() {
    let lab = Lab::default();
    let two = two(&lab).await;
    let stateid = value_of_lock(&done(&two.one, file(lock(two.open_one, "a", LockType::Write, 0, 100))).await);
    done(&two.one, file(locku(Stateid { seqid: 0, ..stateid }, 40, 20))).await;
    for (offset, length, expected) in [(0, 40, Status::Denied), (40, 20, Status::Ok), (60, 40, Status::Denied)] {
        let found = status(&two.other, file(lockt("b", LockType::Write, offset, length))).await;
        assert_eq!(found, expected, "{offset} {length}");
    }
    let latest = Stateid { seqid: 0, ..stateid };
    done(&two.one, file(lock_more(latest, LockType::Write, 40, 20))).await;
    let whole = in_the_way(&two.other, "b").await.unwrap();
    assert_eq!((whole.offset, whole.length), (0, 100));
    // Half of it becomes a read lock; the rest to the end of the file is added.
    done(&two.one, file(lock_more(latest, LockType::Read, 0, 50))).await;
    assert_eq!(status(&two.other, file(lockt("b", LockType::Read, 0, 50))).await, Status::Ok);
    assert_eq!(status(&two.other, file(lockt("b", LockType::Read, 0, 51))).await, Status::Denied);
    done(&two.one, file(lock_more(latest, LockType::Write, 50, END))).await;
    assert_eq!(status(&two.other, file(lockt("b", LockType::Read, END - 1, 1))).await, Status::Denied);
    done(&two.one, file(locku(latest, 0, END))).await;
    assert_eq!(in_the_way(&two.other, "b").await, None);
}

#[tokio::test]
async fn ranges_that_are_none_are_invalid() {
    let lab = Lab::default();
    let two = two(&lab).await;
    for (offset, length) in [(0, 0), (END, 0), (END, 2), (END - 1, 3), (5, END - 1)] {
        let name = format!("{offset} {length}");
        let by_lock = status(&two.one, file(lock(two.open_one, "a", LockType::Read, offset, length))).await;
        let by_test = status(&two.one, file(lockt("a", LockType::Read, offset, length))).await;
        assert_eq!((by_lock, by_test), (Status::Inval, Status::Inval), "{name}");
    }
    assert_eq!(status(&two.one, file(lock(two.open_one, "a", LockType::Read, END, END))).await, Status::Ok);
}

#[tokio::test]
async fn a_lock_needs_an_open_of_its_kind_and_a_file() {
    let lab = Lab::default();
    let two = two(&lab).await;
    let reader = value!(done(&two.one, at_then("data", [open("r", "file", READ, 0)])).await, Open).stateid;
    let writer = value!(done(&two.one, at_then("data", [open("w", "file", WRITE, 0)])).await, Open).stateid;
    assert_eq!(status(&two.one, file(lock(reader, "a", LockType::Write, 0, 1))).await, Status::OpenMode);
    assert_eq!(status(&two.one, file(lock(writer, "a", LockType::Read, 0, 1))).await, Status::OpenMode);
    let at_directory = at_then("data", [lockt("a", LockType::Read, 0, 1)]);
    assert_eq!(status(&two.one, at_directory).await, Status::IsDir);
    assert_eq!(status(&two.one, file(lock(two.open_other, "a", LockType::Read, 0, 1))).await, Status::BadStateid);
}

#[tokio::test]
async fn a_lock_stateid_counts_up_serves_io_and_goes_with_its_open() {
    let lab = Lab::default();
    let two = two(&lab).await;
    let first = value_of_lock(&done(&two.one, file(lock(two.open_one, "a", LockType::Write, 0, 1))).await);
    let second = value_of_lock(&done(&two.one, file(lock_more(first, LockType::Write, 5, 1))).await);
    assert_eq!((first.seqid, second.seqid, first.other), (1, 2, second.other));
    assert_ne!(first.other, two.open_one.other);
    assert_eq!(status(&two.one, file(lock_more(first, LockType::Write, 9, 1))).await, Status::OldStateid);
    done(&two.one, file(write(second, 0, "by the lock"))).await;
    done(&two.one, file(read(second, 0, 3))).await;
    done(&two.one, file(close(two.open_one))).await;
    assert_eq!(status(&two.one, file(read(second, 0, 3))).await, Status::BadStateid);
    assert_eq!(in_the_way(&two.other, "b").await, None);
}

#[tokio::test]
async fn a_lock_stateid_is_of_no_use_to_another_client() {
    let lab = Lab::default();
    let two = two(&lab).await;
    let locked = value_of_lock(&done(&two.one, file(lock(two.open_one, "a", LockType::Write, 0, 1))).await);
    for op in [
        read(locked, 0, 1),
        write(locked, 0, "x"),
        setattr(locked, &size(0)),
        lock_more(locked, LockType::Write, 5, 1),
        locku(locked, 0, 1),
        close(locked),
        free_stateid(locked),
    ] {
        assert_eq!(status(&two.other, file(op.clone())).await, Status::BadStateid, "{op:?}");
    }
    assert!(in_the_way(&two.other, "b").await.is_some(), "the lock is there still");
}
