//! What the group replicates, as far as the group knows it: a pure core behind a trait.
//!
//! Owns: the contract between the replicated facts and their storage. Never does: I/O, time. Invariants asked of an implementation: the same
//! commands in the same order give the same replies and the same changes on every node; a core that was loaded from the rows that
//! its changes left behind judges like the one that made them.

use std::fmt::Debug;

/// The replicated facts. In memory it keeps the rows that later commands are judged by; every change of a row comes out in [`Changes`].
pub trait Core: Default + Send + Sync + 'static {
    /// A change that is asked for.
    type Command: Clone + Debug + Send + Sync + 'static;
    /// What a command came to.
    type Reply: Clone + Debug + PartialEq + Send + Sync + 'static;

    /// Changes the facts, the only way they change. Deterministic: no clock, no randomness, nothing from outside.
    fn apply(&mut self, command: &Self::Command, changes: &mut Changes) -> Self::Reply;

    /// Takes a row that was kept: at start, or from a snapshot. Rows come in the order of (table, key), each once.
    fn load(&mut self, table: u8, key: &[u8], value: &[u8]) -> Result<(), Damaged>;

    /// Whether rows of the table are loaded. Those of a table that is not live on disk only, however many they are.
    fn is_resident(table: u8) -> bool;

    /// The command as bytes, the first of them the version of the form.
    fn encode_command(command: &Self::Command) -> Vec<u8>;

    /// A command from bytes. An unknown version is an error, which stops the node: a guess would make its facts other ones.
    fn decode_command(bytes: &[u8]) -> Result<Self::Command, Damaged>;

    /// The reply as bytes, the first of them the version of the form. Replies are sent, never kept.
    fn encode_reply(reply: &Self::Reply) -> Vec<u8>;

    /// A reply from bytes.
    fn decode_reply(bytes: &[u8]) -> Result<Self::Reply, Damaged>;
}

/// Bytes that are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Damaged(pub String);

impl Damaged {
    /// With a reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

/// A row that changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its table.
    pub table: u8,
    /// Its key within the table.
    pub key: Vec<u8>,
    /// What it is from now on; `None`: there is no such row.
    pub value: Option<Vec<u8>>,
}

/// The rows that a command changes, in order; a later change of the same row wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    rows: Vec<Change>,
}

impl Changes {
    /// The row is `value` from now on.
    pub fn put(&mut self, table: u8, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.rows.push(Change { table, key: key.into(), value: Some(value.into()) });
    }

    /// There is no such row from now on.
    pub fn delete(&mut self, table: u8, key: impl Into<Vec<u8>>) {
        self.rows.push(Change { table, key: key.into(), value: None });
    }

    /// Everything so far.
    pub fn rows(&self) -> &[Change] {
        &self.rows
    }

    /// Takes everything so far out.
    pub fn drain(&mut self) -> impl Iterator<Item = Change> + '_ {
        self.rows.drain(..)
    }
}
