//! DELEGRETURN (RFC 8881 §18.6).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{nfs4::Stateid, xdr::xdr_struct};

xdr_struct! { pub struct DelegReturnArgs { stateid: Stateid } }
