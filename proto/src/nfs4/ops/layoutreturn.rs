//! LAYOUTRETURN (RFC 8881 §18.44).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    nfs4::{Blob, Stateid},
    xdr::{xdr_struct, xdr_union},
};

xdr_struct! { pub struct LayoutReturnFile { offset: u64, length: u64, stateid: Stateid, body: Blob } }
xdr_union! { pub enum LayoutReturnWhat { 1 => File(LayoutReturnFile), 2 => Fsid, 3 => All } }
xdr_struct! { pub struct LayoutReturnArgs { reclaim: bool, layout_type: u32, iomode: u32, what: LayoutReturnWhat } }
xdr_struct! { pub struct LayoutReturnOk { stateid: Option<Stateid> } }
