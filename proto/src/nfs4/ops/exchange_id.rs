//! EXCHANGE_ID (RFC 8881 §18.35).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    limits::SHORT_LIST_MAX,
    nfs4::{Bitmap, Blob, ClientId, ImplementationId, LimitedOpaque, Verifier},
    xdr::{List, xdr_struct, xdr_union},
};

xdr_struct! {
    /// `client_owner4`.
    pub struct ClientOwner { verifier: Verifier, owner: LimitedOpaque }
}
xdr_struct! {
    /// `state_protect_ops4`.
    #[derive(Copy)]
    pub struct ProtectOps { must_enforce: Bitmap, must_allow: Bitmap }
}
xdr_struct! {
    /// `ssv_sp_parms4`.
    pub struct SsvArgs {
        operations: ProtectOps,
        hash_algorithms: List<LimitedOpaque, SHORT_LIST_MAX>,
        encryption_algorithms: List<LimitedOpaque, SHORT_LIST_MAX>,
        window: u32,
        gss_handles: u32,
    }
}
xdr_union! {
    /// `state_protect4_a`.
    pub enum StateProtectArgs { 0 => None, 1 => MachineCredential(ProtectOps), 2 => Ssv(SsvArgs) }
}
xdr_struct! {
    pub struct ExchangeIdArgs {
        owner: ClientOwner,
        flags: u32,
        state_protect: StateProtectArgs,
        implementation: List<ImplementationId, 1>,
    }
}
xdr_struct! {
    /// `ssv_prot_info4`.
    pub struct SsvInfo {
        operations: ProtectOps,
        hash_algorithm: u32,
        encryption_algorithm: u32,
        ssv_length: u32,
        window: u32,
        handles: List<Blob, SHORT_LIST_MAX>,
    }
}
xdr_union! {
    /// `state_protect4_r`.
    pub enum StateProtectReply { 0 => None, 1 => MachineCredential(ProtectOps), 2 => Ssv(SsvInfo) }
}
xdr_struct! {
    /// `server_owner4`.
    pub struct ServerOwner { minor_id: u64, major_id: LimitedOpaque }
}
xdr_struct! {
    pub struct ExchangeIdOk {
        clientid: ClientId,
        sequence: u32,
        flags: u32,
        state_protect: StateProtectReply,
        server_owner: ServerOwner,
        server_scope: LimitedOpaque,
        implementation: List<ImplementationId, 1>,
    }
}
