//! One session with a source: its slots, its connections, what the server granted.
//!
//! Owns: who may send next, and on which connection. Never does: making sessions, judging results of operations.
//! Invariants: a slot whose call was given up is not used until the server has told what became of it; a session that
//! is dead stays dead.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use forebay_proto::limits::OPERATIONS_MAX;
use forebay_proto::nfs4::{
    ClientId, Op, SessionId, Status,
    ops::{
        create_session::ChannelAttributes,
        sequence::{SequenceArgs, SequenceOk},
    },
};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    link::Link,
    slots::{Permits, Slots, Taken},
    wire,
};

/// Room for everything in a call around its payload.
const REQUEST_FRAME: u32 = 1024;
/// Room for everything in a reply around its payload.
const REPLY_FRAME: u32 = 2048;
/// Operations that any server takes: what Linux needs.
const OPERATIONS_LEAST: usize = 7;
/// What READ and WRITE pieces are multiples of.
const PAGE: u32 = 4096;

/// What the server said of itself and of the file system that the source's path names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// Seconds.
    pub lease: u32,
    /// `maxread`.
    pub max_read: u32,
    /// `maxwrite`.
    pub max_write: u32,
    /// `suppattr_exclcreat`; empty if EXCLUSIVE4_1 is not to be used.
    pub exclusive: forebay_proto::nfs4::Bitmap,
    /// `xattr_support`.
    pub xattrs: bool,
}

/// The session is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dead;

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    /// Its id.
    pub id: SessionId,
    /// Whose it is.
    pub clientid: ClientId,
    /// 1 or 2.
    pub minor_version: u32,
    /// What was granted for calls.
    pub fore: ChannelAttributes,
    /// Set before the session is used by others.
    pub facts: Mutex<Facts>,
    /// Operations that the server has shown to take, whatever it granted.
    cap: Arc<AtomicUsize>,
    /// Cancelled when the session is lost or closed.
    pub dead: CancellationToken,
    slots: Mutex<Slots>,
    free: Semaphore,
    /// What nobody waits for may hold no more than these.
    ahead: Arc<Semaphore>,
    links: Mutex<Vec<Option<Arc<Link>>>>,
    linked: Notify,
}

impl Session {
    /// A session without connections yet.
    pub fn new(
        id: SessionId,
        clientid: ClientId,
        minor_version: u32,
        fore: ChannelAttributes,
        facts: Facts,
        cap: Arc<AtomicUsize>,
        connections: usize,
    ) -> Arc<Self> {
        let slots = fore.max_requests.clamp(1, 1024) as usize;
        Arc::new(Self {
            id,
            clientid,
            minor_version,
            fore,
            facts: Mutex::new(facts),
            cap,
            dead: CancellationToken::new(),
            slots: Mutex::new(Slots::new(slots)),
            free: Semaphore::new(slots),
            ahead: Arc::new(Semaphore::new((slots / 2).max(1))),
            links: Mutex::new(vec![None; connections]),
            linked: Notify::new(),
        })
    }

    /// Operations in one COMPOUND after SEQUENCE.
    pub fn operations(&self) -> usize {
        let granted = (self.fore.max_operations.clamp(2, 4096) - 1) as usize;
        granted.min(self.cap.load(Ordering::Relaxed))
    }

    /// The server refused a COMPOUND of so many operations, SEQUENCE aside: fewer from now on. Whether that can help.
    pub fn lower_operations(&self, refused: usize) -> bool {
        let less = refused * 3 / 4;
        self.cap.fetch_min(less.max(OPERATIONS_LEAST), Ordering::Relaxed);
        refused > OPERATIONS_LEAST
    }

    /// Whether a change of `operations` operations may carry attributes that it could do without: they must fit what
    /// the server keeps of a reply.
    pub fn has_room(&self, operations: usize) -> bool {
        self.operations() >= operations && self.fore.max_response_size_cached >= 2048
    }

