//! SEQUENCE as the frame of a COMPOUND (RFC 8881 §2.10.6, §18.46): size limits, slot, replay.

use std::sync::Arc;

use forebay_proto::{
    nfs4::{
        Status,
        ops::sequence::{SequenceArgs, SequenceOk},
    },
    xdr::Encoded,
};

use crate::{
    server::Server,
    state::sessions::{Sequenced, Session},
};

/// A SEQUENCE's reply alone with the frames around it: below this nothing can be cached.
const SMALLEST_REPLY: u32 = 24 + 12 + 8 + 36;

/// What the frame knows of a call before it runs.
#[derive(Clone, Copy, Debug)]
pub struct CallShape {
    /// Bytes of the record.
    pub length: usize,
    /// Operations announced.
    pub operations: u32,
}

/// A slot taken. Dropped without [`SlotGuard::finish`] (a cancelled call), the slot is free again without a reply.
#[derive(Debug)]
pub struct SlotGuard {
    /// The session.
    pub session: Arc<Session>,
    /// Which slot.
    pub slot: u32,
    cache: bool,
    finished: bool,
}

impl SlotGuard {
    /// Whether the reply is to be kept.
    pub fn caches(&self) -> bool {
        self.cache
    }

    /// The call is done.
    pub fn finish(mut self, reply: &Encoded) {
        self.finished = true;
        self.session.finish(self.slot, self.cache.then_some(reply));
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        if !self.finished {
            self.session.finish(self.slot, None);
        }
    }
}

/// What SEQUENCE comes to.
pub enum Begun {
    /// Go on with this result and slot.
    New(SequenceOk, SlotGuard),
    /// The whole reply of the first time.
    Replay(Encoded),
}

/// Judges and takes the slot. `digest` is of what follows SEQUENCE; never 0.
pub fn begin(server: &Server, args: &SequenceArgs, shape: CallShape, digest: u64) -> Result<Begun, Status> {
    let session = server.sessions.find(&args.session)?;
    if shape.length > session.fore.max_request_size as usize {
        return Err(Status::ReqTooBig);
    }
    if shape.operations > session.fore.max_operations {
        return Err(Status::TooManyOps);
    }
    if args.cache_this && session.fore.max_response_size_cached < SMALLEST_REPLY {
        return Err(Status::RepTooBigToCache);
    }
    let sequenced = session.sequence(args, digest)?;
    session.client.renew(server.now());
    if let Sequenced::Replay(reply) = sequenced {
        return Ok(Begun::Replay(reply));
    }
    let highest = session.highest_slot();
    let reply = SequenceOk {
        session: args.session,
        sequence: args.sequence,
        slot: args.slot,
        highest_slot: highest,
        target_highest_slot: highest,
        status_flags: 0,
    };
    let guard = SlotGuard { session, slot: args.slot, cache: args.cache_this, finished: false };
    Ok(Begun::New(reply, guard))
}
