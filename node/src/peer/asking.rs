//! A connection to a peer that stands: requests out, replies in.
//!
//! Owns: the requests under way on it, the payload that is arriving. Never does: connect.
//!
//! Invariants: memory is set aside only for what was asked for and is still wanted; a reply that nobody asked for, or that
//! is of another length than was asked for, ends the connection; so does silence after a sign of life was asked for.

use std::{
    collections::HashMap,
    io,
    time::{Duration, Instant},
};

use forebay_proto::cluster::frame::{Answer, Data, FrameError, Payload, PeerOp, Reply, Request, frame, take_head};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    client::{Fetched, PeerError, PeerShared},
    link::{Link, Told, Unsent},
    metrics::Refused,
    stream::{Step, Wire},
};

/// What a sign of life is called; requests count from 1 and never get there.
const PING: u64 = u64::MAX;
/// A connection on which nothing is awaited is looked after so much less.
const IDLE_FACTOR: u32 = 10;
/// How often in the time until a ping it is looked at the clock.
const LOOKS: u32 = 2;
/// And at least so often the gauges of the peer are set.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Why a connection is given up.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskingError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("closed by the peer")]
    Closed,
    #[error("no sign of life")]
    Silent,
    #[error("a reply to {0}, which nobody asked")]
    NotAsked(u64),
    #[error("a reply of {0} bytes where {1} were asked for")]
    WrongLength(usize, usize),
}

impl AskingError {
    /// What it counts as; `None` for what networks and restarts do.
    pub(super) fn refusal(&self) -> Option<Refused> {
        match self {
            Self::Io(error) => (error.kind() == io::ErrorKind::InvalidData).then_some(Refused::Protocol),
            Self::Closed => None,
            Self::Silent => Some(Refused::Stalled),
            Self::Frame(_) | Self::NotAsked(_) | Self::WrongLength(..) => Some(Refused::Protocol),
        }
    }
}

/// A request whose reply is awaited.
struct Awaited {
    /// `None` if nobody waits any more.
    told: Option<Told>,
    wanted: usize,
    since: Instant,
    _slot: OwnedSemaphorePermit,
}

/// A reply whose payload is arriving.
struct Arriving {
    awaited: Awaited,
    payload: Payload,
    eof: bool,
}

pub(super) struct Asking<'a> {
    shared: &'a PeerShared,
    link: &'a Link,
    wire: Wire,
    awaited: HashMap<u64, Awaited>,
    arriving: Option<Arriving>,
    heard: Instant,
    pinged: Option<Instant>,
    looked: Instant,
}

impl<'a> Asking<'a> {
    pub(super) fn new(shared: &'a PeerShared, link: &'a Link, wire: Wire) -> Self {
        let (awaited, now) = (HashMap::new(), Instant::now());
        Self { shared, link, wire, awaited, arriving: None, heard: now, pinged: None, looked: now }
    }

