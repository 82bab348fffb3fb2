//! Bytes to COMPOUND to bytes: listener, connections, the rules of COMPOUND, dispatch.
//!
//! Owns: sockets and the order of things. Never does: what an operation means.
//! Invariants: a connection has a bounded number of calls in flight and bytes in memory; whatever a peer sends, the
//! worst that happens is that its own connection is closed.

pub mod compound;
pub mod connection;
mod dispatch;
pub mod listener;
mod sequence;
