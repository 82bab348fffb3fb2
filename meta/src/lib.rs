//! The metadata plane: facts that outlive a process.
//!
//! Owns: the pure state core ([`state`]) and the store that keeps it in a directory ([`Plane`]).
//! Never does: NFS, sockets. Invariant: a fact is on disk before anybody is told of it.

pub mod keeper;
mod local_store;
mod plane;
pub mod state;

pub use local_store::StoreError;
pub use plane::{Plane, PlaneError};
pub use state::{Command, Reply, State};
