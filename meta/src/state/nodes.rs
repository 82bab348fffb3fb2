//! Nodes of the cluster, their leases, and the ring of those that serve.
//!
//! Invariants: a ring's epoch names one set of members for ever; a node owns nothing in the plane's eyes before it serves, and nothing
//! after its lease is over by the plane's time, which is later than by the node's own.

use std::collections::BTreeMap;

pub use forebay_proto::cluster::NodeId;
use serde::{Deserialize, Serialize};

use super::changes::{Bytes, Changes, Damaged, Table, decode_row, key_number, number_key};

/// Where in its life a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeState {
    /// Known, catching up; owns nothing.
    Joining,
    /// In the ring.
    Serving,
    /// Out of the ring, still answering for what it hands over.
    Draining,
    /// Its lease is over; it may come back.
    Lost,
}

/// What a node tells of itself when it joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDescription {
    /// Where clients and relaying peers reach its NFS service.
    pub nfs: String,
    /// Where peers fetch chunks.
    pub peer: String,
    /// Where peers ask everything else: the plane, leases.
    pub control: String,
    /// Its availability zone; empty if there are none.
    pub zone: String,
    /// Its share of the ring: the size of its cache in MiB.
    pub weight: u32,
    /// Whether it may vote: instances that are not reclaimed at short notice.
    pub may_vote: bool,
}

/// What the plane knows of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// What it told.
    pub description: NodeDescription,
    /// Where in its life it is.
    pub state: NodeState,
    /// Of its latest start; 0 before the first.
    pub epoch: u32,
    /// Plane time when it stops owning anything unless it renews.
    pub lease_until_ms: u64,
}

/// Who owns what: the nodes that serve, with their weights, in order of their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingRecord {
    /// Counts up with each change of the members.
    pub epoch: u64,
    /// Members and their weights.
    pub members: Vec<(NodeId, u32)>,
    /// Plane time when it became so.
    pub since_ms: u64,
}

/// How long a node may act as owner after the leader heard of it.
pub const NODE_LEASE_MS: u64 = 3_000;
/// More nodes than one plane is for.
pub const NODES_MAX: usize = 1_024;
/// Nodes that a cluster lets in during its life.
pub const ADMITTED_MAX: usize = 64 << 10;
/// Longer than any public key in use.
const KEY_MAX: usize = 512;
/// Longer than any host name with a port.
const ADDRESS_MAX: usize = 300;

/// The table, and the two latest rings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    nodes: BTreeMap<NodeId, NodeRecord>,
    ring: RingRecord,
    previous: RingRecord,
    /// Who was let in, by public key.
    keys: BTreeMap<Vec<u8>, NodeId>,
}

impl Nodes {
    /// All nodes, in order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &NodeRecord)> {
        self.nodes.iter().map(|(&id, record)| (id, record))
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> Option<&NodeRecord> {
        self.nodes.get(&id)
    }

    /// The ring that is in force.
    pub fn ring(&self) -> &RingRecord {
        &self.ring
    }

    /// The ring before it: whom to ask for what has moved.
    pub fn previous_ring(&self) -> &RingRecord {
        &self.previous
    }

