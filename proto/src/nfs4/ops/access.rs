//! ACCESS (RFC 8881 §18.1): which of the asked rights the caller has.
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::xdr::xdr_struct;

xdr_struct! { pub struct AccessArgs { access: u32 } }
xdr_struct! { pub struct AccessOk { supported: u32, access: u32 } }
