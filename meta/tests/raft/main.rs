//! The replicated plane from outside: its storage, its snapshots, and groups of nodes under faults.

mod ledger;
mod log;
mod state;
mod storage_suite;
