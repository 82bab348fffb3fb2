//! Forebay as a cache in front of a source: what it saves, and what it costs beside a server that has the files itself.
//!
//! Owns: the order of measurements. The source is another Forebay, so that both sides are measured with the same server; a slow wire
//! between them stands for a network and a filer where the measurement is about those. Each figure is printed with what it was held to.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    counted::Counted,
    load::{self, Plan},
    pattern::PAGE,
    process::{Scratch, resident_bytes},
    proxy::Proxy,
    servers::{CacheSetup, EXPORT, Server},
    tree::write_file,
    works::Kind,
};

/// What can be measured.
pub const ALL: [&str; 6] = ["cold", "stream", "ram", "nvme", "tree", "memory"];

/// The source's clock must have moved on before what it says of its files can be told from later changes.
const SETTLE: Duration = Duration::from_millis(2500);
/// Rounds of paired measurements.
const ROUNDS: usize = 5;

/// How much there is of everything.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    stream: u64,
    files: u32,
    time: Duration,
}

/// Files and the servers that do not change between measurements.
struct Bench {
    sizes: Sizes,
    source: Server,
    wire: Proxy,
    disk: Scratch,
    tree: Scratch,
}

/// Measures and prints.
///
/// # Errors
/// When a server does not start or fails an operation, or a name in `only` is not known.
pub fn run(quick: bool, only: &[String], minutes: f64) -> Result<()> {
    let full = Sizes { stream: 512 << 20, files: 20_000, time: Duration::from_secs(3) };
    let small = Sizes { stream: 64 << 20, files: 2000, time: Duration::from_secs(1) };
    let bench = Bench::new(if quick { small } else { full })?;
    for name in only {
        match name.as_str() {
            "cold" => bench.cold()?,
            "stream" => bench.stream()?,
            "ram" => bench.ram()?,
            "nvme" => bench.nvme()?,
            "tree" => bench.tree()?,
            "memory" => bench.memory(minutes)?,
            other => bail!("`{other}`: expected {}", ALL.join(", ")),
        }
    }
    Ok(())
}

impl Bench {
    fn new(sizes: Sizes) -> Result<Self> {
        let tree = Scratch::new(Path::new("/dev/shm"))?;
        write_file(&tree.path().join("ten"), 10 << 20)?;
        write_file(&tree.path().join("stream"), sizes.stream)?;
        fs::create_dir(tree.path().join("names"))?;
        for number in 0..sizes.files {
            write_file(&tree.path().join(format!("names/file-{number:06}.c")), PAGE as u64)?;
        }
        // The source's clock must be able to tell every later change from these.
        std::thread::sleep(SETTLE);
        let source = Server::forebay(tree.path())?;
        let wire = Proxy::start(source.address)?;
        let disk = Scratch::new(Path::new("/var/tmp"))?;
        Ok(Self { sizes, source, wire, disk, tree })
    }

    fn setup(&self, ram: &'static str) -> CacheSetup {
        CacheSetup { source: self.wire.address, ram, store: None, options: "" }
    }

    /// An empty directory for a store.
    fn store(&self) -> Result<PathBuf> {
        let store = self.disk.path().join("store");
        let _ = fs::remove_dir_all(&store);
        fs::create_dir(&store)?;
        Ok(store)
    }

    fn plan(&self, server: &Server, name: &str, work: Kind) -> Plan {
        Plan {
            server: server.address,
            path: format!("{EXPORT}/{name}"),
            work,
            connections: 1,
            depth: None,
            time: self.sizes.time,
            verify: true,
            server_pid: Some(server.pid()),
        }
    }

