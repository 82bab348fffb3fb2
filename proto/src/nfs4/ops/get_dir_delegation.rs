//! GET_DIR_DELEGATION (RFC 8881 §18.39).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    nfs4::{Bitmap, NfsTime, Stateid, Verifier},
    xdr::{xdr_struct, xdr_union},
};

xdr_struct! {
    pub struct GetDirDelegationArgs {
        signal_available: bool,
        notifications: Bitmap,
        child_attributes_delay: NfsTime,
        directory_attributes_delay: NfsTime,
        child_attributes: Bitmap,
        directory_attributes: Bitmap,
    }
}
xdr_struct! {
    pub struct DirDelegation {
        verifier: Verifier,
        stateid: Stateid,
        notifications: Bitmap,
        child_attributes: Bitmap,
        directory_attributes: Bitmap,
    }
}
xdr_union! { pub enum GetDirDelegationOk { 0 => Granted(DirDelegation), 1 => Unavailable(bool) } }
