//! The procedures of NFSv3 (RFC 1813 §3.3): one row each.
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use super::{
    Chain, DeviceNumbers, DirOpArgs, Fattr, FileHandle, Filename, NfsTime, Outcome, PROGRAM, Sattr, StableHow, VERSION,
    Verifier, WccData, procedure::procedures,
};
use crate::{
    limits::{LINK_TEXT_MAX, RECORD_PAYLOAD_MAX},
    xdr::{Opaque, xdr_struct, xdr_union},
};

procedures! { PROGRAM, VERSION;
    0 Null "NULL" (()) -> ();
    1 GetAttr "GETATTR" (FileHandle) -> Outcome<Fattr, ()>;
    2 SetAttr "SETATTR" (SetAttrArgs) -> Outcome<WccData, WccData>;
    3 Lookup "LOOKUP" (DirOpArgs) -> Outcome<LookupOk, Option<Fattr>>;
    4 Access "ACCESS" (AccessArgs) -> Outcome<AccessOk, Option<Fattr>>;
    5 ReadLink "READLINK" (FileHandle) -> Outcome<ReadLinkOk, Option<Fattr>>;
    6 Read "READ" (ReadArgs) -> Outcome<ReadOk, Option<Fattr>>;
    7 Write "WRITE" (WriteArgs) -> Outcome<WriteOk, WccData>;
    8 Create "CREATE" (CreateArgs) -> Outcome<Created, WccData>;
    9 Mkdir "MKDIR" (MkdirArgs) -> Outcome<Created, WccData>;
    10 Symlink "SYMLINK" (SymlinkArgs) -> Outcome<Created, WccData>;
    11 Mknod "MKNOD" (MknodArgs) -> Outcome<Created, WccData>;
    12 Remove "REMOVE" (DirOpArgs) -> Outcome<WccData, WccData>;
    13 Rmdir "RMDIR" (DirOpArgs) -> Outcome<WccData, WccData>;
    14 Rename "RENAME" (RenameArgs) -> Outcome<RenameWcc, RenameWcc>;
    15 Link "LINK" (LinkArgs) -> Outcome<LinkWcc, LinkWcc>;
    16 ReadDir "READDIR" (ReadDirArgs) -> Outcome<ReadDirOk, Option<Fattr>>;
    17 ReadDirPlus "READDIRPLUS" (ReadDirPlusArgs) -> Outcome<ReadDirPlusOk, Option<Fattr>>;
    18 FsStat "FSSTAT" (FileHandle) -> Outcome<FsStatOk, Option<Fattr>>;
    19 FsInfo "FSINFO" (FileHandle) -> Outcome<FsInfoOk, Option<Fattr>>;
    20 PathConf "PATHCONF" (FileHandle) -> Outcome<PathConfOk, Option<Fattr>>;
    21 Commit "COMMIT" (CommitArgs) -> Outcome<CommitOk, WccData>;
}

