//! The port mapper, version 2 (RFC 1833 §3): which port a program listens on.
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use super::procedure::procedures;
use crate::xdr::xdr_struct;

/// The port mapper's program.
pub const PROGRAM: u32 = 100_000;
/// This version of it.
pub const VERSION: u32 = 2;
/// Where it listens.
pub const PORT: u16 = 111;
/// `IPPROTO_TCP`, as a mapping's protocol.
pub const TCP: u32 = 6;

procedures! { PROGRAM, VERSION;
    0 Null "NULL" (()) -> ();
    3 GetPort "GETPORT" (Mapping) -> u32;
}

xdr_struct! {
    /// `mapping`; as an argument its port means nothing.
    #[derive(Copy)]
    pub struct Mapping { program: u32, version: u32, protocol: u32, port: u32 }
}
