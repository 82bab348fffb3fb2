//! What keeps the cluster coherent: who may believe what about a file, and until when.
//!
//! Owns: the rules by which a file's owner lets other nodes believe what it knows ([`Owner`]), and by which they believe it ([`Holder`]).
//! Never does: sockets, clocks; `now` is an argument, milliseconds of the node's own monotonic clock. Three fences, each inside the next:
//!
//! - A node is an owner while its **node lease** with the plane lasts. The plane gives its files to others only afterwards.
//! - A holder believes an owner while its **pair lease** with it lasts, which never outlasts the owner's node lease. One call a second
//!   renews it for all files at once.
//! - A new ring is in force for a new owner once every former owner has **released** it: it has seen the ring, and so has everybody who
//!   believed it.
//!
//! Invariant, checked by the simulation in `tests.rs`: once a change was answered, or its effect seen anywhere, nobody is told what was before.

pub mod coherence;
mod groups;
mod holder;
pub mod holds;
pub mod messages;
mod owner;
#[cfg(test)]
mod tests;

pub use holder::{Ask, Holder};
pub use owner::{Begun, Grant, Heartbeat, HeartbeatReply, MutationId, Owner, Refusal, Ring};

/// For how long a holder believes an owner without another word from it.
pub const PAIR_LEASE_MS: u64 = 3_000;
/// How often a holder asks for more.
pub const HEARTBEAT_MS: u64 = 1_000;
/// What clocks of two nodes may differ by over a lease: one in a hundred, a hundred times more than quartz does.
pub const DRIFT_MS: u64 = PAIR_LEASE_MS / 100 + 20;
