//! How nodes give each other chunks.
//!
//! Owns: connections between nodes for chunks, who is at their other end, what they cost. Never does: decide whom to ask
//! (the ring does), keep chunks, know files.
//!
//! One end is a [`server`], which asks a [`ChunkProvider`] for what it is asked for; the other is a [`Peer`], with a few
//! connections to one node. Frames are `forebay_proto::cluster::frame`'s.

mod asking;
pub mod client;
mod greet;
pub mod identity;
pub mod latency;
mod link;
pub mod metrics;
pub mod server;
mod serving;
mod stream;

pub use client::{Fetched, Peer, PeerError, PeerOptions};
pub use identity::{ClusterAuthority, IdentityError, NodeKey, PeerIdentity};
pub use latency::Latency;
pub use metrics::{PeerMetrics, Refused};
pub use server::{Caller, ChunkProvider, PeerServerOptions, Provided};
