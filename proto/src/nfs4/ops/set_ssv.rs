//! SET_SSV (RFC 8881 §18.47).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{nfs4::Blob, xdr::xdr_struct};

xdr_struct! { pub struct SetSsvArgs { ssv: Blob, digest: Blob } }
xdr_struct! { pub struct SetSsvOk { digest: Blob } }
