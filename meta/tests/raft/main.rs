//! The replicated plane from outside: its storage, its snapshots, and groups of nodes under faults.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cluster;
mod group;
mod ledger;
mod log;
mod simulation;
mod state;
mod storage_suite;
mod transport;
