//! One connection of a peer that asks.
//!
//! Owns: its requests, from arrival to the last byte of the reply. Never does: anything for another connection.
//!
//! Invariants:
//! * Every request gets one reply, whatever becomes of it.
//! * While fetches under way and replies not taken are [`super::server::PeerServerOptions::connection_bytes`] or more, none is
//!   begun; while replies not taken are half of that, or many, nothing is read.
//! * What a reader waits for goes before what might be read, and that before what only moves house.

use std::{
    collections::{HashMap, VecDeque},
    future::{Future, poll_fn},
    io,
    pin::Pin,
    task::Poll,
    time::Instant,
};

use forebay_proto::cluster::{
    NodeId, RingEpoch,
    frame::{
        Answer, Data, Fetch, FrameError, IN_FLIGHT_MAX, PayloadLength, PeerOp, Priority, Refusal, Reply, Request,
        frame, take_head,
    },
};
use futures_util::{
    StreamExt,
    future::{AbortHandle, Abortable, BoxFuture},
    stream::FuturesUnordered,
};
use tokio_util::sync::CancellationToken;

use super::{
    greet::Greeted,
    metrics::Refused,
    server::{Caller, Provided, Shared},
    stream::{Step, Wire},
};

/// Frames that may wait to be sent: as many as there may be requests, and signs of life between them.
const FRAMES_MAX: usize = IN_FLIGHT_MAX * 2;
/// How often in a stall's time a connection looks whether its peer still moves.
const WATCHES: u32 = 4;

/// Why a connection is given up.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServingError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("more than {IN_FLIGHT_MAX} requests at once")]
    TooMany,
    #[error("two requests are called {0}")]
    Twice(u64),
    #[error("the peer does not take what it asked for, or stopped in the middle of a frame")]
    Stalled,
}

impl ServingError {
    /// What it counts as; `None` for what networks and restarts do.
    pub(super) fn refusal(&self) -> Option<Refused> {
        match self {
            // TLS tells by this kind that what came was not encrypted by the peer: changed or replayed on the way.
            Self::Io(error) => (error.kind() == io::ErrorKind::InvalidData).then_some(Refused::Protocol),
            Self::Frame(_) | Self::TooMany | Self::Twice(_) => Some(Refused::Protocol),
            Self::Stalled => Some(Refused::Stalled),
        }
    }
}

/// What became of a fetch: its request, the bytes that were set aside for it, and the outcome unless it was cancelled.
struct Done {
    id: u64,
    reserved: usize,
    provided: Option<Provided>,
}

/// A request that was not begun.
#[derive(Clone, Copy)]
struct Waiting {
    id: u64,
    epoch: RingEpoch,
    fetch: Fetch,
}

pub(super) struct Serving<'a> {
    shared: &'a Shared,
    peer: NodeId,
    wire: Wire,
    /// By priority.
    waiting: [VecDeque<Waiting>; 3],
    running: FuturesUnordered<BoxFuture<'a, Done>>,
    running_bytes: usize,
    /// What is not answered; those that run can be stopped.
    in_flight: HashMap<u64, Option<AbortHandle>>,
    /// What the shared sum contains of this connection.
    held: usize,
    moved: Instant,
    draining: bool,
}

impl<'a> Serving<'a> {
    pub(super) fn new(shared: &'a Shared, greeted: Greeted) -> Self {
        Self {
            shared,
            peer: greeted.hello.from,
            wire: greeted.wire,
            waiting: Default::default(),
            running: FuturesUnordered::new(),
            running_bytes: 0,
            in_flight: HashMap::new(),
            held: 0,
            moved: Instant::now(),
            draining: false,
        }
    }

    /// Answers until the peer goes or misbehaves, or until `drain` is cancelled and everything is answered.
    pub(super) async fn run(mut self, drain: &CancellationToken) -> Result<(), ServingError> {
        let every = self.shared.options.stall / WATCHES;
        let mut watch = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
        loop {
            self.requests()?;
            self.begin().await;
            self.account();
            if self.draining && self.in_flight.is_empty() && self.wire.is_sent() {
                self.wire.finish().await;
                return Ok(());
            }
            let receive = !self.draining && self.takes_replies();
            tokio::select! {
                step = self.wire.step(receive, None) => match step? {
                    Step::End => return Ok(()),
                    Step::Sent | Step::Received { .. } => self.moved = Instant::now(),
                },
                Some(done) = self.running.next(), if !self.running.is_empty() => self.finish(done),
                () = drain.cancelled(), if !self.draining => self.refuse_waiting(),
                _ = watch.tick() => self.watch()?,
            }
        }
    }

    fn takes_replies(&self) -> bool {
        self.wire.output_bytes() < self.shared.options.connection_bytes / 2 && self.wire.output_frames() < FRAMES_MAX
    }

    /// Takes what has arrived, as long as the peer takes replies.
    fn requests(&mut self) -> Result<(), ServingError> {
        while !self.draining && self.takes_replies() {
            let Some(request) = take_head::<Request>(&mut self.wire.input)? else { return Ok(()) };
            let Request { id, epoch, op } = request;
            match op {
                PeerOp::Fetch(fetch) => self.arrive(Waiting { id, epoch, fetch })?,
                PeerOp::Cancel => self.cancel(id),
                PeerOp::Ping => {
                    let epoch = self.shared.provider.epoch();
                    self.wire.push(frame(&Reply { id, answer: Answer::Pong(epoch) }));
                }
            }
        }
        Ok(())
    }

