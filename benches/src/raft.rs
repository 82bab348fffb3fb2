//! The replicated plane, measured: three nodes in one process, each with its own log and state on the disk, every commit synced on a majority.
//!
//! Owns: the load and the figures. Never does: a network; messages go from node to node in memory, so this is what log, state machine and openraft cost.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use forebay_meta::raft::{
    Changes, Core, Damaged, Group, NodeId, Options, Peer, SnapshotAfter, StateMachine, Timing,
    in_process::{Fair, InProcess},
};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

/// Callers at a time, as the plane is asked for.
const CALLERS: usize = 128;
/// Handles in one command: a listing's worth.
const BATCH: u64 = 5000;
/// Bytes of a source's handle.
const HANDLE_BYTES: usize = 64;
const HANDLES: u8 = 2;
const VERSION: u8 = 1;

/// Counts, and registers handles: the least that can be asked of a core.
#[derive(Default)]
struct Bench {
    count: u64,
}

#[derive(Clone, Debug)]
enum Command {
    Count,
    /// Handles from this number on.
    Register(u64),
}

impl Core for Bench {
    type Command = Command;
    type Reply = u64;

    fn apply(&mut self, command: &Command, changes: &mut Changes) -> u64 {
        match command {
            Command::Count => {
                self.count += 1;
                changes.put(1, *b"count", self.count.to_le_bytes());
            }
            Command::Register(first) => {
                for number in *first..first + BATCH {
                    changes.put(HANDLES, key(number), [number as u8; HANDLE_BYTES]);
                }
            }
        }
        self.count
    }

    fn load(&mut self, _table: u8, _key: &[u8], value: &[u8]) -> Result<(), Damaged> {
        self.count = u64::from_le_bytes(value.try_into().map_err(|_| Damaged::new("no count"))?);
        Ok(())
    }

    fn is_resident(table: u8) -> bool {
        table == 1
    }

    fn encode_command(command: &Command) -> Vec<u8> {
        match command {
            // As large as a small command of the plane is.
            Command::Count => vec![VERSION; 100],
            Command::Register(first) => {
                let mut bytes = vec![VERSION; BATCH as usize * (16 + HANDLE_BYTES)];
                bytes[1] = 2;
                bytes[2..10].copy_from_slice(&first.to_le_bytes());
                bytes
            }
        }
    }

    fn decode_command(bytes: &[u8]) -> Result<Command, Damaged> {
        match bytes {
            [VERSION, 2, rest @ ..] => {
                let first = rest.first_chunk().ok_or_else(|| Damaged::new("too short"))?;
                Ok(Command::Register(u64::from_le_bytes(*first)))
            }
            [VERSION, VERSION, ..] => Ok(Command::Count),
            _ => Err(Damaged::new("another version")),
        }
    }

    fn encode_reply(reply: &u64) -> Vec<u8> {
        reply.to_le_bytes().to_vec()
    }

    fn decode_reply(bytes: &[u8]) -> Result<u64, Damaged> {
        Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| Damaged::new("no count"))?))
    }
}

