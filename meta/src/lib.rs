//! The metadata plane: facts that outlive a process.
//!
//! Owns: the pure state core ([`state`]) and the store that keeps it in a directory ([`LocalStore`]).
//! Never does: NFS, sockets. Invariant: a fact is on disk before anybody is told of it.

mod local_store;
pub mod raft;
pub mod state;

pub use local_store::{LocalStore, StoreError};
pub use state::{Command, Reply, State};
