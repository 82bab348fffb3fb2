//! One source behind the caches of several nodes, in one process: what owners know is asked of owners, each byte is fetched once, and
//! whatever happens to nodes and to the network between them nobody is told what was before a change that was answered.
#![allow(clippy::unwrap_used, reason = "in a test, failing where one stands is what is wanted")]
#![allow(missing_docs, reason = "names say it")]

#[path = "../common/mod.rs"]
#[macro_use]
#[allow(unused_macros, unused_imports, reason = "each test file uses what it needs")]
mod common;

mod cluster;
mod fetching;
mod histories;
mod linear;
mod telling;
