//! GETXATTR (RFC 8276 §8.4.1).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    limits::XATTR_VALUE_MAX,
    nfs4::Component,
    xdr::{Opaque, xdr_struct},
};

xdr_struct! { pub struct GetXattrArgs { name: Component } }
xdr_struct! { pub struct GetXattrOk { value: Opaque<XATTR_VALUE_MAX> } }
