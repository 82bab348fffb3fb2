//! openraft's own suite for storage, on ours.

use std::sync::Arc;

use forebay_meta::raft::{LogStore, SnapshotAfter, StateMachine, Types};
use openraft::{
    StorageError,
    testing::log::{StoreBuilder, Suite},
};
use tempfile::TempDir;

use crate::ledger::Ledger;

struct Builder;

impl StoreBuilder<Types, LogStore, StateMachine<Ledger>, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine<Ledger>), StorageError<Types>> {
        let directory = tempfile::tempdir().unwrap();
        let state = StateMachine::open(directory.path(), SnapshotAfter::default()).unwrap();
        let replica = state.replica();
        let log = LogStore::open(&directory.path().join("log"), 0, Arc::new(move || replica.sync())).unwrap();
        Ok((directory, log, state))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_librarys_own_suite_passes() {
    Suite::test_all(Builder).await.unwrap();
}
