//! Clients that hold state: where each one's session lives, and who may reclaim.
//!
//! Invariants: one record per owner and per clientid; a client's home changes only if the mover knows the home it moves from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::changes::{Bytes, Changes, Damaged, Table, decode_row, key_number, number_key};
use super::nodes::NodeId;

/// A node's process: where sessions live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Home {
    /// The node.
    pub node: NodeId,
    /// The epoch that its process began with.
    pub epoch: u32,
}

/// What is kept of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRecord {
    /// `co_ownerid`: what stays the same over the client's own restarts.
    pub owner: Bytes,
    /// The id it was given; the upper half is the epoch that gave it.
    pub clientid: u64,
    /// `co_verifier`: changes when the client restarts, and then there is nothing to reclaim.
    pub verifier: [u8; 8],
    /// Who it is, as its home judged; another may not take its place.
    pub principal: Bytes,
    /// Where its sessions live.
    pub home: Home,
    /// `csa_sequence` of the next CREATE_SESSION.
    pub sequence: u32,
    /// Plane time until when it may reclaim what it held at a home that is gone.
    pub reclaim_until_ms: Option<u64>,
}

/// The most clients: more mounts than one cluster is for, and less than would fill memory.
pub const CLIENTS_MAX: usize = 1 << 17;
/// RFC 8881 §3.3: `client_owner4` has at most NFS4_OPAQUE_LIMIT bytes; principals are shorter.
const OPAQUE_MAX: usize = 1_024;

/// What became of a client's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    /// It is there.
    New,
    /// It is there; this one, an earlier incarnation of the same owner, is forgotten.
    Instead(u64),
    /// A later incarnation of the same owner is on record, and stays.
    Newer,
}

/// The table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clients {
    records: BTreeMap<u64, ClientRecord>,
    by_owner: BTreeMap<Bytes, u64>,
}

impl Clients {
    /// How many clients hold state.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether nobody does.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// All records, in order of their clientids.
    pub fn iter(&self) -> impl Iterator<Item = &ClientRecord> {
        self.records.values()
    }

    /// The client with this id.
    pub fn client(&self, clientid: u64) -> Option<&ClientRecord> {
        self.records.get(&clientid)
    }

    /// The record of `owner`, if it held state.
    pub fn of_owner(&self, owner: &[u8]) -> Option<&ClientRecord> {
        self.by_owner.get(owner).and_then(|clientid| self.records.get(clientid))
    }

    /// Whether `owner` held state.
    pub fn may_reclaim(&self, owner: &[u8]) -> bool {
        self.of_owner(owner).is_some()
    }

    /// Whether this very clientid is on record.
    pub fn is_recorded(&self, clientid: u64) -> bool {
        self.records.contains_key(&clientid)
    }

    /// Puts a client on record; returns the clientid of an earlier incarnation of the same owner, which is forgotten.
    pub(super) fn record(&mut self, record: ClientRecord, changes: &mut Changes) -> Result<Recorded, &'static str> {
        if record.owner.0.len() > OPAQUE_MAX || record.principal.0.len() > OPAQUE_MAX {
            return Err("an owner or a principal is longer than 1024 bytes");
        }
        let earlier = self.by_owner.get(&record.owner).copied().filter(|&clientid| clientid != record.clientid);
        if earlier.is_none() && self.records.len() >= CLIENTS_MAX && !self.records.contains_key(&record.clientid) {
            return Err("the cluster has 131072 clients, which is the most");
        }
        if self.records.get(&record.clientid).is_some_and(|known| known.owner != record.owner) {
            return Err("the clientid is another owner's");
        }
        if earlier.is_some_and(|known| known > record.clientid) {
            return Ok(Recorded::Newer);
        }
        if let Some(clientid) = earlier {
            self.forget(clientid, changes);
        }
        changes.put(Table::Clients, number_key(record.clientid), &record);
        self.insert(record);
        Ok(earlier.map_or(Recorded::New, Recorded::Instead))
    }

    pub(super) fn forget(&mut self, clientid: u64, changes: &mut Changes) -> bool {
        let Some(record) = self.records.remove(&clientid) else { return false };
        self.by_owner.remove(&record.owner);
        changes.remove(Table::Clients, number_key(clientid));
        true
    }

    /// Those who were at home with an earlier process of the node.
    pub(super) fn of_earlier(&self, home: Home) -> Vec<u64> {
        let left = |record: &&ClientRecord| record.home.node == home.node && record.home.epoch < home.epoch;
        self.records.values().filter(left).map(|record| record.clientid).collect()
    }

    pub(super) fn change(
        &mut self,
        clientid: u64,
        changes: &mut Changes,
        change: impl FnOnce(&mut ClientRecord) -> bool,
    ) -> bool {
        let Some(record) = self.records.get_mut(&clientid) else { return false };
        if !change(record) {
            return false;
        }
        changes.put(Table::Clients, number_key(clientid), record);
        true
    }

    /// Clients that may reclaim no longer, by the plane's time.
    pub(super) fn late(&self, now_ms: u64) -> Vec<u64> {
        let late = |record: &&ClientRecord| record.reclaim_until_ms.is_some_and(|until| until <= now_ms);
        self.records.values().filter(late).map(|record| record.clientid).collect()
    }

    fn insert(&mut self, record: ClientRecord) {
        self.by_owner.insert(record.owner.clone(), record.clientid);
        self.records.insert(record.clientid, record);
    }

    pub(super) fn rows(&self, changes: &mut Changes) {
        for record in self.records.values() {
            changes.put(Table::Clients, number_key(record.clientid), record);
        }
    }

    pub(super) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), Damaged> {
        let record: ClientRecord = decode_row(Table::Clients, value)?;
        if key_number(Table::Clients, key)? != record.clientid {
            return Err(Damaged::Row { table: Table::Clients, what: "key and clientid differ".into() });
        }
        self.insert(record);
        Ok(())
    }
}

impl std::borrow::Borrow<[u8]> for Bytes {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}
