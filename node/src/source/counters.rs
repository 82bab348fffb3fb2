//! What one source on the network was asked, and how it did.
//!
//! Owns: the counters and histograms of calls, and their text for Prometheus. Never does: deciding anything.
//! Invariant: the hot path adds to atomics; names are put together only when somebody reads them.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use crate::admin::metrics::Times;

macro_rules! kinds {
    ($($(#[$meta:meta])* $variant:ident $name:literal),* $(,)?) => {
        /// What a call to a source is for, whatever the protocol.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum Kind { $($(#[$meta])* $variant),* }

        impl Kind {
            /// Every kind, in the order of its counters.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// As it stands in metrics.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

kinds! {
    /// An object, by handle or by name, with what comes along.
    Look "LOOK",
    /// Many objects in one call.
    LookMany "LOOK_MANY",
    /// A path, name by name.
    Lookup "LOOKUP",
    /// Attributes.
    GetAttr "GETATTR",
    /// What a user may do.
    Access "ACCESS",
    /// Data.
    Read "READ",
    /// Data to the source.
    Write "WRITE",
    /// Data to the source's disk.
    Commit "COMMIT",
    /// Attributes to the source.
    SetAttr "SETATTR",
    /// A regular file.
    Create "CREATE",
    /// Any other object.
    Make "MAKE",
    /// Another name.
    Link "LINK",
    /// A name away.
    Remove "REMOVE",
    /// A name moved.
    Rename "RENAME",
    /// What a symbolic link says.
    ReadLink "READLINK",
    /// A directory's entries.
    ReadDir "READDIR",
    /// Space of a file system.
    Space "SPACE",
    /// Data or hole.
    Seek "SEEK",
    /// Space reserved or freed.
    Allocate "ALLOCATE",
    /// Extended attributes.
    Xattr "XATTR",
    /// An open where reading or writing without one is refused.
    Open "OPEN",
    /// The end of such an open.
    Close "CLOSE",
    /// Connections, sessions, leases.
    Session "SESSION",
}

impl Kind {
    /// Whether such a call changes something.
    pub fn is_change(self) -> bool {
        use Kind::{Allocate, Commit, Create, Link, Make, Remove, Rename, SetAttr, Write};
        matches!(self, Write | Commit | SetAttr | Create | Make | Link | Remove | Rename | Allocate)
    }
}

/// Counters of one kind of call.
#[derive(Debug, Default)]
struct Row {
    errors: AtomicU64,
    retries: AtomicU64,
    queue: Times,
    rtt: Times,
    exec: Times,
}

/// Counters of one source.
#[derive(Debug)]
pub struct SourceCounters {
    source: String,
    rows: Vec<Row>,
    round_trips: AtomicU64,
    read_bytes: AtomicU64,
    write_bytes: AtomicU64,
    up: AtomicBool,
    connections: AtomicU64,
}

/// What one kind of call counted so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindSnapshot {
    /// Which.
    pub kind: Kind,
    /// Calls that ended.
    pub calls: u64,
    /// Of those, the ones that failed, for whatever reason.
    pub errors: u64,
    /// Times that a call was sent again.
    pub retries: u64,
    /// Time from the call to its being sent, all together.
    pub queue: Duration,
    /// Time from sending to the reply, all together.
    pub rtt: Duration,
    /// Time from the call to its end, all together.
    pub exec: Duration,
}

/// Everything one source counted so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountersSnapshot {
    /// Kinds that were called or sent again at least once.
    pub kinds: Vec<KindSnapshot>,
    /// Messages sent that a reply was waited for, retries and housekeeping included.
    pub round_trips: u64,
    /// Bytes of file data read.
    pub read_bytes: u64,
    /// Bytes of file data written.
    pub write_bytes: u64,
    /// The source answers.
    pub up: bool,
    /// Connections that stand.
    pub connections: u64,
}

impl CountersSnapshot {
    /// One kind's counts; zeros if it was never called.
    pub fn kind(&self, kind: Kind) -> KindSnapshot {
        let zero = Duration::ZERO;
        let none = KindSnapshot { kind, calls: 0, errors: 0, retries: 0, queue: zero, rtt: zero, exec: zero };
        self.kinds.iter().find(|row| row.kind == kind).copied().unwrap_or(none)
    }
}

impl SourceCounters {
    /// Counters of the source with this name, usually its URL.
    pub fn new(source: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            rows: Kind::ALL.iter().map(|_| Row::default()).collect(),
            round_trips: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            write_bytes: AtomicU64::new(0),
            up: AtomicBool::new(false),
            connections: AtomicU64::new(0),
        }
    }

    fn row(&self, kind: Kind) -> &Row {
        &self.rows[kind as usize]
    }

    /// A call ended after this time.
    pub fn ended(&self, kind: Kind, exec: Duration, failed: bool) {
        let row = self.row(kind);
        row.exec.record(exec);
        if failed {
            row.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A call is sent again.
    pub fn retried(&self, kind: Kind) {
        self.row(kind).retries.fetch_add(1, Ordering::Relaxed);
    }

    /// A message was sent after it had waited this long.
    pub fn sent(&self, kind: Kind, queue: Duration) {
        self.round_trips.fetch_add(1, Ordering::Relaxed);
        self.row(kind).queue.record(queue);
    }

    /// A reply came this long after its message was sent.
    pub fn replied(&self, kind: Kind, rtt: Duration) {
        self.row(kind).rtt.record(rtt);
    }

    /// File data came.
    pub fn read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// File data was taken.
    pub fn written(&self, bytes: usize) {
        self.write_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Whether the source answers.
    pub fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::Relaxed);
    }

    /// A connection was made.
    pub fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection is gone.
    pub fn disconnected(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// What was counted so far; not of one instant.
    pub fn snapshot(&self) -> CountersSnapshot {
        let row = |kind: &Kind| {
            let row = self.row(*kind);
            let ((_, queue), (_, rtt), (calls, exec)) = (row.queue.total(), row.rtt.total(), row.exec.total());
            let (errors, retries) = (row.errors.load(Ordering::Relaxed), row.retries.load(Ordering::Relaxed));
            KindSnapshot { kind: *kind, calls, errors, retries, queue, rtt, exec }
        };
        CountersSnapshot {
            kinds: Kind::ALL.iter().map(row).filter(|row| row.calls + row.retries > 0).collect(),
            round_trips: self.round_trips.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            write_bytes: self.write_bytes.load(Ordering::Relaxed),
            up: self.up.load(Ordering::Relaxed),
            connections: self.connections.load(Ordering::Relaxed),
        }
    }

    /// All sources' counters in Prometheus' text format: each metric's type is told once.
    pub fn render<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> String {
        let mut out = String::new();
        let snapshots: Vec<_> = all.clone().map(|one| (escaped(&one.source), one, one.snapshot())).collect();
        let per_kind: [Metric<OfKind>; 3] = [
            ("forebay_source_calls_total", "Calls to a source that ended.", |row| row.calls),
            ("forebay_source_errors_total", "Calls to a source that failed.", |row| row.errors),
            ("forebay_source_retries_total", "Calls sent to a source again.", |row| row.retries),
        ];
        for (name, help, value) in per_kind {
            head(&mut out, name, help, "counter");
            for (source, _, snapshot) in &snapshots {
                for row in &snapshot.kinds {
                    let operation = row.kind.name();
                    let _ = writeln!(out, "{name}{{source=\"{source}\",operation=\"{operation}\"}} {}", value(row));
                }
            }
        }
        let times: [Metric<OfRow>; 3] = [
            ("forebay_source_queue_seconds", "Time until a call to a source is sent.", |row| &row.queue),
            ("forebay_source_rtt_seconds", "Time from sending a call to its reply.", |row| &row.rtt),
            ("forebay_source_exec_seconds", "Time a call to a source takes in all.", |row| &row.exec),
        ];
        for (name, help, value) in times {
            head(&mut out, name, help, "histogram");
            for (source, counters, snapshot) in &snapshots {
                for row in &snapshot.kinds {
                    let label = format!("source=\"{source}\",operation=\"{}\"", row.kind.name());
                    value(counters.row(row.kind)).render(&mut out, name, &label);
                }
            }
        }
        let totals: [(&str, Metric<OfAll>); 5] = [
            ("counter", ("forebay_source_round_trips_total", "Messages sent to a source.", |all| all.round_trips)),
            ("counter", ("forebay_source_read_bytes_total", "File data read from a source.", |all| all.read_bytes)),
            ("counter", ("forebay_source_write_bytes_total", "File data written to a source.", |all| all.write_bytes)),
            ("gauge", ("forebay_source_up", "Whether a source answers.", |all| all.up.into())),
            ("gauge", ("forebay_source_connections", "Connections to a source.", |all| all.connections)),
        ];
        for (kind, (name, help, value)) in totals {
            head(&mut out, name, help, kind);
            for (source, _, snapshot) in &snapshots {
                let _ = writeln!(out, "{name}{{source=\"{source}\"}} {}", value(snapshot));
            }
        }
        out
    }
}

/// A metric's name, what it is, and where its value is.
type Metric<F> = (&'static str, &'static str, F);
type OfKind = fn(&KindSnapshot) -> u64;
type OfRow = fn(&Row) -> &Times;
type OfAll = fn(&CountersSnapshot) -> u64;

fn head(out: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// A label's value may hold neither quote nor line end as they are.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_told_and_rendered_once_per_source() {
        let (one, two) = (SourceCounters::new("nfs://a/\"x\""), SourceCounters::new("nfs://b/"));
        one.sent(Kind::Read, Duration::from_micros(3));
        one.replied(Kind::Read, Duration::from_micros(70));
        one.ended(Kind::Read, Duration::from_micros(80), false);
        one.ended(Kind::Read, Duration::from_micros(20), true);
        one.retried(Kind::Write);
        one.read(4096);
        two.set_up(true);
        let snapshot = one.snapshot();
        let read = snapshot.kind(Kind::Read);
        assert_eq!((read.calls, read.errors, read.exec), (2, 1, Duration::from_micros(100)));
        assert_eq!((snapshot.kind(Kind::Write).retries, snapshot.round_trips, snapshot.read_bytes), (1, 1, 4096));
        let text = SourceCounters::render([&one, &two].into_iter());
        for line in [
            "forebay_source_calls_total{source=\"nfs://a/\\\"x\\\"\",operation=\"READ\"} 2",
            "forebay_source_retries_total{source=\"nfs://a/\\\"x\\\"\",operation=\"WRITE\"} 1",
            "forebay_source_rtt_seconds_count{source=\"nfs://a/\\\"x\\\"\",operation=\"READ\"} 1",
            "forebay_source_up{source=\"nfs://a/\\\"x\\\"\"} 0",
            "forebay_source_up{source=\"nfs://b/\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        assert_eq!(text.matches("# TYPE forebay_source_up gauge").count(), 1);
    }
}
