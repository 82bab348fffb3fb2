//! What clients of different nodes may hold, and what they see while nodes come and go.

use std::time::{Duration, Instant};

use forebay_proto::nfs4::{LockType, Op, OpReply, Stateid, Status, open};

use crate::{
    common::{done, ops, run, status},
    farm::Farm,
};

/// `OPEN4_SHARE_DENY_READ` and `_WRITE`.
const DENY_READ: u32 = 1;
const DENY_WRITE: u32 = 2;

fn three() -> Farm {
    let mut farm = Farm::new(3);
    (0..3).for_each(|node| farm.start(node));
    farm.wait_for_ring();
    farm
}

fn opened(replies: &[OpReply]) -> Stateid {
    let opened = replies.iter().find_map(|reply| match reply {
        OpReply::Open(Ok(opened)) => Some(opened.stateid),
        _ => None,
    });
    opened.expect("an OPEN that went well")
}

/// Asks again while the server says so, as clients do.
async fn patiently(session: &forebay_node::client::Session, ask: impl Fn() -> Vec<Op>) -> Status {
    let begun = Instant::now();
    loop {
        match status(session, ask()).await {
            Status::Delay | Status::Grace if begun.elapsed() < Duration::from_secs(20) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            status => return status,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_and_ranges_exclude_clients_of_other_nodes() {
    let farm = three();
    std::fs::write(farm.home.path().join("tree/file"), "content").unwrap();
    let (a, b) = (farm.client(0, "a").await, farm.client(1, "b").await);
    let open = |who: &'static str, access, deny| ops::at_then("/tree", [ops::open(who, "file", access, deny)]);

    // Nobody may write while a reads, and denies it.
    let denying = opened(&done(&a, open("a", open::ACCESS_READ, DENY_WRITE)).await);
    assert_eq!(patiently(&b, || open("b", open::ACCESS_WRITE, 0)).await, Status::ShareDenied);
    let reading = opened(&done(&b, open("b", open::ACCESS_READ, 0)).await);
    // And a cannot deny what b does.
    let deny_read = || open("a", open::ACCESS_READ, DENY_READ);
    assert_eq!(patiently(&a, deny_read).await, Status::ShareDenied);
    let file = || ops::at("/tree/file");
    assert_eq!(
        patiently(&b, || open("b", open::ACCESS_WRITE, 0)).await,
        Status::ShareDenied,
        "what a denied is denied still"
    );
    let close = |stateid: Stateid| [file(), vec![ops::close(Stateid { seqid: 0, ..stateid })]].concat();
    done(&a, close(denying)).await;
    let both = opened(&done(&b, open("b", open::ACCESS_WRITE, 0)).await);
    assert_eq!(both.other, reading.other);

    // Ranges.
    let writing = opened(&done(&a, open("a", open::ACCESS_READ | open::ACCESS_WRITE, 0)).await);
    let lock = |stateid: Stateid, who: &'static str, first, length| {
        [file(), vec![ops::lock(Stateid { seqid: 0, ..stateid }, who, LockType::Write, first, length)]].concat()
    };
    assert_eq!(patiently(&a, || lock(writing, "p", 0, 100)).await, Status::Ok);
    match run(&b, lock(both, "q", 50, 10)).await.last() {
        Some(OpReply::Lock(forebay_proto::nfs4::ops::lock::LockReply::Denied(by))) => {
            assert_eq!((by.offset, by.length), (0, 100));
        }
        other => panic!("{other:?}"),
    }
    let test = || [file(), vec![ops::lockt("q", LockType::Read, 99, 1)]].concat();
    assert_eq!(patiently(&b, test).await, Status::Denied);
    assert_eq!(patiently(&b, || lock(both, "q", 100, 10)).await, Status::Ok);
    // CLOSE gives up what was locked through the open.
    done(&a, close(writing)).await;
    assert_eq!(patiently(&b, || lock(both, "q", 0, 100)).await, Status::Ok);
}

/// Two of three nodes are gone: what is cached is read on, changes wait; all heals when they are back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_reads_go_on_and_changes_wait() {
    let mut farm = three();
    std::fs::write(farm.home.path().join("tree/file"), "content").unwrap();
    let session = farm.client(0, "a").await;
    let opening = ops::at_then("/tree", [ops::open("a", "file", open::ACCESS_READ | open::ACCESS_WRITE, 0)]);
    let stateid = Stateid { seqid: 0, ..opened(&done(&session, opening).await) };
    let read = || [ops::at("/tree/file"), vec![ops::read(stateid, 0, 100)]].concat();
    let write = |text: &'static [u8]| [ops::at("/tree/file"), vec![ops::write(stateid, 0, text)]].concat();
    assert_eq!(patiently(&session, read).await, Status::Ok);
    farm.wait_for_voters();
    farm.kill(1);
    farm.kill(2);
    tokio::time::sleep(Duration::from_secs(4)).await;
    let begun = Instant::now();
    for _ in 0..20 {
        assert_eq!(status(&session, read()).await, Status::Ok);
    }
    println!("twenty reads without a majority in {:?}", begun.elapsed());
    let waits = tokio::time::timeout(Duration::from_secs(12), status(&session, write(b"CONTENT"))).await;
    assert!(matches!(waits, Err(_) | Ok(Status::Delay)), "{waits:?}");
    assert_eq!(std::fs::read_to_string(farm.home.path().join("tree/file")).unwrap(), "content");
    farm.start(1);
    farm.start(2);
    farm.wait_for_ring();
    assert_eq!(patiently(&session, || write(b"CONTENT")).await, Status::Ok);
    assert_eq!(std::fs::read_to_string(farm.home.path().join("tree/file")).unwrap(), "CONTENT");
    let other = farm.client(2, "b").await;
    let replies = done(&other, [ops::at("/tree/file"), vec![ops::read(Stateid::ANONYMOUS, 0, 100)]].concat()).await;
    let Some(OpReply::Read(Ok(told))) = replies.last() else { panic!("{replies:?}") };
    assert_eq!(&told.data[..], b"CONTENT");
}

/// A handle that one node told is good at every other, at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_is_good_at_every_node() {
    let farm = three();
    std::fs::write(farm.home.path().join("tree/file"), "content").unwrap();
    let (a, b, c) = (farm.client(0, "a").await, farm.client(1, "b").await, farm.client(2, "c").await);
    let replies = done(&a, [ops::at("/tree/file"), vec![ops::getfh()]].concat()).await;
    let Some(OpReply::GetFh(Ok(told))) = replies.last() else { panic!("{replies:?}") };
    for session in [&b, &c] {
        let read = vec![ops::putfh(&told.handle), ops::read(Stateid::ANONYMOUS, 0, 100), ops::getfh()];
        let replies = done(session, read).await;
        let Some(OpReply::GetFh(Ok(again))) = replies.last() else { panic!("{replies:?}") };
        assert_eq!(again.handle, told.handle);
    }
}
