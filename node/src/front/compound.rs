//! COMPOUND (RFC 8881 §2.10.6, §16.2): which operations may stand where, sizes, and the reply.
//!
//! Invariants: operations run in order and stop at the first that fails; every operation that ran has its result in
//! the reply; no reply is longer than the session agreed to.

use std::sync::Arc;

use forebay_proto::{
    nfs4::{
        CompoundHeader, Op, OpNumber, OpReply, PROC_COMPOUND, PROC_NULL, PROGRAM, Status, VERSION,
        ops::{LAST_MINOR_1, LAST_MINOR_2, OP_ILLEGAL},
    },
    rpc::{AcceptStatus, AuthFlavor, AuthStatus, Call, Credential, ReplyHeader, RpcError},
    xdr::{Encoded, Mark, Reader, Writer, Xdr},
};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    dispatch,
    sequence::{self, Begun, CallShape, SlotGuard},
};
use crate::{admin::metrics::Stopwatch, files::Caller, ops::Context, server::Server};

/// What becomes of a record.
#[derive(Debug)]
pub enum Outcome {
    /// Send this.
    Reply(Encoded),
    /// It is no call; nothing can be answered, and the stream is not to be trusted.
    Close,
    /// A caller of another version: refuse, and say so once in the log.
    WrongVersion(Encoded, u32),
}

/// Bytes of arguments that tell one request from another; hashing a whole WRITE would cost more than it tells.
const DIGEST_BYTES: usize = 512;

/// Answers one record.
pub async fn answer(server: &Arc<Server>, peer: std::net::IpAddr, record: bytes::Bytes) -> Outcome {
    let length = record.len();
    let call = match Call::decode(Reader::new(record)) {
        Ok(call) => call,
        Err(RpcError::NotACall(_)) => return Outcome::Close,
        Err(RpcError::Version { xid, .. }) => return Outcome::Reply(header_only(xid, ReplyHeader::RpcMismatch)),
        Err(RpcError::Credential { xid, .. }) => {
            return Outcome::Reply(header_only(xid, ReplyHeader::AuthError(AuthStatus::BAD_CREDENTIAL)));
        }
    };
    let header = &call.header;
    let refuse = |status| Outcome::Reply(header_only(header.xid, ReplyHeader::Accepted(status)));
    if header.program != PROGRAM {
        return refuse(AcceptStatus::ProgramUnavailable);
    }
    if header.version != VERSION {
        let mismatch = AcceptStatus::ProgramMismatch { low: VERSION, high: VERSION };
        let reply = header_only(header.xid, ReplyHeader::Accepted(mismatch));
        return Outcome::WrongVersion(reply, header.version);
    }
    match header.procedure {
        PROC_NULL => refuse(AcceptStatus::Success),
        PROC_COMPOUND => {
            if let Credential::Other(AuthFlavor(_), _) = header.credential {
                return Outcome::Reply(header_only(header.xid, ReplyHeader::AuthError(AuthStatus::TOO_WEAK)));
            }
            compound(server, peer, call, length).await
        }
        _ => refuse(AcceptStatus::ProcedureUnavailable),
    }
}

fn header_only(xid: u32, header: ReplyHeader) -> Encoded {
    let mut writer = Writer::with_capacity(32);
    header.encode(xid, &mut writer);
    writer.finish()
}

/// The reply as it grows.
struct Answer {
    writer: Writer,
    head: Mark,
    count_at: Mark,
    results: u32,
    status: Status,
}

impl Answer {
    fn begin(xid: u32, header: &CompoundHeader) -> Self {
        let mut writer = Writer::new();
        ReplyHeader::Accepted(AcceptStatus::Success).encode(xid, &mut writer);
        let head = writer.mark();
        Status::Ok.encode(&mut writer);
        header.tag.encode(&mut writer);
        let count_at = writer.mark();
        writer.u32(0);
        Self { writer, head, count_at, results: 0, status: Status::Ok }
    }

