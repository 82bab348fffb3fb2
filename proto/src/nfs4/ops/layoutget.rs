//! LAYOUTGET (RFC 8881 §18.43).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    limits::LONG_LIST_MAX,
    nfs4::{Blob, Stateid, Status},
    xdr::{List, Reader, Writer, Xdr, XdrError, xdr_struct},
};

xdr_struct! {
    pub struct LayoutGetArgs {
        signal_available: bool,
        layout_type: u32,
        iomode: u32,
        offset: u64,
        length: u64,
        min_length: u64,
        stateid: Stateid,
        max_count: u32,
    }
}
xdr_struct! { pub struct LayoutContent { layout_type: u32, body: Blob } }
xdr_struct! { pub struct Layout { offset: u64, length: u64, iomode: u32, content: LayoutContent } }
xdr_struct! {
    pub struct LayoutGetOk { return_on_close: bool, stateid: Stateid, layouts: List<Layout, LONG_LIST_MAX> }
}
/// LAYOUTTRYLATER has a body: whether the server will signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutGetReply {
    Ok(LayoutGetOk),
    TryLater(bool),
    Err(Status),
}

impl LayoutGetReply {
    pub fn status(&self) -> Status {
        match self {
            Self::Ok(_) => Status::Ok,
            Self::TryLater(_) => Status::LayoutTryLater,
            Self::Err(status) => *status,
        }
    }
}

impl Xdr for LayoutGetReply {
    fn encode(&self, writer: &mut Writer) {
        self.status().encode(writer);
        match self {
            Self::Ok(body) => body.encode(writer),
            Self::TryLater(signal) => signal.encode(writer),
            Self::Err(_) => {}
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        Ok(match Status::decode(reader)? {
            Status::Ok => Self::Ok(Xdr::decode(reader)?),
            Status::LayoutTryLater => Self::TryLater(Xdr::decode(reader)?),
            status => Self::Err(status),
        })
    }
}
