//! Which stateid is good for what (§8.2, §18.38, §18.48).

use forebay_proto::nfs4::{LockType, Op, Stateid, Status};

use crate::common::{Lab, done, ops::*, run, status};

#[tokio::test]
async fn strange_old_and_future_stateids_are_told_apart() {
    let lab = Lab::default();
    let running = lab.start().await;
    let (one, other) = (running.client("one").await, running.client("other").await);
    let opened = |replies: &[_]| value!(replies, Open).stateid;
    done(&one, at_then("data", [create("o", "file", READ)])).await;
    let mine = opened(&done(&one, at_then("data", [create("o", "file", BOTH)])).await);
    let elsewhere = opened(&done(&one, at_then("data", [create("o", "elsewhere", BOTH)])).await);
    let theirs = opened(&done(&other, at_then("data", [create("o", "file", BOTH)])).await);
    let mut unknown = mine;
    unknown.other[11] ^= 1;
    let mut no_shard = mine;
    no_shard.other[0] = 255;
    let with_seqid = |seqid| Stateid { seqid, ..mine };
    let rows = [
        (mine, Status::Ok),
        (with_seqid(0), Status::Ok),
        (with_seqid(1), Status::OldStateid),
        (with_seqid(3), Status::BadStateid),
        (with_seqid(u32::MAX), Status::BadStateid),
        (elsewhere, Status::BadStateid),
        (theirs, Status::BadStateid),
        (unknown, Status::BadStateid),
        (no_shard, Status::BadStateid),
        (Stateid::INVALID, Status::BadStateid),
        (Stateid::CURRENT, Status::BadStateid),
    ];
    for (stateid, expected) in rows {
        for op in [
            read(stateid, 0, 1),
            write(stateid, 0, "x"),
            setattr(stateid, &size(1)),
            allocate(stateid, 0, 1),
            lock(stateid, "l", LockType::Read, 7, 1),
        ] {
            assert_eq!(status(&one, at_then("data/file", [op.clone()])).await, expected, "{op:?}");
        }
        assert_eq!(status(&one, at_then("data/file", [locku(stateid, 0, 1)])).await, Status::BadStateid, "no lock's");
        if expected != Status::Ok {
            for op in [close(stateid), downgrade(stateid, READ, 0)] {
                assert_eq!(status(&one, at_then("data/file", [op.clone()])).await, expected, "{op:?}");
            }
        }
    }
    for special in [Stateid::ANONYMOUS, Stateid::READ_BYPASS] {
        for op in [close(special), downgrade(special, READ, 0), lock(special, "l", LockType::Read, 0, 1)] {
            assert_eq!(status(&one, at_then("data/file", [op.clone()])).await, Status::BadStateid, "{op:?}");
        }
    }
}

#[tokio::test]
async fn a_stateid_of_an_earlier_start_is_bad_and_never_stale() {
    let lab = Lab::default();
    let running = lab.start().await;
    let session = running.client("a").await;
    let before = value!(done(&session, at_then("data", [create("o", "file", BOTH)])).await, Open).stateid;
    drop(session);
    running.stop().await;
    let running = lab.start().await;
    let session = running.client("a").await;
    assert_eq!(status(&session, at_then("data/file", [read(before, 0, 1)])).await, Status::BadStateid);
    assert_eq!(status(&session, at_then("data/file", [close(before)])).await, Status::BadStateid);
}

/// §16.2.3.1.2: what the current stateid is after each operation.
#[tokio::test]
async fn the_current_stateid_follows_the_current_filehandle() {
    let lab = Lab::default();
    std::fs::write(lab.path("other"), "other").unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    let now = Stateid::CURRENT;
    for (ops, expected) in [
        (vec![create("o", "file", BOTH), write(now, 0, "x"), read(now, 0, 1), close(now)], Status::Ok),
        (vec![create("o", "file", BOTH), close(now), read(now, 0, 1)], Status::BadStateid),
        (
            vec![create("o", "file", BOTH), Op::PutRootFh(()), lookup("data"), lookup("file"), read(now, 0, 1)],
            Status::BadStateid,
        ),
        (
            vec![create("o", "file", BOTH), Op::SaveFh(()), Op::PutRootFh(()), Op::RestoreFh(()), read(now, 0, 1)],
            Status::Ok,
        ),
        (
            vec![create("o", "file", BOTH), lock(now, "l", LockType::Write, 0, 9), read(now, 0, 1), locku(now, 0, 9)],
            Status::Ok,
        ),
        (vec![create("o", "file", BOTH), downgrade(now, BOTH, 0), write(now, 0, "x"), close(now)], Status::Ok),
        (vec![lookup("file"), read(now, 0, 1)], Status::BadStateid),
    ] {
        let replies = run(&session, at_then("data", ops.clone())).await;
        assert_eq!(replies.last().unwrap().status(), expected, "{ops:?}: {replies:?}");
    }
}

#[tokio::test]
async fn stateids_are_tested_and_lock_stateids_freed() {
    let lab = Lab::default();
    let running = lab.start().await;
    let (one, other) = (running.client("one").await, running.client("other").await);
    let open_one = value!(done(&one, at_then("data", [create("o", "file", BOTH)])).await, Open).stateid;
    let file = |op| at_then("data/file", [op]);
    let locked = value_of_lock(&done(&one, file(lock(open_one, "l", LockType::Write, 0, 5))).await);
    let unknown = Stateid { other: [3; 12], ..open_one };
    let asked = [open_one, locked, unknown, Stateid { seqid: 9, ..open_one }, Stateid::ANONYMOUS];
    let told = value!(done(&one, [test_stateids(&asked)]).await, TestStateid).statuses.to_vec();
    let expected = [Status::Ok, Status::Ok, Status::BadStateid, Status::BadStateid, Status::BadStateid];
    assert_eq!(told, expected);
    let theirs = value!(done(&other, [test_stateids(&[open_one])]).await, TestStateid).statuses.to_vec();
    assert_eq!(theirs, [Status::BadStateid], "another client's");
    assert_eq!(value!(done(&one, [test_stateids(&[])]).await, TestStateid).statuses.len(), 0);

    assert_eq!(status(&one, [free_stateid(open_one)]).await, Status::LocksHeld);
    assert_eq!(status(&one, [free_stateid(locked)]).await, Status::LocksHeld);
    assert_eq!(status(&one, [free_stateid(unknown)]).await, Status::BadStateid);
    assert_eq!(status(&other, [free_stateid(locked)]).await, Status::BadStateid);
    let unlocked = value!(done(&one, file(locku(locked, 0, 5))).await, LockU);
    assert_eq!(status(&one, [free_stateid(locked)]).await, Status::OldStateid);
    assert_eq!(status(&one, [free_stateid(unlocked)]).await, Status::Ok);
    assert_eq!(status(&one, [free_stateid(unlocked)]).await, Status::BadStateid);
    assert_eq!(status(&one, file(lock_more(unlocked, LockType::Write, 0, 5))).await, Status::BadStateid);
    assert_eq!(status(&one, file(read(open_one, 0, 1))).await, Status::Ok, "the open stays");
}

/// The stateid of a LOCK that was granted.
pub fn value_of_lock(replies: &[forebay_proto::nfs4::OpReply]) -> Stateid {
    match replies.last() {
        Some(forebay_proto::nfs4::OpReply::Lock(forebay_proto::nfs4::ops::lock::LockReply::Ok(stateid))) => *stateid,
        other => panic!("{other:?}"),
    }
}
