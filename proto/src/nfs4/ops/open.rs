//! OPEN (RFC 8881 §18.16).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    nfs4::{Ace, Bitmap, ChangeInfo, Component, Fattr, StateOwner, Stateid, Verifier},
    xdr::{xdr_struct, xdr_union},
};

xdr_struct! {
    /// `creatverfattr`.
    pub struct ExclusiveCreate { verifier: Verifier, attributes: Fattr }
}
xdr_union! {
    /// `createhow4`.
    pub enum CreateHow { 0 => Unchecked(Fattr), 1 => Guarded(Fattr), 2 => Exclusive(Verifier), 3 => Exclusive41(ExclusiveCreate) }
}
xdr_union! {
    /// `openflag4`.
    pub enum OpenHow { 0 => NoCreate, 1 => Create(CreateHow) }
}
xdr_struct! { pub struct DelegateCurrent { stateid: Stateid, name: Component } }
xdr_union! {
    /// `open_claim4`.
    pub enum OpenClaim {
        0 => Null(Component),
        1 => Previous(u32),
        2 => DelegateCurrent(DelegateCurrent),
        3 => DelegatePrevious(Component),
        4 => FileHandle,
        5 => DelegateCurrentFileHandle(Stateid),
        6 => DelegatePreviousFileHandle,
    }
}
xdr_struct! {
    pub struct OpenArgs {
        seqid: u32,
        share_access: u32,
        share_deny: u32,
        owner: StateOwner,
        how: OpenHow,
        claim: OpenClaim,
    }
}
xdr_struct! { pub struct ReadDelegation { stateid: Stateid, recall: bool, permissions: Ace } }
xdr_union! {
    /// `nfs_space_limit4`.
    pub enum SpaceLimit { 1 => Size(u64), 2 => Blocks((u32, u32)) }
}
xdr_struct! { pub struct WriteDelegation { stateid: Stateid, recall: bool, space_limit: SpaceLimit, permissions: Ace } }
xdr_union! {
    /// `open_none_delegation4`: why there is no delegation.
    pub enum NoDelegation {
        0 => NotWanted,
        1 => Contention(bool),
        2 => Resource(bool),
        3 => NotSupportedByType,
        4 => WriteDelegationNotSupported,
        5 => NotSupportedUpgrade,
        6 => NotSupportedDowngrade,
        7 => Cancelled,
        8 => IsDirectory,
    }
}
xdr_union! {
    /// `open_delegation4`.
    pub enum OpenDelegation {
        0 => None,
        1 => Read(ReadDelegation),
        2 => Write(WriteDelegation),
        3 => NoneExtended(NoDelegation),
    }
}
xdr_struct! {
    pub struct OpenOk {
        stateid: Stateid,
        change: ChangeInfo,
        flags: u32,
        attributes_set: Bitmap,
        delegation: OpenDelegation,
    }
}
