//! What nodes of one cluster say to each other and agree on without asking.
//!
//! Owns: names of nodes, files and contents ([`keys`]), who owns what ([`ring`]), the stream for chunks ([`frame`]).
//! Never does: sockets, clocks, randomness.
//! Invariant: from the same members every node, on every machine, computes the same owners.

pub mod frame;
pub mod keys;
pub mod ring;

pub use keys::{ClusterId, FileKey, NodeId, RingEpoch, STRIPE_BYTES, Stripe, Version, Weight};
pub use ring::{Ring, RingError, moved};
