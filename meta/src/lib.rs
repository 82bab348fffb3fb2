//! The metadata plane: facts that outlive a process.
//!
//! Owns: the pure state core ([`state`]) and the group that replicates it ([`raft`]), and a node's way to it ([`Plane`]).
//! Never does: NFS, sockets. Invariant: a fact is on disk before anybody is told of it.

pub mod keeper;
mod plane;
pub mod raft;
mod replicated;
pub mod state;

pub use plane::{OpenError, Plane, PlaneError};
pub use state::{Command, Reply, State};
