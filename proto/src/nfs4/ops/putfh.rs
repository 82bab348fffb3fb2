//! PUTFH (RFC 8881 §18.19); PUTPUBFH and PUTROOTFH have no arguments.
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{nfs4::FileHandle, xdr::xdr_struct};

xdr_struct! { pub struct PutFhArgs { handle: FileHandle } }
