//! READ (RFC 8881 §18.22).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    limits::RECORD_PAYLOAD_MAX,
    nfs4::Stateid,
    xdr::{Opaque, xdr_struct},
};

xdr_struct! { pub struct ReadArgs { stateid: Stateid, offset: u64, count: u32 } }
xdr_struct! { pub struct ReadOk { eof: bool, data: Opaque<RECORD_PAYLOAD_MAX> } }
