//! GETDEVICEINFO (RFC 8881 §18.40).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    nfs4::{Bitmap, Blob, Status},
    xdr::{Reader, Writer, Xdr, XdrError, xdr_struct},
};

xdr_struct! {
    pub struct GetDeviceInfoArgs { device: [u8; 16], layout_type: u32, max_count: u32, notifications: Bitmap }
}
xdr_struct! { pub struct DeviceAddress { layout_type: u32, body: Blob } }
xdr_struct! { pub struct GetDeviceInfoOk { address: DeviceAddress, notifications: Bitmap } }
/// TOOSMALL has a body: the count that would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GetDeviceInfoReply {
    Ok(GetDeviceInfoOk),
    TooSmall(u32),
    Err(Status),
}

impl GetDeviceInfoReply {
    pub fn status(&self) -> Status {
        match self {
            Self::Ok(_) => Status::Ok,
            Self::TooSmall(_) => Status::TooSmall,
            Self::Err(status) => *status,
        }
    }
}

impl Xdr for GetDeviceInfoReply {
    fn encode(&self, writer: &mut Writer) {
        self.status().encode(writer);
        match self {
            Self::Ok(body) => body.encode(writer),
            Self::TooSmall(count) => writer.u32(*count),
            Self::Err(_) => {}
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        Ok(match Status::decode(reader)? {
            Status::Ok => Self::Ok(Xdr::decode(reader)?),
            Status::TooSmall => Self::TooSmall(reader.u32()?),
            status => Self::Err(status),
        })
    }
}
