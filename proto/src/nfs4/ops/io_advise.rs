//! IO_ADVISE (RFC 7862 §15.5).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    nfs4::{Bitmap, Stateid},
    xdr::xdr_struct,
};

xdr_struct! { pub struct IoAdviseArgs { stateid: Stateid, offset: u64, count: u64, hints: Bitmap } }
xdr_struct! { pub struct IoAdviseOk { hints: Bitmap } }
