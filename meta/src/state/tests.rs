//! The core as a whole: a transcript, random commands, and the bytes of every command.

use proptest::prelude::*;

use super::*;

const NODE: NodeId = NodeId(1);

fn apply(state: &mut State, command: Command) -> Reply {
    state.apply(&command, &mut Changes::default())
}

fn description(weight: u32) -> NodeDescription {
    NodeDescription {
        nfs: "192.0.2.1:2049".into(),
        peer: "192.0.2.1:9051".into(),
        control: "192.0.2.1:9050".into(),
        zone: "a".into(),
        weight,
        may_vote: true,
    }
}

fn client(owner: &str, clientid: u64, home: Home) -> ClientRecord {
    ClientRecord {
        owner: owner.as_bytes().into(),
        clientid,
        verifier: [1; 8],
        principal: Bytes(b"p".to_vec()),
        home,
        sequence: 1,
        reclaim_until_ms: None,
    }
}

fn home(node: u64, epoch: u32) -> Home {
    Home { node: NodeId(node), epoch }
}

fn owner(clientid: u64) -> Owner {
    Owner { clientid, name: Bytes(b"o".to_vec()) }
}

fn lock(clientid: u64, exclusive: bool) -> Held {
    Held { range: Range { first: 0, last: u64::MAX }, exclusive, owner: owner(clientid) }
}

#[test]
fn a_transcript() {
    let mut state = State::default();
    let identity = Identity { cluster: "c".into(), handle_key: [7; 16] };
    let other = Identity { cluster: "d".into(), handle_key: [8; 16] };
    apply(&mut state, Command::Initialise(identity.clone()));
    assert_eq!(apply(&mut state, Command::Initialise(other)), Reply::Absent);
    assert_eq!(state.identity, Some(identity), "the identity never changes");
    assert_eq!(apply(&mut state, Command::StartEpoch { node: NODE }), Reply::Epoch(1));
    let (first, second) = (FsidKey::new("file:///a", 1), FsidKey::new("file:///a", 2));
    assert_eq!(apply(&mut state, Command::AssignFsid(first.clone())), Reply::Fsid(1));
    assert_eq!(apply(&mut state, Command::AssignFsid(second)), Reply::Fsid(2));
    assert_eq!(apply(&mut state, Command::AssignFsid(first)), Reply::Fsid(1), "an index never changes");
    apply(&mut state, Command::RecordClient(client("a", 1 << 32, home(1, 1))));
    apply(&mut state, Command::RecordClient(client("b", (1 << 32) + 1, home(1, 1))));
    assert_eq!(apply(&mut state, Command::StartEpoch { node: NODE }), Reply::Epoch(2));
    assert_eq!(state.clients.len(), 2, "both may reclaim");
    let again = apply(&mut state, Command::RecordClient(client("b", 2 << 32, home(1, 2))));
    assert_eq!(again, Reply::Replaced { clientid: (1 << 32) + 1 });
    assert_eq!(state.clients.len(), 2, "the same owner is one client");
    let late = apply(&mut state, Command::RecordClient(client("b", (1 << 32) + 1, home(1, 1))));
    assert_eq!(
        (late, state.clients.is_recorded(2 << 32)),
        (Reply::Absent, true),
        "an earlier one does not take its place"
    );
    apply(&mut state, Command::ForgetUnreclaimed { home: home(1, 2) });
    assert!(!state.clients.may_reclaim(b"a") && state.clients.may_reclaim(b"b"));
    assert_eq!(apply(&mut state, Command::ForgetClient { clientid: (1 << 32) + 1 }), Reply::Absent);
    assert!(state.clients.may_reclaim(b"b"), "an old clientid of the same owner forgets nothing");
    apply(&mut state, Command::ForgetClient { clientid: 2 << 32 });
    assert!(state.clients.is_empty());
}