xdr_struct! { pub struct SetAttrArgs { file: FileHandle, attributes: Sattr, guard: Option<NfsTime> } }
xdr_struct! {
    pub struct LookupOk { file: FileHandle, attributes: Option<Fattr>, directory: Option<Fattr> }
}
xdr_struct! { pub struct AccessArgs { file: FileHandle, access: u32 } }
xdr_struct! { pub struct AccessOk { attributes: Option<Fattr>, access: u32 } }
xdr_struct! { pub struct ReadLinkOk { attributes: Option<Fattr>, target: Opaque<LINK_TEXT_MAX> } }
xdr_struct! { pub struct ReadArgs { file: FileHandle, offset: u64, count: u32 } }
xdr_struct! {
    pub struct ReadOk { attributes: Option<Fattr>, count: u32, eof: bool, data: Opaque<RECORD_PAYLOAD_MAX> }
}
xdr_struct! {
    pub struct WriteArgs {
        file: FileHandle,
        offset: u64,
        count: u32,
        stable: StableHow,
        data: Opaque<RECORD_PAYLOAD_MAX>,
    }
}
xdr_struct! { pub struct WriteOk { file: WccData, count: u32, committed: StableHow, verifier: Verifier } }
xdr_union! {
    /// `createhow3`.
    pub enum CreateHow {
        0 => Unchecked(Sattr),
        1 => Guarded(Sattr),
        /// The same verifier again finds the file it made.
        2 => Exclusive(Verifier),
    }
}
xdr_struct! { pub struct CreateArgs { place: DirOpArgs, how: CreateHow } }
xdr_struct! {
    /// What CREATE, MKDIR, SYMLINK and MKNOD give.
    pub struct Created { file: Option<FileHandle>, attributes: Option<Fattr>, directory: WccData }
}
xdr_struct! { pub struct MkdirArgs { place: DirOpArgs, attributes: Sattr } }
xdr_struct! {
    pub struct SymlinkArgs { place: DirOpArgs, attributes: Sattr, target: Opaque<LINK_TEXT_MAX> }
}
xdr_struct! {
    /// `devicedata3`.
    pub struct DeviceData { attributes: Sattr, numbers: DeviceNumbers }
}
xdr_union! {
    /// `mknoddata3`, as far as there is something to make: its other arms are BADTYPE.
    pub enum MknodData {
        3 => BlockDevice(DeviceData),
        4 => CharDevice(DeviceData),
        6 => Socket(Sattr),
        7 => Fifo(Sattr),
    }
}
xdr_struct! { pub struct MknodArgs { place: DirOpArgs, what: MknodData } }
xdr_struct! { pub struct RenameArgs { from: DirOpArgs, to: DirOpArgs } }
xdr_struct! { #[derive(Copy, Default)] pub struct RenameWcc { from: WccData, to: WccData } }
xdr_struct! { pub struct LinkArgs { file: FileHandle, to: DirOpArgs } }
xdr_struct! { #[derive(Copy, Default)] pub struct LinkWcc { attributes: Option<Fattr>, directory: WccData } }
xdr_struct! { pub struct ReadDirArgs { directory: FileHandle, cookie: u64, verifier: Verifier, count: u32 } }
xdr_struct! {
    /// `entry3`.
    pub struct Entry { fileid: u64, name: Filename, cookie: u64 }
}
xdr_struct! {
    pub struct ReadDirOk { directory: Option<Fattr>, verifier: Verifier, entries: Chain<Entry>, eof: bool }
}
xdr_struct! {
    pub struct ReadDirPlusArgs {
        directory: FileHandle,
        cookie: u64,
        verifier: Verifier,
        directory_count: u32,
        max_count: u32,
    }
}
xdr_struct! {
    /// `entryplus3`.
    pub struct EntryPlus {
        fileid: u64,
        name: Filename,
        cookie: u64,
        attributes: Option<Fattr>,
        file: Option<FileHandle>,
    }
}
xdr_struct! {
    pub struct ReadDirPlusOk { directory: Option<Fattr>, verifier: Verifier, entries: Chain<EntryPlus>, eof: bool }
}
xdr_struct! {
    pub struct FsStatOk {
        attributes: Option<Fattr>,
        total_bytes: u64,
        free_bytes: u64,
        available_bytes: u64,
        total_files: u64,
        free_files: u64,
        available_files: u64,
        /// Seconds for which this will not change.
        steady: u32,
    }
}
xdr_struct! {
    pub struct FsInfoOk {
        attributes: Option<Fattr>,
        read_max: u32,
        read_preferred: u32,
        read_multiple: u32,
        write_max: u32,
        write_preferred: u32,
        write_multiple: u32,
        directory_preferred: u32,
        size_max: u64,
        time_delta: NfsTime,
        properties: u32,
    }
}
xdr_struct! {
    pub struct PathConfOk {
        attributes: Option<Fattr>,
        link_max: u32,
        name_max: u32,
        no_truncation: bool,
        chown_restricted: bool,
        case_insensitive: bool,
        case_preserving: bool,
    }
}
xdr_struct! { pub struct CommitArgs { file: FileHandle, offset: u64, count: u32 } }
xdr_struct! { pub struct CommitOk { file: WccData, verifier: Verifier } }
