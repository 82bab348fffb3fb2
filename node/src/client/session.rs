//! A session: EXCHANGE_ID to RECLAIM_COMPLETE, then COMPOUNDs on slots.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use forebay_proto::{
    limits::IO_MAX,
    nfs4::{
        ClientId, LimitedOpaque, Op, OpNumber, OpReply, SessionId, Status, Verifier,
        ops::{
            create_session::{ChannelAttributes, CreateSessionArgs, CreateSessionOk},
            destroy_clientid::DestroyClientidArgs,
            destroy_session::DestroySessionArgs,
            exchange_id::{ClientOwner, ExchangeIdArgs, ExchangeIdOk, StateProtectArgs},
            reclaim_complete::ReclaimCompleteArgs,
            sequence::SequenceArgs,
        },
    },
    rpc::{AuthSys, Credential},
    xdr::{List, Opaque},
};
use tokio::sync::{Mutex, Semaphore};

use super::{CallError, Connection};

/// How a session is made.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Where the server is.
    pub server: SocketAddr,
    /// `co_ownerid`: one string, one client.
    pub owner: String,
    /// `co_verifier`: another value is another start of the same client.
    pub verifier: Verifier,
    /// Who calls.
    pub credential: Credential,
    /// 1 or 2.
    pub minor_version: u32,
    /// Slots to ask for.
    pub slots: u32,
    /// Send RECLAIM_COMPLETE, without which nothing can be opened.
    pub reclaim_complete: bool,
}

impl SessionOptions {
    /// AUTH_SYS as `uid` and `gid`, minor version 2, 64 slots.
    pub fn new(server: SocketAddr, owner: impl Into<String>, uid: u32, gid: u32) -> Self {
        let machine_name = Opaque::new("forebay").expect("seven bytes");
        let sys = AuthSys { stamp: 0, machine_name, uid, gid, groups: List::default() };
        Self {
            server,
            owner: owner.into(),
            verifier: *b"forebay\0",
            credential: Credential::Sys(sys),
            minor_version: 2,
            slots: 64,
            reclaim_complete: true,
        }
    }
}

/// A session on one connection.
#[derive(Debug)]
pub struct Session {
    /// The connection.
    pub connection: Arc<Connection>,
    /// The session's id.
    pub id: SessionId,
    /// The client's id.
    pub clientid: ClientId,
    /// What was agreed for calls.
    pub fore: ChannelAttributes,
    minor_version: u32,
    /// The sequence each slot used last, in the hands of whoever uses the slot.
    slots: Vec<Mutex<u32>>,
    free: Semaphore,
    next: AtomicU32,
}

