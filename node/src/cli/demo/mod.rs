//! `forebay demo`: a file server, a cache in front of it, and a client, over real TCP.
//!
//! Owns: the order of what is shown. Never does: simulate; what is printed was measured, and every byte was looked at.

mod cluster;
mod driver;
mod nodes;
mod wire;

use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context as _;

use self::{
    driver::{Driver, SMALL_FILE, is_pattern, pattern},
    nodes::{Process, Served},
    wire::Slowness,
};
use crate::config::units;

const EXAMPLES: &str = "\
Examples:
  forebay demo
  forebay demo --megabytes 2048 --files 5000 --source-delay 5ms --source-rate 20MB
  forebay demo --nodes 3
  forebay demo --keep        (goes on serving, for a mount of your own)";

/// A source's clock must have moved on before what it says of its files can be told from later changes.
const SETTLE: Duration = Duration::from_millis(2200);
/// Any port of this machine.
const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Memory of the cache beyond the large file.
const ROOM: u64 = 128 << 20;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Size of the large file.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    megabytes: u32,
    /// Number of 4 KiB files.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    files: u32,
    /// How long a message between cache and source is on its way.
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = units::duration)]
    source_delay: Duration,
    /// Bytes a second of each of the four connections between cache and source.
    #[arg(long, value_name = "SIZE", default_value = "30M", value_parser = units::size)]
    source_rate: u64,
    /// Put sample tree and cache in this directory [default: a temporary one].
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Let the cache serve NFS on this address.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Caches in front of the source: 1, or 3 to 9 that form a cluster behind one address.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_nodes)]
    nodes: usize,
    /// Go on serving until Ctrl-C.
    #[arg(long)]
    keep: bool,
}

fn parse_nodes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(nodes @ (1 | 3..=9)) => Ok(nodes),
        _ => Err("1, or 3 to 9: two nodes cannot outvote anybody".into()),
    }
}

/// Runs the demo.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    super::log("warn");
    let place = match &arguments.directory {
        Some(directory) => tempfile::Builder::new().prefix("forebay-demo-").tempdir_in(directory),
        None => tempfile::Builder::new().prefix("forebay-demo-").tempdir(),
    }
    .context("no place for the sample tree")?;
    let caches = match arguments.nodes {
        1 => "a cache in front of it, a client".to_owned(),
        nodes => format!("a cluster of {nodes} caches in front of it, clients"),
    };
    println!("forebay {} demo: a file server, {caches}; NFSv4.2 over loopback\n", env!("CARGO_PKG_VERSION"));
    let tree = place.path().join("tree");
    step("sample tree", || make_tree(&tree, arguments))?;
    let runtime = super::runtime()?;
    let result = runtime.block_on(async {
        match arguments.nodes {
            1 => show(arguments, &tree, place.path()).await,
            _ => cluster::show(arguments, &tree, place.path()).await,
        }
    });
    runtime.shutdown_timeout(Duration::from_millis(500));
    result?;
    drop(place);
    println!("Stopped; the sample tree is removed.");
    Ok(())
}

async fn show(arguments: &Arguments, tree: &Path, place: &Path) -> anyhow::Result<()> {
    let (_source, wire) = start_source(arguments, tree, place).await?;
    let store = place.join("cache");
    let start = || {
        let ram = (u64::from(arguments.megabytes) << 20) + ROOM;
        let parts = [
            "--export".to_owned(),
            format!("/demo=nfs://{wire}/demo,no_root_squash"),
            "--ram-cache".to_owned(),
            ram.to_string(),
            "--cache".to_owned(),
            store.display().to_string(),
            "--cache-size".to_owned(),
            (2 * ram).to_string(),
        ];
        Process::start(arguments.listen, &place.join("node"), &parts)
    };
    let cache = start()?;
    println!("  {:<22} {} serves nfs://{wire}/demo", "cache", cache.nfs);
    pass("cold: nothing is here yet", &cache, arguments).await?;
    pass("warm: the same again", &cache, arguments).await?;
    // What was read last is on its way to the disk.
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(cache);
    let cache = start()?;
    pass("restarted: the cache was killed with -9 and started again", &cache, arguments).await?;
    write_through(&cache, tree, arguments).await?;
    println!("\nFrom any Linux host that reaches a cache served with --listen 0.0.0.0:2049:");
    println!("  mount -t nfs -o vers=4.2,hard HOST:/demo /mnt");
    if arguments.keep {
        println!("This one is at {} until Ctrl-C:", cache.nfs);
        println!("  mount -t nfs -o vers=4.2,hard,port={} {}:/demo /mnt", cache.nfs.port(), cache.nfs.ip());
        tokio::signal::ctrl_c().await?;
    }
    Ok(())
}

