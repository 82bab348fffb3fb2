//! What a session's channel was agreed to carry: sizes, operations, and what a reply's cache holds (§2.10.6.4, §18.36).

use forebay_node::client::Connection;
use forebay_proto::{
    nfs4::{
        ClientId, LockType, Op, OpReply, SessionId, Status,
        ops::{
            create_session::{ChannelAttributes, CreateSessionArgs, CreateSessionOk},
            reclaim_complete::ReclaimCompleteArgs,
        },
    },
    xdr::List,
};

use super::{clients::exchange_id, slots::sequence};
use crate::common::{Lab, Running, ops::*};

pub fn channel() -> ChannelAttributes {
    ChannelAttributes {
        header_pad_size: 0,
        max_request_size: 1 << 16,
        max_response_size: 1 << 16,
        max_response_size_cached: 2048,
        max_operations: 64,
        max_requests: 8,
        rdma_ird: List::default(),
    }
}

pub fn create_session(clientid: ClientId, sequence: u32, fore: ChannelAttributes) -> Op {
    Op::CreateSession(CreateSessionArgs {
        clientid,
        sequence,
        flags: 0,
        fore,
        back: channel(),
        callback_program: 0x4000_0000,
        callback_security: List::default(),
    })
}

/// A session with a channel of the test's own; slot 0 has been used once.
struct Narrow {
    connection: Connection,
    id: SessionId,
    next: u32,
}

impl Narrow {
    async fn open(running: &Running, fore: ChannelAttributes) -> (Self, ChannelAttributes) {
        let connection = running.connection(0).await;
        let exchanged = value!(connection.compound(2, &[exchange_id("narrow", 1, 0)]).await.unwrap().1, ExchangeId);
        let create = create_session(exchanged.clientid, exchanged.sequence, fore);
        let created: CreateSessionOk = value!(connection.compound(2, &[create]).await.unwrap().1, CreateSession);
        let mut session = Self { connection, id: created.session, next: 1 };
        let complete = Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false });
        assert_eq!(session.call(false, vec![complete]).await.0, Status::Ok);
        (session, created.fore)
    }

    async fn call(&mut self, cache: bool, ops: Vec<Op>) -> (Status, Vec<OpReply>) {
        let all: Vec<_> = std::iter::once(sequence(self.id, 0, self.next, cache)).chain(ops).collect();
        let answer = self.connection.compound(2, &all).await.unwrap();
        if matches!(answer.1.first(), Some(OpReply::Sequence(Ok(_)))) {
            self.next += 1;
        }
        answer
    }
}

#[tokio::test]
async fn a_channel_too_small_to_live_is_refused() {
    let running = Lab::default().start().await;
    let connection = running.connection(0).await;
    let exchanged = value!(connection.compound(2, &[exchange_id("small", 1, 0)]).await.unwrap().1, ExchangeId);
    for fore in [
        ChannelAttributes { max_request_size: 8, ..channel() },
        ChannelAttributes { max_response_size: 8, ..channel() },
        ChannelAttributes { max_operations: 0, ..channel() },
        ChannelAttributes { max_requests: 0, ..channel() },
    ] {
        let create = create_session(exchanged.clientid, exchanged.sequence, fore);
        assert_eq!(connection.compound(2, &[create]).await.unwrap().0, Status::TooSmall);
    }
}

#[tokio::test]
async fn a_channel_is_granted_as_asked_up_to_the_servers_limits() {
    let running = Lab::default().start().await;
    let (_, fore) = Narrow::open(&running, channel()).await;
    assert_eq!(fore, channel());
    let all = u32::MAX;
    let most = ChannelAttributes {
        max_request_size: all,
        max_response_size: all,
        max_response_size_cached: all,
        max_operations: all,
        max_requests: all,
        ..channel()
    };
    let running = Lab::default().start().await;
    let (_, fore) = Narrow::open(&running, most).await;
    assert!(fore.max_operations >= 64 && fore.max_request_size >= 1 << 20 && fore.max_response_size >= 1 << 20);
    assert!(fore.max_requests < 4096 && fore.max_response_size_cached <= 1 << 16, "memory is bounded");
}

#[tokio::test]
async fn a_request_longer_than_agreed_is_not_run() {
    let lab = Lab::default();
    let running = lab.start().await;
    let (mut session, _) = Narrow::open(&running, ChannelAttributes { max_request_size: 600, ..channel() }).await;
    let long = at_then("data", [guarded("o", "one"), setxattr_of(600)]);
    assert_eq!(session.call(false, long).await.0, Status::ReqTooBig);
    assert!(!lab.path("one").exists());
    assert_eq!(session.call(false, at("data")).await.0, Status::Ok, "the slot is as it was");
}

fn setxattr_of(length: usize) -> Op {
    setxattr(forebay_proto::nfs4::ops::setxattr::SetXattrOption::Either, "x", vec![0; length])
}

