//! WRITE (RFC 8881 §18.32).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    limits::RECORD_PAYLOAD_MAX,
    nfs4::{StableHow, Stateid, Verifier},
    xdr::{Opaque, xdr_struct},
};

xdr_struct! { pub struct WriteArgs { stateid: Stateid, offset: u64, stable: StableHow, data: Opaque<RECORD_PAYLOAD_MAX> } }
xdr_struct! { pub struct WriteOk { count: u32, committed: StableHow, verifier: Verifier } }
