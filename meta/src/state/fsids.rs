//! Indices of file systems: given at first sight, never changed, never reused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::changes::{Changes, Damaged, Table, decode_row, key_number, number_key};

/// A file system as its source knows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FsidKey {
    /// The source's URL and the export it appears in.
    pub source: String,
    /// The source's own id of the file system.
    pub fsid: u64,
}

impl FsidKey {
    /// A key.
    pub fn new(source: impl Into<String>, fsid: u64) -> Self {
        Self { source: source.into(), fsid }
    }
}

/// More file systems than any set of filers has; a source that makes up ids does not fill the plane.
pub const FSIDS_MAX: usize = 1 << 20;

/// The table; the index is the place, counted from 1 (0 is the pseudo file system).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fsids {
    keys: Vec<FsidKey>,
    indices: BTreeMap<FsidKey, u32>,
}

impl Fsids {
    /// The index, if the file system was seen before.
    pub fn index_of(&self, key: &FsidKey) -> Option<u32> {
        self.indices.get(key).copied()
    }

    /// The file system with this index.
    pub fn key(&self, index: u32) -> Option<&FsidKey> {
        self.keys.get(usize::try_from(index).ok()?.checked_sub(1)?)
    }

    /// How many are known.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The index, given now if there was none; `None` if there are too many.
    pub(super) fn assign(&mut self, key: &FsidKey, changes: &mut Changes) -> Option<u32> {
        if let Some(index) = self.index_of(key) {
            return Some(index);
        }
        if self.keys.len() >= FSIDS_MAX {
            return None;
        }
        let index = self.push(key.clone());
        changes.put(Table::Fsids, number_key(index.into()), key);
        Some(index)
    }

    fn push(&mut self, key: FsidKey) -> u32 {
        self.keys.push(key.clone());
        let index = u32::try_from(self.keys.len()).expect("FSIDS_MAX is less");
        self.indices.insert(key, index);
        index
    }

    pub(super) fn rows(&self, changes: &mut Changes) {
        for (place, key) in self.keys.iter().enumerate() {
            changes.put(Table::Fsids, number_key(place as u64 + 1), key);
        }
    }

    /// Rows come in the order of their keys, so indices follow each other.
    pub(super) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), Damaged> {
        let index = key_number(Table::Fsids, key)?;
        if index != self.keys.len() as u64 + 1 || self.keys.len() >= FSIDS_MAX {
            let what = format!("index {index} after {}", self.keys.len());
            return Err(Damaged::Row { table: Table::Fsids, what });
        }
        self.push(decode_row(Table::Fsids, value)?);
        Ok(())
    }
}
