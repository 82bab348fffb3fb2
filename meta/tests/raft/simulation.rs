//! Groups under faults that a seed decides: lost and slow messages, partitions, nodes that die and come back, members that change.
//!
//! The seed decides the faults and what clients ask; threads decide the rest, so a run is like another of the same seed, not equal to it.
//! `FOREBAY_SIMULATION_SEED` and `FOREBAY_SIMULATION_SECONDS` run one seed for as long as is asked.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use forebay_meta::raft::{NodeId, OpenError, ProposeError, SnapshotAfter, StateMachine, in_process::Weather};
use parking_lot::{Mutex, RwLock};

use crate::{
    cluster::{Cluster, block_on, wait_for},
    ledger::{Command, Ledger, Mark, Reply, append},
};

const CLIENTS: u32 = 6;
const LISTS: u64 = 3;

/// Numbers from a seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Loses and delays messages, and lets none from one side of a partition to the other.
struct Storm {
    dice: Mutex<Dice>,
    sides: RwLock<HashMap<NodeId, bool>>,
    lost_permille: AtomicU32,
    slow_permille: AtomicU32,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let zero = || AtomicU32::new(0);
        Self { dice: Mutex::new(Dice(seed)), sides: RwLock::default(), lost_permille: zero(), slow_permille: zero() }
    }

    fn split(&self, sides: HashMap<NodeId, bool>) {
        *self.sides.write() = sides;
    }

    fn weather(&self, lost_permille: u32, slow_permille: u32) {
        self.lost_permille.store(lost_permille, Ordering::Relaxed);
        self.slow_permille.store(slow_permille, Ordering::Relaxed);
    }
}

impl Weather for Storm {
    fn passage(&self, from: NodeId, to: NodeId) -> Option<Duration> {
        let side = |id| self.sides.read().get(&id).copied().unwrap_or(false);
        let mut dice = self.dice.lock();
        let (lost, slow, delay) = (dice.below(1000) as u32, dice.below(1000) as u32, dice.below(150));
        if side(from) != side(to) || lost < self.lost_permille.load(Ordering::Relaxed) {
            return None;
        }
        let is_slow = slow < self.slow_permille.load(Ordering::Relaxed);
        Some(Duration::from_millis(if is_slow { delay } else { 0 }))
    }
}

/// What a client was told of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Done { list: u8, position: u64 },
    NotDone,
    Unknown,
}

/// What is wrong with the final lists, given what clients were told.
fn judge(history: &BTreeMap<Mark, Told>, ledger: &Ledger) -> Result<(), String> {
    let mut times: BTreeMap<Mark, u32> = BTreeMap::new();
    for mark in ledger.all() {
        *times.entry(mark).or_default() += 1;
        if !history.contains_key(&mark) {
            return Err(format!("{mark:?} is there and nobody asked for it"));
        }
    }
    for (mark, told) in history {
        let count = times.get(mark).copied().unwrap_or(0);
        match told {
            Told::Done { list, position } => {
                let there = ledger.lists.get(list).and_then(|marks| marks.get(*position as usize));
                if count != 1 || there != Some(mark) {
                    return Err(format!("{mark:?} was acknowledged at {position} and is there {count} times"));
                }
            }
            Told::NotDone if count > 0 => return Err(format!("{mark:?} was said not to be done, and is there")),
            Told::Unknown if count > 1 => return Err(format!("{mark:?} was done {count} times")),
            Told::NotDone | Told::Unknown => {}
        }
    }
    Ok(())
}

