//! Ways around the permissions, and what a client may vary when it sends a call again.
#![allow(clippy::unwrap_used, reason = "in a test, failing where one stands is what is wanted")]

#[macro_use]
mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use common::{Lab, done, ops::*, status, trusting};
use forebay_node::{client::Session, files::ExportOptions};
use forebay_proto::nfs4::{
    Op, OpReply, Stateid, Status,
    ops::{
        create::CreateType, open::CreateHow, reclaim_complete::ReclaimCompleteArgs, remove::RemoveArgs,
        sequence::SequenceArgs,
    },
};

fn secret(lab: &Lab, mode: u32) {
    std::fs::write(lab.path("secret"), "of root").unwrap();
    std::fs::set_permissions(lab.path("secret"), std::fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn an_export_at_the_root_is_for_its_clients_only() {
    let clients = vec!["10.0.0.0/8".parse().unwrap()];
    let lab = Lab::new(vec![("/", ExportOptions { clients, ..trusting() })]);
    let running = lab.start().await;
    let session = running.client("a").await;
    for root in [Op::PutRootFh(()), Op::PutPubFh(())] {
        assert_eq!(status(&session, [root, getattr(&[])]).await, Status::Access);
    }
}

#[tokio::test]
async fn a_call_sent_again_with_another_highest_slot_is_the_same_call() {
    let lab = Lab::default();
    std::fs::write(lab.path("file"), "").unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    let call = |highest_slot, file: &str| {
        let sequence = SequenceArgs { session: session.id, sequence: 1, slot: 9, highest_slot, cache_this: true };
        let remove = Op::Remove(RemoveArgs { name: name(file) });
        std::iter::once(Op::Sequence(sequence)).chain(at_then("data", [remove])).collect::<Vec<_>>()
    };
    for highest in [9, 12] {
        let (_, replies) = session.connection.compound(2, &call(highest, "file")).await.unwrap();
        assert!(matches!(replies.last(), Some(OpReply::Remove(Ok(_)))), "{replies:?}");
    }
    let (other, _) = session.connection.compound(2, &call(9, "fils")).await.unwrap();
    assert_eq!(other, Status::SeqFalseRetry);
}

#[tokio::test]
async fn an_open_for_reading_cuts_no_file_that_may_not_be_written() {
    let lab = Lab::default();
    secret(&lab, 0o644);
    let running = lab.start().await;
    let session = running.client_as("a", 1000).await;
    let cut = |file| create_how("o", file, READ, CreateHow::Unchecked(fattr(&size(0))));
    assert_eq!(status(&session, at_then("data", [cut("secret")])).await, Status::Access);
    assert_eq!(std::fs::read(lab.path("secret")).unwrap(), b"of root");
    std::fs::set_permissions(lab.path("secret"), std::fs::Permissions::from_mode(0o666)).unwrap();
    done(&session, at_then("data", [cut("secret")])).await;
    assert_eq!(std::fs::read(lab.path("secret")).unwrap(), b"");
}

#[tokio::test]
async fn times_that_look_like_a_verifier_open_no_strangers_file() {
    let lab = Lab::default();
    secret(&lab, 0o600);
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(0x0102_0304);
    let times = std::fs::FileTimes::new().set_accessed(time).set_modified(time);
    std::fs::File::options().write(true).open(lab.path("secret")).unwrap().set_times(times).unwrap();
    let running = lab.start().await;
    let session = running.client_as("a", 1000).await;
    let open = exclusive41("o", "secret", [1, 2, 3, 4, 1, 2, 3, 4], &size(7));
    assert_eq!(status(&session, at_then("data", [open])).await, Status::Access);
}

#[tokio::test]
async fn a_reclaim_opens_no_file_that_its_caller_may_not_open() {
    let lab = Lab::default();
    secret(&lab, 0o600);
    let running = lab.start().await;
    drop(running.client_as("a", 1000).await);
    running.stop().await;
    let running = lab.start().await;
    let mut options = running.options("a", 1000);
    options.reclaim_complete = false;
    let session = Session::open(&options).await.unwrap();
    assert_eq!(status(&session, at_then("data/secret", [reclaim("o", READ, 0)])).await, Status::Access);
    std::os::unix::fs::chown(lab.path("secret"), Some(1000), None).unwrap();
    std::fs::set_permissions(lab.path("secret"), std::fs::Permissions::from_mode(0o000)).unwrap();
    done(&session, at_then("data/secret", [reclaim("o", READ, 0)])).await;
    done(&session, [Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })]).await;
}

#[tokio::test]
async fn a_synchronous_export_sets_attributes_of_every_kind() {
    let lab = Lab::new(vec![("/data", ExportOptions { sync: true, ..trusting() })]);
    let running = lab.start().await;
    let session = running.client("a").await;
    for kind in [CreateType::Fifo, CreateType::Socket, CreateType::Directory] {
        done(&session, at_then("data", [make(kind, "it")])).await;
        done(&session, at_then("data/it", [setattr(Stateid::ANONYMOUS, &mode(0o700))])).await;
        assert_eq!(std::fs::metadata(lab.path("it")).unwrap().mode() & 0o777, 0o700);
        done(&session, at_then("data", [remove("it")])).await;
    }
}
