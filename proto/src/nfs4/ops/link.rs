//! LINK (RFC 8881 §18.9): the saved filehandle gets a name in the current one.
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{nfs4::Component, xdr::xdr_struct};

xdr_struct! { pub struct LinkArgs { name: Component } }
