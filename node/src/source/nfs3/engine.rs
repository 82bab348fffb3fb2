//! Makes calls: a connection, the reply, and again when that is what it takes.
//!
//! Owns: transaction ids, sending again through lost connections, whether the source is known to be down. Never does:
//! making connections, what procedures mean.
//! Invariants: a call whose reply was lost is sent again with the same transaction id, so that a server's duplicate
//! request cache can know it; no two calls of a source have the same one while either is under way.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use forebay_proto::{
    nfs3::{Answer, Procedure, Status, call_record},
    rpc::{self, AcceptStatus, Credential, Reply},
    xdr::{Reader, Xdr, XdrError},
};
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, mpsc, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{Nfs3Options, steady::Known};
use crate::source::{
    SourceError, SourceHandle,
    counters::{Kind, SourceCounters},
    remote::{OnBehalf, Purpose},
    rpc::{
        credential,
        link::{Callback, Link},
        patience::asking,
        pause::Backoff,
    },
};

/// Calls at once, waiting ones included. Far more than slots: this only bounds memory.
const CALLS_MAX: usize = 8192;
/// A server may lose a call without closing the connection; after so many times what a call may take it is sent again.
const LOST_AFTER: u32 = 6;
/// What a small call and its reply take on the wire, for sharing out connections.
const SMALL: usize = 512;

/// For whom and for what a call is made.
#[derive(Debug)]
pub(super) struct Request {
    /// What it is for.
    pub kind: Kind,
    /// Who asks.
    pub credential: Credential,
    /// Nobody waits for it.
    pub ahead: bool,
    /// Bytes of payload, there and back.
    pub payload: usize,
    /// JUKEBOX is waited out.
    pub patient: bool,
}

impl Request {
    /// A call of a user.
    pub fn new(engine: &Engine, kind: Kind, by: &OnBehalf) -> Self {
        let credential = credential::credential(&engine.options.machine_name, &by.user);
        Self { kind, credential, ahead: by.purpose == Purpose::Ahead, payload: 0, patient: true }
    }

    /// A call of nobody in particular.
    pub fn machine(engine: &Engine) -> Self {
        let credential = credential::machine_credential(&engine.options.machine_name);
        Self { kind: Kind::Session, credential, ahead: false, payload: 0, patient: true }
    }
}

/// What a procedure gave.
#[derive(Debug)]
pub(super) struct Told<T> {
    /// The results.
    pub reply: T,
    /// The call was sent more than once and may have been run before: "already done" may be our own doing.
    pub resent: bool,
    /// Length of the record they came in.
    record: usize,
}

impl<T> Told<T> {
    /// `bytes` of this record as an allocation of about their own length: the record's memory goes along only if little
    /// else was in it.
    pub fn own(&self, bytes: Bytes) -> Bytes {
        if bytes.len() + bytes.len() / 8 + 4096 < self.record { Bytes::copy_from_slice(&bytes) } else { bytes }
    }
}

/// What is known of the export since it was mounted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Root {
    /// Its directory.
    pub handle: SourceHandle,
    /// Which MNT gave it.
    pub number: u64,
    /// FSINFO and PATHCONF.
    pub facts: Facts,
}

/// What the server takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// Bytes of one READ.
    pub read_max: u32,
    /// Bytes of one WRITE.
    pub write_max: u32,
    /// Bytes of a name.
    pub name_max: u32,
}

impl Default for Facts {
    /// What any server takes.
    fn default() -> Self {
        Self { read_max: 32 << 10, write_max: 32 << 10, name_max: 255 }
    }
}

/// Everything tasks and calls share.
#[derive(Debug)]
pub(super) struct Engine {
    /// As given.
    pub options: Nfs3Options,
    /// Counted into.
    pub counters: Arc<SourceCounters>,
    /// Attributes that were told last.
    pub known: Known,
    /// The export, or why MOUNT refused it; `None` while that is not known.
    pub root: watch::Sender<Option<Result<Root, SourceError>>>,
    /// Nothing is to be done any more.
    pub closed: CancellationToken,
    /// READDIRPLUS was refused once and for all.
    pub no_plus: AtomicBool,
    /// Where MOUNT answered last; 0: nowhere yet.
    pub mount_port: AtomicU32,
    /// Where connections bring what the server calls: it has nothing to call, and nobody listens.
    callbacks: mpsc::Sender<Callback>,
    links: Mutex<Vec<Option<Arc<Link>>>>,
    arrived: watch::Sender<()>,
    next_xid: AtomicU32,
    slots: Semaphore,
    ahead: Semaphore,
    calls: Semaphore,
    down: watch::Sender<bool>,
    /// Changes under way.
    changing: AtomicUsize,
}

