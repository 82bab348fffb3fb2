//! OPEN_DOWNGRADE (RFC 8881 §18.18).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{nfs4::Stateid, xdr::xdr_struct};

xdr_struct! { pub struct OpenDowngradeArgs { stateid: Stateid, seqid: u32, share_access: u32, share_deny: u32 } }
