//! Clients that hold state and may reclaim it after a restart.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What is kept of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRecord {
    /// `co_ownerid`: what stays the same over the client's own restarts.
    pub owner: Vec<u8>,
    /// The id it was given; the upper half is the epoch.
    pub clientid: u64,
    /// `co_verifier`: changes when the client restarts, and then there is nothing to reclaim.
    pub verifier: [u8; 8],
}

/// The table, one record per owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clients {
    records: Vec<ClientRecord>,
    #[serde(skip)]
    by_owner: BTreeMap<Vec<u8>, usize>,
}

impl Clients {
    /// How many clients may reclaim.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether nobody may reclaim.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// All records.
    pub fn iter(&self) -> impl Iterator<Item = &ClientRecord> {
        self.records.iter()
    }

    /// The record of `owner`, if it held state.
    pub fn of_owner(&self, owner: &[u8]) -> Option<&ClientRecord> {
        self.by_owner.get(owner).map(|&place| &self.records[place])
    }

    /// Whether `owner` held state.
    pub fn may_reclaim(&self, owner: &[u8]) -> bool {
        self.of_owner(owner).is_some()
    }

    /// Whether this very clientid is on record.
    pub fn is_recorded(&self, clientid: u64) -> bool {
        self.records.iter().any(|record| record.clientid == clientid)
    }

    pub(super) fn record(&mut self, record: ClientRecord) {
        match self.by_owner.get(&record.owner) {
            Some(&place) => self.records[place] = record,
            None => {
                self.by_owner.insert(record.owner.clone(), self.records.len());
                self.records.push(record);
            }
        }
    }

    pub(super) fn forget(&mut self, clientid: u64) {
        if let Some(place) = self.records.iter().position(|record| record.clientid == clientid) {
            self.records.swap_remove(place);
            self.index();
        }
    }

    pub(super) fn forget_other_epochs(&mut self, epoch: u32) {
        self.records.retain(|record| record.clientid >> 32 == u64::from(epoch));
        self.index();
    }

    /// Builds the index again, as after reading the table from disk.
    pub(crate) fn index(&mut self) {
        self.by_owner = self.records.iter().enumerate().map(|(place, record)| (record.owner.clone(), place)).collect();
    }
}
