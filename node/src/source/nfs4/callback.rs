//! The back channel: what the server asks of us (RFC 8881 §20).
//!
//! Owns: the back channel's slots and the answers. Never does: keeping delegations; one that is recalled is given back.
//! Invariant: a callback that is repeated gets the answer it got the first time.

use bytes::Bytes;
use forebay_proto::{
    nfs4::{
        Op, Status,
        callback::{
            CALLBACK_VERSION, CallbackHeader, CallbackOp, CallbackReply, CbRecallArgs, CbSequenceArgs, CbSequenceOk,
            PROC_CB_COMPOUND, PROC_CB_NULL,
        },
        ops::{delegreturn::DelegReturnArgs, putfh::PutFhArgs},
    },
    rpc::{AcceptStatus, Call, ReplyHeader},
    xdr::{Encoded, Opaque, Reader, Writer, Xdr},
};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{
    engine::{Engine, Request},
    link::Callback,
};
use crate::source::counters::Kind;

/// The number our callback program has; any in the transient range will do.
pub(super) const PROGRAM: u32 = 0x4f42_0001;
/// Slots we grant the server.
pub(super) const SLOTS: u32 = 16;
/// Operations of one callback that are looked at.
const OPERATIONS_MAX: u32 = 32;

#[derive(Clone, Debug, Default)]
struct Slot {
    sequence: u32,
    answer: Option<Encoded>,
}

/// The back channel's state.
#[derive(Debug, Default)]
pub(super) struct BackChannel {
    slots: Mutex<Vec<Slot>>,
}

/// What CB_SEQUENCE says to do.
enum Sequenced {
    Run(CbSequenceOk),
    Again(Encoded),
    Refuse(Status),
}

impl BackChannel {
    /// A new session: its slots begin anew.
    pub fn reset(&self) {
        *self.slots.lock() = vec![Slot::default(); SLOTS as usize];
    }

    fn sequence(&self, args: &CbSequenceArgs) -> Sequenced {
        let mut slots = self.slots.lock();
        let Some(slot) = slots.get_mut(args.slot as usize) else { return Sequenced::Refuse(Status::BadSlot) };
        if args.sequence == slot.sequence
            && let Some(answer) = &slot.answer
        {
            return Sequenced::Again(answer.clone());
        }
        if args.sequence != slot.sequence.wrapping_add(1) {
            return Sequenced::Refuse(Status::SeqMisordered);
        }
        *slot = Slot { sequence: args.sequence, answer: None };
        Sequenced::Run(CbSequenceOk {
            session: args.session,
            sequence: args.sequence,
            slot: args.slot,
            highest_slot: SLOTS - 1,
            target_highest_slot: SLOTS - 1,
        })
    }

    fn keep(&self, slot: u32, answer: &Encoded) {
        if let Some(slot) = self.slots.lock().get_mut(slot as usize) {
            slot.answer = Some(answer.clone());
        }
    }
}

/// Answers callbacks until the source is closed.
pub(super) async fn serve(engine: std::sync::Arc<Engine>, mut callbacks: mpsc::Receiver<Callback>) {
    loop {
        let callback = tokio::select! {
            callback = callbacks.recv() => callback,
            () = engine.closed.cancelled() => return,
        };
        let Some(Callback { record, link }) = callback else { return };
        let mut recalled = Vec::new();
        if let Some(answer) = answer(&engine, record, &mut recalled) {
            link.answer(answer);
        }
        for recall in recalled {
            give_back(&engine, recall.handle, recall.stateid);
        }
    }
}

/// Gives a delegation back in the background: nothing of ours depends on it.
pub(super) fn give_back(
    engine: &std::sync::Arc<Engine>,
    handle: forebay_proto::nfs4::FileHandle,
    stateid: forebay_proto::nfs4::Stateid,
) {
    let engine = engine.clone();
    let ops = vec![Op::PutFh(PutFhArgs { handle }), Op::DelegReturn(DelegReturnArgs { stateid })];
    tokio::spawn(async move {
        let request = Request::machine(&engine, Kind::Session, ops);
        if let Err(error) = engine.asking(engine.call(request)).await {
            tracing::debug!(%error, "a delegation could not be given back");
        }
    });
}

/// The answer to a call record, unless it is none.
fn answer(engine: &Engine, record: Bytes, recalled: &mut Vec<CbRecallArgs>) -> Option<Encoded> {
    let call = Call::decode(Reader::new(record)).ok()?;
    let header = call.header;
    let refused = |status| {
        let mut writer = Writer::new();
        ReplyHeader::Accepted(status).encode(header.xid, &mut writer);
        Some(writer.finish())
    };
    if header.program != PROGRAM {
        return refused(AcceptStatus::ProgramUnavailable);
    }
    if header.version != CALLBACK_VERSION {
        return refused(AcceptStatus::ProgramMismatch { low: CALLBACK_VERSION, high: CALLBACK_VERSION });
    }
    match header.procedure {
        PROC_CB_NULL => refused(AcceptStatus::Success),
        PROC_CB_COMPOUND => {
            compound(engine, header.xid, call.arguments, recalled).or_else(|| refused(AcceptStatus::GarbageArguments))
        }
        _ => refused(AcceptStatus::ProcedureUnavailable),
    }
}

