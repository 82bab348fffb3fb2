//! Runs COMPOUNDs: a slot, a connection, the reply, and again when that is what it takes.
//!
//! Owns: sending again through lost connections and sessions; exactly once where the server's reply cache can give it;
//! whether the source is known to be down. Never does: making sessions, what operations mean.
//! Invariants: a call that was sent goes on the same slot with the same sequence until its outcome is known or the
//! session is gone; a future that is dropped leaves no slot in doubt.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use forebay_proto::{
    nfs4::{Op, OpReply, ops::sequence::SequenceOk, sequence_status},
    rpc::Credential,
};
use tokio::{
    sync::{Notify, Semaphore, mpsc, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::source::rpc::patience::asking;
pub(super) use crate::source::rpc::pause::Backoff;

use super::{
    Nfs4Options,
    callback::BackChannel,
    errors::is_later,
    identity::Identities,
    link::{Callback, Link},
    opens::Opens,
    session::{Session, Ticket},
    verdict::{self, Verdict},
    wire::{self, Results},
};
use crate::{
    client::compound_record,
    source::{
        SourceError,
        counters::{Kind, SourceCounters},
        remote::{OnBehalf, Purpose},
    },
};

/// Calls at once, waiting ones included. Far more than slots: this only bounds memory.
const CALLS_MAX: usize = 8192;
/// A COMPOUND had more operations than the server takes, and fewer will do from now on.
pub(super) const TOO_MANY: SourceError = SourceError::Errno(libc::EMSGSIZE);
/// What a small call and its reply take on the wire, for sharing out connections.
const SMALL: usize = 1024;

/// A COMPOUND to run.
#[derive(Debug)]
pub(super) struct Request {
    /// What it is for.
    pub kind: Kind,
    /// Who asks.
    pub credential: Credential,
    /// Nobody waits for it.
    pub ahead: bool,
    /// Operations after SEQUENCE.
    pub ops: Vec<Op>,
    /// It changes something: the server keeps its reply for a repetition.
    pub changes: bool,
    /// While one of so many first operations is refused with DELAY or GRACE, all are sent again.
    pub essential: usize,
    /// Bytes of payload, there and back.
    pub payload: usize,
}

impl Request {
    /// A call that only asks: all its operations are essential.
    pub fn asking(engine: &Engine, kind: Kind, by: &OnBehalf, ops: Vec<Op>) -> Self {
        let essential = ops.len();
        let (credential, ahead) = (engine.credential(by), by.purpose == Purpose::Ahead);
        Self { kind, credential, ahead, ops, changes: false, essential, payload: 0 }
    }

    /// A call that changes something by its operation at `place`.
    pub fn changing(engine: &Engine, kind: Kind, by: &OnBehalf, ops: Vec<Op>, place: usize) -> Self {
        Self { changes: true, ahead: false, essential: place + 1, ..Self::asking(engine, kind, by, ops) }
    }

    /// A call of whoever owns session and lease.
    pub fn machine(engine: &Engine, kind: Kind, ops: Vec<Op>) -> Self {
        let (credential, essential) = (engine.machine(), ops.len());
        Self { kind, credential, ahead: false, ops, changes: false, essential, payload: 0 }
    }
}

/// What one attempt came to.
enum Attempt {
    /// Results, SEQUENCE's left out.
    Done(Vec<OpReply>, usize),
    /// The session is gone; what was sent may have been run.
    Lost { unknown: bool },
    /// To be sent anew; it may have been run.
    Anew,
    /// It cannot be done.
    Failed(SourceError),
}

/// Everything tasks and calls share.
#[derive(Debug)]
pub(super) struct Engine {
    /// As given.
    pub options: Nfs4Options,
    /// Counted into.
    pub counters: Arc<SourceCounters>,
    /// Opens that are kept for reading and writing.
    pub opens: Opens,
    /// Names of owners and groups.
    pub identities: Identities,
    /// Answers to the server's calls.
    pub back: BackChannel,
    /// The session, while there is one.
    pub session: watch::Sender<Option<Arc<Session>>>,
    /// Nothing is to be done any more.
    pub closed: CancellationToken,
    /// Where connections bring the server's calls.
    pub callbacks: mpsc::Sender<Callback>,
    /// Operations that the server has shown to take, over all sessions.
    pub operations_cap: Arc<AtomicUsize>,
    /// Flags of SEQUENCE that ask for something.
    pub flags: AtomicU64,
    /// Rung when flags were set.
    pub flagged: Notify,
    down: watch::Sender<bool>,
    calls: Semaphore,
    renewed_ms: AtomicU64,
    started: Instant,
}

impl Engine {
    /// An engine without a session.
    pub fn new(options: Nfs4Options, counters: Arc<SourceCounters>, callbacks: mpsc::Sender<Callback>) -> Arc<Self> {
        Arc::new(Self {
            options,
            counters,
            opens: Opens::default(),
            identities: Identities::default(),
            back: BackChannel::default(),
            session: watch::Sender::new(None),
            closed: CancellationToken::new(),
            callbacks,
            operations_cap: Arc::new(AtomicUsize::new(usize::MAX)),
            flags: AtomicU64::new(0),
            flagged: Notify::new(),
            // Not reached yet is down.
            down: watch::Sender::new(true),
            calls: Semaphore::new(CALLS_MAX),
            renewed_ms: AtomicU64::new(0),
            started: Instant::now(),
        })
    }

    /// AUTH_SYS of a caller.
    pub fn credential(&self, by: &OnBehalf) -> Credential {
        wire::credential(&self.options.machine_name, &by.user)
    }

    /// AUTH_SYS of whoever owns session and lease.
    pub fn machine(&self) -> Credential {
        wire::machine_credential(&self.options.machine_name)
    }

    /// Whether the source is known not to answer.
    pub fn is_down(&self) -> bool {
        *self.down.borrow()
    }

    /// Nothing will be asked any more.
    pub fn end(&self) {
        self.closed.cancel();
        self.down.send_replace(true);
        self.counters.set_up(false);
    }

    /// Notes whether the source answers.
    pub fn set_down(&self, down: bool) {
        let changed = self.down.send_if_modified(|now| std::mem::replace(now, down) != down);
        if changed {
            let source = &self.options.host;
            if down {
                tracing::warn!(%source, "the source does not answer")
            } else {
                tracing::info!(%source, "the source answers")
            }
        }
        self.counters.set_up(!down);
    }

    /// The session as it is now, waited for if there is none.
    pub async fn current(&self) -> Result<Arc<Session>, SourceError> {
        let mut watching = self.session.subscribe();
        let found = async { watching.wait_for(|session| session.is_some()).await.ok().and_then(|found| found.clone()) };
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(SourceError::Unavailable),
            found = found => found.ok_or(SourceError::Unavailable),
        }
    }

    /// The session is gone: another one is made.
    pub fn lost(&self, session: &Arc<Session>) {
        session.kill();
        self.session.send_if_modified(|now| {
            let same = now.as_ref().is_some_and(|now| Arc::ptr_eq(now, session));
            if same {
                *now = None;
            }
            same
        });
    }

    /// How long the lease has not been renewed.
    pub fn idle_for(&self) -> Duration {
        let renewed = Duration::from_millis(self.renewed_ms.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(renewed)
    }

    /// Something that only asks: it is given up after the time a call may take, and soon if the source is down.
    pub async fn asking<T>(&self, work: impl Future<Output = Result<T, SourceError>>) -> Result<T, SourceError> {
        asking(work, &self.down, self.options.call_timeout, || self.drop_silent()).await
    }

    /// Closes connections that have said nothing for as long as a call may take.
    fn drop_silent(&self) {
        let session = self.session.borrow().clone();
        let links = session.map(|session| session.links()).unwrap_or_default();
        for link in
            links.iter().filter(|link| link.silent_for() + Duration::from_millis(100) >= self.options.call_timeout)
        {
            self.drop_link(link);
        }
    }

    fn drop_link(&self, link: &Link) {
        tracing::info!(peer = %link.peer, "a connection to the source is silent: it is made anew");
        link.closed.cancel();
        self.set_down(true);
    }

    /// Runs a COMPOUND, through whatever comes in between.
    pub async fn call(&self, request: Request) -> Result<Results, SourceError> {
        self.run(None, request).await
    }

    /// Runs a COMPOUND in a session that is not the current one yet; its loss is an error.
    pub async fn call_in(&self, session: &Arc<Session>, request: Request) -> Result<Results, SourceError> {
        self.run(Some(session), request).await
    }

    async fn run(&self, only: Option<&Arc<Session>>, request: Request) -> Result<Results, SourceError> {
        // What makes or keeps the session must find room even when all that waits for it does not.
        let _counted = match only {
            Some(_) => None,
            None => Some(self.calls.try_acquire().map_err(|_| SourceError::Unavailable)?),
        };
        let begun = Instant::now();
        let results = self.attempts(only, &request, begun).await;
        let failed = results.as_ref().map_or(true, |results| results.failed().is_some());
        self.counters.ended(request.kind, begun.elapsed(), failed);
        results
    }

    async fn attempts(
        &self,
        only: Option<&Arc<Session>>,
        request: &Request,
        begun: Instant,
    ) -> Result<Results, SourceError> {
        let (mut resent, mut pause, mut first) = (false, Backoff::default(), true);
        loop {
            if !std::mem::take(&mut first) {
                self.counters.retried(request.kind);
            }
            let session = match only {
                Some(session) => session.clone(),
                None => self.current().await?,
            };
            match self.attempt(&session, request, resent, begun).await {
                Attempt::Done(replies, record) => {
                    let results = Results::new(replies, resent, record);
                    let late = (0..request.essential).any(|place| results.status_at(place).is_some_and(is_later));
                    if !late {
                        return Ok(results);
                    }
                    pause.wait().await;
                }
                Attempt::Lost { unknown } => {
                    resent |= unknown;
                    if only.is_some() {
                        return Err(SourceError::Unavailable);
                    }
                    self.lost(&session);
                }
                Attempt::Anew => resent = true,
                Attempt::Failed(error) => return Err(error),
            }
        }
    }

    /// One slot, until the server has told what it did with it.
    async fn attempt(&self, session: &Arc<Session>, request: &Request, resent: bool, begun: Instant) -> Attempt {
        let Ok(mut ticket) = session.ticket(request.ahead).await else { return Attempt::Lost { unknown: false } };
        let mut ops = Vec::with_capacity(request.ops.len() + 1);
        ops.push(session.sequence(ticket.taken, request.changes));
        ops.extend(request.ops.iter().cloned());
        let (mut pause, mut queued) = (Backoff::default(), Some(begun).filter(|_| !resent));
        loop {
            let unknown = ticket.was_sent();
            let Ok(link) = session.link().await else { return Attempt::Lost { unknown } };
            let build = |xid| compound_record(xid, &request.credential, session.minor_version, &ops);
            let Ok(reply) = link.send(SMALL + request.payload, build).await else { continue };
            let sent = Instant::now();
            self.counters.sent(request.kind, queued.take().map_or(Duration::ZERO, |since| sent - since));
            ticket.sent(reply);
            let record = tokio::select! {
                biased;
                record = self.reply(&mut ticket, &link) => record,
                () = session.dead.cancelled() => return Attempt::Lost { unknown: true },
            };
            let Some(record) = record else {
                // The same slot and sequence over another connection: run once, whichever arrives.
                self.counters.retried(request.kind);
                continue;
            };
            self.counters.replied(request.kind, sent.elapsed());
            let length = record.len();
            match verdict::judge(record, unknown) {
                Verdict::Done { sequence, replies } => {
                    self.note(session, &sequence);
                    ticket.done(true);
                    return Attempt::Done(replies, length);
                }
                Verdict::Repeat => {
                    self.counters.retried(request.kind);
                    pause.wait().await;
                }
                Verdict::Bind => {
                    pause.wait().await;
                    if !super::attend::bind(self, session, &link, false).await {
                        link.closed.cancel();
                    }
                }
                Verdict::Used => {
                    ticket.done(true);
                    return Attempt::Anew;
                }
                Verdict::Lost => return Attempt::Lost { unknown },
                // The server may have run it: the slot's sequence is settled before another call uses it.
                Verdict::Failed(error) => return Attempt::Failed(error),
                Verdict::TooMany => {
                    ticket.done(false);
                    let less = session.lower_operations(request.ops.len());
                    return Attempt::Failed(if less { TOO_MANY } else { SourceError::Errno(libc::EIO) });
                }
            }
        }
    }

    /// Waits for a reply; a connection that says nothing at all for as long as a call may take is given up.
    async fn reply(&self, ticket: &mut Ticket, link: &Link) -> Option<bytes::Bytes> {
        loop {
            match timeout(self.options.call_timeout, ticket.reply()).await {
                Ok(record) => return record,
                Err(_) if link.silent_for() >= self.options.call_timeout => self.drop_link(link),
                Err(_) => {}
            }
        }
    }

    /// The lease was renewed; flags that want something are kept for the keeper.
    fn note(&self, session: &Session, told: &SequenceOk) {
        session.set_target(told.target_highest_slot);
        let flags = told.status_flags;
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.renewed_ms.store(now, Ordering::Relaxed);
        if self.is_down() {
            self.set_down(false);
        }
        if flags != 0 {
            if flags & sequence_status::LEASE_MOVED != 0 {
                tracing::debug!("the source says that a lease has moved; following it is not supported");
            }
            self.flags.fetch_or(flags.into(), Ordering::Relaxed);
            self.flagged.notify_one();
        }
    }
}