    /// A file of 10 MiB over 5 ms and 20 MB/s; a 4 KiB read of it; and all of that after kill -9.
    fn cold(&self) -> Result<()> {
        self.wire.set(Duration::from_millis(5), 20_000_000);
        let store = self.store()?;
        let setup = CacheSetup { store: Some(store), ..self.setup("256MiB") };
        let cache = Server::cache(&setup)?;
        let plan = self.plan(&cache, "ten", Kind::SequentialRead);
        let cold = load::once(&plan)?.elapsed;
        let warm = median((0..ROUNDS).map(|_| Ok(load::once(&plan)?.elapsed.as_secs_f64())))?;
        let ratio = cold.as_secs_f64() / warm;
        println!("cold 10 MiB over 5 ms, 20 MB/s   {:8.1} ms", cold.as_secs_f64() * 1e3);
        println!("the same from RAM                {:8.2} ms   {ratio:.0}x (held to: 50x)", warm * 1e3);
        let before = counted(&cache)?;
        let random = load::run(&self.plan(&cache, "ten", Kind::RandomRead))?;
        let calls =
            counted(&cache)?.sum("forebay_source_calls_total", "") - before.sum("forebay_source_calls_total", "");
        println!(
            "4 KiB reads of it                {:8.1} us at the median, {} reads, {calls} source calls",
            random.latency.value_at_quantile(0.5) as f64 / 1e3,
            random.units
        );
        // Long enough for what is queued to be on the disk.
        std::thread::sleep(Duration::from_secs(1));
        drop(cache);
        let cache = Server::cache(&setup)?;
        let restarted = load::once(&self.plan(&cache, "ten", Kind::SequentialRead))?.elapsed;
        let after = counted(&cache)?;
        println!(
            "after kill -9 and a new start    {:8.2} ms   {} source data bytes, {} from NVMe (held to: 0)",
            restarted.as_secs_f64() * 1e3,
            after.sum("forebay_source_read_bytes_total", ""),
            after.sum("forebay_read_bytes_total", "nvme"),
        );
        self.wire.set(Duration::ZERO, 0);
        Ok(())
    }

    /// A cold file in order, beside the source itself, in pairs.
    fn stream(&self) -> Result<()> {
        let mut ratios = Vec::new();
        for (delay, rate, what) in [
            (0, 0, "a wire without bounds   "),
            (1, 0, "1 ms                    "),
            (1, 250_000_000, "1 ms, 250 MB/s          "),
            (5, 100_000_000, "5 ms, 100 MB/s          "),
        ] {
            self.wire.set(Duration::from_millis(delay), rate);
            ratios.clear();
            for _ in 0..ROUNDS {
                let cache = Server::cache(&self.setup("1GiB"))?;
                let through = load::once(&self.plan(&cache, "stream", Kind::SequentialRead))?;
                let mut plan = self.plan(&self.source, "stream", Kind::SequentialRead);
                plan.server = self.wire.address;
                let direct = load::once(&plan)?;
                ratios.push(direct.elapsed.as_secs_f64() / through.elapsed.as_secs_f64());
            }
            let ratio = middle(&mut ratios);
            println!("cold sequential, {what} {ratio:8.2} of the source itself (held to: 0.9)");
        }
        self.wire.set(Duration::ZERO, 0);
        Ok(())
    }

