//! A connection that is lost in the middle of a call: the call is done once, and its reply waits for the client.

#[macro_use]
mod common;

use std::{io::Write, time::Duration};

use common::{Lab, ops::*};
use forebay_node::client::compound_record;
use forebay_proto::{
    nfs4::{
        Op, OpReply, Status,
        ops::{access::AccessArgs, remove::RemoveArgs, sequence::SequenceArgs},
    },
    rpc::marker,
};

/// Calls whose connection is dropped at about the time they run, at slightly different moments.
const CALLS: u32 = 40;

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_done_once_though_its_connection_is_lost() {
    let lab = Lab::default();
    let running = lab.start().await;
    let session = running.client("a").await;
    for number in 0..CALLS {
        let file = format!("file-{number}");
        std::fs::write(lab.path(&file), vec![0; 1 << 20]).unwrap();
        let sequence =
            SequenceArgs { session: session.id, sequence: number + 1, slot: 7, highest_slot: 7, cache_this: true };
        // REMOVE waits on a thread of its own, so its connection can go before it answers.
        let remove = Op::Remove(RemoveArgs { name: name(&file) });
        let ops: Vec<_> = [Op::Sequence(sequence)].into_iter().chain(at_then("data", [remove])).collect();
        let record = compound_record(99, &common::credential(0), 2, &ops).to_bytes();
        let mut lost = std::net::TcpStream::connect(running.address).unwrap();
        lost.write_all(&[&marker(record.len())[..], &record].concat()).unwrap();
        std::thread::sleep(Duration::from_micros(u64::from(number) * 25));
        // Closed by a reset, as when a machine dies: the server's next read or write fails.
        socket2::SockRef::from(&lost).set_linger(Some(Duration::ZERO)).unwrap();
        drop(lost);
        let again = running.connection(0).await;
        let last = loop {
            let (status, mut replies) = again.compound(2, &ops).await.unwrap();
            // Still running: the client is told to ask again.
            if status != Status::Delay {
                break replies.pop().unwrap();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        assert!(matches!(last, OpReply::Remove(Ok(_))), "call {number}: {last:?}");
        assert!(!lab.path(&file).exists());
    }
    let access = Op::Access(AccessArgs { access: 1 });
    assert_eq!(common::status(&session, at_then("data", [access])).await, Status::Ok);
    session.close().await.unwrap();
    running.stop().await;
}
