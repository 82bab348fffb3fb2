//! Short messages between nodes, on the connections that the plane uses too.
//!
//! Owns: the two traits that carry them. Never does: look into what is said; each [`Topic`] has its own form.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_meta::state::NodeId;

/// Longest message or answer: a page of a directory, or the data of a small file, with what belongs to it.
pub const MESSAGE_MAX: usize = 4 << 20;

/// What messages are about: who answers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Topic {
    /// Node leases, joining and leaving.
    Life = 1,
    /// Files: what their owners are asked, what is taken back.
    Files = 2,
    /// Opens and locks.
    State = 3,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It certainly did not arrive.
    #[error("not sent: {0}")]
    NotSent(String),
    /// It may have arrived.
    #[error("no answer: {0}")]
    Unknown(String),
}

/// Who asks other nodes.
#[async_trait]
pub trait Control: Send + Sync + 'static {
    /// Asks a node, and returns its answer within the time given. Both ends have proved who they are.
    ///
    /// # Errors
    /// There is none.
    async fn call(&self, to: NodeId, topic: Topic, message: Bytes, within: Duration) -> Result<Bytes, CallError>;
}

/// Who answers them.
#[async_trait]
pub trait Answerer: Send + Sync + 'static {
    /// Answers `from`, which has proved that it is. `None`: the message is none, which is counted and told as an error.
    async fn answer(&self, from: NodeId, message: Bytes) -> Option<Bytes>;
}
