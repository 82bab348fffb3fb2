//! LOCKU (RFC 8881 §18.12).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    nfs4::{LockType, Stateid},
    xdr::xdr_struct,
};

xdr_struct! { pub struct LockUArgs { kind: LockType, seqid: u32, stateid: Stateid, offset: u64, length: u64 } }