    fn arrive(&mut self, request: Waiting) -> Result<(), ServingError> {
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            return Err(ServingError::TooMany);
        }
        if self.in_flight.insert(request.id, None).is_some() {
            return Err(ServingError::Twice(request.id));
        }
        self.waiting[place(request.fetch.priority)].push_back(request);
        Ok(())
    }

    fn cancel(&mut self, id: u64) {
        match self.in_flight.get(&id) {
            Some(Some(running)) => running.abort(),
            Some(None) => {
                self.waiting.iter_mut().for_each(|waiting| waiting.retain(|request| request.id != id));
                self.answer(id, None);
            }
            // Its reply is on the way.
            None => {}
        }
    }

    /// Begins what there is room for. What needs no waiting is answered at once.
    async fn begin(&mut self) {
        loop {
            let held = self.running_bytes + self.wire.output_bytes();
            if held >= self.shared.options.connection_bytes {
                return;
            }
            let Some(request) = self.waiting.iter_mut().find_map(VecDeque::pop_front) else { return };
            let now = self.shared.provider.epoch();
            if request.epoch < now {
                self.shared.metrics.served.stale.increment(1);
                self.reply(request.id, Answer::Stale(now));
                continue;
            }
            let reserved = request.fetch.range.length();
            if self.shared.held().saturating_sub(self.held) + held + reserved > self.shared.options.all_bytes {
                self.answer(request.id, Some(Provided::Busy));
                continue;
            }
            self.ask(request, reserved).await;
        }
    }

    async fn ask(&mut self, request: Waiting, reserved: usize) {
        let Waiting { id, epoch, fetch } = request;
        let caller = Caller { node: self.peer, epoch };
        let (handle, registration) = AbortHandle::new_pair();
        let fetching = Abortable::new(self.shared.provider.fetch(caller, fetch), registration);
        let mut running: BoxFuture<'a, Done> =
            Box::pin(async move { Done { id, reserved, provided: fetching.await.ok() } });
        self.running_bytes += reserved;
        match poll_fn(|context| Poll::Ready(Pin::new(&mut running).poll(context))).await {
            Poll::Ready(done) => self.finish(done),
            Poll::Pending => {
                self.in_flight.insert(id, Some(handle));
                self.running.push(running);
            }
        }
    }

    fn finish(&mut self, done: Done) {
        self.running_bytes -= done.reserved;
        let provided = match done.provided {
            Some(Provided::Data { bytes, eof })
                if bytes.len() > done.reserved || (bytes.len() < done.reserved && !eof) =>
            {
                tracing::error!(bytes = bytes.len(), wanted = done.reserved, "not what was asked for: this is a bug");
                Some(Provided::Refused(Refusal::Failed))
            }
            provided => provided,
        };
        self.answer(done.id, provided);
    }

    /// The reply to a request; `None`: it was cancelled.
    fn answer(&mut self, id: u64, provided: Option<Provided>) {
        let served = &self.shared.metrics.served;
        let (counter, answer) = match provided {
            Some(Provided::Data { bytes, eof }) => {
                let length = PayloadLength::new(bytes.len()).expect("not more than was asked for, which is bounded");
                self.reply(id, Answer::Data(Data { length, eof }));
                self.shared.metrics.served_bytes.increment(bytes.len() as u64);
                self.wire.push(bytes);
                return served.data.increment(1);
            }
            Some(Provided::Miss) => (&served.miss, Answer::Miss),
            Some(Provided::Busy) => (&served.busy, Answer::Busy),
            Some(Provided::Refused(refusal)) => (&served.refused, Answer::Refused(refusal)),
            None => (&served.cancelled, Answer::Cancelled),
        };
        counter.increment(1);
        self.reply(id, answer);
    }

    fn reply(&mut self, id: u64, answer: Answer) {
        self.in_flight.remove(&id);
        if self.wire.is_sent() {
            // However long the fetch took, the peer has only now something to take.
            self.moved = Instant::now();
        }
        self.wire.push(frame(&Reply { id, answer }));
    }

    /// The node ends: what was not begun will not be.
    fn refuse_waiting(&mut self) {
        self.draining = true;
        let waiting: Vec<_> = self.waiting.iter_mut().flat_map(std::mem::take).collect();
        for request in waiting {
            self.answer(request.id, Some(Provided::Refused(Refusal::Draining)));
        }
    }

    fn watch(&mut self) -> Result<(), ServingError> {
        // What is read and not taken while nothing is to be sent is the beginning of a frame.
        let half_done = !self.wire.is_sent() || !self.wire.input.is_empty();
        if half_done && self.moved.elapsed() > self.shared.options.stall {
            return Err(ServingError::Stalled);
        }
        Ok(())
    }

    fn account(&mut self) {
        let now = self.running_bytes + self.wire.output_bytes();
        self.shared.hold(self.held, now);
        self.held = now;
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.shared.hold(self.held, 0);
    }
}

fn place(priority: Priority) -> usize {
    match priority {
        Priority::Reader => 0,
        Priority::ReadAhead => 1,
        Priority::Background => 2,
    }
}
