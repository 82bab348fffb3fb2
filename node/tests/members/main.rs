//! Real processes that form a cluster: beginning together, joining, coming back, being refused, leaders that die, majorities that are lost.
#![allow(clippy::unwrap_used, reason = "in a test, failing where one stands is what is wanted")]
#![allow(missing_docs, reason = "names say it")]

#[path = "../common/mod.rs"]
#[macro_use]
#[allow(unused_macros, unused_imports, reason = "each test file uses what it needs")]
mod common;

mod farm;
mod lives;
mod refusals;
mod state;
