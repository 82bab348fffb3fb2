//! The vocabulary of a source: handles, attributes, credentials, errors.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Longest handle any source may give (EFS and Linux both stop at 128 bytes).
pub const SOURCE_HANDLE_MAX: usize = 128;

/// What a source calls an object. Opaque bytes, stable for the life of the object.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceHandle {
    len: u8,
    bytes: [u8; SOURCE_HANDLE_MAX],
}

impl SourceHandle {
    /// `None` if `bytes` is longer than [`SOURCE_HANDLE_MAX`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut handle = Self { len: u8::try_from(bytes.len()).ok()?, bytes: [0; SOURCE_HANDLE_MAX] };
        handle.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(handle)
    }

    /// The bytes as the source gave them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Serialize for SourceHandle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.as_bytes())
    }
}

impl<'de> Deserialize<'de> for SourceHandle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes: serde_bytes::ByteBuf = Deserialize::deserialize(deserializer)?;
        Self::new(&bytes).ok_or_else(|| D::Error::invalid_length(bytes.len(), &"at most 128 bytes"))
    }
}

impl fmt::Debug for SourceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SourceHandle(")?;
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, ")")
    }
}

/// Which file system of a source an object is on. Stable over restarts (from the file system's own identity).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SourceFsid(pub u64);

/// Who asks, after squashing. The source enforces permissions as this user and nobody else.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Credentials {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary groups, at most 16 from AUTH_SYS.
    pub groups: Arc<[u32]>,
}

/// What kind of object a handle names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    BlockDevice,
    CharDevice,
}

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Time {
    /// Whole seconds, negative before 1970.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

/// What `stat` tells, and the change attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAttributes {
    /// Which file system of the source.
    pub fsid: SourceFsid,
    /// Inode number.
    pub fileid: u64,
    /// Inode number of the directory this file system is mounted on, else `fileid`.
    pub mounted_on_fileid: u64,
    /// Kind of object.
    pub kind: FileKind,
    /// Permission bits with suid, sgid and sticky (0o7777).
    pub mode: u32,
    /// Number of hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of storage used.
    pub space_used: u64,
    /// Device numbers of a device node.
    pub device: (u32, u32),
    /// Last access.
    pub accessed: Time,
    /// Last modification of data.
    pub modified: Time,
    /// Last change of attributes.
    pub changed: Time,
    /// Creation, where the file system keeps it.
    pub created: Option<Time>,
    /// Differs after every change of data or attributes.
    pub change: u64,
}

/// What `statvfs` tells of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceAttributes {
    /// All bytes.
    pub space_total: u64,
    /// Free bytes, reserved ones included.
    pub space_free: u64,
    /// Bytes an ordinary user may still use.
    pub space_available: u64,
    /// All inodes.
    pub files_total: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name.
    pub name_max: u32,
}

/// How a time is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The source's own clock.
    Now,
    /// As given by the caller.
    To(Time),
}

/// Attributes to set: only what is `Some` changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SetAttributes {
    pub size: Option<u64>,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub accessed: Option<SetTime>,
    pub modified: Option<SetTime>,
}

/// What to make when it is not a regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum NewObject {
    Directory,
    Symlink { target: Bytes },
    Fifo,
    Socket,
    BlockDevice { major: u32, minor: u32 },
    CharDevice { major: u32, minor: u32 },
}

/// Permission bits of the ACCESS check: the same three questions `access(2)` asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AccessMask {
    /// May read data or list.
    pub read: bool,
    /// May write data or change entries.
    pub write: bool,
    /// May execute or search.
    pub execute: bool,
}

/// A directory entry with what LOOKUP would have told.
#[derive(Clone, Debug)]
pub struct DirectoryEntry<F> {
    /// Resume position: the next entries are those after this cookie. Never 0, 1 or 2.
    pub cookie: u64,
    /// The name, without `/` or NUL, never `.` or `..`.
    pub name: Bytes,
    /// Inode number as the directory has it: for a mount point that of the covered directory (`mounted_on_fileid`).
    pub fileid: u64,
    /// Kind as the directory has it; `None` where the file system does not keep it there.
    pub kind: Option<FileKind>,
    /// The object, if objects were asked for: what it is, or the error to report for this entry.
    pub file: Option<Result<EntryObject<F>, SourceError>>,
}

/// What a listing says of an object.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "most entries are told, and a box for each would cost more")]
pub enum EntryObject<F> {
    /// It was looked up, as LOOKUP does.
    Open(F),
    /// It was asked for its handle and attributes without being opened; never a mount point.
    Told {
        /// What names it.
        id: ObjectId,
        /// What `stat` tells of it.
        attributes: FileAttributes,
    },
}

/// What names an object for ever: which file system, and its handle there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ObjectId {
    /// Which file system of the source.
    pub fsid: SourceFsid,
    /// The object on it.
    pub handle: SourceHandle,
}

/// What a read did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadOutcome {
    /// `bytes` were appended to the buffer; `eof` if the file ended there or before.
    Done {
        /// Bytes appended.
        bytes: usize,
        /// The read reached the end of the file.
        eof: bool,
    },
    /// Not all of it is in memory: nothing was appended, ask again where blocking is allowed.
    WouldBlock,
}

/// How data will be used (`posix_fadvise`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Advice {
    Normal,
    Sequential,
    Random,
    WillNeed,
    DontNeed,
    NoReuse,
}

/// Where SEEK stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeekWhat {
    /// The next byte that is data.
    Data,
    /// The next hole (the end of the file counts).
    Hole,
}

/// How an xattr is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum XattrSet {
    Either,
    Create,
    Replace,
}

/// Why a source refused. `errno` names are the ones POSIX gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum SourceError {
    /// The handle names nothing any more.
    #[error("stale handle")]
    Stale,
    /// The handle was never this source's.
    #[error("bad handle")]
    BadHandle,
    /// The object is on a file system that has no stable handles or one too long for the wire.
    #[error("no stable handle")]
    NoHandle,
    /// The source cannot be reached, or does not answer in time. Asking again later is right.
    #[error("source unavailable")]
    Unavailable,
    /// A listing cannot be read on from there.
    #[error("cookie no longer valid")]
    BadCookie,
    /// The system's answer.
    #[error("errno {0}")]
    Errno(i32),
}

impl SourceError {
    /// The source does not know how to.
    pub const UNSUPPORTED: Self = Self::Errno(libc::EOPNOTSUPP);
}

impl From<rustix::io::Errno> for SourceError {
    fn from(errno: rustix::io::Errno) -> Self {
        if errno == rustix::io::Errno::STALE { Self::Stale } else { Self::Errno(errno.raw_os_error()) }
    }
}
