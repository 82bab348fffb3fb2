//! openraft's types as the plane uses them.
//!
//! Invariant: none of them is kept on disk as openraft writes it; [`records`](super::records) has the forms that last.

use std::fmt;

use bytes::Bytes;
use openraft::{BasicNode, LogId, type_config::alias};
use openraft_rt_tokio::TokioRuntime;
use serde::{Deserialize, Serialize};

/// A command as its core encoded it. Only the state machine looks inside.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandBytes(pub Bytes);

/// A reply as the core encoded it; empty for entries that are no commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyBytes(pub Bytes);

// Logs print entries: a command may hold secrets and be large, so neither form shows it.
impl fmt::Debug for CommandBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "command of {} bytes", self.0.len())
    }
}

impl fmt::Display for CommandBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

openraft::declare_raft_types!(
    /// The types of the plane's Raft group.
    pub Types:
        D = CommandBytes,
        R = ReplyBytes,
        NodeId = u64,
        Node = BasicNode,
        AsyncRuntime = TokioRuntime,
);

/// Identifies a node for ever; never used again once its log is lost.
pub type NodeId = u64;
/// Where an entry is, and who put it there.
pub type LogIdOf = alias::LogIdOf<Types>;
/// Who leads, or wants to.
pub type Vote = alias::VoteOf<Types>;
/// An entry of the log.
pub type Entry = alias::EntryOf<Types>;
/// The members, and the entry that said so.
pub type StoredMembership = alias::StoredMembershipOf<Types>;
/// The members.
pub type Membership = openraft::Membership<NodeId, BasicNode>;
/// What a snapshot covers.
pub type SnapshotMeta = alias::SnapshotMetaOf<Types>;
/// Who led when an entry was made.
pub(super) type LeaderId = openraft::impls::leader_id_adv::LeaderId<u64, NodeId>;

/// An entry's place from its parts.
pub(super) fn log_id(term: u64, node: NodeId, index: u64) -> LogIdOf {
    LogId::new(LeaderId { term, node_id: node }, index)
}
