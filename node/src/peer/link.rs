//! One connection to a peer that is asked: kept up, and handed requests by whoever has some.
//!
//! Owns: whether it stands, the requests that wait to be sent, the tries to connect. Never does: read or write (see
//! [`super::asking`]).
//! Invariant: once it is down no request is left in it: each was answered, lost, or told that the peer is down.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use forebay_proto::cluster::{RingEpoch, frame::Fetch};
use parking_lot::Mutex;
use tokio::{
    net::TcpStream,
    sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot},
    time::timeout,
};

use super::{
    asking::{self, Asking},
    client::{Fetched, PeerError, PeerShared},
    greet::{self, GreetError, Greeted},
};

/// A connection that stood this long was a good one: after it, tries begin with the shortest pause.
const GOOD: Duration = Duration::from_secs(5);

/// Whether a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not known yet; requests wait for the first try.
    Unknown,
    Up,
    Down,
}

/// What is told to a request.
pub(super) type Told = oneshot::Sender<Result<Fetched, PeerError>>;

/// A request that was not sent yet.
pub(super) struct Unsent {
    pub(super) id: u64,
    pub(super) epoch: RingEpoch,
    pub(super) fetch: Fetch,
    pub(super) told: Told,
    pub(super) slot: OwnedSemaphorePermit,
    pub(super) since: Instant,
}

/// What callers leave for the connection's task. Both lists are as long as there are slots at most.
struct Inbox {
    state: State,
    unsent: Vec<Unsent>,
    unwanted: Vec<u64>,
}

pub(super) struct Link {
    inbox: Mutex<Inbox>,
    left: Notify,
    slots: Arc<Semaphore>,
    next: AtomicU64,
}

impl Link {
    pub(super) fn new(slots: usize) -> Self {
        let inbox = Inbox { state: State::Unknown, unsent: Vec::new(), unwanted: Vec::new() };
        let (left, slots) = (Notify::new(), Arc::new(Semaphore::new(slots)));
        Self { inbox: Mutex::new(inbox), left, slots, next: AtomicU64::new(1) }
    }

    pub(super) fn is_up(&self) -> bool {
        self.inbox.lock().state == State::Up
    }

    pub(super) fn takes_requests(&self) -> bool {
        self.inbox.lock().state != State::Down
    }

    /// How many more requests it would take without waiting. What is not known to stand comes last.
    pub(super) fn free(&self) -> usize {
        if self.is_up() { self.slots.available_permits() + 1 } else { 0 }
    }

    /// Waits for a place among the requests.
    pub(super) async fn slot(&self) -> OwnedSemaphorePermit {
        self.slots.clone().acquire_owned().await.expect("it is never closed")
    }

    /// Leaves a request to be sent; what it is called, or `None` if the connection is down.
    pub(super) fn request(
        &self,
        epoch: RingEpoch,
        fetch: Fetch,
        told: Told,
        slot: OwnedSemaphorePermit,
    ) -> Option<u64> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut inbox = self.inbox.lock();
        if inbox.state == State::Down {
            return None;
        }
        inbox.unsent.push(Unsent { id, epoch, fetch, told, slot, since: Instant::now() });
        drop(inbox);
        self.left.notify_one();
        Some(id)
    }

    /// Waits until callers have left something, or had since this returned last.
    pub(super) async fn left(&self) {
        self.left.notified().await;
    }

    /// What callers have left.
    pub(super) fn take(&self) -> (Vec<Unsent>, Vec<u64>) {
        let mut inbox = self.inbox.lock();
        (std::mem::take(&mut inbox.unsent), std::mem::take(&mut inbox.unwanted))
    }

    fn set(&self, state: State) {
        let unsent = {
            let mut inbox = self.inbox.lock();
            inbox.state = state;
            inbox.unwanted.clear();
            if state == State::Down { std::mem::take(&mut inbox.unsent) } else { Vec::new() }
        };
        for request in unsent {
            // Whoever has stopped waiting need not know.
            let _ = request.told.send(Err(PeerError::Down));
        }
    }
}

/// Takes a request back when it is dropped before it is done.
pub(super) struct Wanted<'a> {
    link: &'a Link,
    id: Option<u64>,
}

impl<'a> Wanted<'a> {
    pub(super) fn new(link: &'a Link, id: u64) -> Self {
        Self { link, id: Some(id) }
    }

    pub(super) fn done(&mut self) {
        self.id = None;
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let mut inbox = self.link.inbox.lock();
        // What was not sent yet needs no more than to be forgotten.
        let before = inbox.unsent.len();
        inbox.unsent.retain(|request| request.id != id);
        if inbox.unsent.len() == before && inbox.state == State::Up {
            inbox.unwanted.push(id);
            drop(inbox);
            self.link.left.notify_one();
        }
    }
}

/// Connects, and again whenever the connection is lost, until the peer is closed. `all` are the peer's links.
pub(super) async fn keep(shared: Arc<PeerShared>, link: Arc<Link>, all: Vec<Arc<Link>>) {
    let tell = || shared.gauges.tell(all.iter().any(|link| link.is_up()), &shared.latency);
    // However this ends, nobody waits for it.
    let _down = DownWhenDropped(&link);
    let (shortest, longest) = shared.options.pauses;
    let mut pause = shortest;
    loop {
        let established = tokio::select! {
            established = establish(&shared) => established,
            () = shared.closed.cancelled() => break,
        };
        match established {
            Ok(greeted) => {
                let since = Instant::now();
                shared.saw(greeted.hello.epoch);
                link.set(State::Up);
                shared.metrics.connections_out.increment(1.0);
                tell();
                let ended = Asking::new(&shared, &link, greeted.wire).run(tell).await;
                link.set(State::Down);
                shared.metrics.connections_out.decrement(1.0);
                if let Err(error) = ended {
                    lost(&shared, &error);
                }
                tell();
                // It may be back already, as after a restart; a connection that never works is not tried in a hurry.
                if since.elapsed() > GOOD {
                    pause = shortest;
                    continue;
                }
            }
            Err(error) => {
                link.set(State::Down);
                tell();
                refused(&shared, &error);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(jittered(pause)) => {}
            () = shared.closed.cancelled() => break,
        }
        pause = (pause * 2).min(longest);
    }
}

struct DownWhenDropped<'a>(&'a Link);

impl Drop for DownWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.set(State::Down);
    }
}

async fn establish(shared: &PeerShared) -> Result<Greeted, GreetError> {
    let connected = timeout(greet::CONNECT, TcpStream::connect(shared.address)).await;
    let stream = connected.map_err(|_| GreetError::Silent)?.map_err(GreetError::Io)?;
    greet::connect(&shared.identity, shared.node, shared.epoch(), stream).await
}

fn refused(shared: &PeerShared, error: &GreetError) {
    shared.metrics.connect_failures.increment(1);
    match error.refusal() {
        Some(reason) => {
            shared.metrics.refuse(reason);
            tracing::warn!(node = shared.node.0, address = %shared.address, %error, "peer refused");
        }
        None => tracing::debug!(node = shared.node.0, address = %shared.address, %error, "peer not reached"),
    }
}

fn lost(shared: &PeerShared, error: &asking::AskingError) {
    tracing::info!(node = shared.node.0, address = %shared.address, %error, "peer connection lost");
    if let Some(reason) = error.refusal() {
        shared.metrics.refuse(reason);
    }
}

/// Half to all of `pause`: many nodes must not come back at once.
fn jittered(pause: Duration) -> Duration {
    let share = (uuid::Uuid::new_v4().as_u128() % 512) as u32;
    pause / 2 + pause * share / 1024
}
