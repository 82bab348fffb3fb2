//! Operations in few words, and what is taken out of replies.
//!
//! Owns: how this client fills in arguments. Never does: sending.

use bytes::Bytes;
use forebay_proto::{
    nfs4::{
        Attr, Bitmap, Component, Fattr, FileHandle, Op, OpReply, ReplyHeader as CompoundReply, StableHow, Stateid,
        Status, access,
        ops::{
            access::AccessArgs, getattr::GetAttrArgs, lookup::LookupArgs, putfh::PutFhArgs, read::ReadArgs,
            sequence::SequenceOk, setattr::SetAttrArgs, write::WriteArgs,
        },
    },
    rpc::{self, AcceptStatus, Reply},
    xdr::{Opaque, Reader, XdrError},
};

pub(super) use crate::source::rpc::credential::{credential, machine_credential, machine_sys};
use crate::source::{AccessMask, FileKind, SourceError, SourceHandle};

/// What is asked of every object.
pub(super) const OBJECT: Bitmap = Bitmap::of(&[
    Attr::Type,
    Attr::Change,
    Attr::Size,
    Attr::Fsid,
    Attr::FileId,
    Attr::Mode,
    Attr::NumLinks,
    Attr::Owner,
    Attr::OwnerGroup,
    Attr::RawDev,
    Attr::SpaceUsed,
    Attr::TimeAccess,
    Attr::TimeCreate,
    Attr::TimeMetadata,
    Attr::TimeModify,
    Attr::MountedOnFileId,
]);

/// What is asked of every entry of a directory.
pub(super) const ENTRY: Bitmap = OBJECT.union_const(Bitmap::of(&[Attr::RdattrError, Attr::FileHandle]));

/// What is asked before a change, for its `before`.
pub(super) const CHANGE: Bitmap = Bitmap::of(&[Attr::Change]);

/// Attributes of one object on the wire, names of owner and group of usual length included.
pub(super) const ATTRIBUTES_ROOM: usize = 384;

const ALL_ACCESS: u32 =
    access::READ | access::LOOKUP | access::MODIFY | access::EXTEND | access::DELETE | access::EXECUTE;

pub(super) fn putfh(handle: &SourceHandle) -> Op {
    Op::PutFh(PutFhArgs { handle: filehandle(handle) })
}

pub(super) fn filehandle(handle: &SourceHandle) -> FileHandle {
    FileHandle::new(Bytes::copy_from_slice(handle.as_bytes())).expect("both stop at 128 bytes")
}

pub(super) fn getattr(attributes: Bitmap) -> Op {
    Op::GetAttr(GetAttrArgs { attributes })
}

pub(super) fn getfh() -> Op {
    Op::GetFh(())
}

pub(super) fn all_access() -> Op {
    Op::Access(AccessArgs { access: ALL_ACCESS })
}

/// A name as it goes over the wire; ENAMETOOLONG for what no server takes.
pub(super) fn component(name: &[u8]) -> Result<Component, SourceError> {
    Component::new(Bytes::copy_from_slice(name)).ok_or(SourceError::Errno(libc::ENAMETOOLONG))
}

pub(super) fn lookup(name: &[u8]) -> Result<Op, SourceError> {
    Ok(Op::Lookup(LookupArgs { name: component(name)? }))
}

pub(super) fn read(stateid: Stateid, offset: u64, count: u32) -> Op {
    Op::Read(ReadArgs { stateid, offset, count })
}

pub(super) fn write(stateid: Stateid, offset: u64, data: Bytes, stable: bool) -> Op {
    let stable = if stable { StableHow::FileSync } else { StableHow::Unstable };
    let data = Opaque::new(data).expect("pieces are cut to what a request may hold");
    Op::Write(WriteArgs { stateid, offset, stable, data })
}

pub(super) fn setattr(stateid: Stateid, attributes: Fattr) -> Op {
    Op::SetAttr(SetAttrArgs { stateid, attributes })
}

/// The three questions of `access(2)` from what ACCESS granted.
pub(super) fn access_mask(kind: FileKind, granted: u32) -> AccessMask {
    let execute = if kind == FileKind::Directory { access::LOOKUP } else { access::EXECUTE };
    AccessMask {
        read: granted & access::READ != 0,
        write: granted & access::MODIFY != 0,
        execute: granted & execute != 0,
    }
}

/// A handle out of a reply.
pub(super) fn handle(handle: &FileHandle) -> Result<SourceHandle, Status> {
    SourceHandle::new(handle).filter(|handle| !handle.as_bytes().is_empty()).ok_or(Status::ServerFault)
}

/// The results of a record's COMPOUND.
pub(super) fn decode(record: Bytes) -> Result<(Status, Vec<OpReply>), DecodeError> {
    let reply = Reply::decode(Reader::new(record))?;
    match reply.header {
        rpc::ReplyHeader::Accepted(AcceptStatus::Success) => {
            let mut results = reply.results;
            let (header, replies) = CompoundReply::decode_all(&mut results)?;
            Ok((header.status, replies))
        }
        refused => Err(DecodeError::Refused(refused)),
    }
}

/// What SEQUENCE at the front of a record's COMPOUND gave.
pub(super) fn sequence_result(record: Bytes) -> Option<Result<SequenceOk, Status>> {
    let (status, replies) = decode(record).ok()?;
    match replies.into_iter().next() {
        Some(OpReply::Sequence(result)) => Some(result),
        _ => Some(Err(status)),
    }
}

/// Why a record holds no results.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum DecodeError {
    /// The call was not run.
    #[error("the call was refused: {0:?}")]
    Refused(rpc::ReplyHeader),
    /// Not what the RFC draws.
    #[error("the reply makes no sense: {0}")]
    Xdr(#[from] XdrError),
}

/// Results of operations, one after the other.
#[derive(Debug)]
pub(super) struct Results {
    replies: std::vec::IntoIter<OpReply>,
    /// The call was sent more than once and may have been run before: "already done" may be our own doing.
    pub resent: bool,
    /// Length of the record they came in.
    pub record: usize,
}

impl Results {
    /// Results after SEQUENCE.
    pub fn new(replies: Vec<OpReply>, resent: bool, record: usize) -> Self {
        Self { replies: replies.into_iter(), resent, record }
    }

    /// The next operation's result, if it ran.
    pub fn next(&mut self) -> Option<OpReply> {
        self.replies.next()
    }

    /// Status of what failed, if anything did.
    pub fn failed(&self) -> Option<Status> {
        self.replies.as_slice().last().map(OpReply::status).filter(|status| *status != Status::Ok)
    }

    /// Status of the result at `place` from here; `None` if it did not run.
    pub fn status_at(&self, place: usize) -> Option<Status> {
        self.replies.as_slice().get(place).map(OpReply::status)
    }

    /// `bytes` of this record as an allocation of about their own length: the record's memory goes along only if little
    /// else was in it.
    pub fn own(&self, bytes: Bytes) -> Bytes {
        if bytes.len() + bytes.len() / 8 + 4096 < self.record { Bytes::copy_from_slice(&bytes) } else { bytes }
    }
}

/// The next result, which must be of this operation: its value or its status.
macro_rules! take {
    ($results:expr, $kind:ident) => {
        match $results.next() {
            Some(forebay_proto::nfs4::OpReply::$kind(result)) => result,
            // Another operation's result, or none at all although nothing failed: the server is wrong.
            Some(other) if other.status() != forebay_proto::nfs4::Status::Ok => Err(other.status()),
            _ => Err(forebay_proto::nfs4::Status::ServerFault),
        }
    };
}
pub(super) use take;
