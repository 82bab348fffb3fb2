//! NFSv3 and what one needs to reach it: MOUNT v3 (RFC 1813) and the port mapper v2 (RFC 1833).
//!
//! Owns: their types and procedures. Never does: deciding what an answer means.
//! Invariants: bounds are part of types (a filehandle has 64 bytes at most); results that fail carry the attributes that
//! the RFC sends along with the failure.

mod attributes;
pub mod mount;
pub mod portmap;
mod procedure;
mod procedures;
mod status;
mod types;

pub use attributes::{DeviceNumbers, Fattr, Sattr, SetTime, WccAttr, WccData};
pub use procedure::{Answer, Procedure, call_record};
pub use procedures::*;
pub use status::{Failed, Outcome, Status};
pub use types::*;

/// The NFS program.
pub const PROGRAM: u32 = 100_003;
/// This version of it.
pub const VERSION: u32 = 3;
