//! LOCKT (RFC 8881 §18.11): would this lock be granted?
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    nfs4::{LockType, StateOwner},
    xdr::xdr_struct,
};

xdr_struct! { pub struct LockTArgs { kind: LockType, offset: u64, length: u64, owner: StateOwner } }
