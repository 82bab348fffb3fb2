//! This node as one of several: what it knows of the others, and how it asks them.
//!
//! Owns: the words in which the parts that need a cluster speak of it. Never does: NFS, caching.

pub mod control;
pub mod enter;
pub mod form;
pub mod life;
pub mod locks;
pub mod peers;
pub mod transport;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_meta::state::{NodeId, NodeRecord, RingRecord};

/// The cluster as this node's replica of the plane has it. May be behind; never goes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// This node.
    pub me: NodeId,
    /// Of this process, as the plane gave it.
    pub epoch: u32,
    /// The ring that is in force.
    pub ring: RingRecord,
    /// The one before it.
    pub previous: RingRecord,
    /// All nodes.
    pub nodes: Arc<BTreeMap<NodeId, NodeRecord>>,
}

/// The plane has promised that this node's files are given to nobody else until `sent + valid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLease {
    /// When this node asked for it.
    pub sent: Instant,
    /// From then.
    pub valid: Duration,
}