/// Keys come in no order, as handles' do.
fn key(number: u64) -> [u8; 16] {
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mut key = [0; 16];
    key[..8].copy_from_slice(&mixed.to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Measures all of it.
pub fn run(directory: Option<PathBuf>, time: Duration, handles: u64) -> Result<()> {
    let directory = match directory {
        Some(directory) => tempfile::tempdir_in(directory)?,
        None => tempfile::tempdir()?,
    };
    println!("{}; fdatasync of 200 bytes: p50 {:?}", disk(directory.path()), sync_time(directory.path())?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure(directory.path(), time, handles))
}

async fn measure(directory: &Path, time: Duration, handles: u64) -> Result<()> {
    let network = InProcess::new(Arc::new(Fair));
    let mut nodes = BTreeMap::new();
    for id in 1..=3 {
        nodes.insert(id, start(directory, id, &network).await?);
    }
    nodes[&1].initialise((1..=3).map(|id| (id, id.to_string())).collect()).await?;
    let leader = leader(&nodes).await;
    let (first, follower) = (nodes[&leader].clone(), nodes[&(leader % 3 + 1)].clone());
    first.propose(&Command::Count).await?;

    for (name, node) in [("at the leader", &first), ("at a follower", &follower)] {
        let serial = load(node, 1, time).await?;
        println!("serial commits {name}: {}", tell(&serial));
        let before = first.log_figures().batches.load(Ordering::Relaxed);
        let many = load(node, CALLERS, time).await?;
        let syncs = first.log_figures().batches.load(Ordering::Relaxed) - before;
        println!("{CALLERS} at a time {name}: {}, {:.1} commits a sync", tell(&many), many.0 as f64 / syncs as f64);
    }
    if handles > 0 {
        large(directory, &network, &first, handles).await?;
    }
    for node in nodes.values() {
        node.shutdown().await;
    }
    Ok(())
}

/// Handles: how fast they are registered, what they cost in memory, how long a restart and a newcomer take.
async fn large(directory: &Path, network: &InProcess, leader: &Group<Bench>, handles: u64) -> Result<()> {
    let (next, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let mut callers = JoinSet::new();
    for _ in 0..4 {
        let (next, node) = (next.clone(), leader.clone());
        callers.spawn(async move {
            loop {
                let first = next.fetch_add(BATCH, Ordering::Relaxed);
                if first >= handles {
                    return Ok::<_, anyhow::Error>(());
                }
                node.propose(&Command::Register(first)).await?;
            }
        });
    }
    while let Some(done) = callers.join_next().await {
        done??;
    }
    let took = began.elapsed();
    println!("{handles} handles registered: {:.0} handles/s", handles as f64 / took.as_secs_f64());
    println!("memory of this process with three nodes: {} MiB", memory_mib()?);

    leader.snapshot_now().await?;
    let began = Instant::now();
    let newcomer = start(directory, 4, network).await?;
    leader.add_learner(Peer { id: 4, address: "4".into() }).await?;
    let wanted = leader.status().last;
    while newcomer.status().applied < wanted {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("a newcomer has everything after {:.2} s", began.elapsed().as_secs_f64());
    let last = newcomer.row_local(HANDLES, &key(handles - 1))?;
    last.ok_or_else(|| anyhow!("the newcomer lacks a handle"))?;
    let (began, mut sample) = (Instant::now(), 0);
    for number in (0..handles).step_by((handles / 20_000).max(1) as usize) {
        newcomer.row_local(HANDLES, &key(number))?.context("a handle is missing")?;
        sample += 1;
    }
    println!("a handle is looked up in {:.1} µs", began.elapsed().as_secs_f64() * 1e6 / f64::from(sample));
    leader.change_voters(BTreeSet::from([1, 2, 3]), false).await?;
    network.disconnect(4);
    newcomer.shutdown().await;
    drop(newcomer);
    // Who was asked something last lets go of the database a moment later.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let began = Instant::now();
    let state = StateMachine::<Bench>::open(&directory.join("4"), SnapshotAfter::default())?;
    println!("its state is open again after {:.2} s", began.elapsed().as_secs_f64());
    drop(state);
    Ok(())
}

async fn start(directory: &Path, id: NodeId, network: &InProcess) -> Result<Group<Bench>> {
    let options = Options {
        id,
        directory: directory.join(id.to_string()),
        timing: Timing::default(),
        snapshot_after: SnapshotAfter::default(),
        patience: Duration::from_secs(30),
    };
    let node = Group::start(options, network.from(id)).await?;
    network.connect(id, Arc::new(node.clone()));
    Ok(node)
}

async fn leader(nodes: &BTreeMap<NodeId, Group<Bench>>) -> NodeId {
    loop {
        if let Some(status) = nodes.values().map(Group::status).find(|status| status.leads) {
            return status.id;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Commits, their latencies in nanoseconds, and how long it took.
type Measured = (u64, Histogram<u64>, Duration);

async fn load(node: &Group<Bench>, callers: usize, time: Duration) -> Result<Measured> {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let node = node.clone();
        tasks.spawn(async move {
            let mut latencies = Histogram::<u64>::new(3)?;
            while began.elapsed() < time {
                let asked = Instant::now();
                node.propose(&Command::Count).await?;
                latencies.record(asked.elapsed().as_nanos() as u64)?;
            }
            Ok::<_, anyhow::Error>(latencies)
        });
    }
    let mut all = Histogram::<u64>::new(3)?;
    while let Some(latencies) = tasks.join_next().await {
        all.add(latencies??)?;
    }
    Ok((all.len(), all, began.elapsed()))
}

fn tell((commits, latencies, elapsed): &Measured) -> String {
    let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e6;
    let rate = *commits as f64 / elapsed.as_secs_f64();
    format!("{rate:.0} commits/s, p50 {:.3} ms, p99 {:.3} ms", at(0.5), at(0.99))
}

fn sync_time(directory: &Path) -> Result<Duration> {
    let mut file = File::create(directory.join("sync"))?;
    let mut times = Vec::new();
    for _ in 0..200 {
        file.write_all(&[1; 200])?;
        let began = Instant::now();
        file.sync_data()?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// The file system and the device of a path.
fn disk(path: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        Some((fields.next()?, fields.next()?, fields.next()?))
    });
    let under = fields.filter(|(_, mount, _)| path.starts_with(mount)).max_by_key(|(_, mount, _)| mount.len());
    under.map_or_else(|| "an unknown disk".into(), |(device, _, kind)| format!("{kind} on {device}"))
}

fn memory_mib() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.split_whitespace().next().context("no number")?.parse::<u64>()? / 1024)
}
