//! Keeps a source connected: sessions, connections, leases, recovery (RFC 8881 §2.10.13, §8.4).
//!
//! Owns: the background task that makes sessions for as long as the source is wanted. Never does: calls of users.
//! Invariants: a client id is confirmed and opens are reclaimed before anybody else may use a session; the name is
//! resolved anew at each connection.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use forebay_proto::{
    limits::{IO_MAX, OPERATIONS_MAX},
    nfs4::{
        Attr, Attributes, Bitmap, ClientId, LimitedOpaque, Op, OpReply, Status, Verifier, create_session as flags,
        ops::{
            backchannel_ctl::CallbackSecurity,
            create_session::{ChannelAttributes, CreateSessionArgs, CreateSessionOk},
            exchange_id::{ClientOwner, ExchangeIdArgs, ExchangeIdOk, StateProtectArgs},
            reclaim_complete::ReclaimCompleteArgs,
        },
    },
    xdr::List,
};
use tokio::time::{sleep, timeout};

pub(super) use crate::source::rpc::pause::{PAUSE_MAX, PAUSE_MIN, jittered};

use super::{
    callback,
    engine::{Engine, Request},
    errors::source_error,
    link::Link,
    session::{Facts, Session},
    wire::{self, take},
};
use crate::{
    client::compound_record,
    source::{SourceError, counters::Kind, resolve},
};

