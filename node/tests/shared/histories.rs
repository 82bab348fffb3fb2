//! Histories of many clients on nodes that join, leave, die and are cut off, checked for linearizability.
//!
//! `FOREBAY_SHARED_SEED` names the run, `FOREBAY_SHARED_SECONDS` how long it takes; each run prints its seed.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use forebay_meta::state::NodeId;
use forebay_node::source::{
    SetAttributes, SetTime, SourceError, Time,
    cached::{CachedFile, CachedSource, Consistency},
};

use crate::{
    cluster::{Cluster, options, superuser},
    linear::{At, Op, fault},
};

const FILES: u64 = 8;
const CLIENTS: u64 = 24;
/// Names to remove, one after the other.
const NAMES: u64 = 500;
/// Recorded in one run, at least.
const OPERATIONS: usize = 100_000;

/// What a register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Register {
    /// The bytes of a file.
    Data(u64),
    /// The modification time that SETATTR gave a file.
    Attributes(u64),
    /// Which file a name stands for.
    Name(u64),
    /// Whether a name is there (0) or was removed (1).
    Gone(u64),
}

struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

type Histories = Arc<Mutex<HashMap<Register, Vec<Op>>>>;

struct Client {
    node: NodeId,
    cached: Arc<CachedSource>,
    root: Arc<CachedFile>,
    /// Files whose handles it has: data and attributes.
    files: Vec<(Arc<CachedFile>, Arc<CachedFile>)>,
    began: Instant,
    values: Arc<AtomicU64>,
    removed: Arc<AtomicU64>,
    histories: Histories,
    random: Random,
    /// It never waits for a change.
    only_reads: bool,
}

impl Client {
    fn now(&self) -> At {
        self.began.elapsed().as_nanos() as u64 + 10
    }

    fn note(&self, register: Register, begin: At, value: u64, is_write: bool, is_known: bool) {
        let end = if is_known { self.now() } else { At::MAX };
        self.histories.lock().unwrap().entry(register).or_default().push(Op { begin, end, value, is_write });
    }

    async fn step(&mut self) {
        let number = self.random.below(FILES);
        let first = if self.only_reads { 8 } else { 0 };
        let chance = first + self.random.below(100 - first);
        match chance {
            0..3 => self.write(number).await,
            3..6 => self.set(number).await,
            6 => self.rename(number).await,
            7 => self.remove().await,
            8..20 => self.look_for_removed().await,
            20..40 => self.read(number).await,
            40..70 => self.get(number).await,
            _ => self.look_up(number).await,
        }
    }

    async fn write(&mut self, number: u64) {
        let (value, begin) = (self.values.fetch_add(1, Ordering::Relaxed), self.now());
        let bytes = Bytes::copy_from_slice(&value.to_be_bytes());
        let written = self.cached.write(&superuser(), &self.files[number as usize].0, 0, bytes, true).await;
        // What was not done for want of an owner was not done at all; of anything else nobody knows.
        match written {
            Err(SourceError::Unavailable) => self.note(Register::Data(number), begin, value, true, false),
            done => self.note(Register::Data(number), begin, value, true, done.map(drop).is_ok()),
        }
    }

    async fn read(&mut self, number: u64) {
        let begin = self.now();
        let file = &self.files[number as usize].0;
        let read = match self.cached.read_now(file, 0, 8) {
            Some(read) => Ok(read),
            None => self.cached.read(&superuser(), file, 0, 8).await,
        };
        if let Ok((bytes, _)) = read {
            let value = u64::from_be_bytes(bytes[..].try_into().unwrap());
            self.note(Register::Data(number), begin, value, false, true);
        }
    }

    async fn set(&mut self, number: u64) {
        let (value, begin) = (self.values.fetch_add(1, Ordering::Relaxed), self.now());
        let modified = Some(SetTime::To(Time { seconds: value as i64, nanoseconds: 0 }));
        let set = SetAttributes { modified, ..SetAttributes::default() };
        let done = self.cached.set_attributes(&superuser(), &self.files[number as usize].1, &set).await;
        self.note(Register::Attributes(number), begin, value, true, done.is_ok());
    }

    async fn get(&mut self, number: u64) {
        let begin = self.now();
        let file = &self.files[number as usize].1;
        let told = match self.cached.attributes_now(file) {
            Some(told) => Ok(told),
            None => self.cached.attributes(&superuser(), file).await,
        };
        if let Ok(told) = told {
            self.note(Register::Attributes(number), begin, told.modified.seconds as u64, false, true);
        }
    }

