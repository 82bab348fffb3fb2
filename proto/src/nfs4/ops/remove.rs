//! REMOVE (RFC 8881 §18.25).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{nfs4::Component, xdr::xdr_struct};

xdr_struct! { pub struct RemoveArgs { name: Component } }