impl Engine {
    /// An engine without connections.
    pub fn new(mut options: Nfs3Options, counters: Arc<SourceCounters>) -> Arc<Self> {
        options.connections = options.connections.clamp(1, 16);
        options.slots = options.slots.clamp(1, 1024);
        let (links, slots) = (vec![None; options.connections], options.slots);
        Arc::new(Self {
            options,
            counters,
            known: Known::default(),
            root: watch::Sender::new(None),
            closed: CancellationToken::new(),
            no_plus: AtomicBool::new(false),
            mount_port: AtomicU32::new(0),
            callbacks: mpsc::channel(1).0,
            links: Mutex::new(links),
            arrived: watch::Sender::new(()),
            next_xid: AtomicU32::new(uuid::Uuid::new_v4().as_u128() as u32),
            slots: Semaphore::new(slots),
            // A client's call always finds a quarter that nobody uses ahead of need.
            ahead: Semaphore::new((slots * 3 / 4).max(1)),
            calls: Semaphore::new(CALLS_MAX),
            // Not reached yet is down.
            down: watch::Sender::new(true),
            changing: AtomicUsize::new(0),
        })
    }

    /// Whether the source is known not to answer.
    pub fn is_down(&self) -> bool {
        *self.down.borrow()
    }

    /// Nothing will be asked any more.
    pub fn end(&self) {
        self.closed.cancel();
        self.links.lock().iter().flatten().for_each(|link| link.closed.cancel());
        self.down.send_replace(true);
        self.counters.set_up(false);
    }

    /// Notes whether the source answers.
    pub fn set_down(&self, down: bool) {
        if self.closed.is_cancelled() {
            return;
        }
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

    /// What the server takes, waited for until it is known.
    pub async fn facts(&self) -> Result<Facts, SourceError> {
        Ok(match self.mounted().await {
            Ok(root) => root.facts,
            // Handles may be known from earlier: MOUNT's refusal is none of them.
            Err(SourceError::Unavailable) => return Err(SourceError::Unavailable),
            Err(_) => Facts::default(),
        })
    }

    /// The export as it is mounted, waited for.
    pub async fn mounted(&self) -> Result<Root, SourceError> {
        let mut watching = self.root.subscribe();
        let found = async { watching.wait_for(Option::is_some).await.ok().and_then(|found| *found) };
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(SourceError::Unavailable),
            found = found => found.unwrap_or(Err(SourceError::Unavailable)),
        }
    }

    /// The root's handle names nothing any more: it is asked for anew.
    pub fn stale_root(&self, number: u64) {
        self.root.send_if_modified(|now| {
            let same = matches!(now, Some(Ok(root)) if root.number == number);
            if same {
                *now = None;
            }
            same
        });
    }

    /// A connection of its own, for whatever program.
    pub fn link_over(&self, stream: tokio::net::TcpStream) -> std::io::Result<Arc<Link>> {
        Link::start(stream, self.callbacks.clone())
    }

    /// Puts a connection in its place.
    pub fn install(&self, place: usize, link: &Arc<Link>) {
        if let Some(slot) = self.links.lock().get_mut(place) {
            *slot = Some(link.clone());
        }
        if self.closed.is_cancelled() {
            link.closed.cancel();
        }
        self.arrived.send_replace(());
    }

    /// Connections that stand.
    pub fn links(&self) -> Vec<Arc<Link>> {
        self.links.lock().iter().flatten().filter(|link| !link.closed.is_cancelled()).cloned().collect()
    }

    /// The connection with the least under way, waited for if there is none.
    async fn link(&self) -> Result<Arc<Link>, SourceError> {
        let mut arrived = self.arrived.subscribe();
        loop {
            if self.closed.is_cancelled() {
                return Err(SourceError::Unavailable);
            }
            if let Some(link) = self.links().into_iter().min_by_key(|link| link.load()) {
                return Ok(link);
            }
            tokio::select! {
                _ = arrived.changed() => {}
                () = self.closed.cancelled() => {}
            }
        }
    }

    /// Something that only asks: it is given up after the time a call may take, and soon if the source is down.
    pub async fn asking<T>(&self, work: impl Future<Output = Result<T, SourceError>>) -> Result<T, SourceError> {
        asking(work, &self.down, self.options.call_timeout, || self.drop_silent()).await
    }

    /// Closes connections that have said nothing for as long as a call may take.
    fn drop_silent(&self) {
        // A change that a slow server is running must not be sent to it again over another connection.
        let patience = if self.changing.load(Ordering::Relaxed) > 0 { LOST_AFTER } else { 1 };
        for link in self.links() {
            let silent = link.silent_for() + Duration::from_millis(100);
            if silent >= self.options.call_timeout * patience {
                self.drop_link(&link);
            } else if silent >= self.options.call_timeout {
                self.set_down(true);
            }
        }
    }

    fn drop_link(&self, link: &Link) {
        tracing::info!(peer = %link.peer, "a connection to the source is silent: it is made anew");
        link.closed.cancel();
        self.set_down(true);
    }

