//! What a server asks of its client: CB_COMPOUND and its operations (RFC 8881 §20, RFC 7862 §16.1).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    limits::{LONG_LIST_MAX, OPAQUE_LIMIT, SHORT_LIST_MAX},
    nfs4::{
        Bitmap, Blob, Fattr, FileHandle, Fsid, SessionId, StateOwner, Stateid, Status,
        ops::{copy::WriteResponse, open::OpenDelegation},
    },
    xdr::{List, Opaque, Reader, Writer, Xdr, XdrError, xdr_struct, xdr_union},
};

/// RPC procedures of the callback program; its number is the client's choice, its version 1.
pub const PROC_CB_NULL: u32 = 0;
pub const PROC_CB_COMPOUND: u32 = 1;
pub const CALLBACK_VERSION: u32 = 1;

xdr_struct! {
    /// `CB_COMPOUND4args` up to the operations, which follow one by one.
    pub struct CallbackHeader {
        tag: Opaque<OPAQUE_LIMIT>,
        minor_version: u32,
        /// Of no use since minor version 1.
        callback_ident: u32,
        operations: u32,
    }
}

xdr_struct! { pub struct CbGetAttrArgs { handle: FileHandle, attributes: Bitmap } }
xdr_struct! { pub struct CbRecallArgs { stateid: Stateid, truncate: bool, handle: FileHandle } }
xdr_struct! { pub struct LayoutRecallFile { handle: FileHandle, offset: u64, length: u64, stateid: Stateid } }
xdr_union! { pub enum LayoutRecallWhat { 1 => File(LayoutRecallFile), 2 => Fsid(Fsid), 3 => All } }
xdr_struct! {
    pub struct CbLayoutRecallArgs { layout_type: u32, iomode: u32, changed: bool, what: LayoutRecallWhat }
}
xdr_struct! { pub struct Notification { mask: Bitmap, values: Blob } }
xdr_struct! {
    pub struct CbNotifyArgs { stateid: Stateid, handle: FileHandle, changes: List<Notification, LONG_LIST_MAX> }
}
xdr_struct! { pub struct CbPushDelegationArgs { handle: FileHandle, delegation: OpenDelegation } }
xdr_struct! { pub struct CbRecallAnyArgs { objects_to_keep: u32, kinds: Bitmap } }
xdr_struct! { pub struct CbRecallSlotArgs { target_highest_slot: u32 } }
xdr_struct! { pub struct ReferringCall { sequence: u32, slot: u32 } }
xdr_struct! { pub struct ReferringCalls { session: SessionId, calls: List<ReferringCall, LONG_LIST_MAX> } }
xdr_struct! {
    pub struct CbSequenceArgs {
        session: SessionId,
        sequence: u32,
        slot: u32,
        highest_slot: u32,
        cache_this: bool,
        referring: List<ReferringCalls, SHORT_LIST_MAX>,
    }
}
xdr_struct! {
    pub struct CbSequenceOk { session: SessionId, sequence: u32, slot: u32, highest_slot: u32, target_highest_slot: u32 }
}
xdr_struct! { pub struct CbWantsCancelledArgs { contended: bool, resourced: bool } }
xdr_struct! { pub struct CbNotifyLockArgs { handle: FileHandle, owner: StateOwner } }
xdr_struct! { pub struct CbNotifyDeviceIdArgs { changes: List<Notification, LONG_LIST_MAX> } }
/// `offload_info4`: all went well, or the status and how many bytes were copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offloaded {
    Ok(WriteResponse),
    Err(Status, u64),
}

impl Xdr for Offloaded {
    fn encode(&self, writer: &mut Writer) {
        match self {
            Self::Ok(response) => {
                Status::Ok.encode(writer);
                response.encode(writer);
            }
            Self::Err(status, copied) => {
                status.encode(writer);
                writer.u64(*copied);
            }
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        match Status::decode(reader)? {
            Status::Ok => Xdr::decode(reader).map(Self::Ok),
            status => Ok(Self::Err(status, reader.u64()?)),
        }
    }
}
xdr_struct! { pub struct CbOffloadArgs { handle: FileHandle, stateid: Stateid, result: Offloaded } }

xdr_union! {
    /// `nfs_cb_argop4`.
    pub enum CallbackOp {
        3 => GetAttr(CbGetAttrArgs),
        4 => Recall(CbRecallArgs),
        5 => LayoutRecall(CbLayoutRecallArgs),
        6 => Notify(CbNotifyArgs),
        7 => PushDelegation(CbPushDelegationArgs),
        8 => RecallAny(CbRecallAnyArgs),
        9 => RecallableObjectAvailable(CbRecallAnyArgs),
        10 => RecallSlot(CbRecallSlotArgs),
        11 => Sequence(CbSequenceArgs),
        12 => WantsCancelled(CbWantsCancelledArgs),
        13 => NotifyLock(CbNotifyLockArgs),
        14 => NotifyDeviceId(CbNotifyDeviceIdArgs),
        15 => Offload(CbOffloadArgs),
    }
}

xdr_union! {
    /// `nfs_cb_resop4`.
    pub enum CallbackReply {
        3 => GetAttr(Result<Fattr, Status>),
        4 => Recall(Result<(), Status>),
        5 => LayoutRecall(Result<(), Status>),
        6 => Notify(Result<(), Status>),
        7 => PushDelegation(Result<(), Status>),
        8 => RecallAny(Result<(), Status>),
        9 => RecallableObjectAvailable(Result<(), Status>),
        10 => RecallSlot(Result<(), Status>),
        11 => Sequence(Result<CbSequenceOk, Status>),
        12 => WantsCancelled(Result<(), Status>),
        13 => NotifyLock(Result<(), Status>),
        14 => NotifyDeviceId(Result<(), Status>),
        15 => Offload(Result<(), Status>),
        10_044 => Illegal(Result<(), Status>),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recall_is_what_rfc_8881_draws() {
        let stateid = Stateid { seqid: 1, other: [2; 12] };
        let op =
            CallbackOp::Recall(CbRecallArgs { stateid, truncate: true, handle: Opaque::new("fh").unwrap_or_default() });
        let bytes = op.to_bytes();
        let words = [4, 1, 0x0202_0202, 0x0202_0202, 0x0202_0202, 1, 2].map(u32::to_be_bytes).concat();
        assert_eq!(bytes[..], [&words[..], b"fh\0\0"].concat());
        assert_eq!(CallbackOp::from_bytes(bytes), Ok(op));
    }

    #[test]
    fn callbacks_come_back_as_they_were_sent() {
        let session = SessionId([9; 16]);
        let call = ReferringCalls {
            session,
            calls: List::new(vec![ReferringCall { sequence: 1, slot: 2 }]).unwrap_or_default(),
        };
        let referring = List::new(vec![call]).unwrap_or_default();
        let sequence = CbSequenceArgs { session, sequence: 7, slot: 0, highest_slot: 0, cache_this: false, referring };
        let failed = Offloaded::Err(Status::NoSpc, 77);
        let offload = CbOffloadArgs { handle: FileHandle::default(), stateid: Stateid::ANONYMOUS, result: failed };
        for op in [CallbackOp::Sequence(sequence), CallbackOp::Offload(offload)] {
            assert_eq!(CallbackOp::from_bytes(op.to_bytes()), Ok(op));
        }
        let reply = CallbackReply::Sequence(Err(Status::BadSession));
        assert_eq!(CallbackReply::from_bytes(reply.to_bytes()), Ok(reply));
    }
}