#[test]
fn a_node_owns_what_it_serves_until_its_lease_is_over() {
    let mut state = State::default();
    for node in [1, 2] {
        apply(&mut state, Command::Join { node: NodeId(node), description: description(1024) });
        apply(&mut state, Command::StartEpoch { node: NodeId(node) });
    }
    assert!(state.nodes.ring().members.is_empty(), "nobody serves yet");
    let serve = |node, epoch| Command::SetNodeState { node: NodeId(node), epoch, state: NodeState::Serving };
    assert_eq!(apply(&mut state, serve(1, 2)), Reply::Absent, "that is the other node's epoch");
    assert_eq!(apply(&mut state, serve(1, 1)), Reply::Done);
    assert_eq!(apply(&mut state, serve(2, 2)), Reply::Done);
    assert_eq!((state.nodes.ring().epoch, state.nodes.ring().members.len()), (2, 2));
    assert_eq!(state.nodes.previous_ring().members.len(), 1);

    let renew = |nodes: &[(u64, u32)], now_ms| Command::RenewLeases {
        nodes: nodes.iter().map(|&(node, epoch)| (NodeId(node), epoch)).collect(),
        now_ms,
    };
    apply(&mut state, renew(&[(1, 1), (2, 2)], 1_000));
    apply(&mut state, renew(&[(1, 1)], 3_000));
    assert_eq!(state.nodes.ring().epoch, 2, "the lease of 2 still runs");
    apply(&mut state, Command::Tick { now_ms: 2_000 });
    assert_eq!(state.now_ms, 3_000, "time does not go back");
    apply(&mut state, renew(&[(1, 1), (2, 2)], 4_000));
    assert_eq!(state.nodes.ring().members, vec![(NodeId(1), 1024)], "too late by its own call");
    assert_eq!(state.nodes.node(NodeId(2)).map(|node| node.state), Some(NodeState::Lost));
    assert_eq!(state.nodes.previous_ring().members.len(), 2, "it may still have the bytes");
    apply(&mut state, serve(2, 2));
    assert_eq!(state.nodes.ring().epoch, 4, "it comes back");
    apply(&mut state, Command::SetNodeState { node: NodeId(1), epoch: 1, state: NodeState::Draining });
    assert_eq!(state.nodes.ring().members, vec![(NodeId(2), 1024)]);
    apply(&mut state, Command::Leave { node: NodeId(1) });
    assert_eq!(state.nodes.iter().count(), 1);
    let epoch = state.nodes.ring().epoch;
    apply(&mut state, Command::Join { node: NodeId(2), description: description(2048) });
    assert_eq!(state.nodes.ring().epoch, epoch, "a description alone changes no ring");
    apply(&mut state, Command::StartEpoch { node: NodeId(2) });
    assert!(state.nodes.ring().members.is_empty(), "a new process owns nothing of the old one's");
    let now_ms = state.now_ms + NODE_LEASE_MS;
    apply(&mut state, Command::Tick { now_ms });
    let dead = state.nodes.node(NodeId(2)).map(|node| node.state);
    assert_eq!(dead, Some(NodeState::Lost), "one that ends before it serves is not waited for");
}

