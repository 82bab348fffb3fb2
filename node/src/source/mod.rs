//! Where files come from. A source knows nothing of NFS: it speaks in handles, names, attributes and credentials.
//!
//! Owns: the vocabulary every source shares. Never does: NFS status codes, stateids, caching policy.
//! Invariant: a [`SourceHandle`] names the same object for as long as that object exists, through renames and restarts.

pub mod local;
pub mod remote;
mod types;

pub use types::*;