/// The file server, behind a wire that is as slow as one between machines; where the wire begins.
async fn start_source(arguments: &Arguments, tree: &Path, place: &Path) -> anyhow::Result<(Process, SocketAddr)> {
    let export = format!("/demo=file://{},no_root_squash", tree.display().to_string().replace(',', "%2C"));
    let source = Process::start(LOOPBACK, &place.join("source"), &["--export".into(), export])?;
    println!("  {:<22} {} serves {}", "source", source.nfs, tree.display());
    let slowness = Slowness { delay: arguments.source_delay, rate: arguments.source_rate.max(1) };
    let wire = wire::start(source.nfs, slowness).await?;
    let rate = units::show_size(slowness.rate);
    println!("  {:<22} {:?} each way, {rate}/s on each of four connections", "wire to the source", slowness.delay);
    tokio::time::sleep(SETTLE).await;
    Ok((source, wire))
}

/// Reads everything once, and says how fast and where it came from.
async fn pass(what: &str, cache: &Process, arguments: &Arguments) -> anyhow::Result<()> {
    println!("\n{what}");
    let driver = Driver::connect(cache.nfs).await?;
    let (megabytes, files) = (f64::from(arguments.megabytes), f64::from(arguments.files));
    let root = driver.handle(&[b"demo"]).await?;
    let large = driver.open(&root, b"large", false).await?;
    rate(cache, "read 1 MiB in order", megabytes, "MiB/s", driver.read(&large, arguments.megabytes.into())).await?;
    driver.close(&large).await?;
    let small = driver.handle(&[b"demo", b"small"]).await?;
    rate(cache, "list directory", files, "entries/s", driver.list(&small, arguments.files)).await?;
    rate(cache, "open, read, close", files, "files/s", driver.read_small(&small, arguments.files)).await?;
    driver.leave().await
}

/// Writes a file through the cache, and looks at it at the source.
async fn write_through(cache: &Process, tree: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    println!("\nwritten through: what the client was told is committed is at the source");
    let driver = Driver::connect(cache.nfs).await?;
    let root = driver.handle(&[b"demo"]).await?;
    let file = driver.open(&root, b"written", true).await?;
    let megabytes = (arguments.megabytes / 4).max(1);
    let work = driver.write(&file, megabytes.into());
    rate(cache, "write 1 MiB in order", megabytes.into(), "MiB/s", work).await?;
    driver.close(&file).await?;
    let there = std::fs::read(tree.join("written"))?;
    let right = there.chunks(1 << 20).zip(0..).all(|(chunk, seed)| is_pattern(chunk, seed, 0));
    anyhow::ensure!(right && there.len() == (megabytes as usize) << 20, "the file at the source is another");
    driver.leave().await
}

async fn rate(
    cache: &Process,
    what: &str,
    units: f64,
    unit: &str,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let before = cache.served()?;
    let begun = Instant::now();
    work.await.with_context(|| what.to_owned())?;
    let seconds = begun.elapsed().as_secs_f64();
    let from = came_from(before, cache.served()?);
    println!("  {what:<22} {:>9.0} {unit:<10} {seconds:6.2} s   {from}", units / seconds);
    Ok(())
}

/// Where the bytes came from, in shares.
fn came_from(before: Served, after: Served) -> String {
    let tiers =
        [("RAM", after.ram - before.ram), ("NVMe", after.nvme - before.nvme), ("source", after.source - before.source)];
    let all: f64 = tiers.iter().map(|(_, bytes)| bytes).sum();
    // Where no data was read there are no shares.
    let shares = tiers.iter().filter(|(_, bytes)| *bytes > 0.0);
    let mut parts: Vec<_> = shares.map(|(tier, bytes)| format!("{:.0} % {tier}", bytes / all * 100.0)).collect();
    parts.push(format!("{:.0} source calls", after.calls - before.calls));
    parts.join(", ")
}

/// Runs one step of the preparation and says how long it took.
fn step(what: &str, work: impl FnOnce() -> anyhow::Result<String>) -> anyhow::Result<()> {
    let begun = Instant::now();
    let done = work()?;
    println!("  {what:<22} {done} in {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

fn make_tree(tree: &Path, arguments: &Arguments) -> anyhow::Result<String> {
    use std::io::Write;
    let small = tree.join("small");
    std::fs::create_dir_all(&small)?;
    for number in 0..arguments.files {
        std::fs::write(small.join(format!("file-{number:05}")), pattern(u64::from(number), SMALL_FILE))?;
    }
    let mut large = std::fs::File::create(tree.join("large"))?;
    for chunk in 0..u64::from(arguments.megabytes) {
        large.write_all(&pattern(chunk, 1 << 20))?;
    }
    Ok(format!("a file of {} MiB and {} of 4 KiB", arguments.megabytes, arguments.files))
}
