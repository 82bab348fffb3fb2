//! Where operations may stand, and what a COMPOUND says when they do not (§2.10.6, §16.2).

use forebay_proto::{
    nfs4::{Op, OpReply, Status, ops::destroy_session::DestroySessionArgs},
    xdr::{Writer, Xdr},
};

use super::{channels::channel, clients::exchange_id, slots::sequence};
use crate::common::{Lab, credential, ops::*, run, status};

#[tokio::test]
async fn operations_stand_where_they_may() {
    let running = Lab::default().start().await;
    let session = running.client("a").await;
    let connection = &session.connection;
    let create = super::channels::create_session(session.clientid, 99, channel());
    let destroy = Op::DestroySession(DestroySessionArgs { session: session.id });
    let root = || Op::PutRootFh(());
    for (ops, expected) in [
        (vec![], Status::Ok),
        (vec![root()], Status::OpNotInSession),
        (vec![root(), sequence(session.id, 1, 1, false)], Status::OpNotInSession),
        (vec![exchange_id("b", 1, 0), root()], Status::NotOnlyOp),
        (vec![create.clone(), root()], Status::NotOnlyOp),
        (vec![destroy.clone(), root()], Status::NotOnlyOp),
        (vec![sequence(session.id, 1, 1, false), sequence(session.id, 1, 2, false)], Status::SequencePos),
        // §18.35.3: within a session it is an operation as any other.
        (vec![sequence(session.id, 1, 2, false), exchange_id("b", 1, 0)], Status::Ok),
        (vec![sequence(session.id, 1, 3, false), root()], Status::Ok),
    ] {
        assert_eq!(connection.compound(2, &ops).await.unwrap().0, expected, "{ops:?}");
    }
}

#[tokio::test]
async fn a_filehandle_is_needed_by_what_works_on_one() {
    let running = Lab::default().start().await;
    let session = running.client("a").await;
    let anonymous = forebay_proto::nfs4::Stateid::ANONYMOUS;
    for op in [
        getfh(),
        lookup("x"),
        Op::LookupP(()),
        getattr(&[]),
        access(1),
        read(anonymous, 0, 1),
        write(anonymous, 0, "x"),
        remove("x"),
        Op::SaveFh(()),
        Op::ReadLink(()),
        readdir(0, [0; 8], 4096, &[]),
        setattr(anonymous, &mode(0)),
        open("o", "x", READ, 0),
        secinfo("x"),
        getxattr("x"),
    ] {
        assert_eq!(status(&session, [op.clone()]).await, Status::NoFileHandle, "{op:?}");
    }
    assert_eq!(status(&session, [Op::RestoreFh(())]).await, Status::NoFileHandle);
    assert_eq!(status(&session, at_then("data", [rename("a", "b")])).await, Status::NoFileHandle, "none is saved");
    assert_eq!(status(&session, at_then("data", [secinfo("nothing")])).await, Status::NoEnt);
}

/// The results of what ran come back, the last one with the COMPOUND's status; nothing after it is run.
#[tokio::test]
async fn a_compound_ends_with_the_first_operation_that_fails() {
    let lab = Lab::default();
    let running = lab.start().await;
    let session = running.client("a").await;
    let directory = forebay_proto::nfs4::ops::create::CreateType::Directory;
    let replies = run(&session, at_then("data", [getfh(), lookup("nothing"), make(directory, "d")])).await;
    assert_eq!(replies.len(), 4);
    assert!(matches!(replies[3], OpReply::Lookup(Err(Status::NoEnt))), "{replies:?}");
    assert!(!lab.path("d").exists());
}

#[tokio::test]
async fn operations_that_are_not_served_say_so_and_those_that_do_not_exist_too() {
    let running = Lab::default().start().await;
    let session = running.client("a").await;
    let mut slot_sequence = 0;
    // Minor version, operation, what it comes to: number in the result and status.
    for (minor, number, expected) in [
        (2, 0, (10_044, Status::OpIllegal)),
        (2, 2, (10_044, Status::OpIllegal)),
        (2, 76, (10_044, Status::OpIllegal)),
        (2, u32::MAX, (10_044, Status::OpIllegal)),
        (1, 59, (10_044, Status::OpIllegal)),
        (1, 72, (10_044, Status::OpIllegal)),
        // OPEN_CONFIRM, SETCLIENTID, RENEW, RELEASE_LOCKOWNER: of version 4.0 only (§18).
        (2, 20, (20, Status::NotSupp)),
        (2, 35, (35, Status::NotSupp)),
        (2, 30, (30, Status::NotSupp)),
        (2, 39, (39, Status::NotSupp)),
        // COPY_NOTIFY, OFFLOAD_STATUS, WRITE_SAME, CLONE.
        (2, 61, (61, Status::NotSupp)),
        (2, 67, (67, Status::NotSupp)),
        (2, 70, (70, Status::NotSupp)),
        (2, 71, (71, Status::NotSupp)),
    ] {
        slot_sequence += 1;
        let mut writer = Writer::new();
        let header = forebay_node::client::compound_record(1, &credential(0), minor, &[]).to_bytes();
        writer.raw(&header[..header.len() - 4]);
        writer.u32(2);
        sequence(session.id, 9, slot_sequence, false).encode(&mut writer);
        writer.u32(number);
        let record = session.connection.raw(writer.finish()).await.unwrap();
        let told = &record[record.len() - 8..];
        let word = |place: usize| u32::from_be_bytes(told[place..place + 4].try_into().unwrap());
        assert_eq!((word(0), Status::from(word(4))), expected, "operation {number} of minor version {minor}");
    }
}