    /// Until the connection is lost, or the peer is closed. Now and then calls `tell`.
    pub(super) async fn run(mut self, tell: impl Fn()) -> Result<(), AskingError> {
        let every = (self.shared.options.ping_after / LOOKS).clamp(Duration::from_millis(1), LOOK_MAX);
        let mut look = tokio::time::interval(every);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.replies()?;
            let payload = self.arriving.as_mut().map(|arriving| &mut arriving.payload);
            tokio::select! {
                step = self.wire.step(true, payload) => match step? {
                    Step::End => return Err(AskingError::Closed),
                    Step::Sent => {}
                    Step::Received { bytes, payload } => self.received(bytes, payload),
                },
                () = self.link.left() => self.send(),
                _ = look.tick() => {
                    self.look()?;
                    tell();
                }
                () = self.shared.closed.cancelled() => return Ok(()),
            }
        }
    }

    /// Sends what callers left.
    fn send(&mut self) {
        let (unsent, unwanted) = self.link.take();
        for Unsent { id, epoch, fetch, told, slot, since } in unsent {
            if told.is_closed() {
                continue;
            }
            if self.awaited.is_empty() && self.arriving.is_none() {
                // The silence until now says nothing about the peer.
                self.heard = Instant::now();
            }
            self.wire.push(frame(&Request { id, epoch, op: PeerOp::Fetch(fetch) }));
            let wanted = fetch.range.length();
            self.awaited.insert(id, Awaited { told: Some(told), wanted, since, _slot: slot });
        }
        for id in unwanted {
            let Some(awaited) = self.awaited.get_mut(&id) else { continue };
            awaited.told = None;
            // It would have taken longer than this: a peer that is always given up on is a slow one.
            self.shared.latency.record(awaited.since.elapsed());
            self.wire.push(frame(&Request { id, epoch: self.shared.epoch(), op: PeerOp::Cancel }));
        }
    }

    fn received(&mut self, bytes: usize, payload: bool) {
        self.heard = Instant::now();
        if let Some(arriving) = self.arriving.as_mut().filter(|_| payload) {
            arriving.payload.filled(bytes);
        }
    }

    /// Takes the replies that have arrived.
    fn replies(&mut self) -> Result<(), AskingError> {
        loop {
            if let Some(mut arriving) = self.arriving.take() {
                if !arriving.payload.take(&mut self.wire.input) {
                    self.arriving = Some(arriving);
                    return Ok(());
                }
                self.arrived(arriving);
            }
            let Some(Reply { id, answer }) = take_head(&mut self.wire.input)? else { return Ok(()) };
            if id == PING {
                self.pong(&answer)?;
                continue;
            }
            let awaited = self.awaited.remove(&id).ok_or(AskingError::NotAsked(id))?;
            let told = match answer {
                Answer::Data(Data { length, eof }) => {
                    // Fewer only where the file ends.
                    if length.bytes() > awaited.wanted || (length.bytes() < awaited.wanted && !eof) {
                        return Err(AskingError::WrongLength(length.bytes(), awaited.wanted));
                    }
                    let wanted = awaited.told.as_ref().is_some_and(|told| !told.is_closed());
                    let payload = if wanted { Payload::keep(length) } else { Payload::skip(length) };
                    self.arriving = Some(Arriving { awaited, payload, eof });
                    continue;
                }
                Answer::Miss => Ok(Fetched::Miss),
                Answer::Busy => Ok(Fetched::Busy),
                Answer::Refused(refusal) => Ok(Fetched::Refused(refusal)),
                Answer::Stale(epoch) => {
                    self.shared.saw(epoch);
                    Ok(Fetched::Stale(epoch))
                }
                // Nobody waits for it, unless the other end gave up on its own.
                Answer::Cancelled => Err(PeerError::Lost),
                Answer::Pong(_) => return Err(AskingError::NotAsked(id)),
            };
            if let Some(waits) = awaited.told {
                // Whoever has stopped waiting need not know.
                let _ = waits.send(told);
            }
        }
    }

    fn arrived(&mut self, arriving: Arriving) {
        let Arriving { awaited, payload, eof } = arriving;
        if let (Some(told), Some(bytes)) = (awaited.told, payload.into_bytes()) {
            let took = awaited.since.elapsed();
            self.shared.latency.record(took);
            self.shared.metrics.fetch.record(took);
            // As above.
            let _ = told.send(Ok(Fetched::Data { bytes, eof }));
        }
    }

    fn pong(&mut self, answer: &Answer) -> Result<(), AskingError> {
        match (answer, self.pinged.take()) {
            (Answer::Pong(epoch), Some(_)) => {
                self.shared.saw(*epoch);
                Ok(())
            }
            _ => Err(AskingError::NotAsked(PING)),
        }
    }

    /// Asks for a sign of life, or gives up waiting for one. Anything that comes is one.
    fn look(&mut self) -> Result<(), AskingError> {
        let options = &self.shared.options;
        if std::mem::replace(&mut self.looked, Instant::now()).elapsed() > options.ping_after * 2 {
            // We were not run ourselves: what came meanwhile is not read yet, and its lateness is not the peer's.
            self.heard = self.looked;
        }
        if let Some(pinged) = self.pinged {
            let silent = self.heard.max(pinged).elapsed();
            return if silent > options.dead_after { Err(AskingError::Silent) } else { Ok(()) };
        }
        let idle = self.awaited.is_empty() && self.arriving.is_none();
        let after = if idle { options.ping_after * IDLE_FACTOR } else { options.ping_after };
        if self.heard.elapsed() >= after {
            self.wire.push(frame(&Request { id: PING, epoch: self.shared.epoch(), op: PeerOp::Ping }));
            self.pinged = Some(Instant::now());
        }
        Ok(())
    }
}