    fn push(&mut self, reply: &OpReply) {
        self.status = reply.status();
        self.results += 1;
        reply.encode(&mut self.writer);
    }

    fn finish(mut self) -> Encoded {
        self.writer.patch_u32(self.head, self.status.number());
        self.writer.patch_u32(self.count_at, self.results);
        self.writer.finish()
    }
}

async fn compound(server: &Arc<Server>, peer: std::net::IpAddr, call: Call, length: usize) -> Outcome {
    let xid = call.header.xid;
    let mut reader = call.arguments;
    let Ok(header) = CompoundHeader::decode(&mut reader) else {
        let garbage = ReplyHeader::Accepted(AcceptStatus::GarbageArguments);
        return Outcome::Reply(header_only(xid, garbage));
    };
    let mut answer = Answer::begin(xid, &header);
    if !matches!(header.minor_version, 1 | 2) {
        answer.status = Status::MinorVersMismatch;
        return Outcome::WrongVersion(answer.finish(), header.minor_version);
    }
    if std::str::from_utf8(&header.tag).is_err() {
        answer.status = Status::Inval;
        return Outcome::Reply(answer.finish());
    }
    let caller = Caller { address: peer, credential: call.header.credential };
    let shape = CallShape { length, operations: header.operations };
    let cx = Context::new(server, &caller, header.minor_version);
    Outcome::Reply(Run { cx, reader, answer, slot: None, shape }.run().await)
}

/// One COMPOUND on its way.
struct Run<'a> {
    cx: Context<'a>,
    reader: Reader,
    answer: Answer,
    slot: Option<SlotGuard>,
    shape: CallShape,
}

/// An operation as far as it could be read.
enum Parsed {
    Op(Op),
    Failed(OpReply),
}

