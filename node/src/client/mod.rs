//! NFSv4.1/4.2 clients: a plain session, which the demo, the tests and the load generator drive servers with, and one
//! for many small files at a time.
//!
//! Owns: of the session, one connection, its transaction ids, one session's slots. Never does: caching; the session sends
//! nothing again of its own accord.
//! Invariant: a slot carries one call at a time, and its sequence grows by one with each call that was answered.

mod connection;
mod session;
mod vector;

pub use connection::{CallError, Connection, compound_record};
pub use session::{Session, SessionOptions};
pub use vector::{ReadAt, VectorClient, WriteAt, WroteAt};
