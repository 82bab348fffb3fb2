//! Types that several operations share (RFC 8881 §3.3).
#![allow(missing_docs, reason = "fields carry the RFC's names and meanings")]

use crate::{
    limits::{BLOB_MAX, COMPONENT_MAX, FILEHANDLE_MAX, OPAQUE_LIMIT},
    xdr::{Opaque, Reader, Writer, Xdr, XdrError, xdr_enum, xdr_struct},
};

/// `component4`: a name in a directory, not yet judged.
pub type Component = Opaque<COMPONENT_MAX>;
/// `nfs_fh4`.
pub type FileHandle = Opaque<FILEHANDLE_MAX>;
/// `verifier4`.
pub type Verifier = [u8; 8];
/// Owner strings, server owners, scopes.
pub type LimitedOpaque = Opaque<OPAQUE_LIMIT>;
/// Opaque bodies that are carried only.
pub type Blob = Opaque<BLOB_MAX>;

/// `clientid4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

impl Xdr for ClientId {
    fn encode(&self, writer: &mut Writer) {
        writer.u64(self.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        reader.u64().map(Self)
    }
}

/// `sessionid4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(pub [u8; 16]);

impl Xdr for SessionId {
    fn encode(&self, writer: &mut Writer) {
        writer.raw(&self.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        reader.array().map(Self)
    }
}

/// `stateid4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stateid {
    pub seqid: u32,
    pub other: [u8; 12],
}

impl Stateid {
    /// RFC 8881 §8.2.3: no open at all.
    pub const ANONYMOUS: Self = Self { seqid: 0, other: [0; 12] };
    /// RFC 8881 §8.2.3: READ that bypasses locks.
    pub const READ_BYPASS: Self = Self { seqid: u32::MAX, other: [0xff; 12] };
    /// RFC 8881 §8.2.3: the one an earlier operation of this COMPOUND returned.
    pub const CURRENT: Self = Self { seqid: 1, other: [0; 12] };
    /// RFC 8881 §8.2.3: never valid.
    pub const INVALID: Self = Self { seqid: u32::MAX, other: [0; 12] };
}

impl Xdr for Stateid {
    fn encode(&self, writer: &mut Writer) {
        writer.u32(self.seqid);
        writer.raw(&self.other);
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        Ok(Self { seqid: reader.u32()?, other: reader.array()? })
    }
}

xdr_struct! {
    /// `nfstime4`. Nanoseconds are not yet judged.
    #[derive(Copy, Default, PartialOrd, Ord)]
    pub struct NfsTime { seconds: i64, nanoseconds: u32 }
}

xdr_struct! {
    /// `change_info4`.
    #[derive(Copy, Default)]
    pub struct ChangeInfo { atomic: bool, before: u64, after: u64 }
}

xdr_struct! {
    /// `fsid4`.
    #[derive(Copy, Hash)]
    pub struct Fsid { major: u64, minor: u64 }
}

xdr_struct! {
    /// `specdata4`: a device's numbers.
    #[derive(Copy)]
    pub struct DeviceNumbers { major: u32, minor: u32 }
}

xdr_struct! {
    /// `state_owner4`: an open-owner or lock-owner.
    #[derive(Hash)]
    pub struct StateOwner { clientid: ClientId, owner: LimitedOpaque }
}

xdr_struct! {
    /// `nfs_impl_id4`.
    pub struct ImplementationId { domain: LimitedOpaque, name: LimitedOpaque, date: NfsTime }
}

xdr_enum! {
    /// `nfs_ftype4`.
    pub enum FileType {
        Regular = 1,
        Directory = 2,
        BlockDevice = 3,
        CharDevice = 4,
        Symlink = 5,
        Socket = 6,
        Fifo = 7,
        AttributeDirectory = 8,
        NamedAttribute = 9,
    }
}

xdr_enum! {
    /// `nfs_lock_type4`.
    pub enum LockType {
        Read = 1,
        Write = 2,
        /// Read, and the client will wait for it.
        ReadWait = 3,
        /// Write, and the client will wait for it.
        WriteWait = 4,
    }
}

impl LockType {
    /// Whether the lock excludes all others.
    pub fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteWait)
    }

    /// Whether the client will ask again.
    pub fn waits(self) -> bool {
        matches!(self, Self::ReadWait | Self::WriteWait)
    }
}

