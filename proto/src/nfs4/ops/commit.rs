//! COMMIT (RFC 8881 §18.3).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::xdr::xdr_struct;

xdr_struct! { pub struct CommitArgs { offset: u64, count: u32 } }
