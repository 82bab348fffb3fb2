//! Types that several procedures share (RFC 1813 §2.5, §2.6).
#![allow(missing_docs, reason = "fields carry the RFC's names and meanings")]

use crate::{
    limits::{COMPONENT_MAX, NFS3_FILEHANDLE_MAX},
    xdr::{Opaque, Reader, Writer, Xdr, XdrError, xdr_enum, xdr_struct},
};

/// `nfs_fh3`.
pub type FileHandle = Opaque<NFS3_FILEHANDLE_MAX>;
/// `filename3`, not yet judged.
pub type Filename = Opaque<COMPONENT_MAX>;
/// `cookieverf3`, `createverf3`, `writeverf3`.
pub type Verifier = [u8; 8];

xdr_struct! {
    /// `nfstime3`. Nanoseconds are not yet judged.
    #[derive(Copy, Default, PartialOrd, Ord)]
    pub struct NfsTime { seconds: u32, nanoseconds: u32 }
}

xdr_enum! {
    /// `ftype3`.
    pub enum FileType {
        Regular = 1,
        Directory = 2,
        BlockDevice = 3,
        CharDevice = 4,
        Symlink = 5,
        Socket = 6,
        Fifo = 7,
    }
}

xdr_enum! {
    /// `stable_how`.
    #[derive(PartialOrd, Ord)]
    pub enum StableHow { Unstable = 0, DataSync = 1, FileSync = 2 }
}

xdr_struct! {
    /// `diropargs3`: a name in a directory.
    pub struct DirOpArgs { directory: FileHandle, name: Filename }
}

/// Bits of ACCESS (RFC 1813 §3.3.4).
pub mod access {
    pub const READ: u32 = 0x01;
    pub const LOOKUP: u32 = 0x02;
    pub const MODIFY: u32 = 0x04;
    pub const EXTEND: u32 = 0x08;
    pub const DELETE: u32 = 0x10;
    pub const EXECUTE: u32 = 0x20;
}

/// Entries that form a chain of optional items on the wire. Each takes at least eight bytes of its record, so the
/// record's bound is the chain's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain<T>(pub Vec<T>);

impl<T> Default for Chain<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Xdr> Xdr for Chain<T> {
    fn encode(&self, writer: &mut Writer) {
        for entry in &self.0 {
            true.encode(writer);
            entry.encode(writer);
        }
        false.encode(writer);
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        let mut entries = Vec::new();
        while bool::decode(reader)? {
            entries.push(T::decode(reader)?);
        }
        Ok(Self(entries))
    }
}
