//! An NFSv4.1/4.2 client session: what the demo, the tests and the load generator drive servers with.
//!
//! Owns: one connection, its transaction ids, one session's slots. Never does: caching, retries of its own accord.
//! Invariant: a slot carries one call at a time, and its sequence grows by one with each call that was answered.

mod connection;
mod session;

pub use connection::{CallError, Connection, compound_record};
pub use session::{Session, SessionOptions};