impl Session {
    /// Connects and makes a session.
    pub async fn open(options: &SessionOptions) -> Result<Self, CallError> {
        let connection = Arc::new(Connection::connect(options.server, options.credential.clone()).await?);
        let exchanged = exchange_id(&connection, options).await?;
        let created = create_session(&connection, options, &exchanged).await?;
        let slots = (0..created.fore.max_requests).map(|_| Mutex::new(0)).collect();
        let session = Self {
            connection,
            id: created.session,
            clientid: exchanged.clientid,
            free: Semaphore::new(created.fore.max_requests as usize),
            fore: created.fore,
            minor_version: options.minor_version,
            slots,
            next: AtomicU32::new(0),
        };
        if options.reclaim_complete {
            let result = session.call(vec![Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })]).await;
            match result {
                // The server knew this client, which had said so before.
                Err(CallError::Status { status: Status::CompleteAlready, .. }) => {}
                other => drop(other?),
            }
        }
        Ok(session)
    }

    /// One COMPOUND: SEQUENCE is put before `ops`, its result left out. Fails if any operation fails.
    pub async fn call(&self, ops: Vec<Op>) -> Result<Vec<OpReply>, CallError> {
        let replies = self.try_call(ops).await?;
        match replies.last() {
            Some(last) if last.status() != Status::Ok => Err(failed(last)),
            _ => Ok(replies),
        }
    }

    /// One COMPOUND as [`Session::call`]; an operation that failed is the last of the results.
    pub async fn try_call(&self, ops: Vec<Op>) -> Result<Vec<OpReply>, CallError> {
        let _permit = self.free.acquire().await.expect("the semaphore is never closed");
        let (slot, mut sequence) = self.take_slot();
        *sequence += 1;
        let args = SequenceArgs {
            session: self.id,
            sequence: *sequence,
            slot,
            highest_slot: self.fore.max_requests - 1,
            cache_this: false,
        };
        let mut all = Vec::with_capacity(ops.len() + 1);
        all.push(Op::Sequence(args));
        all.extend(ops);
        let (_, mut replies) = self.connection.compound(self.minor_version, &all).await?;
        if replies.is_empty() {
            return Err(CallError::Status { operation: "COMPOUND", status: Status::ServerFault });
        }
        let first = replies.remove(0);
        if first.status() != Status::Ok { Err(failed(&first)) } else { Ok(replies) }
    }

    fn take_slot(&self) -> (u32, tokio::sync::MutexGuard<'_, u32>) {
        let count = self.slots.len();
        let start = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        let mut places = (0..).map(|step| (start + step) % count);
        places
            .find_map(|place| self.slots[place].try_lock().ok().map(|guard| (place as u32, guard)))
            .expect("the permit says that a slot is free")
    }

    /// DESTROY_SESSION and DESTROY_CLIENTID.
    pub async fn close(self) -> Result<(), CallError> {
        let destroy = Op::DestroySession(DestroySessionArgs { session: self.id });
        one(&self.connection, self.minor_version, destroy).await?;
        let destroy = Op::DestroyClientid(DestroyClientidArgs { clientid: self.clientid });
        one(&self.connection, self.minor_version, destroy).await.map(drop)
    }
}

fn failed(reply: &OpReply) -> CallError {
    let operation = OpNumber::from_number(reply.number()).map_or("operation", OpNumber::name);
    CallError::Status { operation, status: reply.status() }
}

async fn one(connection: &Connection, minor_version: u32, op: Op) -> Result<OpReply, CallError> {
    let (_, mut replies) = connection.compound(minor_version, &[op]).await?;
    let reply = replies.pop().ok_or(CallError::Status { operation: "COMPOUND", status: Status::ServerFault })?;
    if reply.status() == Status::Ok { Ok(reply) } else { Err(failed(&reply)) }
}

async fn exchange_id(connection: &Connection, options: &SessionOptions) -> Result<ExchangeIdOk, CallError> {
    let owner = LimitedOpaque::new(options.owner.clone().into_bytes()).unwrap_or_default();
    let args = ExchangeIdArgs {
        owner: ClientOwner { verifier: options.verifier, owner },
        flags: 0,
        state_protect: StateProtectArgs::None,
        implementation: List::default(),
    };
    match one(connection, options.minor_version, Op::ExchangeId(args)).await? {
        OpReply::ExchangeId(Ok(exchanged)) => Ok(exchanged),
        other => Err(failed(&other)),
    }
}

async fn create_session(
    connection: &Connection,
    options: &SessionOptions,
    exchanged: &ExchangeIdOk,
) -> Result<CreateSessionOk, CallError> {
    let channel = ChannelAttributes {
        header_pad_size: 0,
        max_request_size: IO_MAX + 4096,
        max_response_size: IO_MAX + 4096,
        max_response_size_cached: 4096,
        max_operations: 128,
        max_requests: options.slots,
        rdma_ird: List::default(),
    };
    let args = CreateSessionArgs {
        clientid: exchanged.clientid,
        sequence: exchanged.sequence,
        flags: 0,
        fore: channel.clone(),
        back: channel,
        callback_program: 0x4000_0000,
        callback_security: List::default(),
    };
    match one(connection, options.minor_version, Op::CreateSession(args)).await? {
        OpReply::CreateSession(Ok(created)) => Ok(created),
        other => Err(failed(&other)),
    }
}
