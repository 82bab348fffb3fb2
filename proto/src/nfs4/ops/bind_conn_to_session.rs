//! BIND_CONN_TO_SESSION (RFC 8881 §18.34).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    nfs4::SessionId,
    xdr::{xdr_enum, xdr_struct},
};

xdr_enum! {
    /// `channel_dir_from_client4`.
    pub enum ChannelFromClient { Fore = 1, Back = 2, ForeOrBoth = 3, BackOrBoth = 7 }
}
xdr_enum! {
    /// `channel_dir_from_server4`.
    pub enum ChannelFromServer { Fore = 1, Back = 2, Both = 3 }
}
xdr_struct! { pub struct BindConnArgs { session: SessionId, direction: ChannelFromClient, use_rdma: bool } }
xdr_struct! { pub struct BindConnOk { session: SessionId, direction: ChannelFromServer, use_rdma: bool } }
