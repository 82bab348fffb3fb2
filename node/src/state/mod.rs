//! What the protocol remembers: clients, sessions, opens, locks, and who may reclaim.
//!
//! Owns: all NFS state of this node. Never does: I/O, waiting, reading a clock: `now` is an argument.
//! Invariants: a stateid names one owner's state on one file; no two conflicting locks or shares are ever held.

pub mod clients;
pub mod files;
pub mod locks;
pub mod recovery;
pub mod sessions;

use std::fmt;

/// Milliseconds since this process began: leases are durations, and wall clocks jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Now(pub u64);

impl Now {
    /// Milliseconds from `earlier` to here, 0 if it is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A file as state knows it: a 128-bit digest of file system and source handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileKey(pub u128);

impl fmt::Debug for FileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileKey({:032x})", self.0)
    }
}
