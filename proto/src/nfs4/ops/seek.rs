//! SEEK (RFC 7862 §15.11).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    nfs4::Stateid,
    xdr::{xdr_enum, xdr_struct},
};

xdr_enum! {
    /// `data_content4`.
    pub enum SeekContent { Data = 0, Hole = 1 }
}
xdr_struct! { pub struct SeekArgs { stateid: Stateid, offset: u64, what: SeekContent } }
xdr_struct! { pub struct SeekOk { eof: bool, offset: u64 } }