#[test]
fn what_a_client_holds_goes_with_it() {
    let mut state = State::default();
    let file = FileKey { fsid: 1, fileid: 2 };
    let exclusive = |clientid| Command::Lock { file, lock: lock(clientid, true), waits: false };
    assert_eq!(apply(&mut state, exclusive(9)), Reply::Absent, "nobody knows the client");
    apply(&mut state, Command::RecordClient(client("a", 9, home(1, 1))));
    apply(&mut state, Command::RecordClient(client("b", 10, home(2, 2))));
    assert_eq!(apply(&mut state, exclusive(9)), Reply::Done);
    assert_eq!(apply(&mut state, exclusive(10)), Reply::NotGranted(LockRefused::Held(lock(9, true))));
    let moved = Command::MoveClient { clientid: 9, from: home(1, 1), to: home(2, 2) };
    assert_eq!(apply(&mut state, moved.clone()), Reply::Done);
    assert_eq!(apply(&mut state, moved), Reply::Absent, "it has moved already");
    assert_eq!(apply(&mut state, exclusive(10)), Reply::NotGranted(LockRefused::Held(lock(9, true))), "locks stay");

    apply(&mut state, Command::OpenReclaim { home: home(2, 2), until_ms: 4_000 });
    let adopted = Command::MoveClient { clientid: 10, from: home(2, 2), to: home(1, 1) };
    assert_eq!(apply(&mut state, adopted), Reply::Done);
    let back = Command::MoveClient { clientid: 10, from: home(1, 1), to: home(2, 2) };
    assert_eq!(apply(&mut state, back), Reply::Done);
    assert_eq!(
        apply(&mut state, Command::ReclaimComplete { clientid: 10 }),
        Reply::Absent,
        "who is adopted has nothing to reclaim"
    );
    apply(&mut state, Command::OpenReclaim { home: home(2, 2), until_ms: 5_000 });
    assert_eq!(apply(&mut state, Command::ReclaimComplete { clientid: 10 }), Reply::Done);
    assert_eq!(apply(&mut state, Command::ReclaimComplete { clientid: 10 }), Reply::Absent);
    apply(&mut state, Command::Tick { now_ms: 4_999 });
    assert_eq!(state.clients.len(), 2);
    apply(&mut state, Command::Tick { now_ms: 5_000 });
    assert_eq!(state.clients.len(), 1, "9 did not come back");
    assert_eq!(apply(&mut state, exclusive(10)), Reply::Done, "and its lock is free");
    apply(&mut state, Command::RecordClient(client("b", 11, home(2, 3))));
    assert!(state.locks.is_empty(), "the client has restarted");
}

/// One of each, as it was written by the first program that had them.
fn every_command() -> Vec<Command> {
    let (file, path) = (FileKey { fsid: 3, fileid: 300 }, Bytes(b"a/b".to_vec()));
    let share = Share { owner: owner(5), access: 3, deny: 2 };
    vec![
        Command::Initialise(Identity { cluster: "c".into(), handle_key: [9; 16] }),
        Command::Tick { now_ms: 1_000 },
        Command::Join { node: NODE, description: description(7) },
        Command::StartEpoch { node: NODE },
        Command::SetNodeState { node: NODE, epoch: 4, state: NodeState::Draining },
        Command::RenewLeases { nodes: vec![(NODE, 4)], now_ms: 2_000 },
        Command::Leave { node: NODE },
        Command::PutExport {
            name: "/e".into(),
            record: ExportRecord { source: "nfs://h/e".into(), options: vec!["ro".into()] },
        },
        Command::RemoveExport { name: "/e".into() },
        Command::AssignFsid(FsidKey::new("s", 77)),
        Command::RegisterHandles(vec![([1; 16], Bytes(vec![2; 40]))]),
        Command::RecordClient(client("o", 5, home(1, 4))),
        Command::ForgetClient { clientid: 5 },
        Command::ForgetUnreclaimed { home: home(1, 5) },
        Command::MoveClient { clientid: 5, from: home(1, 4), to: home(2, 5) },
        Command::OpenReclaim { home: home(1, 4), until_ms: 90_000 },
        Command::ReclaimComplete { clientid: 5 },
        Command::Lock { file, lock: lock(5, true), waits: true },
        Command::Unlock { file, owner: owner(5), range: Range { first: 1, last: 2 } },
        Command::ReleaseOwner { file, owner: owner(5) },
        Command::Share { file, share },
        Command::Unshare { file, owner: owner(5) },
        Command::Pin { export: "/e".into(), path: path.clone() },
        Command::Unpin { export: "/e".into(), path },
        Command::PutSecret { name: "n".into(), secret: Bytes(vec![3; 8]) },
        Command::RemoveSecret { name: "n".into() },
        Command::AdmitNode { key: Bytes(vec![4; 65]) },
    ]
}

