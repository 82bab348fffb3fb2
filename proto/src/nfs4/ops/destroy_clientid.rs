//! DESTROY_CLIENTID (RFC 8881 §18.50).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{nfs4::ClientId, xdr::xdr_struct};

xdr_struct! { pub struct DestroyClientidArgs { clientid: ClientId } }