    /// WRITEs in one COMPOUND. Linux 6.1's server stores the wrong bytes for each after the first: it takes their data to
    /// begin where a page does. It grants 50 operations, later ones 200; a server that grants all that we ask for is taken
    /// at its word.
    pub fn writes(&self) -> usize {
        if self.fore.max_operations >= OPERATIONS_MAX { usize::MAX } else { 1 }
    }

    /// Bytes that all operations' arguments may take.
    pub fn request_room(&self) -> usize {
        self.fore.max_request_size.saturating_sub(REQUEST_FRAME).max(512) as usize
    }

    /// Bytes that all operations' results may take.
    pub fn reply_room(&self) -> usize {
        self.fore.max_response_size.saturating_sub(512).max(512) as usize
    }

    /// Largest READ.
    pub fn read_max(&self) -> u32 {
        let granted = self.fore.max_response_size.saturating_sub(REPLY_FRAME).max(512);
        paged(granted.min(self.facts.lock().max_read))
    }

    /// Largest WRITE.
    pub fn write_max(&self) -> u32 {
        let granted = self.fore.max_request_size.saturating_sub(REQUEST_FRAME).max(512);
        paged(granted.min(self.facts.lock().max_write))
    }

    /// Slots granted.
    pub fn slot_count(&self) -> usize {
        self.slots.lock().len()
    }

    /// Puts a connection in its place; the session's end closes it.
    pub fn install(&self, place: usize, link: &Arc<Link>) {
        if let Some(entry) = self.links.lock().get_mut(place) {
            *entry = Some(link.clone());
        }
        if self.dead.is_cancelled() {
            link.closed.cancel();
        }
        self.linked.notify_waiters();
    }

    /// Connections that stand.
    pub fn links(&self) -> Vec<Arc<Link>> {
        self.links.lock().iter().flatten().filter(|link| !link.closed.is_cancelled()).cloned().collect()
    }

    /// The connection with the fewest bytes under way, waited for if there is none.
    pub async fn link(&self) -> Result<Arc<Link>, Dead> {
        loop {
            let linked = self.linked.notified();
            tokio::pin!(linked);
            // Registered before looking: a connection made in between is not missed.
            linked.as_mut().enable();
            if self.dead.is_cancelled() {
                return Err(Dead);
            }
            if let Some(link) = self.links().into_iter().min_by_key(|link| link.load()) {
                return Ok(link);
            }
            tokio::select! {
                () = linked => {}
                () = self.dead.cancelled() => return Err(Dead),
            }
        }
    }

    /// Ends it: connections are closed, whoever waits is told.
    pub fn kill(&self) {
        self.dead.cancel();
        self.links.lock().iter().flatten().for_each(|link| link.closed.cancel());
    }

    /// A slot for one call.
    pub async fn ticket(self: &Arc<Self>, ahead: bool) -> Result<Ticket, Dead> {
        let taking = async {
            let ahead = if ahead { self.ahead.clone().acquire_owned().await.ok() } else { None };
            (ahead, self.free.acquire().await)
        };
        let (ahead, permit) = tokio::select! {
            biased;
            () = self.dead.cancelled() => return Err(Dead),
            taken = taking => taken,
        };
        permit.map_err(|_| Dead)?.forget();
        let taken = self.slots.lock().take().ok_or(Dead)?;
        Ok(Ticket { session: self.clone(), taken, sent: None, done: false, _ahead: ahead })
    }

    fn permits(&self, change: Permits) {
        match change {
            Permits::Keep => {}
            Permits::Add(more) => self.free.add_permits(more),
            Permits::Forget(wanted) => {
                let got = self.free.forget_permits(wanted);
                self.slots.lock().swallowed(wanted, got);
            }
        }
    }

    fn release(&self, taken: Taken, advanced: bool) {
        let change = self.slots.lock().release(taken, advanced);
        self.permits(change);
    }

    /// The server would like no slot above this one to be used.
    pub fn set_target(&self, highest: u32) {
        let change = self.slots.lock().set_target(highest);
        self.permits(change);
    }

