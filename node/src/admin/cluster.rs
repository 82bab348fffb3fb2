//! The cluster as one of its nodes sees it.

use forebay_meta::state::{NodeRecord, NodeState};
use serde::{Deserialize, Serialize};

use crate::cluster::life::Cluster;

/// The cluster.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Members {
    /// Its name.
    pub name: String,
    /// The node that tells.
    pub me: u64,
    /// Who leads, as far as it knows.
    pub leader: Option<u64>,
    /// Raft's term.
    pub term: u64,
    /// The last entry of the log that it has applied.
    pub applied: u64,
    /// The ring.
    pub ring_epoch: u64,
    /// How many own files.
    pub ring_members: usize,
    /// All nodes.
    pub nodes: Vec<Member>,
}

/// One node.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub node: u64,
    /// "joining", "serving", "draining" or "lost".
    pub state: String,
    /// "voter", "learner", or "-" while it is neither.
    pub role: String,
    /// Entries of the log that it lacks; known on the leader only.
    pub lag: Option<u64>,
    /// Its share of the ring.
    pub weight: u32,
    /// Milliseconds of plane time until it owns nothing unless it renews.
    pub lease_ms: u64,
    /// Its availability zone.
    pub zone: String,
    /// Where it serves NFS.
    pub nfs: String,
    /// Where other nodes ask it.
    pub control: String,
}

impl Members {
    /// As the node has it now.
    pub fn of(cluster: &Cluster) -> Self {
        let group = cluster.plane.group().status();
        let last = group.last.unwrap_or(0);
        let member = |id: u64, record: &NodeRecord, now_ms: u64| {
            let role = match (group.voters.contains(&id), group.members.contains_key(&id)) {
                (true, _) => "voter",
                (_, true) => "learner",
                _ => "-",
            };
            let matched = group.matched.get(&id).copied().flatten();
            Member {
                node: id,
                state: state_name(record.state).into(),
                role: role.into(),
                lag: matched.map(|at| last.saturating_sub(at)),
                weight: record.description.weight,
                lease_ms: record.lease_until_ms.saturating_sub(now_ms),
                zone: record.description.zone.clone(),
                nfs: record.description.nfs.clone(),
                control: record.description.control.clone(),
            }
        };
        cluster.plane.read(|state| Self {
            name: cluster.name.clone(),
            me: cluster.me.0,
            leader: group.leader,
            term: group.term,
            applied: group.applied.unwrap_or(0),
            ring_epoch: state.nodes.ring().epoch,
            ring_members: state.nodes.ring().members.len(),
            nodes: state.nodes.iter().map(|(id, record)| member(id.0, record, state.now_ms)).collect(),
        })
    }
}

fn state_name(state: NodeState) -> &'static str {
    match state {
        NodeState::Joining => "joining",
        NodeState::Serving => "serving",
        NodeState::Draining => "draining",
        NodeState::Lost => "lost",
    }
}