#[test]
fn the_bytes_of_commands_never_change() {
    let golden = include_str!("../../testdata/commands-v1.txt");
    let lines = every_command().into_iter().map(|command| {
        let bytes = command.encode();
        assert_eq!(Command::decode(&bytes).as_ref(), Ok(&command));
        bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n"
    });
    let text: String = lines.collect();
    if let Some(path) = std::env::var_os("FOREBAY_WRITE_GOLDEN") {
        std::fs::write(path, &text).unwrap();
    }
    assert!(text.starts_with(golden), "commands that exist keep their bytes; new ones come after them:\n{text}");
    assert_eq!(text.lines().count(), golden.lines().count(), "a new command's line belongs into the file");
}

#[test]
fn other_bytes_are_no_command() {
    assert_eq!(Command::decode(&[]), Err(NotEncoded::Damaged("it is empty".into())));
    assert_eq!(Command::decode(&[2, 0]), Err(NotEncoded::Version(2)));
    for command in every_command() {
        let bytes = command.encode();
        for cut in 1..bytes.len() {
            assert!(matches!(Command::decode(&bytes[..cut]), Err(NotEncoded::Damaged(_))), "{command:?} cut at {cut}");
        }
        assert!(Command::decode(&[bytes, vec![0]].concat()).is_err(), "{command:?} with a byte more");
    }
}

fn any_command() -> impl Strategy<Value = Command> {
    let node = || (1..4_u64).prop_map(NodeId);
    let homes = || (1..4_u64, 1..6_u32).prop_map(|(node, epoch)| home(node, epoch));
    let file = || (1..3_u32, 1..3_u64).prop_map(|(fsid, fileid)| FileKey { fsid, fileid });
    let clientid = || 1..5_u64;
    let range = || (0..8_u64, 0..8_u64).prop_map(|(a, b)| Range { first: a, last: b });
    let states = [NodeState::Joining, NodeState::Serving, NodeState::Draining, NodeState::Lost];
    let held = (clientid(), range(), any::<bool>());
    let held = held.prop_map(|(who, range, exclusive)| Held { range, exclusive, owner: owner(who) });
    prop_oneof![
        Just(Command::Initialise(Identity { cluster: "c".into(), handle_key: [9; 16] })),
        (0..20_000_u64).prop_map(|now_ms| Command::Tick { now_ms }),
        (node(), 1..9_u32).prop_map(|(node, weight)| Command::Join { node, description: description(weight) }),
        node().prop_map(|node| Command::StartEpoch { node }),
        (node(), 1..6_u32, prop::sample::select(states.to_vec()))
            .prop_map(|(node, epoch, state)| Command::SetNodeState { node, epoch, state }),
        (node(), 1..6_u32, 0..20_000_u64)
            .prop_map(|(node, epoch, now_ms)| Command::RenewLeases { nodes: vec![(node, epoch)], now_ms }),
        node().prop_map(|node| Command::Leave { node }),
        (0..4_u64).prop_map(|fsid| Command::AssignFsid(FsidKey::new("s", fsid))),
        ("[ab]", clientid(), homes())
            .prop_map(|(who, clientid, home)| Command::RecordClient(client(&who, clientid, home))),
        clientid().prop_map(|clientid| Command::ForgetClient { clientid }),
        homes().prop_map(|home| Command::ForgetUnreclaimed { home }),
        (clientid(), homes(), homes()).prop_map(|(clientid, from, to)| Command::MoveClient { clientid, from, to }),
        (homes(), 0..20_000_u64).prop_map(|(home, until_ms)| Command::OpenReclaim { home, until_ms }),
        clientid().prop_map(|clientid| Command::ReclaimComplete { clientid }),
        (file(), held, any::<bool>()).prop_map(|(file, lock, waits)| Command::Lock { file, lock, waits }),
        (file(), clientid(), range()).prop_map(|(file, who, range)| Command::Unlock { file, owner: owner(who), range }),
        (file(), clientid()).prop_map(|(file, who)| Command::ReleaseOwner { file, owner: owner(who) }),
        (file(), clientid(), 0..4_u8, 0..4_u8).prop_map(|(file, who, access, deny)| Command::Share {
            file,
            share: Share { owner: owner(who), access, deny },
        }),
        (file(), clientid()).prop_map(|(file, who)| Command::Unshare { file, owner: owner(who) }),
        "[a-c]".prop_map(|path| Command::Pin { export: "/e".into(), path: path.as_bytes().into() }),
        "[a-c]".prop_map(|path| Command::Unpin { export: "/e".into(), path: path.as_bytes().into() }),
        "[a-c]".prop_map(|name| Command::PutSecret { name, secret: Bytes(vec![1]) }),
        "[a-c]".prop_map(|name| Command::RemoveSecret { name }),
        "[a-c]"
            .prop_map(|name| Command::PutExport { name, record: ExportRecord { source: "s".into(), options: vec![] } }),
        "[a-c]".prop_map(|name| Command::RemoveExport { name }),
    ]
}

