//! LISTXATTRS (RFC 8276 §8.4.3).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    limits::LONG_LIST_MAX,
    nfs4::Component,
    xdr::{List, xdr_struct},
};

xdr_struct! { pub struct ListXattrsArgs { cookie: u64, max_count: u32 } }
xdr_struct! { pub struct ListXattrsOk { cookie: u64, names: List<Component, LONG_LIST_MAX>, eof: bool } }