    /// Runs a procedure of the NFS program, through whatever comes in between.
    pub async fn call<P: Procedure>(
        &self,
        request: &Request,
        arguments: &P::Arguments,
    ) -> Result<Told<P::Reply>, SourceError> {
        let _counted = self.calls.try_acquire().map_err(|_| SourceError::Unavailable)?;
        let begun = Instant::now();
        let told = self.attempts::<P>(request, arguments, begun).await;
        let failed = told.as_ref().map_or(true, |told| told.reply.status() != Status::Ok);
        self.counters.ended(request.kind, begun.elapsed(), failed);
        told
    }

    async fn attempts<P: Procedure>(
        &self,
        request: &Request,
        arguments: &P::Arguments,
        begun: Instant,
    ) -> Result<Told<P::Reply>, SourceError> {
        let (mut resent, mut pause, mut queued) = (false, Backoff::default(), Some(begun));
        loop {
            let (record, again) = self.attempt::<P>(request, arguments, &mut queued).await?;
            resent |= again;
            let length = record.len();
            let reply = decode::<P>(record).map_err(|error| error.judged(P::NAME))?;
            if reply.status() != Status::Jukebox || !request.patient {
                return Ok(Told { reply, resent, record: length });
            }
            // It was not run: what is sent next is another call.
            self.counters.retried(request.kind);
            pause.wait().await;
        }
    }

    /// One transaction id, until there is a reply; and whether it was sent more than once.
    async fn attempt<P: Procedure>(
        &self,
        request: &Request,
        arguments: &P::Arguments,
        queued: &mut Option<Instant>,
    ) -> Result<(Bytes, bool), SourceError> {
        let closed = |_| SourceError::Unavailable;
        let _ahead = if request.ahead { Some(self.ahead.acquire().await.map_err(closed)?) } else { None };
        let _slot = self.slots.acquire().await.map_err(closed)?;
        let xid = self.next_xid.fetch_add(1, Ordering::Relaxed);
        let _changing = request.kind.is_change().then(|| Changing::begin(&self.changing));
        let mut sends = 0_u32;
        loop {
            let link = self.link().await?;
            let build = |xid| call_record::<P>(xid, &request.credential, arguments);
            let Ok(reply) = link.send_as(xid, SMALL + request.payload, build).await else { continue };
            let sent = Instant::now();
            self.counters.sent(request.kind, queued.take().map_or(Duration::ZERO, |since| sent - since));
            sends += 1;
            let Some(record) = self.reply(reply).await else {
                self.counters.retried(request.kind);
                continue;
            };
            self.counters.replied(request.kind, sent.elapsed());
            if self.is_down() && self.root.borrow().is_some() {
                self.set_down(false);
            }
            return Ok((record, sends > 1));
        }
    }

    /// Waits for the reply of a change. A server that is slow must not be told the same again over another connection, where it
    /// may not know the call for the one it is running: only after a long time, or when the connection is gone, is it sent
    /// again. (A peer that is dead is found by the connection's own keep-alive.)
    async fn reply(&self, mut reply: tokio::sync::oneshot::Receiver<Bytes>) -> Option<Bytes> {
        for _ in 0..LOST_AFTER {
            if let Ok(record) = timeout(self.options.call_timeout, &mut reply).await {
                return record.ok();
            }
        }
        None
    }
}

/// A change under way.
struct Changing<'a>(&'a AtomicUsize);

impl<'a> Changing<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a record holds no results.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum DecodeError {
    /// The call was not run.
    #[error("the call was refused: {0:?}")]
    Refused(rpc::ReplyHeader),
    /// Not what the RFC draws.
    #[error("the reply makes no sense: {0}")]
    Xdr(#[from] XdrError),
}

impl DecodeError {
    /// What it means to whoever asked.
    fn judged(self, procedure: &'static str) -> SourceError {
        tracing::warn!(error = %self, procedure, "the source gave no result");
        match self {
            Self::Refused(rpc::ReplyHeader::AuthError(_)) => SourceError::Errno(libc::EACCES),
            Self::Refused(rpc::ReplyHeader::Accepted(AcceptStatus::ProcedureUnavailable)) => SourceError::UNSUPPORTED,
            _ => SourceError::Errno(libc::EIO),
        }
    }
}

/// The results in a record.
pub(super) fn decode<P: Procedure>(record: Bytes) -> Result<P::Reply, DecodeError> {
    let mut reply = Reply::decode(Reader::new(record))?;
    match reply.header {
        rpc::ReplyHeader::Accepted(AcceptStatus::Success) => {
            let results = P::Reply::decode(&mut reply.results)?;
            reply.results.finish()?;
            Ok(results)
        }
        refused => Err(DecodeError::Refused(refused)),
    }
}