fn compound(engine: &Engine, xid: u32, mut reader: Reader, recalled: &mut Vec<CbRecallArgs>) -> Option<Encoded> {
    let header = CallbackHeader::decode(&mut reader).ok()?;
    let (mut replies, mut slot, mut status) = (Vec::new(), None, Status::Ok);
    for place in 0..header.operations.min(OPERATIONS_MAX) {
        let (reply, result) = match CallbackOp::decode(&mut reader) {
            // Numbers nobody gave, and those whose arguments make no sense, look alike from here.
            Err(_) => (CallbackReply::Illegal(Err(Status::OpIllegal)), Status::OpIllegal),
            Ok(CallbackOp::Sequence(args)) if place == 0 => match engine.back.sequence(&args) {
                Sequenced::Again(first) => return Some(first.with_prefix(&xid.to_be_bytes())),
                Sequenced::Refuse(status) => (CallbackReply::Sequence(Err(status)), status),
                Sequenced::Run(ok) => {
                    slot = Some(ok.slot);
                    (CallbackReply::Sequence(Ok(ok)), Status::Ok)
                }
            },
            Ok(op) if slot.is_none() => refuse(&op, Status::OpNotInSession),
            Ok(op) => run(engine, op, recalled),
        };
        replies.push(reply);
        status = result;
        if status != Status::Ok {
            break;
        }
    }
    let mut writer = Writer::new();
    ReplyHeader::Accepted(AcceptStatus::Success).encode(xid, &mut writer);
    status.encode(&mut writer);
    Opaque::encode(&header.tag, &mut writer);
    writer.u32(replies.len() as u32);
    replies.iter().for_each(|reply| reply.encode(&mut writer));
    let answer = writer.finish();
    if let Some(slot) = slot {
        engine.back.keep(slot, &answer);
    }
    Some(answer)
}

fn run(engine: &Engine, op: CallbackOp, recalled: &mut Vec<CbRecallArgs>) -> (CallbackReply, Status) {
    match op {
        CallbackOp::Recall(recall) => {
            recalled.push(recall);
            (CallbackReply::Recall(Ok(())), Status::Ok)
        }
        // Nothing recallable is kept: that is below any number the server may name.
        CallbackOp::RecallAny(_) => (CallbackReply::RecallAny(Ok(())), Status::Ok),
        CallbackOp::RecallSlot(args) => {
            if let Some(session) = engine.session.borrow().as_ref() {
                session.set_target(args.target_highest_slot);
            }
            (CallbackReply::RecallSlot(Ok(())), Status::Ok)
        }
        op => refuse(&op, Status::NotSupp),
    }
}

fn refuse(op: &CallbackOp, status: Status) -> (CallbackReply, Status) {
    let reply = match op {
        CallbackOp::GetAttr(_) => CallbackReply::GetAttr(Err(status)),
        CallbackOp::Recall(_) => CallbackReply::Recall(Err(status)),
        CallbackOp::LayoutRecall(_) => CallbackReply::LayoutRecall(Err(status)),
        CallbackOp::Notify(_) => CallbackReply::Notify(Err(status)),
        CallbackOp::PushDelegation(_) => CallbackReply::PushDelegation(Err(status)),
        CallbackOp::RecallAny(_) => CallbackReply::RecallAny(Err(status)),
        CallbackOp::RecallableObjectAvailable(_) => CallbackReply::RecallableObjectAvailable(Err(status)),
        CallbackOp::RecallSlot(_) => CallbackReply::RecallSlot(Err(status)),
        CallbackOp::Sequence(_) => CallbackReply::Sequence(Err(Status::SequencePos)),
        CallbackOp::WantsCancelled(_) => CallbackReply::WantsCancelled(Err(status)),
        CallbackOp::NotifyLock(_) => CallbackReply::NotifyLock(Err(status)),
        CallbackOp::NotifyDeviceId(_) => CallbackReply::NotifyDeviceId(Err(status)),
        CallbackOp::Offload(_) => CallbackReply::Offload(Err(status)),
    };
    (reply, status)
}

#[cfg(test)]
mod tests {
    use forebay_proto::nfs4::{SessionId, callback::CallbackReply};
    use forebay_proto::xdr::List;

    use super::*;

    fn args(sequence: u32, slot: u32) -> CbSequenceArgs {
        let session = SessionId([1; 16]);
        CbSequenceArgs { session, sequence, slot, highest_slot: 0, cache_this: true, referring: List::default() }
    }

    #[test]
    fn a_repeated_callback_gets_its_first_answer_and_a_wrong_sequence_none() {
        let back = BackChannel::default();
        back.reset();
        assert!(matches!(back.sequence(&args(1, 0)), Sequenced::Run(_)));
        let mut writer = Writer::new();
        CallbackReply::Recall(Ok(())).encode(&mut writer);
        let answer = writer.finish();
        back.keep(0, &answer);
        match back.sequence(&args(1, 0)) {
            Sequenced::Again(again) => assert_eq!(again.to_bytes(), answer.to_bytes()),
            _ => panic!("not repeated"),
        }
        assert!(matches!(back.sequence(&args(3, 0)), Sequenced::Refuse(Status::SeqMisordered)));
        assert!(matches!(back.sequence(&args(1, SLOTS)), Sequenced::Refuse(Status::BadSlot)));
        assert!(matches!(back.sequence(&args(2, 0)), Sequenced::Run(_)));
    }
}
