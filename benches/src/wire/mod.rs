//! Bytes on the load generator's sockets: calls encoded once and patched, replies looked at no more than they must be.
//!
//! Owns: what lies where in a record. Never does: deciding what to call (the works) or when (the engine).

mod calls;
mod cursor;
mod head;
mod input;
mod output;
mod reply;

pub use calls::{Calls, encode};
pub use cursor::Cursor;
pub use input::{Event, Input};
pub use output::Output;
pub use reply::{AFTER_PUTFH, READ_DATA, Reply, decode, failure, xid};

pub use head::Head;
