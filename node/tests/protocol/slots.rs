//! SEQUENCE: of all calls with one session, slot and sequence, one runs (§2.10.6, §18.46).

use bytes::Bytes;
use forebay_node::client::{Connection, Session, compound_record};
use forebay_proto::nfs4::{Op, OpReply, SessionId, Status, ops::sequence::SequenceArgs};

use crate::common::{Lab, ops::*};

pub fn sequence(session: SessionId, slot: u32, sequence: u32, cache_this: bool) -> Op {
    Op::Sequence(SequenceArgs { session, sequence, slot, highest_slot: slot, cache_this })
}

/// The whole reply record of a call that was sent as it is.
async fn bytes(connection: &Connection, xid: u32, ops: &[Op]) -> Bytes {
    connection.raw(compound_record(xid, connection.credential(), 2, ops)).await.unwrap()
}

async fn status(connection: &Connection, ops: &[Op]) -> Status {
    connection.compound(2, ops).await.unwrap().0
}

fn call(session: &Session, slot: u32, number: u32, cache: bool, ops: Vec<Op>) -> Vec<Op> {
    std::iter::once(sequence(session.id, slot, number, cache)).chain(ops).collect()
}

#[tokio::test]
async fn a_replay_gets_the_very_bytes_also_of_a_failure_and_under_another_xid() {
    let lab = Lab::default();
    let running = lab.start().await;
    let session = running.client("a").await;
    let connection = &session.connection;
    let rows = [
        at_then("data", [guarded("o", "one"), getfh()]),
        at_then("data", [remove("nothing")]),
        at_then("data", [remove("one")]),
        vec![getfh()],
        vec![Op::PutRootFh(()), lookup("..")],
    ];
    for (row, ops) in (0..).zip(rows) {
        let ops = call(&session, 5, row + 1, true, ops);
        let first = bytes(connection, 900 + row, &ops).await;
        assert_eq!(bytes(connection, 900 + row, &ops).await, first);
        let again = bytes(connection, 7000, &ops).await;
        assert_eq!((&again[..4], &again[4..]), (&7000_u32.to_be_bytes()[..], &first[4..]), "row {row}");
    }
    assert!(!lab.path("one").exists());
}

#[tokio::test]
async fn a_replay_over_another_connection_of_the_session_is_answered_too() {
    let running = Lab::default().start().await;
    let session = running.client("a").await;
    let other = running.connection(0).await;
    let ops = call(&session, 3, 1, true, at_then("data", [guarded("o", "one")]));
    let first = bytes(&session.connection, 77, &ops).await;
    assert_eq!(bytes(&other, 77, &ops).await, first);
    let next = call(&session, 3, 2, false, at("data"));
    assert_eq!(status(&other, &next).await, Status::Ok, "the session's slots are not a connection's");
}

#[tokio::test]
async fn sequences_slots_and_sessions_that_are_wrong_are_told_apart() {
    let running = Lab::default().start().await;
    let session = running.client("a").await;
    let connection = &session.connection;
    let (last, unknown) = (session.fore.max_requests - 1, SessionId([9; 16]));
    let with = |slot, sequence, highest_slot| {
        vec![Op::Sequence(SequenceArgs { session: session.id, sequence, slot, highest_slot, cache_this: false })]
    };
    for (ops, expected) in [
        (with(1, 0, 1), Status::SeqMisordered),
        (with(1, 2, 1), Status::SeqMisordered),
        (with(1, 1, 1), Status::Ok),
        (with(1, 3, 1), Status::SeqMisordered),
        (with(1, 0, 1), Status::SeqMisordered),
        (with(1, u32::MAX, 1), Status::SeqMisordered),
        (with(1, 2, 1), Status::Ok),
        (with(1, 1, 1), Status::SeqMisordered),
        (with(last + 1, 1, last), Status::BadSlot),
        (with(u32::MAX, 1, last), Status::BadSlot),
        (with(2, 1, last + 1), Status::BadHighSlot),
        (with(last, 1, last), Status::Ok),
        (vec![sequence(unknown, 0, 1, false)], Status::BadSession),
    ] {
        assert_eq!(status(connection, &ops).await, expected, "{ops:?}");
    }
}

#[tokio::test]
async fn a_reply_that_was_not_to_be_kept_cannot_be_repeated() {
    let lab = Lab::default();
    let running = lab.start().await;
    let session = running.client("a").await;
    let ops = call(&session, 2, 1, false, at_then("data", [guarded("o", "one")]));
    assert_eq!(status(&session.connection, &ops).await, Status::Ok);
    std::fs::remove_file(lab.path("one")).unwrap();
    assert_eq!(status(&session.connection, &ops).await, Status::RetryUncachedRep);
    assert!(!lab.path("one").exists(), "it did not run again");
}

#[tokio::test]
async fn another_request_under_a_used_sequence_is_a_false_retry() {
    let lab = Lab::default();
    let running = lab.start().await;
    let session = running.client("a").await;
    let connection = &session.connection;
    let one = call(&session, 2, 1, true, at_then("data", [guarded("o", "one")]));
    let two = call(&session, 2, 1, true, at_then("data", [guarded("o", "two")]));
    assert_eq!(status(connection, &one).await, Status::Ok);
    assert_eq!(status(connection, &two).await, Status::SeqFalseRetry);
    assert!(!lab.path("two").exists());
    let reply = bytes(connection, 5, &one).await;
    assert_eq!(bytes(connection, 5, &one).await, reply, "the right one is still there");
}

/// Identical calls race over two connections. Whichever comes first removes the file; the others see its reply, or are
/// told that it still runs.
#[tokio::test(flavor = "multi_thread")]
async fn of_identical_calls_at_the_same_time_exactly_one_runs() {
    let lab = Lab::default();
    let running = lab.start().await;
    let session = running.client("a").await;
    let others = [running.connection(0).await, running.connection(0).await, running.connection(0).await];
    for round in 1..=60 {
        std::fs::write(lab.path("victim"), "").unwrap();
        let ops = call(&session, 4, round, true, at_then("data", [remove("victim")]));
        let mut answers = futures_util::future::join_all(others.iter().map(|one| one.compound(2, &ops))).await;
        let mut ran = 0;
        for answer in answers.drain(..) {
            match answer.unwrap() {
                (Status::Ok, _) => ran += 1,
                (status, replies) => {
                    // Of those that came in between only SEQUENCE was looked at.
                    assert_eq!((status, replies.len()), (Status::Delay, 1), "round {round}");
                }
            }
        }
        // Had it run twice, the second would have told NOENT.
        assert!(ran >= 1 && !lab.path("victim").exists(), "round {round}");
        assert_eq!(status(&session.connection, &ops).await, Status::Ok, "and the reply is kept");
    }
}

#[tokio::test]
async fn a_failed_sequence_leaves_the_slot_as_it_was() {
    let running = Lab::default().start().await;
    let session = running.client("a").await;
    let connection = &session.connection;
    let twice = [sequence(session.id, 6, 1, true), sequence(session.id, 6, 2, true)];
    let (status_of_two, replies) = connection.compound(2, &twice).await.unwrap();
    assert_eq!(status_of_two, Status::SequencePos);
    assert!(matches!(replies[..], [OpReply::Sequence(Ok(_)), OpReply::Sequence(Err(_))]), "{replies:?}");
    assert_eq!(status(connection, &[sequence(session.id, 6, 3, true)]).await, Status::SeqMisordered);
    assert_eq!(status(connection, &[sequence(session.id, 6, 2, true)]).await, Status::Ok);
}