impl Run<'_> {
    async fn run(mut self) -> Encoded {
        let mut watch = Stopwatch::start();
        for index in 0..self.shape.operations {
            self.cx.last = index + 1 == self.shape.operations;
            let (number, reply) = match self.parse() {
                Parsed::Failed(reply) => (reply.number(), reply),
                Parsed::Op(Op::Sequence(args)) if index == 0 => match self.sequence(&args) {
                    Ok(reply) => (reply.number(), reply),
                    Err(replayed) => return replayed,
                },
                Parsed::Op(op) => {
                    let number = op.number();
                    let reply = match self.judge_position(number, index) {
                        Ok(()) => self.execute(op).await,
                        Err(status) => OpReply::failed(number, status),
                    };
                    (number as u32, reply)
                }
            };
            let reply = self.fit(reply);
            self.cx.server.metrics.operation(number, reply.status(), watch.lap());
            self.count_bytes(&reply);
            if reply.status() != Status::Ok {
                break;
            }
        }
        let encoded = self.answer.finish();
        if let Some(slot) = self.slot {
            slot.finish(&encoded);
        }
        encoded
    }

    fn count_bytes(&self, reply: &OpReply) {
        let metrics = &self.cx.server.metrics;
        match reply {
            OpReply::Read(Ok(read)) => metrics.read_bytes.increment(read.data.len() as u64),
            OpReply::ReadPlus(Ok(read)) => metrics.read_bytes.increment(read.data_bytes()),
            OpReply::Write(Ok(written)) => metrics.write_bytes.increment(written.count.into()),
            _ => {}
        }
    }

    fn parse(&mut self) -> Parsed {
        let Ok(number) = self.reader.u32() else { return Parsed::Failed(OpReply::Other(OP_ILLEGAL, Status::BadXdr)) };
        let last = if self.cx.minor_version == 1 { LAST_MINOR_1 } else { LAST_MINOR_2 };
        if number < 3 || number > last {
            return Parsed::Failed(OpReply::Other(OP_ILLEGAL, Status::OpIllegal));
        }
        // An operation with a number but no use here: its arguments need not be read, nothing comes after it.
        let Some(known) = OpNumber::from_number(number) else {
            let status = if self.slot.is_some() { Status::NotSupp } else { Status::OpNotInSession };
            return Parsed::Failed(OpReply::Other(number, status));
        };
        match Op::decode_arguments(known, &mut self.reader) {
            Ok(op) => Parsed::Op(op),
            Err(_) => Parsed::Failed(OpReply::failed(known, Status::BadXdr)),
        }
    }

    /// RFC 8881 §2.10.6.3 and §18.35 to §18.50: what may stand where.
    fn judge_position(&self, number: OpNumber, index: u32) -> Result<(), Status> {
        let alone = self.shape.operations == 1;
        match number {
            OpNumber::Sequence => Err(Status::SequencePos),
            OpNumber::BindConnToSession if !alone => Err(Status::NotOnlyOp),
            OpNumber::ExchangeId
            | OpNumber::CreateSession
            | OpNumber::DestroySession
            | OpNumber::DestroyClientid
            | OpNumber::BindConnToSession
                if index == 0 =>
            {
                if alone {
                    Ok(())
                } else {
                    Err(Status::NotOnlyOp)
                }
            }
            _ if self.slot.is_none() => Err(Status::OpNotInSession),
            _ => Ok(()),
        }
    }

    /// `Err` is the whole reply of the first time.
    fn sequence(&mut self, args: &forebay_proto::nfs4::ops::sequence::SequenceArgs) -> Result<OpReply, Encoded> {
        // What follows SEQUENCE, not SEQUENCE itself: a client that sends a call again may name another highest slot.
        let rest = self.reader.rest();
        let digest = xxh3_64(&rest[..rest.len().min(DIGEST_BYTES)]) ^ rest.len() as u64 | 1;
        match sequence::begin(self.cx.server, args, self.shape, digest) {
            Err(status) => Ok(OpReply::Sequence(Err(status))),
            Ok(Begun::Replay(reply)) => Err(with_xid(&reply, &self.answer.writer)),
            Ok(Begun::New(reply, slot)) => {
                self.cx.session = Some(slot.session.clone());
                self.cx.slot = slot.slot;
                self.slot = Some(slot);
                Ok(OpReply::Sequence(Ok(reply)))
            }
        }
    }

    async fn execute(&mut self, op: Op) -> OpReply {
        let (limit, too_big) = self.limit();
        let number = op.number();
        self.cx.room = limit.saturating_sub(self.answer.writer.len());
        if dispatch::result_bound(&op) > self.cx.room {
            return OpReply::failed(number, too_big);
        }
        dispatch::run(&mut self.cx, op).await
    }

    fn limit(&self) -> (usize, Status) {
        let Some(slot) = &self.slot else { return (usize::MAX, Status::RepTooBig) };
        let fore = &slot.session.fore;
        if slot.caches() && fore.max_response_size_cached < fore.max_response_size {
            (fore.max_response_size_cached as usize, Status::RepTooBigToCache)
        } else {
            (fore.max_response_size as usize, Status::RepTooBig)
        }
    }

    /// Adds a result, or says that it does not fit.
    fn fit(&mut self, reply: OpReply) -> OpReply {
        let (limit, too_big) = self.limit();
        let mark = self.answer.writer.mark();
        self.answer.push(&reply);
        if self.answer.writer.len() <= limit {
            return reply;
        }
        // Also a failure: DENIED names the holder, in up to a kilobyte.
        self.answer.writer.truncate(mark);
        self.answer.results -= 1;
        let refused = match OpNumber::from_number(reply.number()) {
            Some(number) => OpReply::failed(number, too_big),
            None => OpReply::Other(reply.number(), too_big),
        };
        self.answer.push(&refused);
        refused
    }
}

/// A kept reply under the transaction id of the call that asks for it again.
fn with_xid(reply: &Encoded, current: &Writer) -> Encoded {
    reply.with_prefix(&current.prefix::<4>())
}
