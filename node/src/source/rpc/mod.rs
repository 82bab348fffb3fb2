//! What the sources on a network have in common: connections, credentials, pauses, pieces.
//!
//! Owns: what does not depend on the protocol's version. Never does: knowing what a call means.

pub(in crate::source) mod credential;
pub(in crate::source) mod link;
pub(in crate::source) mod patience;
pub(in crate::source) mod pause;
pub(in crate::source) mod pieces;
