//! Metrics of operations: count, errors, bytes, queue and service time.
//!
//! Owns: the counters of the NFS front, one atomic add each on the hot path. Never does: naming by string there.
//! Histograms are kept here and written out by [`NfsMetrics::render`] since the facade's would keep every sample until
//! it is next drained; see `docs/decisions/0003-histograms.md`.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use forebay_proto::nfs4::{OpNumber, Status};
use metrics::{Counter, Gauge, counter, gauge};

/// Upper bounds in microseconds; each is about twice the one before.
const BOUNDS_US: [u64; 18] = [
    5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    5_000_000,
];

/// Numbers below this have a row of their own; the rest share row 0.
const ROWS: usize = 76;

/// Measures laps.
#[derive(Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the last lap.
    pub fn lap(&mut self) -> Duration {
        let now = Instant::now();
        let lap = now.duration_since(self.0);
        self.0 = now;
        lap
    }
}

/// Times in buckets.
#[derive(Debug, Default)]
pub struct Times {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

impl Times {
    /// Adds one.
    pub fn record(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let place = BOUNDS_US.iter().position(|bound| ns <= bound * 1000).unwrap_or(BOUNDS_US.len());
        self.buckets[place].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// How many were added, and their sum.
    pub(crate) fn total(&self) -> (u64, Duration) {
        let count = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum();
        (count, Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)))
    }

    /// Appends the histogram `name` with `label` (`key="value"`, several with commas) in Prometheus' text format.
    pub(crate) fn render(&self, out: &mut String, name: &str, label: &str) {
        let mut total = 0;
        for (place, bucket) in self.buckets.iter().enumerate() {
            total += bucket.load(Ordering::Relaxed);
            let bound = BOUNDS_US.get(place).map_or("+Inf".to_owned(), |us| (*us as f64 / 1e6).to_string());
            let _ = writeln!(out, "{name}_bucket{{{label},le=\"{bound}\"}} {total}");
        }
        let sum = self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9;
        let _ = writeln!(out, "{name}_sum{{{label}}} {sum}\n{name}_count{{{label}}} {total}");
    }
}

#[derive(Debug)]
struct Row {
    name: &'static str,
    errors: Counter,
    service: Times,
}

/// Metrics of the NFS front.
#[derive(Debug)]
pub struct NfsMetrics {
    rows: Vec<Row>,
    queue: Times,
    /// Bytes of file data sent in answer to READ and READ_PLUS.
    pub read_bytes: Counter,
    /// Bytes of file data taken by WRITE.
    pub write_bytes: Counter,
    /// Bytes of records received.
    pub received_bytes: Counter,
    /// Bytes of records sent.
    pub sent_bytes: Counter,
    /// Connections accepted.
    pub connections_accepted: Counter,
    /// Connections open.
    pub connections: Gauge,
    /// Connections closed because of what the peer sent.
    pub connections_refused: Counter,
    /// Calls of other versions.
    pub wrong_version: Counter,
}

impl NfsMetrics {
    /// Registers with the recorder that is installed, if one is.
    pub fn new() -> Self {
        let row = |number: usize| {
            let known = u32::try_from(number).ok().and_then(OpNumber::from_number);
            let name = known.map_or("OTHER", OpNumber::name);
            let errors = if known.is_some() || number == 0 {
                counter!("forebay_nfs_operation_errors_total", "operation" => name)
            } else {
                Counter::noop()
            };
            Row { name, errors, service: Times::default() }
        };
        Self {
            rows: (0..ROWS).map(row).collect(),
            queue: Times::default(),
            read_bytes: counter!("forebay_nfs_read_bytes_total"),
            write_bytes: counter!("forebay_nfs_write_bytes_total"),
            received_bytes: counter!("forebay_nfs_received_bytes_total"),
            sent_bytes: counter!("forebay_nfs_sent_bytes_total"),
            connections_accepted: counter!("forebay_nfs_connections_accepted_total"),
            connections: gauge!("forebay_nfs_connections"),
            connections_refused: counter!("forebay_nfs_connections_refused_total"),
            wrong_version: counter!("forebay_nfs_wrong_version_total"),
        }
    }

    /// One operation is done.
    pub fn operation(&self, number: u32, status: Status, time: Duration) {
        let known = OpNumber::from_number(number).map_or(0, |known| known as usize);
        let Some(row) = self.rows.get(known) else { return };
        row.service.record(time);
        if status != Status::Ok {
            row.errors.increment(1);
        }
    }

    /// A call waited this long between its last byte and its first operation.
    pub fn queued(&self, time: Duration) {
        self.queue.record(time);
    }

    /// Operations by name, and calls with the time they waited, all together.
    pub fn counted(&self) -> (Vec<(&'static str, u64)>, (u64, Duration)) {
        let count = |row: &Row| (row.name, row.service.total().0);
        (self.rows.iter().map(count).filter(|(_, count)| *count > 0).collect(), self.queue.total())
    }

    /// The histograms in Prometheus' text format.
    pub fn render(&self) -> String {
        let mut out = String::new();
        let name = "forebay_nfs_operation_seconds";
        let _ = writeln!(out, "# HELP {name} Service time of each operation; its count is the operation's count.");
        let _ = writeln!(out, "# TYPE {name} histogram");
        for row in &self.rows {
            if row.service.buckets.iter().any(|bucket| bucket.load(Ordering::Relaxed) > 0) {
                row.service.render(&mut out, name, &format!("operation=\"{}\"", row.name));
            }
        }
        let name = "forebay_nfs_queue_seconds";
        let _ = writeln!(out, "# HELP {name} Time between a call's last byte and its first operation.");
        let _ = writeln!(out, "# TYPE {name} histogram");
        self.queue.render(&mut out, name, "program=\"nfs\"");
        out
    }
}

impl Default for NfsMetrics {
    fn default() -> Self {
        Self::new()
    }
}