fn validate(state: &State) {
    let ring = state.nodes.ring();
    let serving = state.nodes.iter().filter(|(_, node)| node.state == NodeState::Serving);
    let serving: Vec<NodeId> = serving.map(|(id, _)| id).collect();
    assert_eq!(ring.members.iter().map(|member| member.0).collect::<Vec<_>>(), serving, "the ring is who serves");
    for fsid in 1..3 {
        for fileid in 1..3 {
            let Some(locks) = state.locks.file(FileKey { fsid, fileid }) else { continue };
            for held in locks.ranges() {
                assert!(locks.conflict(held).is_none(), "{held:?} excludes another");
                assert!(state.clients.is_recorded(held.owner.clientid), "{held:?} is nobody's");
            }
            for share in locks.shares() {
                assert!(locks.share_conflict(share).is_none() && state.clients.is_recorded(share.owner.clientid));
            }
        }
    }
    for record in state.clients.iter() {
        assert_eq!(state.clients.of_owner(&record.owner.0).map(|found| found.clientid), Some(record.clientid));
    }
}

proptest! {
    /// Whatever happens: rows on disk are the state, invariants hold, and another replica comes to the same.
    #[test]
    fn rows_are_the_state(commands in prop::collection::vec(any_command(), 0..200)) {
        let (mut state, mut replica) = (State::default(), State::default());
        let mut disk = std::collections::BTreeMap::new();
        for command in &commands {
            let mut changes = Changes::default();
            let reply = state.apply(command, &mut changes);
            prop_assert_eq!(&replica.apply(command, &mut Changes::default()), &reply);
            if changes.is_empty() {
                // Nothing is told, so nothing may have changed.
                let mut unchanged = disk_state(&disk);
                unchanged.now_ms = state.now_ms;
                prop_assert_eq!(&unchanged, &state, "{:?} changed rows and did not tell", command);
            }
            for Change { table, key, value } in changes.take() {
                match value {
                    Some(value) => drop(disk.insert((table as u8, key), value)),
                    None => drop(disk.remove(&(table as u8, key))),
                }
            }
            validate(&state);
        }
        prop_assert_eq!(&disk_state(&disk), &state);
        prop_assert_eq!(&replica, &state);
        let rows: std::collections::BTreeMap<_, _> =
            state.rows().into_iter().filter_map(|row| Some(((row.table as u8, row.key), row.value?))).collect();
        prop_assert_eq!(rows, disk);
    }
}

fn disk_state(disk: &std::collections::BTreeMap<(u8, Vec<u8>), Vec<u8>>) -> State {
    let mut state = State::default();
    for ((table, key), value) in disk {
        state.load(*table, key, value).expect("rows that the state made");
    }
    state
}
