//! Sessions: slot tables and the reply cache, exactly once (RFC 8881 §2.10.6).
//!
//! Invariant: of all calls with one (session, slot, sequence), one runs; the others get its reply or are told why not.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use forebay_proto::{
    nfs4::{
        ClientId, SessionId, Status,
        ops::{
            create_session::{ChannelAttributes, CreateSessionArgs},
            sequence::SequenceArgs,
        },
    },
    xdr::{Encoded, List},
};
use parking_lot::{Mutex, RwLock};

use super::clients::ClientShared;

/// What a server grants at most on a fore channel.
#[derive(Clone, Copy, Debug)]
pub struct ChannelLimits {
    /// Longest request and response record.
    pub record: u32,
    /// Longest reply kept for a replay: bounds memory at slots × this.
    pub cached: u32,
    /// Operations in a COMPOUND.
    pub operations: u32,
    /// Slots.
    pub slots: u32,
}

/// Below this a channel cannot carry even the calls that a session needs to live.
const CHANNEL_MIN: u32 = 128;
/// The smallest callback that would be of use: CB_SEQUENCE and one operation.
const BACK_OPERATIONS_MIN: u32 = 2;

#[derive(Debug, Default)]
struct Slot {
    sequence: u32,
    in_progress: bool,
    digest: u64,
    reply: Option<Encoded>,
}

/// A session: its fore channel's attributes and slots.
#[derive(Debug)]
pub struct Session {
    /// The id.
    pub id: SessionId,
    /// Whose it is.
    pub client: Arc<ClientShared>,
    /// What was agreed for calls.
    pub fore: ChannelAttributes,
    slots: Box<[Mutex<Slot>]>,
    highest_used: AtomicU32,
    /// Program to call back, which BACKCHANNEL_CTL may change.
    pub callback_program: AtomicU32,
}

/// What SEQUENCE's arguments come to.
#[derive(Debug)]
pub enum Sequenced {
    /// Run it, then hand the reply to [`Session::finish`].
    New,
    /// The reply of the first time.
    Replay(Encoded),
}

impl Session {
    /// A session of `client`; its slots are as many as `fore` says.
    pub fn new(id: SessionId, client: Arc<ClientShared>, fore: ChannelAttributes, callback_program: u32) -> Self {
        let slots = (0..fore.max_requests).map(|_| Mutex::default()).collect();
        let callback_program = AtomicU32::new(callback_program);
        Self { id, client, fore, slots, highest_used: AtomicU32::new(0), callback_program }
    }

    /// Highest slot there is.
    pub fn highest_slot(&self) -> u32 {
        self.fore.max_requests - 1
    }

    /// SEQUENCE. `digest` tells one request from another, so that a reused slot is not answered with a stranger's reply.
    pub fn sequence(&self, request: &SequenceArgs, digest: u64) -> Result<Sequenced, Status> {
        let slot = self.slots.get(request.slot as usize).ok_or(Status::BadSlot)?;
        if request.highest_slot > self.highest_slot() {
            return Err(Status::BadHighSlot);
        }
        let mut slot = slot.lock();
        if request.sequence == slot.sequence.wrapping_add(1) && !slot.in_progress {
            *slot = Slot { sequence: request.sequence, in_progress: true, digest, reply: None };
            self.highest_used.fetch_max(request.slot, Ordering::Relaxed);
            return Ok(Sequenced::New);
        }
        match &*slot {
            slot if request.sequence != slot.sequence => Err(Status::SeqMisordered),
            slot if slot.in_progress => Err(Status::Delay),
            // No call was ever made on this slot: there is nothing to repeat.
            slot if slot.digest == 0 => Err(Status::SeqMisordered),
            slot if slot.digest != digest => Err(Status::SeqFalseRetry),
            slot => slot.reply.clone().map(Sequenced::Replay).ok_or(Status::RetryUncachedRep),
        }
    }

    /// The call on `slot` is done; `reply` is kept if the client asked for it.
    pub fn finish(&self, slot: u32, reply: Option<&Encoded>) {
        if let Some(slot) = self.slots.get(slot as usize) {
            let mut slot = slot.lock();
            slot.in_progress = false;
            slot.reply = reply.cloned();
        }
    }

    /// Whether any call is running, but for the one on slot `except`.
    pub fn busy(&self, except: Option<u32>) -> bool {
        let used = self.highest_used.load(Ordering::Relaxed) as usize + 1;
        let mut others = self.slots.iter().take(used).enumerate().filter(|(index, _)| Some(*index as u32) != except);
        others.any(|(_, slot)| slot.lock().in_progress)
    }
}

/// What is granted of what CREATE_SESSION asks for.
pub fn negotiate(
    request: &CreateSessionArgs,
    limits: ChannelLimits,
) -> Result<(ChannelAttributes, ChannelAttributes), Status> {
    let (fore, back) = (&request.fore, &request.back);
    let small = |channel: &ChannelAttributes| channel.max_request_size.min(channel.max_response_size) < CHANNEL_MIN;
    if small(fore) || fore.max_operations == 0 || fore.max_requests == 0 {
        return Err(Status::TooSmall);
    }
    // A client without use for a back channel may leave it all zeros.
    let unused = back.max_request_size | back.max_response_size | back.max_operations | back.max_requests == 0;
    let wanted = request.flags & forebay_proto::nfs4::create_session::CONN_BACK_CHAN != 0;
    let useless = small(back) || back.max_operations < BACK_OPERATIONS_MIN || back.max_requests == 0;
    if useless && (wanted || !unused) {
        return Err(Status::TooSmall);
    }
    let granted = ChannelAttributes {
        header_pad_size: 0,
        max_request_size: fore.max_request_size.min(limits.record),
        max_response_size: fore.max_response_size.min(limits.record),
        max_response_size_cached: fore.max_response_size_cached.min(limits.cached),
        max_operations: fore.max_operations.min(limits.operations),
        max_requests: fore.max_requests.min(limits.slots),
        rdma_ird: List::default(),
    };
    let back = ChannelAttributes { header_pad_size: 0, rdma_ird: List::default(), ..back.clone() };
    Ok((granted, back))
}

/// All sessions of this node. Looked up on every call, changed rarely.
#[derive(Debug, Default)]
pub struct Sessions {
    sessions: RwLock<HashMap<SessionId, Arc<Session>>>,
}

impl Sessions {
    /// Finds a session.
    pub fn find(&self, id: &SessionId) -> Result<Arc<Session>, Status> {
        self.sessions.read().get(id).cloned().ok_or(Status::BadSession)
    }

    /// Adds a session.
    pub fn insert(&self, session: Arc<Session>) {
        self.sessions.write().insert(session.id, session);
    }

    /// Removes a session.
    pub fn remove(&self, id: &SessionId) -> Option<Arc<Session>> {
        self.sessions.write().remove(id)
    }

    /// Removes all sessions of a client.
    pub fn remove_client(&self, client: ClientId) {
        self.sessions.write().retain(|_, session| session.client.id != client);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.sessions.read().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