#[tokio::test]
async fn more_operations_than_agreed_are_not_run() {
    let lab = Lab::default();
    let running = lab.start().await;
    let (mut session, _) = Narrow::open(&running, ChannelAttributes { max_operations: 5, ..channel() }).await;
    let six = at_then("data", [make(forebay_proto::nfs4::ops::create::CreateType::Directory, "d"), getfh(), getfh()]);
    assert_eq!(session.call(false, six).await.0, Status::TooManyOps);
    assert!(!lab.path("d").exists());
    assert_eq!(session.call(false, at_then("data", [getfh(), getfh()])).await.0, Status::Ok);
}

#[tokio::test]
async fn a_compound_of_more_than_64_operations_runs() {
    let running = Lab::default().start().await;
    let session = running.client("a").await;
    let replies = crate::common::done(&session, at_then("data", (0..100).map(|_| getfh()))).await;
    assert_eq!(replies.len(), 102);
}

#[tokio::test]
async fn a_reply_longer_than_agreed_ends_the_compound_where_it_would() {
    let lab = Lab::default();
    std::fs::write(lab.path("file"), vec![1; 8192]).unwrap();
    let running = lab.start().await;
    let (mut session, _) = Narrow::open(&running, ChannelAttributes { max_response_size: 400, ..channel() }).await;
    let many = at_then("data/file", (0..20).map(|_| getfh()));
    let (status, replies) = session.call(false, many).await;
    assert_eq!(status, Status::RepTooBig);
    assert!(replies.len() > 4 && matches!(replies.last(), Some(OpReply::GetFh(Err(_)))), "{replies:?}");
}

/// What changes something must not be done if its result would not fit (§2.10.6.4): the client could not learn of it.
#[tokio::test]
async fn what_changes_something_is_not_done_if_its_reply_would_not_fit() {
    let lab = Lab::default();
    std::fs::write(lab.path("file"), "").unwrap();
    std::fs::write(lab.path("other"), "").unwrap();
    let running = lab.start().await;
    let (mut session, _) =
        Narrow::open(&running, ChannelAttributes { max_response_size_cached: 300, ..channel() }).await;
    let directory = forebay_proto::nfs4::ops::create::CreateType::Directory;
    for last in [
        guarded("o", "made"),
        make(directory, "made"),
        remove("file"),
        rename("file", "made"),
        setattr(forebay_proto::nfs4::Stateid::ANONYMOUS, &mode(0o777)),
    ] {
        // Handles fill the reply until little is left.
        for fill in 1..12 {
            let mut ops = at_then("data", [Op::SaveFh(())]);
            ops.extend((0..fill).map(|_| getfh()));
            ops.push(last.clone());
            let (status, replies) = session.call(true, ops).await;
            if status == Status::Ok {
                // It fitted: put things back, and fill more.
                std::fs::remove_dir(lab.path("made")).or_else(|_| std::fs::remove_file(lab.path("made"))).ok();
                std::fs::write(lab.path("file"), "").unwrap();
                std::fs::set_permissions(lab.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
                continue;
            }
            assert_eq!(status, Status::RepTooBigToCache, "{replies:?}");
            let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(lab.path("")).unwrap().permissions());
            let (made, file) = (lab.path("made").exists(), lab.path("file").exists());
            assert_eq!((made, file, mode & 0o777), (false, true, 0o755), "{last:?} was done");
        }
    }
}

#[tokio::test]
async fn what_cannot_even_keep_a_sequence_is_told_at_once() {
    let running = Lab::default().start().await;
    let none = ChannelAttributes { max_response_size_cached: 0, ..channel() };
    let (mut session, _) = Narrow::open(&running, none).await;
    assert_eq!(session.call(true, at("data")).await.0, Status::RepTooBigToCache);
    assert_eq!(session.call(false, at("data")).await.0, Status::Ok);
}

#[tokio::test]
async fn a_denied_whose_holder_has_a_long_name_is_too_big_for_a_narrow_channel() {
    let lab = Lab::default();
    let running = lab.start().await;
    std::fs::write(lab.path("file"), "x").unwrap();
    let holder = running.client("holder").await;
    let opened = crate::common::done(&holder, at_then("data", [open("o", "file", 3, 0)])).await;
    let stateid = value!(opened, Open).stateid;
    let name = "h".repeat(1000);
    let locked = [lookup("file"), lock(stateid, &name, LockType::Write, 0, 10)];
    crate::common::done(&holder, at_then("data", locked)).await;
    let fore = ChannelAttributes { max_response_size: 400, ..channel() };
    let (mut narrow, _) = Narrow::open(&running, fore).await;
    let test = [lookup("file"), lockt("me", LockType::Write, 0, 10)];
    assert_eq!(narrow.call(false, at_then("data", test)).await.0, Status::RepTooBig);
}
