//! Metrics of the peer path, as handles.
//!
//! Owns: every `forebay_peer_*` metric. Never does: decide anything, name a metric where chunks go by.

use std::fmt::Write as _;

use forebay_proto::cluster::NodeId;
use metrics::{Counter, Gauge, counter, gauge};

use super::latency::Latency;
use crate::admin::metrics::Times;

/// Why a connection was closed or never came to be. One is counted each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// TLS failed: another authority, none, or something that does not speak TLS.
    Certificate,
    /// Another cluster's.
    Cluster,
    /// Not the node that it says, or not the one that is wanted.
    Node,
    /// No version of the protocol that both speak.
    Version,
    /// Frames that are none, or that the protocol does not allow.
    Protocol,
    /// It stopped in the middle, or did not take what it asked for.
    Stalled,
    /// There were too many.
    Busy,
    /// It does not know the cluster's token, or says again what another said.
    Token,
}

impl Refused {
    const ALL: [Self; 8] = [
        Self::Certificate,
        Self::Cluster,
        Self::Node,
        Self::Version,
        Self::Protocol,
        Self::Stalled,
        Self::Busy,
        Self::Token,
    ];

    /// As the metric's label says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::Cluster => "cluster",
            Self::Node => "node",
            Self::Version => "version",
            Self::Protocol => "protocol",
            Self::Stalled => "stalled",
            Self::Busy => "busy",
            Self::Token => "token",
        }
    }
}

/// How requests end; the label `outcome`.
#[derive(Debug)]
#[allow(missing_docs, reason = "named as the metrics' labels are, see docs/metrics.md")]
pub struct Outcomes {
    pub data: Counter,
    pub miss: Counter,
    pub stale: Counter,
    pub busy: Counter,
    pub refused: Counter,
    pub cancelled: Counter,
}

impl Outcomes {
    fn new(name: &'static str) -> Self {
        let outcome = |outcome: &'static str| counter!(name, "outcome" => outcome);
        Self {
            data: outcome("data"),
            miss: outcome("miss"),
            stale: outcome("stale"),
            busy: outcome("busy"),
            refused: outcome("refused"),
            cancelled: outcome("cancelled"),
        }
    }
}

/// All of them.
#[derive(Debug)]
#[allow(missing_docs, reason = "named as the metrics are, see docs/metrics.md")]
pub struct PeerMetrics {
    pub served: Outcomes,
    pub served_bytes: Counter,
    pub connections_in: Gauge,
    pub held_bytes: Gauge,
    pub asked: Outcomes,
    pub asked_down: Counter,
    pub asked_lost: Counter,
    pub asked_deadline: Counter,
    pub asked_bytes: Counter,
    pub connections_out: Gauge,
    pub connect_failures: Counter,
    pub fetch: Times,
    refused: [Counter; Refused::ALL.len()],
}

impl Default for PeerMetrics {
    fn default() -> Self {
        let asked = |outcome: &'static str| counter!("forebay_peer_requests_total", "outcome" => outcome);
        let connections = |side: &'static str| gauge!("forebay_peer_connections", "side" => side);
        let refused = |reason: Refused| counter!("forebay_peer_refused_total", "reason" => reason.name());
        Self {
            served: Outcomes::new("forebay_peer_served_total"),
            served_bytes: counter!("forebay_peer_served_bytes_total"),
            connections_in: connections("in"),
            held_bytes: gauge!("forebay_peer_held_bytes"),
            asked: Outcomes::new("forebay_peer_requests_total"),
            asked_down: asked("down"),
            asked_lost: asked("lost"),
            asked_deadline: asked("deadline"),
            asked_bytes: counter!("forebay_peer_received_bytes_total"),
            connections_out: connections("out"),
            connect_failures: counter!("forebay_peer_connect_failures_total"),
            fetch: Times::default(),
            refused: Refused::ALL.map(refused),
        }
    }
}

impl PeerMetrics {
    /// Counts a connection that was refused.
    pub fn refuse(&self, reason: Refused) {
        if let Some(place) = Refused::ALL.iter().position(|known| *known == reason) {
            self.refused[place].increment(1);
        }
    }

    /// The histogram of fetches in Prometheus' text format.
    pub fn render(&self, out: &mut String) {
        let _ = writeln!(out, "# TYPE forebay_peer_fetch_seconds histogram");
        self.fetch.render(out, "forebay_peer_fetch_seconds", "side=\"out\"");
    }
}

/// What is told of one peer.
#[derive(Debug)]
pub(super) struct PeerGauges {
    up: Gauge,
    p50: Gauge,
    p95: Gauge,
}

impl PeerGauges {
    pub(super) fn new(node: NodeId) -> Self {
        let quantile = |quantile: &'static str| gauge!("forebay_peer_latency_seconds", "node" => node.0.to_string(), "quantile" => quantile);
        let up = gauge!("forebay_peer_up", "node" => node.0.to_string());
        Self { up, p50: quantile("0.5"), p95: quantile("0.95") }
    }

    pub(super) fn tell(&self, up: bool, latency: &Latency) {
        self.up.set(f64::from(u8::from(up)));
        for (gauge, share) in [(&self.p50, 0.5), (&self.p95, 0.95)] {
            if let Some(time) = latency.quantile(share) {
                gauge.set(time.as_secs_f64());
            }
        }
    }
}
