//! MOUNT version 3 (RFC 1813 §5): from a path to a filehandle.
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use super::{Chain, FileHandle, Outcome, procedure::procedures};
use crate::{
    limits::{MOUNT_NAME_MAX, MOUNT_PATH_MAX, SHORT_LIST_MAX},
    xdr::{List, Opaque, xdr_struct},
};

/// The MOUNT program.
pub const PROGRAM: u32 = 100_005;
/// This version of it.
pub const VERSION: u32 = 3;

/// `dirpath`.
pub type DirPath = Opaque<MOUNT_PATH_MAX>;

procedures! { PROGRAM, VERSION;
    0 Null "NULL" (()) -> ();
    1 Mnt "MNT" (DirPath) -> Outcome<MountOk, ()>;
    3 Umnt "UMNT" (DirPath) -> ();
    5 Export "EXPORT" (()) -> Exports;
}

xdr_struct! {
    /// `mountres3_ok`.
    pub struct MountOk {
        root: FileHandle,
        /// Flavours of authentication that are accepted for it.
        flavors: List<u32, SHORT_LIST_MAX>,
    }
}

xdr_struct! {
    /// `exportnode`: a path, and who may mount it (nobody named: everybody).
    pub struct ExportNode { path: DirPath, groups: Chain<Opaque<MOUNT_NAME_MAX>> }
}

/// All exports.
pub type Exports = Chain<ExportNode>;

impl super::Answer for Exports {}
