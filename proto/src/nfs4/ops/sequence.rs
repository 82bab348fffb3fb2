//! SEQUENCE (RFC 8881 §18.46).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{nfs4::SessionId, xdr::xdr_struct};

xdr_struct! {
    #[derive(Copy)]
    pub struct SequenceArgs { session: SessionId, sequence: u32, slot: u32, highest_slot: u32, cache_this: bool }
}
xdr_struct! {
    #[derive(Copy)]
    pub struct SequenceOk {
        session: SessionId,
        sequence: u32,
        slot: u32,
        highest_slot: u32,
        target_highest_slot: u32,
        status_flags: u32,
    }
}
