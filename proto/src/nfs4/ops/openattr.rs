//! OPENATTR (RFC 8881 §18.17).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::xdr::xdr_struct;

xdr_struct! { pub struct OpenAttrArgs { create_directory: bool } }
