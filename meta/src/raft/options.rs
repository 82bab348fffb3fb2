//! What a node is begun with, and what that means for openraft.
//!
//! Invariant: nodes have different election timeouts, so that they do not stand for election all at once; their leases differ with them, which is why
//! no read relies on a lease.

use std::{path::PathBuf, time::Duration};

use openraft::{Config, SnapshotPolicy};

use super::{state_machine::SnapshotAfter, types::NodeId};

/// A snapshot of ten million rows over a slow network.
const SNAPSHOT_WITHIN: Duration = Duration::from_secs(600);
/// Entries that stay in the log behind a snapshot, for nodes that are not far behind.
const KEPT_BEHIND_SNAPSHOT: u64 = 10_000;
/// Calls that wait for the group's one task; more wait outside. Sixteen times what a busy node has under way.
const CHANNEL_SLOTS: u64 = 2_048;
/// Entries of one message, if they are small; their bytes are bounded by the log.
const MESSAGE_ENTRIES: u64 = 2048;
/// Different election timeouts so that nodes do not stand for election all at once.
const ELECTION_SLOTS: u64 = 5;

/// How long things take.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Between two heartbeats of the leader.
    pub heartbeat: Duration,
    /// A node whose slot is 0 waits at least this long, after the lease of the leader that it heard last.
    pub election: Duration,
    /// The next slot waits this much longer. A slot is the node's id modulo 5.
    pub election_step: Duration,
    /// A snapshot of which no chunk goes over for this long is broken off and begun anew. Longer than it takes to take one in.
    pub snapshot_stall: Duration,
}

impl Default for Timing {
    /// A new leader within two seconds: 1.1 s until the longest lease is over, and the election.
    fn default() -> Self {
        let (heartbeat, election) = (Duration::from_millis(200), Duration::from_millis(600));
        let (election_step, snapshot_stall) = (Duration::from_millis(100), Duration::from_secs(15));
        Self { heartbeat, election, election_step, snapshot_stall }
    }
}

/// What a node needs to begin.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who this is, for ever. A node whose directory is lost comes back with another id.
    pub id: NodeId,
    /// Where the log and the state are.
    pub directory: PathBuf,
    /// How long things take.
    pub timing: Timing,
    /// When snapshots are made.
    pub snapshot_after: SnapshotAfter,
    /// How long a proposal or a linearizable read is tried.
    pub patience: Duration,
}

/// openraft's configuration.
pub(super) fn config(options: &Options) -> Result<Config, String> {
    let millis = |duration: Duration| duration.as_millis() as u64;
    let Timing { heartbeat, election, election_step, .. } = options.timing;
    let least = election + election_step * (options.id % ELECTION_SLOTS) as u32;
    let config = Config {
        cluster_name: "forebay".into(),
        heartbeat_interval: millis(heartbeat),
        election_timeout_min: millis(least),
        election_timeout_max: millis(least + election_step),
        install_snapshot_timeout: millis(SNAPSHOT_WITHIN),
        max_payload_entries: MESSAGE_ENTRIES,
        // openraft makes room for all of them when it starts.
        api_channel_size: Some(CHANNEL_SLOTS),
        notification_channel_size: Some(CHANNEL_SLOTS),
        // By what was applied, not by a count alone: see `SnapshotAfter`.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: KEPT_BEHIND_SNAPSHOT.min(options.snapshot_after.entries),
        enable_pre_vote: Some(true),
        // The state is not synced when it is applied: a leader that restarts is to be elected again.
        enable_leader_restore: Some(false),
        ..Config::default()
    };
    config.validate().map_err(|error| error.to_string())
}
