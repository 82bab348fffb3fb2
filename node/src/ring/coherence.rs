//! Coherence at work: the rules of [`super::Owner`] and [`super::Holder`] with clocks, messages and waiting.
//!
//! Owns: both state machines of this node, which rings there were, changes that other nodes make of this node's files. Never does: know
//! what is cached (a [`Subject`] does), speak to sources.
//!
//! Invariants:
//! * A change is answered only after its object's owner, whoever that is then, has seen to it that nobody believes the state before.
//! * No lock is held while another node is asked.
//! * A change of another node that is not heard of any more is taken for done with an unknown outcome, after [`super::holds::HOLD_MAX`] or when the
//!   plane says that the node is lost; its own end then touches the object once more.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_meta::state::{FileKey, NodeId, NodeState};
use forebay_proto::cluster::{Ring as Placement, RingEpoch, Stripe, Weight};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Ask, DRIFT_MS, Grant, HEARTBEAT_MS, Heartbeat, Holder, Owner, Ring,
    groups::Groups,
    holds::{HOLD_MAX, Held},
    messages::{Answer, Message, Named, Question},
};
use crate::{
    cluster::{
        NodeLease, View,
        control::{Answerer, CallError, Control, Topic},
    },
    source::{FileAttributes, ObjectId, SourceError},
};

/// How often leases and settling are looked at.
const TICK: Duration = Duration::from_millis(100);
/// Between tries where another node is not ready.
pub(super) const PAUSE: Duration = Duration::from_millis(30);
/// For how long an owner may be asked: it may have to ask the source.
const QUESTION: Duration = Duration::from_secs(8);
/// For how long anything is asked that needs no source.
pub(super) const SHORT: Duration = Duration::from_millis(900);
/// Rings that are remembered.
const RINGS: usize = 4;

/// What is cached of one export's files.
#[async_trait]
pub trait Subject: Send + Sync {
    /// What the cluster calls an object.
    fn key(&self, object: &ObjectId) -> FileKey;

    /// A change begins that this export has not begun itself; what it says is given back at the end.
    fn change_begins(&self, object: &ObjectId) -> Option<u64>;

    /// That change is over.
    fn change_ends(&self, object: &ObjectId, began: Option<u64>, after: Option<&FileAttributes>);

    /// What names in a directory stand for.
    fn names(&self, dir: &ObjectId, names: &[Bytes]) -> Vec<Named>;

    /// Answers a question about files of which this node is the owner.
    async fn answer(self: Arc<Self>, from: NodeId, epoch: u64, question: Question) -> Answer;
}

/// Who answers for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// This node.
    Mine,
    /// Another one.
    At(NodeId),
    /// Nobody yet: there is no ring.
    Nobody,
}

/// A ring that is or was.
struct Past {
    ring: Arc<Placement>,
    /// Since when nobody may be believed who owned something before it.
    settled: Option<Instant>,
}

pub(super) struct Inner {
    pub(super) owner: Owner,
    pub(super) holder: Holder,
    pub(super) groups: Groups,
    rings: VecDeque<Past>,
    /// The ring before the present one: whom to ask for what has moved.
    former: Option<Arc<Placement>>,
    view: Option<Arc<View>>,
    pub(super) held: HashMap<u64, Held>,
}

/// One node's part in coherence.
pub struct Coherence {
    pub(super) me: NodeId,
    control: Arc<dyn Control>,
    began: Instant,
    pub(super) inner: Mutex<Inner>,
    pub(super) changed: Notify,
    subjects: RwLock<HashMap<String, Weak<dyn Subject>>>,
    pub(super) stop: CancellationToken,
}

impl std::fmt::Debug for Coherence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coherence").field("me", &self.me).finish_non_exhaustive()
    }
}

/// A question to an owner that is under way.
#[derive(Debug)]
pub struct Asking {
    coherence: Arc<Coherence>,
    ask: Mutex<Option<Ask>>,
    /// Of the question.
    pub number: u64,
}

impl Asking {
    /// What was answered is remembered, and believed from now on.
    pub fn granted(&self, owner: NodeId, incarnation: u64) {
        if let Some(ask) = self.ask.lock().take() {
            self.coherence.inner.lock().holder.asked(ask, Some((owner, incarnation)));
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(ask) = self.ask.lock().take() {
            self.coherence.inner.lock().holder.asked(ask, None);
        }
    }
}

impl Coherence {
    /// A process of node `me` that begins, the `epoch`th of the cluster. It does nothing before [`Coherence::run`].
    pub fn new(me: NodeId, epoch: u32, control: Arc<dyn Control>) -> Arc<Self> {
        let first = u64::from(epoch) << 32;
        let inner = Inner {
            owner: Owner::new(me, first, 0),
            holder: Holder::new(me, first),
            groups: Groups::default(),
            rings: VecDeque::new(),
            former: None,
            view: None,
            held: HashMap::new(),
        };
        Arc::new(Self {
            me,
            control,
            began: Instant::now(),
            inner: Mutex::new(inner),
            changed: Notify::new(),
            subjects: RwLock::default(),
            stop: CancellationToken::new(),
        })
    }

