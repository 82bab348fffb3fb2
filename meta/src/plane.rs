//! The plane as a node sees it: propose, read, look up a row.
//!
//! Owns: how a node asks. Never does: judging what it is asked. Invariant: when [`Plane::propose`] returns, the fact outlives the process.

use std::{path::Path, sync::Arc};

use crate::{
    local_store::{LocalStore, StoreError},
    state::{Command, Identity, Reply, State, Table},
};

/// Why a command was not carried out, or not known to be.
#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It is unknown whether the command was carried out.
    #[error("the command did not come back")]
    Lost,
}

/// The plane. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Plane {
    store: Arc<LocalStore>,
}

impl Plane {
    /// Opens or begins it in `directory`. `identity` makes one at the very first start.
    ///
    /// # Errors
    /// When the directory cannot be written, is another process's, or is damaged.
    pub fn open(directory: &Path, identity: impl FnOnce() -> Identity) -> Result<Plane, StoreError> {
        Ok(Plane { store: Arc::new(LocalStore::open(directory, identity)?) })
    }

    /// Makes a command durable, carries it out, and says what it came to.
    ///
    /// # Errors
    /// When it could not be made durable.
    pub async fn propose(&self, command: Command) -> Result<Reply, PlaneError> {
        let store = self.store.clone();
        let proposed = tokio::task::spawn_blocking(move || store.propose(command)).await;
        Ok(proposed.map_err(|_| PlaneError::Lost)??)
    }

    /// Looks at the state as this node knows it.
    pub fn read<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        self.store.read(look)
    }

    /// A row of a table that is not in the state: a handle.
    pub fn row(&self, table: Table, key: &[u8]) -> Option<Vec<u8>> {
        self.store.row(table, key)
    }
}
