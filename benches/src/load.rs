//! One measurement: a work on some connections to one server for some time.
//!
//! Owns: the threads, one a connection, and the moment at which all start.

use std::{
    net::SocketAddr,
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;

use crate::{
    client::{Client, MINOR_VERSION},
    engine::{Engine, Tally, Until},
    process::process_cpu,
    wire::{Calls, Head, Input},
    works::{self, Kind, Setup, Work},
};

/// Bytes received at a time at most: what fits a processor's second-level cache beside the rest.
const RECEIVE: usize = 256 << 10;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The server.
    pub server: SocketAddr,
    /// The file or directory.
    pub path: String,
    /// The work.
    pub work: Kind,
    /// Connections, each with a session and a thread of its own.
    pub connections: u32,
    /// Slots in use on each; `None` leaves it to the work.
    pub depth: Option<u32>,
    /// How long.
    pub time: Duration,
    /// Files hold the known pattern: check that while warming up.
    pub verify: bool,
    /// The server's process, to know what it uses.
    pub server_pid: Option<u32>,
}

/// What came of it.
#[derive(Debug)]
pub struct Measured {
    /// Operations or entries per second.
    pub units_per_s: f64,
    /// Payload bytes per second.
    pub bytes_per_s: f64,
    /// Operations or entries in all.
    pub units: u64,
    /// Payload bytes in all.
    pub bytes: u64,
    /// Processor seconds of the load generator.
    pub client_cpu_s: f64,
    /// Processor seconds of the server, if its process was named.
    pub server_cpu_s: Option<f64>,
    /// How long it took.
    pub elapsed: Duration,
    /// Latencies in nanoseconds.
    pub latency: Histogram<u64>,
    /// Slots that were in use on each connection.
    pub depth: u32,
}

/// One thread's side: tells when it is ready, waits to be told until when to run.
struct Lane {
    ready: mpsc::Sender<Result<u32>>,
    go: mpsc::Receiver<Instant>,
}

/// Measures.
///
/// # Errors
/// When the server fails anything: the operation and its status.
pub fn run(plan: &Plan) -> Result<Measured> {
    std::thread::scope(|scope| {
        let (ready, readies) = mpsc::channel();
        let mut starts = Vec::new();
        let mut threads = Vec::new();
        for index in 0..plan.connections {
            let (start, go) = mpsc::channel();
            let lane = Lane { ready: ready.clone(), go };
            starts.push(start);
            threads.push(scope.spawn(move || connection(plan, index, lane)));
        }
        drop(ready);
        let mut depth = u32::MAX;
        for _ in 0..plan.connections {
            depth = depth.min(readies.recv().map_err(|_| anyhow!("a connection ended early"))??);
        }
        let cpu = || plan.server_pid.map(process_cpu).transpose();
        let before = cpu()?;
        let began = Instant::now();
        for start in &starts {
            // A thread that is not there any more tells why when it is joined.
            let _ = start.send(began + plan.time);
        }
        std::thread::sleep(plan.time);
        let after = cpu()?;
        let window = began.elapsed();
        let mut tallies = Vec::new();
        for thread in threads {
            tallies.push(thread.join().map_err(|_| anyhow!("a connection's thread panicked"))??);
        }
        let server_cpu_s = before.zip(after).map(|(before, after)| (after - before).as_secs_f64());
        combine(&tallies, depth, window, server_cpu_s)
    })
    .with_context(|| format!("{} on {}", plan.work.name(), plan.server))
}

/// Everything once, from the first byte or name to the last, without touching it before: what is cold stays cold until then.
///
/// # Errors
/// As [`run`].
pub fn once(plan: &Plan) -> Result<Tally> {
    let (mut client, mut work, mut engine, _) = open(plan, 0)?;
    let all = Until::Units(work.warm_units());
    let tally = engine.run(&mut *work, all, plan.verify)?;
    client.sequence = engine.calls.sequence(0);
    work.finish(&mut client)?;
    client.end()?;
    Ok(tally)
}

fn combine(tallies: &[Tally], depth: u32, window: Duration, server_cpu_s: Option<f64>) -> Result<Measured> {
    let mut latency = Histogram::new_from(&tallies.first().context("no connection")?.latency);
    let (mut units_per_s, mut bytes_per_s, mut elapsed) = (0.0, 0.0, Duration::ZERO);
    for tally in tallies {
        let seconds = tally.elapsed.as_secs_f64();
        units_per_s += tally.units as f64 / seconds;
        bytes_per_s += tally.bytes as f64 / seconds;
        elapsed = elapsed.max(tally.elapsed);
        latency.add(&tally.latency).context("adding latencies")?;
    }
    // The server's account covers the window; ours may run on a little: the same time for both.
    let server_cpu_s = server_cpu_s.map(|cpu| cpu * elapsed.as_secs_f64() / window.as_secs_f64());
    Ok(Measured {
        units_per_s,
        bytes_per_s,
        units: tallies.iter().map(|tally| tally.units).sum(),
        bytes: tallies.iter().map(|tally| tally.bytes).sum(),
        client_cpu_s: tallies.iter().map(|tally| tally.cpu.as_secs_f64()).sum(),
        server_cpu_s,
        elapsed,
        latency,
        depth,
    })
}

/// One connection from its first call to its last.
fn connection(plan: &Plan, index: u32, lane: Lane) -> Result<Tally> {
    let prepared = prepare(plan, index);
    let (mut client, mut work, mut engine, depth) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            // Who asked hears why; this thread's own result is then looked at by nobody.
            let _ = lane.ready.send(Err(error));
            return Err(anyhow!("not prepared"));
        }
    };
    let _ = lane.ready.send(Ok(depth));
    let end = lane.go.recv().map_err(|_| anyhow!("another connection failed"))?;
    let tally = engine.run(&mut *work, Until::Time(end), false)?;
    client.sequence = engine.calls.sequence(0);
    work.finish(&mut client)?;
    client.end()?;
    Ok(tally)
}

type Prepared = (Client, Box<dyn Work>, Engine, u32);

/// As [`open`], and touches everything once with every result checked.
fn prepare(plan: &Plan, index: u32) -> Result<Prepared> {
    let (client, mut work, mut engine, depth) = open(plan, index)?;
    let warm = Until::Units(work.warm_units());
    engine.run(&mut *work, warm, true).context("warming up")?;
    Ok((client, work, engine, depth))
}

/// Connects and finds what the work needs.
fn open(plan: &Plan, index: u32) -> Result<Prepared> {
    // Works that run side by side are clients of their own.
    let owner = format!("forebay-benches {} {} {} {index}", std::process::id(), plan.work.name(), plan.path);
    let mut client = Client::connect(plan.server, &owner, plan.depth.unwrap_or(plan.work.default_depth()).max(1))?;
    let depth = client.slots;
    let share = (u64::from(index), u64::from(plan.connections));
    let setup = Setup { client: &mut client, path: &plan.path, depth, share, verify: plan.verify };
    let work = works::build(plan.work, setup)?;
    let head = Head::new(&client.credential, MINOR_VERSION, client.session, depth);
    let mut sequences = vec![0; depth as usize];
    sequences[0] = client.sequence;
    let calls = Calls::new(head, sequences, work.payload());
    let input = Input::new(RECEIVE, plan.work.whole_max());
    let engine = Engine::new(client.socket()?, calls, input, depth);
    Ok((client, work, engine, depth))
}