/// Room in a record around the largest payload.
const FRAME: u32 = 8 << 10;
/// Replies that the server keeps: those of changes, attributes included.
const CACHED: u32 = 4 << 10;
/// How long one address may take to accept.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// What is known of our client record at the source.
#[derive(Debug)]
struct Client {
    verifier: Verifier,
    minor_version: Option<u32>,
    id: Option<ClientId>,
    /// `csa_sequence` of the next CREATE_SESSION.
    sequence: u32,
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the connection was closed")]
    Closed,
    #[error("no answer")]
    Silent,
    #[error("{0}")]
    Reply(#[from] wire::DecodeError),
    #[error("{operation}: NFS4ERR_{}", status.name())]
    Status { operation: &'static str, status: Status },
    #[error("{0}")]
    Source(#[from] SourceError),
}

/// Makes sessions until the source is closed.
pub(super) async fn keep(engine: Arc<Engine>) {
    let mut client = Client { verifier: engine.options.verifier, minor_version: None, id: None, sequence: 0 };
    let (mut pause, mut told) = (PAUSE_MIN, String::new());
    while !engine.closed.is_cancelled() {
        let made = tokio::select! {
            made = establish(&engine, &mut client) => made,
            () = engine.closed.cancelled() => return,
        };
        match made {
            Ok(session) => {
                (pause, told) = (PAUSE_MIN, String::new());
                engine.set_down(false);
                engine.session.send_replace(Some(session.clone()));
                super::attend::attend(&engine, &session).await;
                engine.lost(&session);
            }
            Err(error) => {
                let error = error.to_string();
                // Once for each new reason, not each try.
                if error != told {
                    tracing::warn!(source = %engine.options.host, %error, "the source cannot be used; trying again");
                    told = error;
                }
                engine.set_down(true);
                tokio::select! {
                    () = sleep(jittered(pause)) => {}
                    () = engine.closed.cancelled() => return,
                }
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

/// A connection to the first address that takes one.
pub(super) async fn dial(engine: &Engine, before: Option<SocketAddr>) -> Result<Arc<Link>, ConnectError> {
    let options = &engine.options;
    let mut failed = None;
    for address in resolve::addresses(&options.host, options.port, before).await? {
        match resolve::connect(address, options.reserved_port, CONNECT_LIMIT).await {
            Ok(stream) => return Ok(Link::start(stream, engine.callbacks.clone())?),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| io::ErrorKind::NotFound.into()).into())
}

/// One operation outside of a session.
pub(super) async fn one(engine: &Engine, link: &Link, minor_version: u32, op: Op) -> Result<OpReply, ConnectError> {
    let operation = op.number().name();
    let (credential, ops) = (engine.machine(), [op]);
    let build = |xid| compound_record(xid, &credential, minor_version, &ops);
    let reply = link.send(512, build).await.map_err(|_| ConnectError::Closed)?;
    engine.counters.sent(Kind::Session, Duration::ZERO);
    let record = timeout(engine.options.call_timeout, reply).await.map_err(|_| ConnectError::Silent)?;
    let (status, replies) = wire::decode(record.map_err(|_| ConnectError::Closed)?)?;
    match replies.into_iter().next() {
        Some(reply) if reply.status() == Status::Ok => Ok(reply),
        Some(reply) => Err(ConnectError::Status { operation, status: reply.status() }),
        None => Err(ConnectError::Status { operation, status }),
    }
}

/// An operation outside of a session on one of its connections, when all else is done; its result changes nothing.
pub(super) async fn last_word(engine: &Engine, session: &Session, op: Op) {
    if let Some(link) = session.links().first()
        && let Err(error) = one(engine, link, session.minor_version, op).await
    {
        tracing::debug!(%error, "when leaving the source");
    }
}

/// From a name to a session that may be used.
async fn establish(engine: &Arc<Engine>, client: &mut Client) -> Result<Arc<Session>, ConnectError> {
    let link = dial(engine, None).await?;
    let limit = engine.options.call_timeout.max(Duration::from_secs(5)) * 3;
    let made = tokio::select! {
        made = timeout(limit, establish_on(engine, client, &link)) => made.unwrap_or(Err(ConnectError::Silent)),
        () = link.closed.cancelled() => Err(ConnectError::Closed),
    };
    if made.is_err() {
        link.closed.cancel();
    }
    made
}

async fn establish_on(
    engine: &Arc<Engine>,
    client: &mut Client,
    link: &Arc<Link>,
) -> Result<Arc<Session>, ConnectError> {
    let before = client.id;
    let exchanged = exchange_id(engine, client, link).await?;
    let confirmed = exchanged.flags & forebay_proto::nfs4::exchange_id::CONFIRMED_R != 0;
    let known = confirmed && before == Some(exchanged.clientid);
    if !known {
        client.sequence = exchanged.sequence;
    }
    client.id = Some(exchanged.clientid);
    engine.back.reset();
    let mut created = create_session(engine, client, link, exchanged.clientid).await?;
    // A server may grant more than was asked for; nothing here is made for that.
    created.fore.max_request_size = created.fore.max_request_size.min(IO_MAX + FRAME);
    created.fore.max_response_size = created.fore.max_response_size.min(IO_MAX + FRAME);
    created.fore.max_operations = created.fore.max_operations.min(engine.options.operations);
    client.sequence = client.sequence.wrapping_add(1);
    let facts = Facts { lease: 30, max_read: IO_MAX, max_write: IO_MAX, exclusive: Bitmap::EMPTY, xattrs: false };
    let minor_version = client.minor_version.unwrap_or(1);
    let connections = engine.options.connections.clamp(1, 16);
    let session = Session::new(
        created.session,
        exchanged.clientid,
        minor_version,
        created.fore,
        facts,
        engine.operations_cap.clone(),
        connections,
    );
    session.install(0, link);
    if let Err(error) = prepare(engine, &session, known).await {
        // Or the server keeps one more for each try.
        let destroy =
            Op::DestroySession(forebay_proto::nfs4::ops::destroy_session::DestroySessionArgs { session: session.id });
        let _ = one(engine, link, minor_version, destroy).await;
        session.kill();
        return Err(error);
    }
    tracing::info!(
        peer = %link.peer,
        minor_version,
        slots = session.fore.max_requests,
        operations = session.fore.max_operations,
        request = session.fore.max_request_size,
        response = session.fore.max_response_size,
        reclaiming = !known && before.is_some(),
        "session with the source"
    );
    Ok(session)
}

async fn exchange_id(engine: &Engine, client: &mut Client, link: &Link) -> Result<ExchangeIdOk, ConnectError> {
    let owner = LimitedOpaque::new(engine.options.owner.clone().into_bytes()).unwrap_or_default();
    let args = ExchangeIdArgs {
        owner: ClientOwner { verifier: client.verifier, owner },
        flags: 0,
        state_protect: StateProtectArgs::None,
        implementation: List::default(),
    };
    let wanted = client.minor_version.map_or_else(|| engine.options.minor_versions.clone(), |known| vec![known]);
    let mut failed = ConnectError::Closed;
    for minor_version in wanted {
        match one(engine, link, minor_version, Op::ExchangeId(args.clone())).await {
            Ok(OpReply::ExchangeId(Ok(exchanged))) => {
                client.minor_version = Some(minor_version);
                return Ok(exchanged);
            }
            Ok(_) => return Err(ConnectError::Status { operation: "EXCHANGE_ID", status: Status::ServerFault }),
            Err(ConnectError::Status { status: Status::MinorVersMismatch, operation }) => {
                // It may have been replaced by another server since.
                client.minor_version = None;
                failed = ConnectError::Status { status: Status::MinorVersMismatch, operation };
            }
            Err(error) => return Err(error),
        }
    }
    Err(failed)
}

async fn create_session(
    engine: &Engine,
    client: &mut Client,
    link: &Link,
    clientid: ClientId,
) -> Result<CreateSessionOk, ConnectError> {
    let io = engine.options.io_max.clamp(4096, IO_MAX);
    let fore = ChannelAttributes {
        header_pad_size: 0,
        max_request_size: io + FRAME,
        max_response_size: io + FRAME,
        max_response_size_cached: CACHED,
        max_operations: engine.options.operations.clamp(8, OPERATIONS_MAX),
        max_requests: engine.options.slots.clamp(1, 128),
        rdma_ird: List::default(),
    };
    let back = ChannelAttributes {
        max_request_size: 4096,
        max_response_size: 4096,
        max_response_size_cached: 4096,
        max_operations: 16,
        max_requests: callback::SLOTS,
        ..fore.clone()
    };
    let security = vec![CallbackSecurity::Sys(wire::machine_sys(&engine.options.machine_name))];
    let args = CreateSessionArgs {
        clientid,
        sequence: client.sequence,
        flags: flags::CONN_BACK_CHAN,
        fore,
        back,
        callback_program: callback::PROGRAM,
        callback_security: List::new(security).unwrap_or_default(),
    };
    let minor_version = client.minor_version.unwrap_or(1);
    match one(engine, link, minor_version, Op::CreateSession(args)).await {
        Ok(OpReply::CreateSession(Ok(created))) => Ok(created),
        Ok(_) => Err(ConnectError::Status { operation: "CREATE_SESSION", status: Status::ServerFault }),
        Err(ConnectError::Status { status: Status::SeqMisordered, operation }) => {
            // We and the server disagree about the past: another verifier begins a new one.
            client.verifier = uuid::Uuid::new_v4().as_u64_pair().0.to_be_bytes();
            Err(ConnectError::Status { status: Status::SeqMisordered, operation })
        }
        Err(error) => Err(error),
    }
}

/// What must be done before others may use the session: reclaim, tell that it is done, ask what the server can.
async fn prepare(engine: &Arc<Engine>, session: &Arc<Session>, known: bool) -> Result<(), ConnectError> {
    if !known {
        engine.opens.reclaim(engine, session).await;
    }
    reclaim_complete(engine, session).await?;
    let lease = Bitmap::of(&[Attr::LeaseTime, Attr::FhExpireType, Attr::MaxRead, Attr::MaxWrite]);
    let ops = vec![Op::PutRootFh(()), wire::getattr(lease)];
    let mut results = engine.call_in(session, Request::machine(engine, Kind::Session, ops)).await?;
    take!(results, PutRootFh).map_err(source_error)?;
    let told = take!(results, GetAttr).and_then(|fattr| Attributes::from_fattr(&fattr)).map_err(source_error)?;
    note_facts(session, &told);
    // The path may not be there yet, or not for root: that is for its users to find out.
    if let Some(told) = export_facts(engine, session).await {
        note_facts(session, &told);
        if told.fh_expire_type.is_some_and(|kind| kind != 0) {
            tracing::warn!(
                source = %engine.options.host,
                "the source's handles are volatile: files may turn stale when it restarts or renames them"
            );
        }
    }
    Ok(())
}

pub(super) async fn reclaim_complete(engine: &Arc<Engine>, session: &Arc<Session>) -> Result<(), ConnectError> {
    let ops = vec![Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })];
    let mut results = engine.call_in(session, Request::machine(engine, Kind::Session, ops)).await?;
    match take!(results, ReclaimComplete) {
        Ok(()) | Err(Status::CompleteAlready) => Ok(()),
        Err(status) => Err(ConnectError::Status { operation: "RECLAIM_COMPLETE", status }),
    }
}

async fn export_facts(engine: &Arc<Engine>, session: &Arc<Session>) -> Option<Attributes> {
    let mut wanted = Bitmap::of(&[Attr::FhExpireType, Attr::MaxRead, Attr::MaxWrite, Attr::SuppattrExclcreat]);
    if session.minor_version >= 2 {
        wanted.insert(Attr::XattrSupport);
    }
    let parts = super::components(&engine.options.path);
    if parts.len() + 2 > session.operations() {
        return None;
    }
    let mut ops = vec![Op::PutRootFh(())];
    for part in &parts {
        ops.push(wire::lookup(part.as_bytes()).ok()?);
    }
    ops.push(wire::getattr(wanted));
    let mut results = engine.call_in(session, Request::machine(engine, Kind::Session, ops)).await.ok()?;
    if let Some(status) = results.failed() {
        let path = &engine.options.path;
        tracing::warn!(source = %engine.options.host, %path, status = status.name(), "the path cannot be looked up");
        return None;
    }
    (0..=parts.len()).for_each(|_| drop(results.next()));
    take!(results, GetAttr).and_then(|fattr| Attributes::from_fattr(&fattr)).ok()
}

fn note_facts(session: &Session, told: &Attributes) {
    let size = |value: u64| u32::try_from(value.clamp(512, u64::from(IO_MAX))).unwrap_or(IO_MAX);
    let mut facts = session.facts.lock();
    facts.lease = told.lease_time.map_or(facts.lease, |lease| lease.clamp(1, 3600));
    facts.max_read = told.max_read.map_or(facts.max_read, size);
    facts.max_write = told.max_write.map_or(facts.max_write, size);
    facts.exclusive = told.suppattr_exclcreat.unwrap_or(facts.exclusive);
    facts.xattrs = told.xattr_support.unwrap_or(facts.xattrs);
}