fn client(number: u32, seed: u64, cluster: &Cluster, stop: &AtomicBool) -> BTreeMap<Mark, Told> {
    let mut dice = Dice(seed ^ (u64::from(number) << 32));
    let mut history = BTreeMap::new();
    for serial in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let nodes = cluster.nodes();
        if nodes.is_empty() {
            continue;
        }
        let (_, node) = &nodes[dice.below(nodes.len() as u64) as usize];
        let (list, mark) = (dice.below(LISTS) as u8, Mark { client: number, serial });
        let told = match block_on(node.propose(&append(list, number, serial))) {
            Ok(Reply::Position(position)) => Told::Done { list, position },
            Ok(Reply::Done) => panic!("the reply is to another command"),
            Err(ProposeError::NoLeader | ProposeError::TooLarge(_)) => Told::NotDone,
            Err(ProposeError::Refused(_)) => Told::NotDone,
            Err(ProposeError::Unknown(_) | ProposeError::Reply(_)) => Told::Unknown,
        };
        history.insert(mark, told);
        if let Told::Done { list, position } = told {
            let (_, node) = &nodes[dice.below(nodes.len() as u64) as usize];
            let look = |core: &Ledger| core.lists.get(&list).and_then(|marks| marks.get(position as usize).copied());
            if let Ok(seen) = block_on(node.read_linearizable(|replica| replica.read(look))) {
                assert_eq!(seen, Some(mark), "a linearizable read on another node did not see what was acknowledged");
            }
            let row = Command::Keep { key: serial.to_be_bytes().to_vec(), value: vec![number as u8; 50] };
            // Its fate is of no interest: the nodes must agree on it, which is looked at in the end.
            let _ = block_on(node.propose(&row));
        }
    }
    history
}

/// One more thing goes wrong, or is repaired.
fn happen(dice: &mut Dice, cluster: &Cluster, storm: &Storm, down: &mut Vec<NodeId>, count: u64) -> String {
    let minority = (count as usize - 1) / 2;
    let anyone = dice.below(count) + 1;
    match dice.below(10) {
        0 | 1 => {
            let alone = cluster.leader_now().unwrap_or(anyone);
            storm.split([(alone, true)].into());
            format!("node {alone} alone")
        }
        2 => {
            let sides: HashMap<_, _> = (1..=count).map(|id| (id, dice.below(2) == 0)).collect();
            storm.split(sides.clone());
            format!("sides {sides:?}")
        }
        3 | 4 => {
            let victim = if dice.below(2) == 0 { cluster.leader_now().unwrap_or(anyone) } else { anyone };
            if down.len() < minority && !down.contains(&victim) {
                cluster.kill(victim);
                down.push(victim);
            }
            format!("node {victim} killed, down are {down:?}")
        }
        5 | 6 => {
            let back = down.pop();
            back.into_iter().for_each(|id| cluster.start(id));
            format!("node {back:?} back")
        }
        7 => {
            let (lost, slow) = (dice.below(100) as u32, dice.below(300) as u32);
            storm.weather(lost, slow);
            format!("weather {lost}, {slow}")
        }
        8 if count > 3 => {
            let mut voters: BTreeSet<NodeId> = (1..=count).collect();
            for _ in 0..dice.below(3) {
                voters.remove(&(dice.below(count) + 1));
            }
            if let Some(leader) = cluster.leader_now().and_then(|id| cluster.node(id)) {
                let change = async {
                    tokio::time::timeout(Duration::from_secs(1), leader.change_voters(voters.clone(), true)).await
                };
                let _ = block_on(change);
            }
            format!("voters {voters:?}")
        }
        _ => {
            storm.split(HashMap::new());
            storm.weather(0, 0);
            "fair weather".into()
        }
    }
}

/// Clients end however the rest does.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn run(seed: u64, count: u64, seconds: u64) {
    println!("seed {seed}, {count} nodes, {seconds} s");
    let (storm, stop) = (Arc::new(Storm::new(seed)), AtomicBool::new(false));
    let after = SnapshotAfter { entries: 150, bytes: 1 << 30 };
    let cluster = Cluster::new(storm.clone(), after, Duration::from_secs(2)).begun(3, count);
    let mut dice = Dice(!seed);
    let history: BTreeMap<Mark, Told> = thread::scope(|scope| {
        let stop_clients = StopOnDrop(&stop);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                scope.spawn({
                    let (cluster, stop) = (&cluster, &stop);
                    move || client(number, seed, cluster, stop)
                })
            })
            .collect();
        let (end, mut down) = (Instant::now() + Duration::from_secs(seconds), Vec::new());
        while Instant::now() < end && !clients.iter().any(|client| client.is_finished()) {
            thread::sleep(Duration::from_millis(200 + dice.below(500)));
            let what = happen(&mut dice, &cluster, &storm, &mut down, count);
            println!("seed {seed}: {what}");
        }
        storm.split(HashMap::new());
        storm.weather(0, 0);
        down.into_iter().for_each(|id| cluster.start(id));
        drop(stop_clients);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let mut history = history;
    let last = Mark { client: CLIENTS, serial: 0 };
    // A proposal that is tried again is another one: each attempt has its own mark.
    let mut serial = 0;
    wait_for("the group to go on", || {
        let mark = Mark { client: last.client, serial };
        serial += 1;
        let reply = block_on(cluster.node(1).unwrap().propose(&append(0, mark.client, mark.serial)));
        let told = match reply {
            Ok(Reply::Position(position)) => Told::Done { list: 0, position },
            Err(ProposeError::NoLeader) => Told::NotDone,
            _ => Told::Unknown,
        };
        history.insert(mark, told);
        matches!(told, Told::Done { .. }).then_some(())
    });
    cluster.settle();
    compare(seed, &cluster, &history, count);
}

