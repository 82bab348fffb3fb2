//! CREATE (RFC 8881 §18.4): anything but a regular file.
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    limits::LINK_TEXT_MAX,
    nfs4::{Bitmap, ChangeInfo, Component, DeviceNumbers, Fattr, FileType},
    xdr::{Opaque, Reader, Writer, Xdr, XdrError, xdr_struct},
};

/// `createtype4`; a type with no item of its own is carried as its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateType {
    Symlink(Opaque<LINK_TEXT_MAX>),
    BlockDevice(DeviceNumbers),
    CharDevice(DeviceNumbers),
    Socket,
    Fifo,
    Directory,
    /// A regular file or a number without meaning: BADTYPE.
    Other(u32),
}

impl Xdr for CreateType {
    fn encode(&self, writer: &mut Writer) {
        match self {
            Self::Symlink(target) => {
                FileType::Symlink.encode(writer);
                target.encode(writer);
            }
            Self::BlockDevice(numbers) => {
                FileType::BlockDevice.encode(writer);
                numbers.encode(writer);
            }
            Self::CharDevice(numbers) => {
                FileType::CharDevice.encode(writer);
                numbers.encode(writer);
            }
            Self::Socket => FileType::Socket.encode(writer),
            Self::Fifo => FileType::Fifo.encode(writer),
            Self::Directory => FileType::Directory.encode(writer),
            Self::Other(number) => writer.u32(*number),
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        Ok(match reader.u32()? {
            2 => Self::Directory,
            3 => Self::BlockDevice(Xdr::decode(reader)?),
            4 => Self::CharDevice(Xdr::decode(reader)?),
            5 => Self::Symlink(Xdr::decode(reader)?),
            6 => Self::Socket,
            7 => Self::Fifo,
            other => Self::Other(other),
        })
    }
}
xdr_struct! { pub struct CreateArgs { kind: CreateType, name: Component, attributes: Fattr } }
xdr_struct! { pub struct CreateOk { change: ChangeInfo, attributes_set: Bitmap } }
