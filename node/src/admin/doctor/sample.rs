//! Everything the doctor looks at, at one moment, as plain numbers.
//!
//! Owns: reading it, from the node's own metrics and from what the kernel tells of the process. Never does: judge. What
//! cannot be read is zero or absent, and then nothing is found there.

use std::{path::Path, time::Instant};

use crate::{
    admin::AdminState,
    cache::QUEUE_BYTES,
    source::{cached::Consistency, network::NetworkSource},
};

/// A source. Sums are since the node's start.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "as in docs/metrics.md, seconds and bytes")]
pub struct SourceSample {
    pub export: String,
    pub url: String,
    pub up: bool,
    pub connections: u64,
    pub round_trips: u64,
    pub rtt_s: f64,
    pub queue_s: f64,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub delayed: u64,
    pub delayed_s: f64,
    pub refused: u64,
    pub slope: f64,
    pub hours_to_empty: Option<f64>,
    pub stale: u64,
    pub name_hits: u64,
    pub name_misses: u64,
    /// The export believes for long (`policy=scratch`).
    pub scratch: bool,
}

/// The cache.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "as in docs/metrics.md")]
pub struct CacheSample {
    pub ram_capacity: u64,
    pub nvme_capacity: u64,
    pub ram_hits: u64,
    pub nvme_hits: u64,
    pub misses: u64,
    pub ram_evictions: u64,
    pub nvme_evictions: u64,
    pub checksum_failures: u64,
    pub store_errors: u64,
    pub degraded: bool,
    pub queued_bytes: u64,
    pub queue_limit: u64,
    pub insert_wait_s: f64,
}

/// What clients ask.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "numbers of operations since the start, and sums of seconds")]
pub struct NfsSample {
    pub operations: u64,
    pub getattr: u64,
    pub lookup: u64,
    pub access: u64,
    pub read: u64,
    pub calls: u64,
    pub queue_s: f64,
    pub sent_bytes: u64,
}

/// What the kernel tells of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessSample {
    /// Seconds of CPU used.
    pub cpu_s: f64,
    /// Cores it may use, its control group's quota included.
    pub cores: f64,
    /// Bytes of memory it has.
    pub resident_bytes: u64,
    /// Bytes it may have: its control group's limit, or the machine's memory; 0 if unknown.
    pub memory_limit: u64,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkSample {
    /// As `ip link` calls it.
    pub name: String,
    /// Bytes a second, each way.
    pub speed: f64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the types say it")]
pub struct Sample {
    /// Seconds since any fixed moment.
    pub at_s: f64,
    pub sources: Vec<SourceSample>,
    pub cache: Option<CacheSample>,
    pub nfs: NfsSample,
    pub process: ProcessSample,
    pub links: Vec<LinkSample>,
}

impl Sample {
    /// As it is now.
    pub fn take(state: &AdminState) -> Self {
        let network = &state.network;
        network.sources().iter().for_each(|source| source.metered.publish());
        let cache = network.cache().map(|cache| cache.stats());
        let text = state.metrics.render();
        let cache = cache.map(|stats| CacheSample {
            ram_capacity: stats.ram.capacity,
            nvme_capacity: stats.nvme.capacity,
            ram_hits: stats.ram.hits,
            nvme_hits: stats.nvme.hits,
            misses: stats.misses,
            ram_evictions: stats.ram.evictions,
            nvme_evictions: stats.nvme.evictions,
            checksum_failures: stats.checksum_failures,
            store_errors: stats.store_errors,
            degraded: stats.degraded,
            queued_bytes: stats.queued_bytes,
            queue_limit: QUEUE_BYTES,
            insert_wait_s: sum(&text, "forebay_cache_insert_wait_seconds_total", ""),
        });
        Self {
            at_s: uptime(),
            sources: network.sources().iter().map(|source| source_sample(source, &text)).collect(),
            cache,
            nfs: nfs_sample(state, &text),
            process: process_sample(Path::new("/proc/self"), Path::new("/sys/fs/cgroup")),
            links: links(Path::new("/sys/class/net")),
        }
    }
}

fn uptime() -> f64 {
    static BEGAN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    BEGAN.elapsed().as_secs_f64()
}

fn source_sample(source: &NetworkSource, text: &str) -> SourceSample {
    let counted = source.counters.snapshot();
    let (outlook, _) = source.metered.outlook();
    let of_source = format!("source=\"{}\"", source.url);
    let of_export = format!("export=\"{}\"", source.export);
    let count = |name: &str, label: &str| sum(text, name, label) as u64;
    SourceSample {
        export: source.export.clone(),
        url: source.url.clone(),
        up: counted.up,
        connections: counted.connections,
        round_trips: counted.round_trips,
        rtt_s: counted.kinds.iter().map(|kind| kind.rtt.as_secs_f64()).sum(),
        queue_s: counted.kinds.iter().map(|kind| kind.queue.as_secs_f64()).sum(),
        read_bytes: counted.read_bytes,
        write_bytes: counted.write_bytes,
        delayed: count("forebay_budget_delayed_total", &of_source),
        delayed_s: sum(text, "forebay_budget_delayed_microseconds_total", &of_source) / 1e6,
        refused: count("forebay_budget_refused_total", &of_source),
        slope: outlook.slope,
        hours_to_empty: outlook.hours_to_empty,
        stale: count("forebay_served_stale_total", &of_export),
        name_hits: count("forebay_name_hits_total", &of_export),
        name_misses: count("forebay_name_misses_total", &of_export),
        scratch: source.cached.policy().consistency == Consistency::Scratch,
    }
}

fn nfs_sample(state: &AdminState, text: &str) -> NfsSample {
    let (operations, (calls, queue)) = state.server.metrics.counted();
    let of = |name: &str| operations.iter().filter(|(known, _)| *known == name).map(|(_, count)| *count).sum();
    NfsSample {
        operations: operations.iter().map(|(_, count)| *count).sum(),
        getattr: of("GETATTR"),
        lookup: of("LOOKUP"),
        access: of("ACCESS"),
        read: of("READ") + of("READ_PLUS"),
        calls,
        queue_s: queue.as_secs_f64(),
        sent_bytes: sum(text, "forebay_nfs_sent_bytes_total", "") as u64,
    }
}

/// The sum of a metric's values over the lines with this label, in Prometheus' text format.
fn sum(text: &str, name: &str, label: &str) -> f64 {
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let is_it = rest.starts_with(' ') || (rest.starts_with('{') && rest.contains(label));
        rest.rsplit(' ').next().filter(|_| is_it)?.parse::<f64>().ok()
    };
    text.lines().filter_map(value).sum()
}

