//! ALLOCATE (RFC 7862 §15.1) and DEALLOCATE (§15.4).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{nfs4::Stateid, xdr::xdr_struct};

xdr_struct! { pub struct AllocateArgs { stateid: Stateid, offset: u64, length: u64 } }