xdr_enum! {
    /// `stable_how4`.
    #[derive(PartialOrd, Ord)]
    pub enum StableHow { Unstable = 0, DataSync = 1, FileSync = 2 }
}

xdr_struct! {
    /// `nfsace4`.
    pub struct Ace { kind: u32, flag: u32, access_mask: u32, who: LimitedOpaque }
}

/// Bits of ACCESS (RFC 8881 §18.1, RFC 8276 §8.5).
pub mod access {
    pub const READ: u32 = 0x01;
    pub const LOOKUP: u32 = 0x02;
    pub const MODIFY: u32 = 0x04;
    pub const EXTEND: u32 = 0x08;
    pub const DELETE: u32 = 0x10;
    pub const EXECUTE: u32 = 0x20;
    pub const XATTR_READ: u32 = 0x40;
    pub const XATTR_WRITE: u32 = 0x80;
    pub const XATTR_LIST: u32 = 0x100;
}

/// Bits of OPEN's share_access and share_deny, and of its result (RFC 8881 §18.16).
pub mod open {
    pub const ACCESS_READ: u32 = 1;
    pub const ACCESS_WRITE: u32 = 2;
    pub const ACCESS_BOTH: u32 = 3;
    /// Bits 8 to 15: which delegation the client would like.
    pub const WANT_DELEG_MASK: u32 = 0xff00;
    pub const WANT_NO_DELEG: u32 = 0x0400;
    pub const WANT_CANCEL: u32 = 0x0500;
    pub const WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL: u32 = 0x1_0000;
    pub const WANT_PUSH_DELEG_WHEN_UNCONTENDED: u32 = 0x2_0000;
    pub const RESULT_CONFIRM: u32 = 2;
    pub const RESULT_LOCKTYPE_POSIX: u32 = 4;
    pub const RESULT_PRESERVE_UNLINKED: u32 = 8;
    pub const RESULT_MAY_NOTIFY_LOCK: u32 = 0x20;
}

/// Flags of EXCHANGE_ID (RFC 8881 §18.35).
pub mod exchange_id {
    pub const SUPP_MOVED_REFER: u32 = 0x1;
    pub const SUPP_MOVED_MIGR: u32 = 0x2;
    pub const BIND_PRINC_STATEID: u32 = 0x100;
    pub const USE_NON_PNFS: u32 = 0x1_0000;
    pub const USE_PNFS_MDS: u32 = 0x2_0000;
    pub const USE_PNFS_DS: u32 = 0x4_0000;
    pub const PNFS_MASK: u32 = 0x7_0000;
    pub const UPD_CONFIRMED_REC_A: u32 = 0x4000_0000;
    pub const CONFIRMED_R: u32 = 0x8000_0000;
    /// Every flag a client may send. RFC 7862's SUPP_FENCE_OPS (4) is not one: see decision note 6.
    pub const ARGUMENT_MASK: u32 = 0x4007_0103;
}

/// Flags of CREATE_SESSION (RFC 8881 §18.36).
pub mod create_session {
    pub const PERSIST: u32 = 1;
    pub const CONN_BACK_CHAN: u32 = 2;
    pub const CONN_RDMA: u32 = 4;
}

/// Bits of SEQUENCE's sr_status_flags (RFC 8881 §18.46).
pub mod sequence_status {
    pub const CB_PATH_DOWN: u32 = 0x1;
    pub const EXPIRED_ALL_STATE_REVOKED: u32 = 0x8;
    pub const EXPIRED_SOME_STATE_REVOKED: u32 = 0x10;
    pub const ADMIN_STATE_REVOKED: u32 = 0x20;
    pub const RECALLABLE_STATE_REVOKED: u32 = 0x40;
    pub const LEASE_MOVED: u32 = 0x80;
    pub const RESTART_RECLAIM_NEEDED: u32 = 0x100;
    pub const CB_PATH_DOWN_SESSION: u32 = 0x200;
    pub const BACKCHANNEL_FAULT: u32 = 0x400;
}
