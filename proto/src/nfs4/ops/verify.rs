//! VERIFY (RFC 8881 §18.31) and NVERIFY (§18.15).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{nfs4::Fattr, xdr::xdr_struct};

xdr_struct! { pub struct VerifyArgs { attributes: Fattr } }
