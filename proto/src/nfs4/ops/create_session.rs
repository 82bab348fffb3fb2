//! CREATE_SESSION (RFC 8881 §18.36).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    limits::SHORT_LIST_MAX,
    nfs4::{ClientId, SessionId, ops::backchannel_ctl::CallbackSecurity},
    xdr::{List, xdr_struct},
};

xdr_struct! {
    /// `channel_attrs4`.
    pub struct ChannelAttributes {
        header_pad_size: u32,
        max_request_size: u32,
        max_response_size: u32,
        max_response_size_cached: u32,
        max_operations: u32,
        max_requests: u32,
        rdma_ird: List<u32, 1>,
    }
}
xdr_struct! {
    pub struct CreateSessionArgs {
        clientid: ClientId,
        sequence: u32,
        flags: u32,
        fore: ChannelAttributes,
        back: ChannelAttributes,
        callback_program: u32,
        callback_security: List<CallbackSecurity, SHORT_LIST_MAX>,
    }
}
xdr_struct! {
    pub struct CreateSessionOk {
        session: SessionId,
        sequence: u32,
        flags: u32,
        fore: ChannelAttributes,
        back: ChannelAttributes,
    }
}
