//! XDR (RFC 4506): one reader, one writer, one codec trait.
//!
//! Invariants: a [`Reader`] never copies opaque data longer than it must (it slices the record's `Bytes`); a
//! [`Writer`] never copies a payload given to [`Writer::payload`]; a list's bound is part of its type.

mod codec;
mod macros;
mod reader;
mod writer;

pub use codec::{List, Opaque, Xdr};
pub use reader::{Reader, XdrError};
pub use writer::{Encoded, Mark, Writer};

pub(crate) use macros::{xdr_enum, xdr_struct, xdr_union};