fn process_sample(process: &Path, group: &Path) -> ProcessSample {
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let status = read(&process.join("status"));
    let machine = kilobytes(&read(Path::new("/proc/meminfo")), "MemTotal:");
    // The group's own directory where control groups are version 2, else nothing is known.
    let own = read(&process.join("cgroup"));
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let limit = read(&group.join(own).join("memory.max")).trim().parse::<u64>().ok();
    ProcessSample {
        cpu_s: cpu_seconds(&read(&process.join("stat"))),
        cores: std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64),
        resident_bytes: kilobytes(&status, "VmRSS:"),
        memory_limit: limit.unwrap_or(u64::MAX).min(if machine == 0 { u64::MAX } else { machine }),
    }
}

/// A value in kB out of `/proc`, in bytes; 0 if it is not there.
fn kilobytes(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0).saturating_mul(1024)
}

/// User and system time out of `/proc/self/stat` (fields 14 and 15, in clock ticks).
fn cpu_seconds(stat: &str) -> f64 {
    // The second field is a name and may have anything in it.
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields = after_name.split_whitespace().skip(11).take(2);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Interfaces that say how fast they are.
fn links(class: &Path) -> Vec<LinkSample> {
    let number = |path: &Path| std::fs::read_to_string(path).ok()?.trim().parse::<i64>().ok();
    let link = |entry: std::fs::DirEntry| {
        let path = entry.path();
        // Megabits a second; -1 or an error where nobody knows.
        let speed = number(&path.join("speed")).filter(|speed| *speed > 0)?;
        let bytes = |which: &str| number(&path.join("statistics").join(which)).map_or(0, i64::unsigned_abs);
        let name = entry.file_name().to_string_lossy().into_owned();
        let speed = speed as f64 * 1e6 / 8.0;
        Some(LinkSample { name, speed, received_bytes: bytes("rx_bytes"), sent_bytes: bytes("tx_bytes") })
    };
    std::fs::read_dir(class).into_iter().flatten().flatten().filter_map(link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_name_and_label() {
        let text =
            "# TYPE a_total counter\na_total{export=\"/x\"} 3\na_total{export=\"/xy\"} 4\na_total_more 9\nb 2.5\n";
        assert_eq!(sum(text, "a_total", "export=\"/x\""), 3.0);
        assert_eq!(sum(text, "a_total", ""), 7.0);
        assert_eq!(sum(text, "b", ""), 2.5);
        assert_eq!(sum(text, "missing", ""), 0.0);
    }

    #[test]
    fn the_kernels_files_are_read_as_they_are_written() {
        let stat = "17 (a (b) c) S 1 17 17 0 -1 4194560 1 2 3 4 250 150 0 0 20 0 5 0 99 1 2";
        assert_eq!(cpu_seconds(stat) * rustix::param::clock_ticks_per_second() as f64, 400.0);
        assert_eq!(kilobytes("Name:\tx\nVmRSS:\t  2048 kB\n", "VmRSS:"), 2 << 20);
        let process = process_sample(Path::new("/proc/self"), Path::new("/sys/fs/cgroup"));
        assert!(process.cores >= 1.0 && process.resident_bytes > 1 << 20, "{process:?}");
        assert!(process.memory_limit >= process.resident_bytes, "{process:?}");
    }
}
