//! RECLAIM_COMPLETE (RFC 8881 §18.51).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::xdr::xdr_struct;

xdr_struct! { pub struct ReclaimCompleteArgs { one_fs: bool } }
