//! LOCK (RFC 8881 §18.10).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    nfs4::{LockType, StateOwner, Stateid, Status},
    xdr::{Reader, Writer, Xdr, XdrError, xdr_struct, xdr_union},
};

xdr_struct! {
    /// `open_to_lock_owner4`: the lock-owner's first lock on this file.
    pub struct OpenToLockOwner { open_seqid: u32, open_stateid: Stateid, lock_seqid: u32, lock_owner: StateOwner }
}
xdr_struct! {
    /// `exist_lock_owner4`.
    pub struct ExistingLockOwner { lock_stateid: Stateid, lock_seqid: u32 }
}
xdr_union! {
    /// `locker4`.
    pub enum Locker { 1 => New(OpenToLockOwner), 0 => Existing(ExistingLockOwner) }
}
xdr_struct! { pub struct LockArgs { kind: LockType, reclaim: bool, offset: u64, length: u64, locker: Locker } }
xdr_struct! {
    /// `LOCK4denied`: who is in the way.
    pub struct LockDenied { offset: u64, length: u64, kind: LockType, owner: StateOwner }
}
/// The result of LOCK and LOCKT: DENIED has a body too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockReply<T> {
    Ok(T),
    Denied(LockDenied),
    Err(Status),
}

impl<T> LockReply<T> {
    pub fn status(&self) -> Status {
        match self {
            Self::Ok(_) => Status::Ok,
            Self::Denied(_) => Status::Denied,
            Self::Err(status) => *status,
        }
    }
}

impl<T: Xdr> Xdr for LockReply<T> {
    fn encode(&self, writer: &mut Writer) {
        self.status().encode(writer);
        match self {
            Self::Ok(body) => body.encode(writer),
            Self::Denied(denied) => denied.encode(writer),
            Self::Err(_) => {}
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        Ok(match Status::decode(reader)? {
            Status::Ok => Self::Ok(T::decode(reader)?),
            Status::Denied => Self::Denied(Xdr::decode(reader)?),
            status => Self::Err(status),
        })
    }
}
