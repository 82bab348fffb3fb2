//! DESTROY_SESSION (RFC 8881 §18.37).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{nfs4::SessionId, xdr::xdr_struct};

xdr_struct! { pub struct DestroySessionArgs { session: SessionId } }
