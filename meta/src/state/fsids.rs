//! Indices of file systems: given at first sight, never changed, never reused.

use serde::{Deserialize, Serialize};

/// A file system as its source knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// The table; the index is the place, counted from 1 (0 is the pseudo file system).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fsids(Vec<FsidKey>);

impl Fsids {
    /// The index, if the file system was seen before.
    pub fn index_of(&self, key: &FsidKey) -> Option<u32> {
        self.0.iter().position(|known| known == key).map(place_to_index)
    }

    /// The file system with this index.
    pub fn key(&self, index: u32) -> Option<&FsidKey> {
        self.0.get(usize::try_from(index).ok()?.checked_sub(1)?)
    }

    pub(super) fn assign(&mut self, key: FsidKey) -> u32 {
        self.index_of(&key).unwrap_or_else(|| {
            self.0.push(key);
            place_to_index(self.0.len() - 1)
        })
    }
}

fn place_to_index(place: usize) -> u32 {
    u32::try_from(place + 1).expect("file systems are far fewer than 4 Gi")
}