    /// A new file takes the name; its number is in its modification time.
    async fn rename(&mut self, number: u64) {
        let by = superuser();
        let value = self.values.fetch_add(1, Ordering::Relaxed);
        let fresh = format!("fresh{value}");
        let modified = Some(SetTime::To(Time { seconds: value as i64, nanoseconds: 0 }));
        let set = SetAttributes { modified, mode: Some(0o600), ..SetAttributes::default() };
        let made = self.cached.create(&by, &self.root, fresh.as_bytes(), true, &set).await;
        if made.is_err() {
            return;
        }
        let begin = self.now();
        let name = format!("name{number}");
        let (old, new) = ((&self.root, fresh.as_bytes()), (&self.root, name.as_bytes()));
        let done = self.cached.rename(&by, old, new, None).await;
        self.note(Register::Name(number), begin, value, true, done.is_ok());
    }

    async fn remove(&mut self) {
        let number = self.removed.fetch_add(1, Ordering::Relaxed);
        if number >= NAMES {
            return;
        }
        let (begin, name) = (self.now(), format!("gone{number}"));
        let done = self.cached.remove(&superuser(), &self.root, name.as_bytes(), false).await;
        self.note(Register::Gone(number), begin, 1, true, done.is_ok());
    }

    async fn look_for_removed(&mut self) {
        let by = superuser();
        let near = self.removed.load(Ordering::Relaxed) + self.random.below(4);
        let Some(number) = near.checked_sub(3).filter(|number| *number < NAMES) else { return };
        let (begin, name) = (self.now(), format!("gone{number}"));
        let found = match self.cached.lookup_now(&by, &self.root, name.as_bytes()) {
            Some(found) => found,
            None => self.cached.lookup(&by, &self.root, name.as_bytes()).await,
        };
        let value = match found {
            Ok(_) => 0,
            Err(SourceError::Errno(libc::ENOENT)) => 1,
            Err(_) => return,
        };
        self.note(Register::Gone(number), begin, value, false, true);
    }

    async fn look_up(&mut self, number: u64) {
        let by = superuser();
        let (begin, name) = (self.now(), format!("name{number}"));
        let found = match self.cached.lookup_now(&by, &self.root, name.as_bytes()) {
            Some(found) => found,
            None => self.cached.lookup(&by, &self.root, name.as_bytes()).await,
        };
        match found {
            Ok(file) => {
                // Its number never changes, so whatever is known of it tells.
                let end = self.now();
                let told = match self.cached.attributes(&by, &file).await {
                    Ok(told) => told,
                    // It has been replaced since.
                    Err(_) => return,
                };
                let op = Op { begin, end, value: told.modified.seconds as u64, is_write: false };
                self.histories.lock().unwrap().entry(Register::Name(number)).or_default().push(op);
            }
            Err(SourceError::Errno(libc::ENOENT)) => {
                panic!("{name} is always there; node {:?} says it is not", self.node)
            }
            Err(_) => {}
        }
    }
}

/// What is done to the cluster meanwhile.
async fn trouble(cluster: &Arc<tokio::sync::Mutex<Cluster>>, random: &mut Random, trace: bool) {
    let id = NodeId(1 + random.below(3));
    let pause = Duration::from_millis(300 + random.below(2_500));
    let kind = random.below(6);
    if trace {
        println!("trouble {kind} for {id:?}, {pause:?}");
    }
    let guard = cluster.lock().await;
    match kind {
        0 => {
            guard.leave(id);
            drop(guard);
            tokio::time::sleep(pause).await;
            cluster.lock().await.serve(id);
        }
        1 => {
            // From everybody, and from the plane: its lease ends, and its files move.
            guard.net.cut_off(id);
            drop(guard);
            tokio::time::sleep(pause * 3).await;
            cluster.lock().await.net.heal();
        }
        2 => {
            let other = NodeId(1 + id.0 % 3);
            guard.net.cut(id, other);
            drop(guard);
            tokio::time::sleep(pause).await;
            cluster.lock().await.net.heal();
        }
        3 => {
            // The plane alone does not hear of it.
            guard.net.cut(id, crate::cluster::PLANE);
            drop(guard);
            tokio::time::sleep(pause * 2).await;
            cluster.lock().await.net.heal();
        }
        4 => {
            guard.net.lost.store(50, Ordering::Relaxed);
            drop(guard);
            tokio::time::sleep(pause).await;
            cluster.lock().await.net.lost.store(0, Ordering::Relaxed);
        }
        _ => {
            guard.net.delay_us.store(20_000, Ordering::Relaxed);
            drop(guard);
            tokio::time::sleep(pause).await;
            cluster.lock().await.net.delay_us.store(2_000, Ordering::Relaxed);
        }
    }
}

