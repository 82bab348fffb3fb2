//! Everything of Forebay that crosses a wire, sans-IO.
//!
//! Owns: XDR ([`xdr`]), ONC RPC v2 ([`rpc`]), NFSv4.1/4.2 ([`nfs4`]), NFSv3 with MOUNT and the port mapper ([`nfs3`]),
//! what nodes of a cluster tell each other ([`cluster`]), and their limits ([`limits`]).
//! Never does: sockets, clocks, randomness, threads.
//! Invariants: whatever decodes proves its bounds by its type; no input, however long or wrong, panics; what was
//! decoded encodes to the same bytes.

pub mod cluster;
pub mod limits;
pub mod nfs3;
pub mod nfs4;
pub mod rpc;
pub mod xdr;
