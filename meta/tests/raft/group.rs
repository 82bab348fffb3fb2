//! What a group promises when nothing, or one thing, goes wrong.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_meta::raft::{
    Answer, ChangeError, CommandBytes, Endpoint, MAX_COMMAND_BYTES, Message, Outcome, Peer, ProposeError, ReadError,
    Request, SnapshotAfter, StartError, in_process::Fair,
};

use crate::{
    cluster::{Cluster, block_on, wait_for},
    ledger::{ARCHIVE, Command, Reply, append},
};

const PATIENCE: Duration = Duration::from_secs(10);

fn cluster() -> Cluster {
    Cluster::new(Arc::new(Fair), SnapshotAfter::default(), PATIENCE)
}

#[test]
fn any_node_takes_proposals_and_reads_what_was_acknowledged() {
    let cluster = cluster().begun(3, 4);
    for serial in 0..40_u32 {
        let here = cluster.node(u64::from(serial % 4) + 1).unwrap();
        let there = cluster.node(u64::from(serial / 4 % 4) + 1).unwrap();
        let reply = block_on(here.propose(&append(1, 0, serial))).unwrap();
        assert_eq!(reply, Reply::Position(u64::from(serial)));
        let seen = block_on(there.read_linearizable(|replica| replica.read(|core| core.all().count())));
        assert_eq!(seen.unwrap(), serial as usize + 1);
    }
    let keep = Command::Keep { key: b"k".to_vec(), value: b"v".to_vec() };
    block_on(cluster.node(2).unwrap().propose(&keep)).unwrap();
    cluster.settle();
    for (_, node) in cluster.nodes() {
        assert_eq!(node.row_local(ARCHIVE, b"k").unwrap(), Some(b"v".to_vec()));
        assert_eq!(node.read_local(|core| core.all().count()), 40);
    }
}

#[test]
fn a_group_begins_once() {
    let cluster = cluster().begun(3, 3);
    // A node that has heard nothing yet cannot know that there is a group.
    block_on(cluster.node(1).unwrap().propose(&append(1, 0, 0))).unwrap();
    cluster.settle();
    for (_, node) in cluster.nodes() {
        let again = block_on(node.initialise([(1, "1".into())].into()));
        assert_eq!(again, Err(ChangeError::Initialised));
    }
    cluster.kill(2);
    cluster.start(2);
    let again = block_on(cluster.node(2).unwrap().initialise([(2, "2".into())].into()));
    assert_eq!(again, Err(ChangeError::Initialised), "nor after a restart");
    let node = cluster.node(2).unwrap();
    let stopped =
        async |node: &crate::cluster::Node| tokio::time::timeout(Duration::from_millis(100), node.stopped()).await;
    assert!(block_on(stopped(&node)).is_err(), "it runs");
    cluster.stop(2);
    assert!(block_on(stopped(&node)).is_ok(), "it has stopped");
}

#[test]
fn what_is_too_large_is_refused_and_what_just_fits_is_done() {
    let cluster = cluster().begun(3, 3);
    let keep = |bytes| Command::Keep { key: b"k".to_vec(), value: vec![7; bytes] };
    let node = cluster.node(3).unwrap();
    let refused = block_on(node.propose(&keep(MAX_COMMAND_BYTES)));
    assert!(matches!(refused, Err(ProposeError::TooLarge(_))), "{refused:?}");
    assert_eq!(block_on(node.propose(&keep(MAX_COMMAND_BYTES - 20))), Ok(Reply::Done));
}

#[test]
fn a_command_that_the_leader_does_not_know_is_refused_before_it_is_in_the_log() {
    let cluster = cluster().begun(3, 3);
    let leader = cluster.node(cluster.leader()).unwrap();
    let stranger = Request::Propose(CommandBytes(vec![200, 1, 2].into()));
    let answer = block_on(leader.answer(Message::Forward(stranger))).unwrap();
    assert!(matches!(answer, Answer::Forward(Outcome::Refused(_))), "{answer:?}");
    assert_eq!(block_on(leader.propose(&append(1, 0, 0))), Ok(Reply::Position(0)), "all go on");
}

#[test]
fn a_node_whose_log_is_damaged_stops_and_the_others_go_on() {
    let after = SnapshotAfter { entries: u64::MAX, bytes: u64::MAX };
    let cluster = Cluster::new(Arc::new(Fair), after, PATIENCE).begun(3, 3);
    let victim = cluster.leader() % 3 + 1;
    block_on(cluster.node(victim).unwrap().propose(&append(1, 0, 0))).unwrap();
    cluster.settle();
    cluster.stop(victim);
    let log = cluster.path(victim).join("log");
    let database = rocksdb::DB::open_default(&log).unwrap();
    let key = [&b"e"[..], &1_u64.to_be_bytes()].concat();
    database.put(key, b"not what was written").unwrap();
    drop(database);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let refused = runtime.block_on(cluster.begin(victim));
    assert!(matches!(refused, Err(StartError::Open(_))), "it began with a damaged log");
    let other = cluster.node(victim % 3 + 1).unwrap();
    assert_eq!(block_on(other.propose(&append(1, 0, 1))), Ok(Reply::Position(1)));
}

