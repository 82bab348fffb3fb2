//! GETATTR (RFC 8881 §18.7).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{nfs4::Bitmap, xdr::xdr_struct};

xdr_struct! { pub struct GetAttrArgs { attributes: Bitmap } }
