//! LAYOUTCOMMIT (RFC 8881 §18.42).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    nfs4::{Blob, NfsTime, Stateid},
    xdr::xdr_struct,
};

xdr_struct! { pub struct LayoutUpdate { layout_type: u32, body: Blob } }
xdr_struct! {
    pub struct LayoutCommitArgs {
        offset: u64,
        length: u64,
        reclaim: bool,
        stateid: Stateid,
        last_write_offset: Option<u64>,
        time_modify: Option<NfsTime>,
        update: LayoutUpdate,
    }
}
xdr_struct! { pub struct LayoutCommitOk { new_size: Option<u64> } }
