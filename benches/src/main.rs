//! Load generator for NFSv4.1 servers, and the comparisons made with it.
//!
//! Owns: how servers are started for measurement, the load, the figures. Never does: judging them (`README.md` says how to read them).

mod cached;
mod client;
mod cluster;
mod compare;
mod counted;
mod engine;
mod load;
mod loopback;
mod memory;
mod pattern;
mod peer;
mod process;
mod proxy;
mod raft;
mod servers;
mod table;
mod tree;
mod wire;
mod works;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use works::Kind;

/// As the daemon has: what a fresh chunk's memory costs is part of what is measured.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures NFSv4.1 servers.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Forebay beside NFS-Ganesha on this machine, in pairs.
    Compare(CompareArgs),
    /// The load alone, against any NFSv4.1 server. `sequential_write` writes over the file!
    Load(LoadArgs),
    /// Forebay as a cache: cold, warm and restarted, source calls for a tree of small files, and what its tiers reach.
    Cached {
        /// Small files and short runs, to see whether it all works
        #[arg(long)]
        quick: bool,
        /// What to measure
        #[arg(long, value_delimiter = ',', default_values = cached::ALL)]
        only: Vec<String>,
        /// How long memory is watched
        #[arg(long, default_value_t = 0.5)]
        minutes: f64,
    },
    /// Forebay's memory, idle and for each open file.
    Memory {
        /// Files to open.
        #[arg(long, default_value_t = 10_000)]
        files: usize,
    },
    /// The replicated plane: three nodes in this process, each with its log on the disk.
    Raft {
        /// Where the nodes' directories are: the disk that is measured [default: the system's temporary directory]
        #[arg(long)]
        directory: Option<PathBuf>,
        /// How long each measurement takes
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
        /// Handles to register, for memory, restart and a newcomer; 0: none
        #[arg(long, default_value_t = 1_000_000)]
        handles: u64,
    },
    /// Chunks from another node's memory, with TLS and without.
    Peer {
        /// Connections
        #[arg(long, default_value_t = 1)]
        connections: usize,
        /// Requests under way
        #[arg(long, default_value_t = 8)]
        depth: usize,
        /// Seconds of each measurement
        #[arg(long, default_value_t = 3.0)]
        seconds: f64,
        /// Measurements of each kind
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// A cluster of three: bytes of this node beside bytes of others.
    Cluster {
        /// Files of 32 MiB
        #[arg(long, default_value_t = 24)]
        files: usize,
    },
    /// The other end of `peer`.
    #[command(hide = true)]
    PeerNode {
        #[arg(long)]
        way: peer::Way,
        #[arg(long)]
        home: PathBuf,
    },
}

#[derive(Debug, Args)]
struct CompareArgs {
    /// Pairs of measurements for each work [default: 5, or 1 with --quick]
    #[arg(long)]
    rounds: Option<u32>,
    /// Seconds of each measurement [default: 3, or 1 with --quick]
    #[arg(long)]
    seconds: Option<f64>,
    /// What to measure
    #[arg(long, value_delimiter = ',', default_values_t = Kind::ALL.map(Kind::name).map(String::from), value_parser = known_work)]
    works: Vec<String>,
    /// Connections, each with a session and a thread of its own
    #[arg(long, default_value_t = 1)]
    connections: u32,
    /// Slots in use on each connection [default: as many as the work needs]
    #[arg(long)]
    depth: Option<u32>,
    /// Small files and short runs, to see whether it all works
    #[arg(long)]
    quick: bool,
    /// Where the results go
    #[arg(long, default_value = "bench-results/compare.json")]
    json: PathBuf,
    /// Measure Forebay alone
    #[arg(long)]
    skip_ganesha: bool,
}

#[derive(Debug, Args)]
struct LoadArgs {
    /// The server's address and port
    #[arg(long)]
    server: SocketAddr,
    /// The file, or for getattr, lookup, readdir and open_read_close the directory
    #[arg(long)]
    path: String,
    /// What to do
    #[arg(long)]
    work: Kind,
    /// Connections, each with a session and a thread of its own
    #[arg(long, default_value_t = 1)]
    connections: u32,
    /// Slots in use on each connection [default: as many as the work needs]
    #[arg(long)]
    depth: Option<u32>,
    /// How long
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// The server's process on this machine, to tell what it uses too
    #[arg(long)]
    server_pid: Option<u32>,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    process::clean_up_on_signals();
    match cli.command {
        Command::Compare(args) => compare::run(&args.options()?),
        Command::Load(args) => load(&args),
        Command::Cached { quick, only, minutes } => cached::run(quick, &only, minutes),
        Command::Memory { files } => memory::run(files),
        Command::Raft { directory, seconds, handles } => {
            raft::run(directory, Duration::try_from_secs_f64(seconds)?, handles)
        }
        Command::Peer { connections, depth, seconds, rounds } => {
            let time = Duration::try_from_secs_f64(seconds)?;
            peer::run(&peer::Plan { time, connections, depth: depth.max(1), rounds })
        }
        Command::Cluster { files } => cluster::run(files),
        Command::PeerNode { way, home } => peer::node(way, &home),
    }
}

fn known_work(name: &str) -> Result<String, String> {
    <Kind as clap::ValueEnum>::from_str(name, false).map(|kind| kind.name().into())
}

impl CompareArgs {
    fn options(&self) -> Result<compare::Options> {
        let works = self.works.iter().map(|name| <Kind as clap::ValueEnum>::from_str(name, false));
        let seconds = self.seconds.unwrap_or(if self.quick { 1.0 } else { 3.0 });
        Ok(compare::Options {
            rounds: self.rounds.unwrap_or(if self.quick { 1 } else { 5 }).max(1),
            time: Duration::try_from_secs_f64(seconds)?,
            works: works.collect::<Result<_, _>>().map_err(anyhow::Error::msg)?,
            connections: self.connections.max(1),
            depth: self.depth,
            quick: self.quick,
            json: self.json.clone(),
            skip_ganesha: self.skip_ganesha,
        })
    }
}

fn load(args: &LoadArgs) -> Result<()> {
    let measured = load::run(&load::Plan {
        server: args.server,
        path: args.path.clone(),
        work: args.work,
        connections: args.connections.max(1),
        depth: args.depth,
        time: Duration::try_from_secs_f64(args.seconds)?,
        verify: false,
        server_pid: args.server_pid,
    })?;
    let unit = args.work.unit();
    let busy = measured.client_cpu_s / measured.elapsed.as_secs_f64();
    println!("{:.0} {unit}/s", measured.units_per_s);
    println!("{:.0} bytes/s ({:.3} GiB/s)", measured.bytes_per_s, measured.bytes_per_s / compare::GIB);
    for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
        println!("{name} {:.1} µs", measured.latency.value_at_quantile(quantile) as f64 / 1000.0);
    }
    let per = |cpu: f64| match measured.bytes {
        0 => format!("{:.3} s per 100,000 {unit}", cpu / measured.units as f64 * compare::MANY),
        bytes => format!(
            "{:.3} s per GiB, {:.3} s per 100,000 {unit}",
            cpu / bytes as f64 * compare::GIB,
            cpu / measured.units as f64 * compare::MANY
        ),
    };
    println!("own CPU {busy:.2} processors: {}", per(measured.client_cpu_s));
    if let Some(cpu) = measured.server_cpu_s {
        println!("server CPU {:.2} processors: {}", cpu / measured.elapsed.as_secs_f64(), per(cpu));
    }
    println!("{} slots in use on each of {} connections", measured.depth, args.connections.max(1));
    Ok(())
}
