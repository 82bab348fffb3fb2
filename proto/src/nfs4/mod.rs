//! NFS version 4, minor versions 1 (RFC 8881, XDR in RFC 5662) and 2 (RFC 7862/7863), and RFC 8276's xattrs.

pub mod attr;
pub mod callback;
pub mod compound;
pub mod ops;
mod status;
mod types;

pub use attr::{Attr, Attributes, Bitmap, Fattr};
pub use compound::{CompoundHeader, ReplyHeader};
pub use ops::{Op, OpNumber, OpReply};
pub use status::Status;
pub use types::*;

/// RPC program number.
pub const PROGRAM: u32 = 100_003;
/// RPC program version.
pub const VERSION: u32 = 4;
/// Does nothing.
pub const PROC_NULL: u32 = 0;
/// Does everything else.
pub const PROC_COMPOUND: u32 = 1;
