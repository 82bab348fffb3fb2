//! Where files come from. A source knows nothing of NFS: it speaks in handles, names, attributes and credentials.
//!
//! Owns: the vocabulary every source shares. Never does: NFS status codes, stateids, caching policy.
//! Invariant: a [`SourceHandle`] names the same object for as long as that object exists, through renames and restarts.

mod any;
pub mod budget;
pub mod cached;
pub mod counters;
pub mod local;
pub mod metered;
pub mod network;
pub mod nfs3;
pub mod nfs4;
pub mod remote;
mod resolve;
mod rpc;
pub mod shared;
mod types;

pub use any::{File, Source};
pub use types::*;
