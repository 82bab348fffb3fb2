//! GETDEVICELIST (RFC 8881 §18.41).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    limits::LONG_LIST_MAX,
    nfs4::Verifier,
    xdr::{List, xdr_struct},
};

xdr_struct! { pub struct GetDeviceListArgs { layout_type: u32, max_devices: u32, cookie: u64, verifier: Verifier } }
xdr_struct! {
    pub struct GetDeviceListOk { cookie: u64, verifier: Verifier, devices: List<[u8; 16], LONG_LIST_MAX>, eof: bool }
}
