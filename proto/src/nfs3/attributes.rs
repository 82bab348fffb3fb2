//! Attributes as they are told and set (RFC 1813 §2.5.5, §2.6).
#![allow(missing_docs, reason = "fields carry the RFC's names and meanings")]

use super::{FileType, NfsTime};
use crate::xdr::{xdr_struct, xdr_union};

xdr_struct! {
    /// `specdata3`: a device's numbers.
    #[derive(Copy, Default)]
    pub struct DeviceNumbers { major: u32, minor: u32 }
}

xdr_struct! {
    /// `fattr3`.
    #[derive(Copy)]
    pub struct Fattr {
        kind: FileType,
        mode: u32,
        links: u32,
        uid: u32,
        gid: u32,
        size: u64,
        used: u64,
        device: DeviceNumbers,
        fsid: u64,
        fileid: u64,
        accessed: NfsTime,
        modified: NfsTime,
        /// Last change of attributes (`ctime`).
        changed: NfsTime,
    }
}

xdr_struct! {
    /// `wcc_attr`: what tells whether an object changed.
    #[derive(Copy)]
    pub struct WccAttr { size: u64, modified: NfsTime, changed: NfsTime }
}

xdr_struct! {
    /// `wcc_data`: an object just before and just after a change, as far as the server tells.
    #[derive(Copy, Default)]
    pub struct WccData { before: Option<WccAttr>, after: Option<Fattr> }
}

xdr_union! {
    /// `set_atime`, `set_mtime`.
    #[derive(Copy, Default)]
    pub enum SetTime {
        #[default]
        0 => Leave,
        /// The server's clock.
        1 => ServerTime,
        2 => ClientTime(NfsTime),
    }
}

xdr_struct! {
    /// `sattr3`: what is to be set; `None` stays as it is.
    #[derive(Copy, Default)]
    pub struct Sattr {
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: SetTime,
        modified: SetTime,
    }
}
