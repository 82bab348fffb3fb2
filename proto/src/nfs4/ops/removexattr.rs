//! REMOVEXATTR (RFC 8276 §8.4.4).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{nfs4::Component, xdr::xdr_struct};

xdr_struct! { pub struct RemoveXattrArgs { name: Component } }