    /// This node.
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// What is cached of an export takes part from now on.
    pub fn register(&self, export: &str, subject: &Arc<dyn Subject>) {
        self.subjects.write().insert(export.to_owned(), Arc::downgrade(subject));
    }

    /// Milliseconds of this process.
    pub(super) fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    fn at(&self, instant: Instant) -> u64 {
        u64::try_from(instant.saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn subject(&self, export: &str) -> Option<Arc<dyn Subject>> {
        self.subjects.read().get(export)?.upgrade()
    }

    /// Whether what was asked for at `asked`, and is remembered as the word with the number `word` if an owner told it, may be told.
    pub fn holds(&self, key: FileKey, word: u64, asked: Instant) -> bool {
        let now = self.now();
        let inner = self.inner.lock();
        match inner.route(self.me, key) {
            Route::Mine => {
                inner.owner.may_tell(key, now) && inner.mine_since(self.me, key).is_some_and(|at| asked >= at)
            }
            Route::At(_) => word != 0 && inner.holder.believed(key, now) == Some(word),
            Route::Nobody => false,
        }
    }

    /// Who answers for an object.
    pub fn route(&self, key: FileKey) -> Route {
        self.inner.lock().route(self.me, key)
    }

    /// Who fetches the data at `offset`.
    pub fn data_route(&self, key: FileKey, offset: u64) -> Route {
        let inner = self.inner.lock();
        match inner.rings.back() {
            None => Route::Nobody,
            Some(past) => match past.ring.stripe_owner(key, Stripe::of(offset)) {
                node if node == self.me => Route::Mine,
                node => Route::At(node),
            },
        }
    }

    /// Who fetched the data at `offset` before the ring turned last, if that was another node that still answers.
    pub fn former_data_owner(&self, key: FileKey, offset: u64) -> Option<NodeId> {
        let inner = self.inner.lock();
        let view = inner.view.as_ref()?;
        let is_there = |node: &NodeId| {
            let state = view.nodes.get(node).map(|record| record.state);
            matches!(state, Some(NodeState::Serving | NodeState::Draining))
        };
        let node = inner.former.as_ref()?.stripe_owner(key, Stripe::of(offset));
        Some(node).filter(|node| *node != self.me).filter(is_there)
    }

    /// Whether this node acts as an owner by the ring of `epoch`, of all that is its own, and has leave to believe its other members.
    pub fn is_in_order(&self, epoch: u64) -> bool {
        let now = self.now();
        let inner = self.inner.lock();
        let others = inner.view.iter().flat_map(|view| view.ring.members.iter()).filter(|(node, _)| *node != self.me);
        let mut others = others.map(|(node, _)| *node);
        inner.owner.epoch() == epoch
            && inner.owner.is_settled()
            && inner.owner.has_lease(now)
            && others.all(|node| inner.holder.is_paired(node, now))
    }

    /// The epoch of the ring that this node goes by.
    pub fn epoch(&self) -> u64 {
        self.inner.lock().owner.epoch()
    }

    /// Whether what `from` was told by the ring of `epoch` may be believed.
    pub fn grant(&self, from: NodeId, epoch: u64, key: FileKey, number: u64) -> Grant {
        let now = self.now();
        self.inner.lock().owner.grant(from, epoch, key, number, now)
    }

    /// A question about an object begins; `None` while a change of it by this node is under way.
    pub fn ask(self: &Arc<Self>, key: FileKey) -> Option<Asking> {
        let ask = self.inner.lock().holder.ask(key)?;
        Some(Asking { coherence: self.clone(), number: ask.number, ask: Mutex::new(Some(ask)) })
    }

    /// Asks a node about an export's files.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn question(&self, to: NodeId, export: &str, question: Question) -> Result<Answer, CallError> {
        let message = Message::Of { export: export.to_owned(), epoch: self.epoch(), question: Box::new(question) };
        self.call(to, &message, QUESTION).await
    }

    pub(super) async fn call(&self, to: NodeId, message: &Message, within: Duration) -> Result<Answer, CallError> {
        let answer = self.control.call(to, Topic::Files, message.encode(), within).await?;
        Answer::decode(&answer).ok_or_else(|| CallError::Unknown("the answer is none".into()))
    }

    /// Waits a moment for whatever may have changed.
    pub async fn wait_a_little(&self) {
        let _ = tokio::time::timeout(PAUSE, self.changed.notified()).await;
    }

    /// Answers another node.
    async fn answer(&self, from: NodeId, message: Message) -> Answer {
        match message {
            Message::Heartbeat { incarnation, epoch } => {
                let now = self.now();
                let heartbeat = Heartbeat { from, incarnation, epoch };
                Answer::Lease(self.inner.lock().owner.heartbeat(heartbeat, now))
            }
            Message::Released { epoch } => {
                let now = self.now();
                let inner = self.inner.lock();
                let mine = inner.owner.epoch();
                Answer::Released((mine >= epoch && inner.owner.has_released(now)).then_some(mine))
            }
            Message::Recall { file } => {
                self.inner.lock().holder.recall(file);
                Answer::Done
            }
            Message::Of { export, epoch, question } => match *question {
                Question::Hold { object, number, names } => {
                    self.hold_for(from, epoch, &export, (object, number, names)).await
                }
                Question::LetGo { hold, after, .. } => {
                    Answer::LetGo(self.let_go_for(Some(from), hold, after.as_deref()))
                }
                question => match self.subject(&export) {
                    Some(subject) => subject.answer(from, epoch, question).await,
                    None => Answer::Failed(SourceError::BadHandle),
                },
            },
        }
    }

    /// Follows the plane until told to stop: rings, the node lease, heartbeats.
    pub async fn run(
        self: Arc<Self>,
        mut views: watch::Receiver<Option<Arc<View>>>,
        mut leases: watch::Receiver<Option<NodeLease>>,
    ) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut beat_at = Instant::now();
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                changed = views.changed() => if changed.is_err() { return },
                changed = leases.changed() => if changed.is_err() { return },
                _ = ticks.tick() => {}
            }
            self.lease(*leases.borrow_and_update());
            let view = views.borrow_and_update().clone();
            let turned = view.is_some_and(|view| self.see(view));
            self.tick();
            if turned || Instant::now() >= beat_at {
                beat_at = Instant::now() + Duration::from_millis(HEARTBEAT_MS);
                self.publish();
                self.clone().heartbeats();
            }
            self.clone().ask_former_owners();
        }
    }

    /// Ends; what waits for other nodes is given up.
    pub fn close(&self) {
        self.stop.cancel();
        self.changed.notify_waiters();
    }

    fn publish(&self) {
        let inner = self.inner.lock();
        metrics::gauge!("forebay_ring_epoch").set(inner.owner.epoch() as f64);
        metrics::gauge!("forebay_ring_settled").set(f64::from(u8::from(inner.owner.is_settled())));
        metrics::gauge!("forebay_node_lease").set(f64::from(u8::from(inner.owner.has_lease(self.now()))));
        metrics::gauge!("forebay_files_believed").set(inner.holder.len() as f64);
        metrics::gauge!("forebay_changes_held").set(inner.held.len() as f64);
    }

    fn lease(&self, lease: Option<NodeLease>) {
        let Some(lease) = lease else { return };
        let valid = u64::try_from(lease.valid.as_millis()).unwrap_or(0).saturating_sub(DRIFT_MS);
        self.inner.lock().owner.leased(self.at(lease.sent), valid);
    }

    /// The plane as it is now. Whether the ring is another.
    fn see(&self, view: Arc<View>) -> bool {
        let mut inner = self.inner.lock();
        if inner.view.as_ref().is_some_and(|known| Arc::ptr_eq(known, &view)) {
            return false;
        }
        let turned = view.ring.epoch > inner.owner.epoch() && inner.turn(self.me, &view);
        let known: BTreeSet<NodeId> = inner.owner.settling().collect();
        for node in known {
            let is_lost = view.nodes.get(&node).is_none_or(|record| record.state == NodeState::Lost);
            if is_lost {
                inner.owner.lost(node);
            }
        }
        if view.nodes.get(&self.me).is_some_and(|me| me.state == NodeState::Lost) {
            inner.owner.lease_lost();
        }
        inner.view = Some(view);
        drop(inner);
        self.changed.notify_waiters();
        turned
    }

    fn tick(&self) {
        let now = self.now();
        let over: Vec<u64> = {
            let mut inner = self.inner.lock();
            for mutation in inner.owner.tick(now) {
                inner.groups.ready(mutation);
            }
            if inner.owner.is_settled()
                && let Some(past) = inner.rings.back_mut()
            {
                past.settled.get_or_insert_with(Instant::now);
            }
            let is_lost = |node| {
                let view = inner.view.as_ref();
                view.and_then(|view| view.nodes.get(&node)).is_none_or(|record| record.state == NodeState::Lost)
            };
            let over = inner.held.iter().filter(|(_, held)| held.since.elapsed() > HOLD_MAX || is_lost(held.by));
            over.map(|(id, _)| *id).collect()
        };
        for id in over {
            metrics::counter!("forebay_changes_given_up_total").increment(1);
            tracing::warn!(hold = id, "a change of another node was not heard of any more; what it did is not known");
            self.let_go_for(None, id, None);
        }
        self.changed.notify_waiters();
    }

    fn heartbeats(self: Arc<Self>) {
        let owners: Vec<NodeId> = {
            let inner = self.inner.lock();
            let members = inner.view.iter().flat_map(|view| view.ring.members.iter());
            members.map(|(node, _)| *node).filter(|node| *node != self.me).collect()
        };
        for owner in owners {
            let this = self.clone();
            tokio::spawn(async move {
                let heartbeat = this.inner.lock().holder.heartbeat(owner);
                let sent = this.now();
                let message = Message::Heartbeat { incarnation: heartbeat.incarnation, epoch: heartbeat.epoch };
                if let Ok(Answer::Lease(reply)) = this.call(owner, &message, SHORT).await {
                    this.inner.lock().holder.heartbeat_answered(owner, sent, reply);
                }
            });
        }
    }

    fn ask_former_owners(self: Arc<Self>) {
        let (former, epoch): (Vec<NodeId>, u64) = {
            let inner = self.inner.lock();
            (inner.owner.settling().collect(), inner.owner.epoch())
        };
        for node in former {
            let this = self.clone();
            tokio::spawn(async move {
                let answer = this.call(node, &Message::Released { epoch }, SHORT).await;
                if let Ok(Answer::Released(Some(released))) = answer {
                    this.inner.lock().owner.released_by(node, released);
                    this.tick();
                }
            });
        }
    }
}