    pub(super) fn join(
        &mut self,
        id: NodeId,
        description: NodeDescription,
        changes: &mut Changes,
    ) -> Result<(), &'static str> {
        let NodeDescription { nfs, peer, control, zone, .. } = &description;
        if [nfs, peer, control, zone].into_iter().any(|text| text.len() > ADDRESS_MAX) {
            return Err("an address is longer than 300 bytes");
        }
        if let Some(record) = self.nodes.get_mut(&id) {
            record.description = description;
        } else if self.nodes.len() < NODES_MAX {
            let record = NodeRecord { description, state: NodeState::Joining, epoch: 0, lease_until_ms: 0 };
            self.nodes.insert(id, record);
        } else {
            return Err("the cluster has 1024 nodes, which is the most");
        }
        self.put(id, changes);
        Ok(())
    }

    /// The id of the node with this public key: a new one, or the one that it has.
    pub(super) fn admit(&mut self, key: &Bytes, changes: &mut Changes) -> Result<NodeId, &'static str> {
        if let Some(node) = self.keys.get(&key.0) {
            return Ok(*node);
        }
        if key.0.len() > KEY_MAX {
            return Err("a public key is longer than 512 bytes");
        }
        if self.keys.len() >= ADMITTED_MAX {
            return Err("65536 nodes have been let in, which is the most");
        }
        // Keys are never forgotten, so no id is given twice.
        let taken = self.keys.values().chain(self.nodes.keys()).max();
        let node = NodeId(taken.map_or(1, |node| node.0 + 1));
        changes.put(Table::NodeKeys, key.0.clone(), &node);
        self.keys.insert(key.0.clone(), node);
        Ok(node)
    }

    /// A process of the node begins; whatever an earlier one owned, it does not.
    pub(super) fn start(&mut self, id: NodeId, epoch: u32, now_ms: u64, changes: &mut Changes) {
        if let Some(record) = self.nodes.get_mut(&id) {
            record.epoch = epoch;
            record.state = NodeState::Joining;
            // What an earlier process granted lasts no longer than this, whatever becomes of the new one.
            record.lease_until_ms = now_ms.saturating_add(NODE_LEASE_MS);
            self.put(id, changes);
            self.turn(now_ms, changes);
        }
    }

    /// Only the process that began with `epoch` speaks for the node.
    pub(super) fn set_state(
        &mut self,
        id: NodeId,
        epoch: u32,
        state: NodeState,
        now_ms: u64,
        changes: &mut Changes,
    ) -> bool {
        let Some(record) = self.nodes.get_mut(&id).filter(|record| record.epoch == epoch) else { return false };
        record.state = state;
        if state == NodeState::Serving {
            record.lease_until_ms = now_ms.saturating_add(NODE_LEASE_MS);
        }
        self.put(id, changes);
        self.turn(now_ms, changes);
        true
    }

    /// Renews leases; a node whose lease was over has lost it, and must ask to serve again.
    pub(super) fn renew(&mut self, nodes: &[(NodeId, u32)], now_ms: u64, changes: &mut Changes) {
        for &(id, epoch) in nodes {
            let Some(record) = self.nodes.get_mut(&id) else { continue };
            if record.epoch == epoch && record.state != NodeState::Lost {
                record.lease_until_ms = now_ms.saturating_add(NODE_LEASE_MS);
                self.put(id, changes);
            }
        }
    }

    /// Takes those whose lease is over out of the ring.
    pub(super) fn expire(&mut self, now_ms: u64, changes: &mut Changes) {
        let holds = |record: &NodeRecord| record.epoch != 0 && record.state != NodeState::Lost;
        let over = self.nodes.iter().filter(|(_, record)| holds(record) && record.lease_until_ms <= now_ms);
        let over: Vec<NodeId> = over.map(|(&id, _)| id).collect();
        for &id in &over {
            self.nodes.get_mut(&id).expect("it was just found").state = NodeState::Lost;
            self.put(id, changes);
        }
        if !over.is_empty() {
            self.turn(now_ms, changes);
        }
    }

    pub(super) fn leave(&mut self, id: NodeId, now_ms: u64, changes: &mut Changes) {
        if self.nodes.remove(&id).is_some() {
            changes.remove(Table::Nodes, number_key(id.0));
            self.turn(now_ms, changes);
        }
    }

    /// A new ring, if those that serve are not its members.
    fn turn(&mut self, now_ms: u64, changes: &mut Changes) {
        let serving = self.nodes.iter().filter(|(_, record)| record.state == NodeState::Serving);
        let members: Vec<_> = serving.map(|(&id, record)| (id, record.description.weight)).collect();
        if members == self.ring.members {
            return;
        }
        let epoch = self.ring.epoch + 1;
        self.previous = std::mem::replace(&mut self.ring, RingRecord { epoch, members, since_ms: now_ms });
        changes.put(Table::Rings, number_key(1), &self.ring);
        changes.put(Table::Rings, number_key(0), &self.previous);
    }

    fn put(&self, id: NodeId, changes: &mut Changes) {
        changes.put(Table::Nodes, number_key(id.0), &self.nodes[&id]);
    }

    pub(super) fn rows(&self, changes: &mut Changes) {
        self.nodes.keys().for_each(|&id| self.put(id, changes));
        self.keys.iter().for_each(|(key, node)| changes.put(Table::NodeKeys, key.clone(), node));
        if self.ring.epoch > 0 {
            changes.put(Table::Rings, number_key(0), &self.previous);
            changes.put(Table::Rings, number_key(1), &self.ring);
        }
    }

    pub(super) fn load_node(&mut self, key: &[u8], value: &[u8]) -> Result<(), Damaged> {
        let id = NodeId(key_number(Table::Nodes, key)?);
        self.nodes.insert(id, decode_row(Table::Nodes, value)?);
        Ok(())
    }

    pub(super) fn load_key(&mut self, key: &[u8], value: &[u8]) -> Result<(), Damaged> {
        self.keys.insert(key.to_vec(), decode_row(Table::NodeKeys, value)?);
        Ok(())
    }

    pub(super) fn load_ring(&mut self, key: &[u8], value: &[u8]) -> Result<(), Damaged> {
        let ring = decode_row(Table::Rings, value)?;
        match key_number(Table::Rings, key)? {
            0 => self.previous = ring,
            1 => self.ring = ring,
            other => return Err(Damaged::Row { table: Table::Rings, what: format!("ring {other}") }),
        }
        Ok(())
    }
}
