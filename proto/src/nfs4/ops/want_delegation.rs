//! WANT_DELEGATION (RFC 8881 §18.49).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::xdr::{xdr_struct, xdr_union};

xdr_union! {
    /// `deleg_claim4`.
    pub enum DelegationClaim { 4 => FileHandle, 6 => PreviousFileHandle, 1 => Previous(u32) }
}
xdr_struct! { pub struct WantDelegationArgs { want: u32, claim: DelegationClaim } }