    /// SEQUENCE of a slot.
    pub fn sequence(&self, taken: Taken, cache_this: bool) -> Op {
        let highest_slot = self.slots.lock().highest_busy().max(taken.slot);
        Op::Sequence(SequenceArgs {
            session: self.id,
            sequence: taken.sequence,
            slot: taken.slot,
            highest_slot,
            cache_this,
        })
    }
}

/// Rounded down to whole pages, if there is one.
fn paged(bytes: u32) -> u32 {
    if bytes >= PAGE { bytes - bytes % PAGE } else { bytes.max(1) }
}

/// A slot in the hands of one call. Dropped before its reply came, the slot stays taken until the server has said what
/// it did with it.
#[derive(Debug)]
pub(super) struct Ticket {
    session: Arc<Session>,
    /// Slot and sequence.
    pub taken: Taken,
    /// The reply to what was sent last, if anything was.
    sent: Option<Option<oneshot::Receiver<Bytes>>>,
    done: bool,
    _ahead: Option<tokio::sync::OwnedSemaphorePermit>,
}

impl Ticket {
    /// Something was sent; its reply comes here.
    pub fn sent(&mut self, reply: oneshot::Receiver<Bytes>) {
        self.sent = Some(Some(reply));
    }

    /// Whether something was sent whose outcome is not known.
    pub fn was_sent(&self) -> bool {
        self.sent.is_some()
    }

    /// Waits for the reply; `None` if the connection ended. May be given up and called again.
    pub async fn reply(&mut self) -> Option<Bytes> {
        let receiver = self.sent.as_mut()?;
        let reply = receiver.as_mut()?.await.ok();
        *receiver = None;
        reply
    }

    /// The server told what it did: `advanced` if the sequence is used up.
    pub fn done(mut self, advanced: bool) {
        self.done = true;
        self.session.release(self.taken, advanced);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.done || self.session.dead.is_cancelled() {
            return;
        }
        let Some(waiting) = self.sent.take() else {
            self.session.release(self.taken, false);
            return;
        };
        let (session, taken) = (self.session.clone(), self.taken);
        // Outside of a runtime nothing will be sent any more.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(settle(session, taken, waiting));
        }
    }
}

/// How long a reply that nobody waits for any more may take before the slot is asked about.
const SETTLE_AFTER: Duration = Duration::from_secs(5);

/// Finds out what became of a call that was given up: its late reply tells, or SEQUENCE alone on the same slot with the
/// same sequence, which the server takes for a repetition or for the call itself, and either way uses up (RFC 8881
/// §2.10.6.1.3).
async fn settle(session: Arc<Session>, taken: Taken, waiting: Option<oneshot::Receiver<Bytes>>) {
    if let Some(waiting) = waiting {
        let late = tokio::select! {
            late = tokio::time::timeout(SETTLE_AFTER, waiting) => late.ok().and_then(Result::ok),
            () = session.dead.cancelled() => return,
        };
        if late.is_some_and(|record| wire::sequence_result(record).is_some_and(|result| result.is_ok())) {
            session.release(taken, true);
            return;
        }
    }
    loop {
        let result = tokio::select! {
            result = ask(&session, taken) => result,
            () = session.dead.cancelled() => return,
        };
        match result {
            Some(Ok(_) | Err(Status::RetryUncachedRep | Status::SeqFalseRetry)) => {
                session.release(taken, true);
                return;
            }
            Some(Err(Status::Delay)) | None => {}
            Some(Err(status)) => {
                tracing::debug!(status = status.name(), slot = taken.slot, "a slot cannot be settled: new session");
                session.kill();
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn ask(session: &Arc<Session>, taken: Taken) -> Option<Result<SequenceOk, Status>> {
    let link = session.link().await.ok()?;
    let ops = [session.sequence(taken, false)];
    let credential = wire::machine_credential("forebay");
    let minor = session.minor_version;
    let reply = link.send(256, |xid| crate::client::compound_record(xid, &credential, minor, &ops)).await.ok()?;
    let record = tokio::time::timeout(SETTLE_AFTER, reply).await.ok()?.ok()?;
    wire::sequence_result(record)
}