fn compare(seed: u64, cluster: &Cluster, history: &BTreeMap<Mark, Told>, count: u64) {
    let told = |wanted: fn(&Told) -> bool| history.values().filter(|told| wanted(told)).count();
    let done = told(|told| matches!(told, Told::Done { .. }));
    let unknown = told(|told| *told == Told::Unknown);
    println!("seed {seed}: {done} acknowledged, {unknown} unknown, of {}", history.len());
    assert!(done > 30, "seed {seed}: too little happened to tell anything");
    let everything = |replica: &forebay_meta::raft::Replica<Ledger>| {
        let mut rows = Vec::new();
        replica.rows(0, u8::MAX, |table, key, value| rows.push((table, key.to_vec(), value.to_vec()))).unwrap();
        (replica.read(Clone::clone), rows)
    };
    let nodes = cluster.nodes();
    assert_eq!(nodes.len() as u64, count);
    let first = everything(nodes[0].1.replica());
    if let Err(wrong) = judge(history, &first.0) {
        panic!("seed {seed}: {wrong}");
    }
    for (id, node) in &nodes[1..] {
        assert!(everything(node.replica()) == first, "seed {seed}: node {id} has another state than node 1");
    }
    drop(nodes);
    for id in 1..=count {
        cluster.stop(id);
        // The others, which still run, may be in the middle of asking it something.
        let state = wait_for("the directory to be free", || {
            match StateMachine::<Ledger>::open(&cluster.path(id), SnapshotAfter::default()) {
                Ok(state) => Some(state),
                Err(OpenError::InUse(_)) => None,
                Err(error) => panic!("seed {seed}: node {id}: {error}"),
            }
        });
        assert!(everything(&state.replica()) == first, "seed {seed}: node {id} has another state after a restart");
    }
}

fn seconds() -> u64 {
    std::env::var("FOREBAY_SIMULATION_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(7)
}

fn seed(default: u64) -> u64 {
    std::env::var("FOREBAY_SIMULATION_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn three_nodes_under_faults() {
    run(seed(1), 3, seconds());
}

#[test]
fn five_nodes_under_faults() {
    run(seed(2), 5, seconds());
}

/// The judge finds what it is there to find.
#[test]
fn planted_violations_are_found() {
    let (a, b, c) = (Mark { client: 0, serial: 0 }, Mark { client: 0, serial: 1 }, Mark { client: 0, serial: 2 });
    let done = |position| Told::Done { list: 0, position };
    let history = BTreeMap::from([(a, done(0)), (b, Told::Unknown), (c, Told::NotDone)]);
    let ledger = |marks: &[Mark]| Ledger { lists: [(0, marks.to_vec())].into() };
    judge(&history, &ledger(&[a])).unwrap();
    judge(&history, &ledger(&[a, b])).unwrap();
    let stranger = Mark { client: 9, serial: 9 };
    for (what, marks) in [
        ("lost", vec![]),
        ("twice", vec![a, a]),
        ("elsewhere", vec![b, a]),
        ("unknown and twice", vec![a, b, b]),
        ("done though not done", vec![a, c]),
        ("from nowhere", vec![a, stranger]),
    ] {
        judge(&history, &ledger(&marks)).expect_err(what);
    }
}
