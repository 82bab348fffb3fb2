//! After a restart: who may reclaim, what waits meanwhile, and when it is over (§8.4.2, §18.51).

use std::time::Duration;

use forebay_node::client::{Session, SessionOptions};
use forebay_proto::nfs4::{FileHandle, LockType, Status};

use crate::common::{Lab, Running, done, ops::*, status};

/// A session that has not said RECLAIM_COMPLETE.
async fn returning(running: &Running, owner: &str, verifier: u8) -> Session {
    let options = running.options(owner, 0);
    let mut options = SessionOptions { reclaim_complete: false, ..options };
    options.verifier[0] = verifier;
    Session::open(&options).await.unwrap()
}

/// A client that made and opened a file; its session is gone, its handle is told.
async fn with_file(running: &Running, owner: &str, file: &str) -> FileHandle {
    let session = returning(running, owner, 1).await;
    done(&session, [reclaim_complete()]).await;
    let replies = done(&session, at_then("data", [create("o", file, BOTH), getfh()])).await;
    value!(replies, GetFh).handle
}

fn lock_again(open: forebay_proto::nfs4::Stateid, reclaim: bool) -> forebay_proto::nfs4::Op {
    lock_or_reclaim(open, "p", LockType::Write, 0, 10, reclaim)
}

#[tokio::test]
async fn opens_and_locks_are_reclaimed_while_others_wait_and_the_last_one_ends_it() {
    let lab = Lab::default();
    let running = lab.start().await;
    let (one, two) = (with_file(&running, "one", "1").await, with_file(&running, "two", "2").await);
    running.stop().await;

    let running = lab.start().await;
    assert!(running.server.in_grace());
    let (first, second) = (returning(&running, "one", 1).await, returning(&running, "two", 1).await);
    let stranger = running.client("stranger").await;
    for (ops, expected) in [
        (at_then("data", [create("o", "new", BOTH)]), Status::Grace),
        (at_then("data", [open("o", "1", READ, 0)]), Status::Grace),
        (vec![putfh(&one), open_fh("o", READ, 0)], Status::Grace),
        (vec![putfh(&one), lockt("p", LockType::Read, 0, 1)], Status::Grace),
        (vec![putfh(&one), reclaim("o", READ, 0)], Status::NoGrace),
        (vec![putfh(&one), read(forebay_proto::nfs4::Stateid::ANONYMOUS, 0, 1)], Status::Ok),
        (at_then("data", [getattr(&[])]), Status::Ok),
    ] {
        assert_eq!(status(&stranger, ops.clone()).await, expected, "a stranger's {ops:?}");
    }
    let opened = value!(done(&first, [putfh(&one), reclaim("o", BOTH, WRITE)]).await, Open).stateid;
    assert_eq!(status(&first, [putfh(&one), lock_again(opened, false)]).await, Status::Grace);
    assert_eq!(status(&first, [putfh(&one), lock_again(opened, true)]).await, Status::Ok);
    done(&first, [putfh(&one), write(opened, 0, "mine still")]).await;
    assert_eq!(status(&first, at_then("data", [open("o", "2", READ, 0)])).await, Status::Grace, "not yet complete");
    done(&first, [reclaim_complete()]).await;
    assert_eq!(status(&first, [putfh(&one), reclaim("o", BOTH, 0)]).await, Status::NoGrace);
    assert!(running.server.in_grace(), "the second client is still expected");
    done(&second, [putfh(&two), reclaim("o", BOTH, 0)]).await;
    done(&second, [reclaim_complete()]).await;
    assert!(!running.server.in_grace());
    assert_eq!(status(&stranger, at_then("data", [open("o", "1", WRITE, 0)])).await, Status::ShareDenied);
    assert_eq!(status(&stranger, at_then("data", [open("o", "1", READ, 0)])).await, Status::Ok);
    assert_eq!(status(&stranger, [putfh(&one), lockt("p", LockType::Read, 0, 1)]).await, Status::Denied);
}

#[tokio::test]
async fn who_is_not_on_record_or_was_itself_restarted_may_not_reclaim() {
    let lab = Lab::default();
    let running = lab.start().await;
    let handle = with_file(&running, "one", "1").await;
    running.stop().await;
    let running = lab.start().await;
    for (owner, verifier) in [("stranger", 1), ("one", 2)] {
        let session = returning(&running, owner, verifier).await;
        let found = status(&session, [putfh(&handle), reclaim("o", READ, 0)]).await;
        assert_eq!(found, Status::ReclaimBad, "{owner} {verifier}");
    }
}

#[tokio::test]
async fn without_clients_on_record_there_is_no_grace_and_nothing_to_reclaim() {
    let lab = Lab::default();
    let running = lab.start().await;
    let session = running.client("one").await;
    let replies = done(&session, at_then("data", [create("o", "1", BOTH), getfh()])).await;
    let (stateid, handle) = (value!(replies, Open).stateid, value!(replies, GetFh).handle);
    done(&session, at_then("data/1", [close(stateid)])).await;
    session.close().await.unwrap();
    running.stop().await;
    let running = lab.start().await;
    assert!(!running.server.in_grace());
    let session = returning(&running, "one", 1).await;
    assert_eq!(status(&session, [putfh(&handle), reclaim("o", READ, 0)]).await, Status::NoGrace);
}

#[tokio::test]
async fn who_does_not_come_in_time_has_lost_it_also_at_the_next_restart() {
    let lab = Lab::default().grace(Duration::from_millis(200));
    let running = lab.start().await;
    let handle = with_file(&running, "late", "1").await;
    running.stop().await;

    let running = lab.start().await;
    running.server.tick().await;
    assert!(running.server.in_grace(), "time is not up");
    tokio::time::sleep(Duration::from_millis(300)).await;
    running.server.tick().await;
    assert!(!running.server.in_grace());
    let other = running.client("other").await;
    done(&other, at_then("data", [open("o", "1", BOTH, 0)])).await;
    let late = returning(&running, "late", 1).await;
    assert_eq!(status(&late, [putfh(&handle), reclaim("o", READ, 0)]).await, Status::NoGrace);
    drop((other, late));
    running.stop().await;
}

#[tokio::test]
async fn a_restart_during_grace_lets_all_reclaim_who_could_before() {
    let lab = Lab::default();
    let running = lab.start().await;
    let (one, two) = (with_file(&running, "one", "1").await, with_file(&running, "two", "2").await);
    running.stop().await;
    let running = lab.start().await;
    let first = returning(&running, "one", 1).await;
    done(&first, [putfh(&one), reclaim("o", BOTH, 0), reclaim_complete()]).await;
    drop(first);
    running.stop().await;
    let running = lab.start().await;
    for (owner, handle) in [("one", &one), ("two", &two)] {
        let session = returning(&running, owner, 1).await;
        done(&session, [putfh(handle), reclaim("o", BOTH, 0), reclaim_complete()]).await;
    }
    assert!(!running.server.in_grace());
}