impl Inner {
    fn route(&self, me: NodeId, key: FileKey) -> Route {
        match self.rings.back().map(|past| past.ring.file_owner(key)) {
            Some(node) if node == me => Route::Mine,
            Some(node) => Route::At(node),
            None => Route::Nobody,
        }
    }

    /// Since when nobody else can have owned an object of this node's; what was asked before may be old.
    fn mine_since(&self, me: NodeId, key: FileKey) -> Option<Instant> {
        let mine = self.rings.iter().rev().take_while(|past| past.ring.file_owner(key) == me);
        mine.filter_map(|past| past.settled).min()
    }

    fn turn(&mut self, me: NodeId, view: &View) -> bool {
        let Ok(ring) = Placement::new(RingEpoch(view.ring.epoch), &members_of(&view.ring.members)) else {
            // Nobody serves: then nobody owns anything either.
            return false;
        };
        let ring = Arc::new(ring);
        if view.ring.epoch > self.owner.epoch() + 1 {
            self.rings.clear();
        }
        self.former = self.rings.back().map(|past| past.ring.clone()).or_else(|| {
            let members = members_of(&view.previous.members);
            Placement::new(RingEpoch(view.previous.epoch), &members).ok().map(Arc::new)
        });
        let is_there = |state: NodeState| state != NodeState::Lost;
        let former =
            view.nodes.iter().filter(|(node, record)| **node != me && record.epoch > 0 && is_there(record.state));
        let former: BTreeSet<NodeId> = former.map(|(node, _)| *node).collect();
        let placement = {
            let ring = ring.clone();
            Arc::new(move |key| Some(ring.file_owner(key)))
        };
        let members = view.ring.members.iter().map(|(node, _)| *node).collect();
        let turned = Ring { epoch: view.ring.epoch, members, placement };
        self.owner.ring_changed(turned.clone(), &former);
        self.holder.ring_changed(turned);
        self.rings.push_back(Past { ring, settled: None });
        if self.rings.len() > RINGS {
            self.rings.pop_front();
        }
        true
    }
}

/// Members as the ring takes them.
fn members_of(members: &[(NodeId, u32)]) -> Vec<(NodeId, Weight)> {
    let weight = |units: u32| Weight::new(units.clamp(Weight::MIN.units(), Weight::MAX.units()));
    members.iter().map(|(node, units)| (*node, weight(*units).unwrap_or(Weight::STANDARD))).collect()
}

/// Answers other nodes about files.
pub struct Answers(pub Arc<Coherence>);

#[async_trait]
impl Answerer for Answers {
    async fn answer(&self, from: NodeId, message: Bytes) -> Option<Bytes> {
        let message = Message::decode(&message)?;
        Some(self.0.answer(from, message).await.encode())
    }
}