    /// Out of RAM, beside a Forebay that has the files itself, in pairs.
    fn ram(&self) -> Result<()> {
        let cache = Server::cache(&self.setup("1GiB"))?;
        for (work, name, what) in [
            (Kind::SequentialRead, "stream", "sequential from RAM"),
            (Kind::RandomRead, "ten", "4 KiB from RAM"),
            (Kind::Getattr, "names", "GETATTR"),
            (Kind::Lookup, "names", "LOOKUP"),
            (Kind::OpenReadClose, "names", "open, read, close"),
        ] {
            let (mut rates, mut medians) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let through = load::run(&self.plan(&cache, name, work))?;
                let direct = load::run(&self.plan(&self.source, name, work))?;
                rates.push(through.units_per_s / direct.units_per_s);
                let p50 = |measured: &load::Measured| measured.latency.value_at_quantile(0.5) as f64;
                medians.push(p50(&through) / p50(&direct));
            }
            let (rate, p50) = (middle(&mut rates), middle(&mut medians));
            println!("{what:<32} {rate:8.2} of a local directory's rate, median time {p50:.2} of its");
        }
        Ok(())
    }

    /// Out of NVMe, beside fio on the same file system.
    fn nvme(&self) -> Result<()> {
        let store = self.store()?;
        let setup = CacheSetup { store: Some(store.clone()), ..self.setup("64MiB") };
        let cache = Server::cache(&setup)?;
        let plan = self.plan(&cache, "stream", Kind::SequentialRead);
        load::once(&plan)?;
        std::thread::sleep(Duration::from_secs(3));
        let mut ratios = Vec::new();
        let mut last = (0.0, 0.0);
        for _ in 0..ROUNDS {
            let before = counted(&cache)?;
            let tally = load::once(&Plan { verify: false, ..plan.clone() })?;
            let after = counted(&cache)?;
            let sourced =
                after.sum("forebay_source_read_bytes_total", "") - before.sum("forebay_source_read_bytes_total", "");
            if sourced > 0.0 {
                eprintln!("{sourced} bytes came from the source: not all was on the disk yet");
            }
            let rate = tally.bytes as f64 / tally.elapsed.as_secs_f64();
            let fio = fio(&self.disk.path().join("fio"), self.sizes.stream)?;
            ratios.push(rate / fio);
            last = (rate, fio);
        }
        println!(
            "sequential from NVMe             {:8.2} of fio (last: {:.0} and {:.0} MiB/s) (held to: 0.8)",
            middle(&mut ratios),
            last.0 / f64::from(1 << 20),
            last.1 / f64::from(1 << 20)
        );
        Ok(())
    }

    /// Source calls for a tree of small files, cold and warm.
    fn tree(&self) -> Result<()> {
        let files = f64::from(self.sizes.files);
        for (policy, options) in [("close-to-open", ""), ("scratch", ",policy=scratch")] {
            let cache = Server::cache(&CacheSetup { options, ..self.setup("1GiB") })?;
            let plan = self.plan(&cache, "names", Kind::OpenReadClose);
            for pass in ["cold", "warm", "warm again"] {
                let before = counted(&cache)?;
                let tally = load::once(&plan)?;
                let after = counted(&cache)?;
                let calls = after.sum("forebay_source_calls_total", "") - before.sum("forebay_source_calls_total", "");
                let trips = after.sum("forebay_source_round_trips_total", "")
                    - before.sum("forebay_source_round_trips_total", "");
                println!(
                    "{policy:<14} {pass:<11} {} files   {calls:7.0} source calls, {trips:7.0} round trips, {:.3} a file; {:.2} s",
                    self.sizes.files,
                    calls / files,
                    tally.elapsed.as_secs_f64()
                );
            }
        }
        Ok(())
    }

    /// Memory with a working set ten times the RAM given, under everything at once.
    fn memory(&self, minutes: f64) -> Result<()> {
        let ram = if self.is_quick() { 64_u64 } else { 512 };
        write_file(&self.tree.path().join("large"), (10 * ram) << 20)?;
        write_file(&self.tree.path().join("written"), 64 << 20)?;
        std::thread::sleep(SETTLE);
        let cache = Server::cache(&CacheSetup {
            store: Some(self.store()?),
            ..self.setup(if self.is_quick() { "64MiB" } else { "512MiB" })
        })?;
        let idle = resident_bytes(cache.pid())?;
        let end = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
        let (mut most, mut rounds) = (0, 0);
        while rounds == 0 || Instant::now() < end {
            std::thread::scope(|scope| {
                let large = scope
                    .spawn(|| load::once(&Plan { verify: false, ..self.plan(&cache, "large", Kind::SequentialRead) }));
                let names = scope.spawn(|| load::once(&self.plan(&cache, "names", Kind::OpenReadClose)));
                let write = scope.spawn(|| {
                    load::once(&Plan { verify: false, ..self.plan(&cache, "written", Kind::SequentialWrite) })
                });
                while !(large.is_finished() && names.is_finished() && write.is_finished()) {
                    most = most.max(resident_bytes(cache.pid())?);
                    std::thread::sleep(Duration::from_millis(50));
                }
                for thread in [large, names, write] {
                    thread.join().map_err(|_| anyhow::anyhow!("a load panicked"))??;
                }
                Ok::<_, anyhow::Error>(())
            })?;
            rounds += 1;
        }
        let (ram, mib) = (ram << 20, |bytes: u64| bytes >> 20);
        println!(
            "resident, {rounds} rounds over ten times the RAM: idle {} MiB, at most {} MiB with {} MiB of RAM cache: {:.2} (held to: 1.20)",
            mib(idle),
            mib(most),
            mib(ram),
            most as f64 / ram as f64
        );
        fs::remove_file(self.tree.path().join("large"))?;
        Ok(())
    }

    fn is_quick(&self) -> bool {
        self.sizes.files < 20_000
    }
}

fn counted(server: &Server) -> Result<Counted> {
    Counted::read(server.admin.context("only Forebay counts")?)
}

fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn median(values: impl Iterator<Item = Result<f64>>) -> Result<f64> {
    let mut values = values.collect::<Result<Vec<_>>>()?;
    Ok(middle(&mut values))
}

/// Bytes a second that fio reads in order from a file of its own, directly.
fn fio(path: &Path, size: u64) -> Result<f64> {
    let mut command = Command::new("fio");
    command.args([
        "--name=read",
        "--rw=read",
        "--bs=1M",
        "--direct=1",
        "--ioengine=psync",
        "--output-format=json",
        "--thread",
    ]);
    command
        .args(["--numjobs=8", "--group_reporting", "--offset_increment=12%"])
        .arg(format!("--filename={}", path.display()));
    command.arg(format!("--filesize={size}")).arg(format!("--size={}", size / 8));
    let output = command.output().context("running fio; apt-get install fio")?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).context("fio's report")?;
    report["jobs"][0]["read"]["bw_bytes"].as_f64().context("fio's report has no rate")
}