struct Outcome {
    operations: usize,
    fault: Option<String>,
}

async fn run(seed: u64, (length, least): (Duration, usize), forget_recalls: bool, with_trouble: bool) -> Outcome {
    println!("seed {seed}");
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let cluster = Cluster::start(3, options(Consistency::Scratch)).await;
    cluster.net.delay_us.store(2_000, Ordering::Relaxed);
    cluster.net.forgets_recalls.store(forget_recalls, Ordering::Relaxed);
    let (began, values, histories) = (Instant::now(), Arc::new(AtomicU64::new(1_000)), Histories::default());
    let mut first = HashMap::new();
    for number in 0..FILES {
        cluster.write_file(&format!("data{number}"), &number.to_be_bytes());
        for (name, register) in [("attributes", Register::Attributes(number)), ("name", Register::Name(number))] {
            cluster.write_file(&format!("{name}{number}"), b"x");
            let path = cluster.home.path().join(format!("{name}{number}"));
            let time = std::time::UNIX_EPOCH + Duration::from_secs(number);
            std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
            first.insert(register, vec![Op { begin: 0, end: 1, value: number, is_write: true }]);
        }
        first.insert(Register::Data(number), vec![Op { begin: 0, end: 1, value: number, is_write: true }]);
    }
    for number in 0..NAMES {
        cluster.write_file(&format!("gone{number}"), b"x");
        first.insert(Register::Gone(number), vec![Op { begin: 0, end: 1, value: 0, is_write: true }]);
    }
    *histories.lock().unwrap() = first;
    let removed = Arc::new(AtomicU64::new(0));
    let (stop, mut tasks) = (Arc::new(AtomicBool::new(false)), tokio::task::JoinSet::new());
    for client in 0..CLIENTS {
        let member = cluster.node(client % 3 + 1);
        let mut files = Vec::new();
        for number in 0..FILES {
            let by = superuser();
            let data = member.cached.lookup(&by, &member.root, format!("data{number}").as_bytes()).await.unwrap();
            let attributes = member.cached.lookup(&by, &member.root, format!("attributes{number}").as_bytes()).await;
            files.push((data, attributes.unwrap()));
        }
        let mut client = Client {
            node: member.id,
            cached: member.cached.clone(),
            root: member.root.clone(),
            files,
            began,
            values: values.clone(),
            removed: removed.clone(),
            histories: histories.clone(),
            random: Random(random.below(u64::MAX) | 1),
            only_reads: client % 2 == 0,
        };
        let stop = stop.clone();
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                client.step().await;
                tokio::task::yield_now().await;
            }
        });
    }
    let cluster = Arc::new(tokio::sync::Mutex::new(cluster));
    let trace = std::env::var_os("FOREBAY_SHARED_TRACE").is_some();
    let recorded = || histories.lock().unwrap().values().map(Vec::len).sum::<usize>();
    // A machine that is busy with other things takes longer.
    while began.elapsed() < length || (recorded() < least && began.elapsed() < 4 * length) {
        if with_trouble {
            trouble(&cluster, &mut random, trace).await;
        }
        tokio::time::sleep(Duration::from_millis(200 + random.below(800))).await;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let histories = histories.lock().unwrap();
    let operations = histories.values().map(Vec::len).sum();
    let fault = histories.iter().find_map(|(register, history)| Some(format!("{register:?}: {}", fault(history)?)));
    Outcome { operations, fault }
}

fn environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn histories_under_trouble_are_linearizable() {
    let seconds = environment("FOREBAY_SHARED_SECONDS").unwrap_or(25);
    let seed = environment("FOREBAY_SHARED_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let outcome = run(seed, (Duration::from_secs(seconds), OPERATIONS), false, true).await;
    println!("{} operations in {seconds} s", outcome.operations);
    assert_eq!(outcome.fault, None, "seed {seed}");
    assert!(outcome.operations >= OPERATIONS, "{}", outcome.operations);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn recalls_that_are_not_made_are_noticed() {
    let outcome = run(7, (Duration::from_secs(3), 0), true, false).await;
    println!("{:?}", outcome.fault);
    assert!(outcome.fault.is_some(), "{} operations", outcome.operations);
}
