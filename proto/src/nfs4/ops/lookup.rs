//! LOOKUP (RFC 8881 §18.13); LOOKUPP (§18.14) has no arguments.
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{nfs4::Component, xdr::xdr_struct};

xdr_struct! { pub struct LookupArgs { name: Component } }
