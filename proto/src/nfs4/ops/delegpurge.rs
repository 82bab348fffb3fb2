//! DELEGPURGE (RFC 8881 §18.5).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{nfs4::ClientId, xdr::xdr_struct};

xdr_struct! { pub struct DelegPurgeArgs { clientid: ClientId } }