#[test]
fn a_leaders_death_stalls_writes_for_a_moment_only() {
    let cluster = cluster().begun(3, 3);
    let mut longest = Duration::ZERO;
    for round in 0..3 {
        let leader = cluster.leader();
        let other = cluster.node(leader % 3 + 1).unwrap();
        block_on(other.propose(&append(1, 0, round))).unwrap();
        cluster.kill(leader);
        let began = Instant::now();
        // The first may be under way to the dead leader: its fate is not known. The next is done.
        let again = || block_on(other.propose(&append(1, 1, round))).ok();
        wait_for("a proposal to be done", again);
        longest = longest.max(began.elapsed());
        cluster.start(leader);
    }
    println!("longest stall: {longest:?}");
    assert!(longest < Duration::from_secs(5), "{longest:?}");
}

#[test]
fn without_a_majority_nothing_is_done_and_all_heals_by_itself() {
    let cluster = Cluster::new(Arc::new(Fair), SnapshotAfter::default(), Duration::from_millis(1500)).begun(3, 3);
    let node = cluster.node(1).unwrap();
    block_on(node.propose(&append(1, 0, 0))).unwrap();
    cluster.settle();
    cluster.kill(2);
    cluster.kill(3);
    let lonely = block_on(node.propose(&append(1, 0, 1)));
    assert!(matches!(lonely, Err(ProposeError::NoLeader | ProposeError::Unknown(_))), "{lonely:?}");
    let read = block_on(node.read_linearizable(|_| ()));
    assert_eq!(read, Err(ReadError::NotNow));
    assert_eq!(node.read_local(|core| core.all().count()), 1, "what is here can be looked at");
    cluster.start(2);
    cluster.start(3);
    wait_for("the group to heal", || block_on(node.propose(&append(1, 0, 2))).ok());
}

#[test]
fn a_newcomer_gets_a_snapshot_when_the_log_is_purged() {
    let after = SnapshotAfter { entries: 100, bytes: 1 << 30 };
    let cluster = Cluster::new(Arc::new(Fair), after, PATIENCE).begun(3, 3);
    let leader = cluster.leader();
    let node = cluster.node(leader).unwrap();
    for serial in 0..450 {
        let row = Command::Keep { key: vec![serial as u8, 9], value: vec![1; 10_000] };
        let command = if serial % 2 == 0 { row } else { append(2, 0, serial) };
        block_on(node.propose(&command)).unwrap();
    }
    wait_for("a purge", || node.status().purged.filter(|&purged| purged > 100));
    cluster.start(4);
    block_on(node.add_learner(Peer { id: 4, address: "4".into() })).unwrap();
    cluster.settle();
    let newcomer = cluster.node(4).unwrap();
    assert!(newcomer.status().purged.is_some_and(|purged| purged > 100), "it got no snapshot");
    assert_eq!(newcomer.read_local(Clone::clone), node.read_local(Clone::clone));
    for serial in (0..450_u32).step_by(2) {
        assert!(newcomer.row_local(ARCHIVE, &[serial as u8, 9]).unwrap().is_some());
    }
    // From there on it takes part as any other.
    block_on(node.change_voters(BTreeSet::from([1, 2, 3, 4]), false)).unwrap();
    block_on(node.change_voters(BTreeSet::from([2, 3, 4]), false)).unwrap();
    let status = wait_for("node 1 to be no member", || {
        let status = cluster.node(4).unwrap().status();
        (status.members.len() == 3).then_some(status)
    });
    assert_eq!(status.voters, BTreeSet::from([2, 3, 4]));
    let position = wait_for("the new members to go on", || block_on(newcomer.propose(&append(2, 0, 999))).ok());
    assert_eq!(position, Reply::Position(225));
}

#[test]
fn leadership_goes_where_it_is_asked_to() {
    let cluster = cluster().begun(3, 3);
    let leader = cluster.leader();
    let other = leader % 3 + 1;
    block_on(cluster.node(leader).unwrap().propose(&append(1, 0, 0))).unwrap();
    cluster.settle();
    block_on(cluster.node(leader).unwrap().transfer_leadership(other)).unwrap();
    wait_for("the other to lead", || (cluster.leader_now() == Some(other)).then_some(()));
    let reply = block_on(cluster.node(leader).unwrap().propose(&append(1, 0, 1)));
    assert_eq!(reply, Ok(Reply::Position(1)), "the first write after an election needs no help from the caller");
}
