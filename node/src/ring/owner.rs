//! The owner's side: who believes what about its files, and what must be taken back before they change.
//!
//! Invariants: a file is granted only while nobody changes it; a change is ready only when nobody believes the state before; nothing is
//! granted or begun without a node lease, of a file of another owner, or before former owners have released the ring.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use forebay_meta::state::{FileKey, NodeId};
use serde::{Deserialize, Serialize};

use super::{DRIFT_MS, PAIR_LEASE_MS};

/// Files that are granted at most, over all holders, at about 200 bytes each; beyond that they are told and not believed.
const GRANTS_MAX: usize = 512 << 10;

/// Who owns a file in a ring.
pub type Placement = Arc<dyn Fn(FileKey) -> Option<NodeId> + Send + Sync>;

/// A ring, as far as ownership goes.
#[derive(Clone)]
pub struct Ring {
    /// Its epoch.
    pub epoch: u64,
    /// Its members.
    pub members: BTreeSet<NodeId>,
    /// Who owns what.
    pub placement: Placement,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("epoch", &self.epoch).field("members", &self.members).finish_non_exhaustive()
    }
}

/// What a holder says once a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Who.
    pub from: NodeId,
    /// Of the pair lease that it has, if any.
    pub incarnation: Option<u64>,
    /// The ring that it goes by.
    pub epoch: u64,
}

/// What it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeartbeatReply {
    /// It may believe what was granted under this incarnation, for so long from when it asked. Under another than it had, nothing is granted.
    Lease {
        /// Counts up when earlier grants are void.
        incarnation: u64,
        /// From the moment when the heartbeat was sent.
        valid_ms: u64,
    },
    /// Not now.
    Refused(Refusal),
}

/// Why an owner does not act as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Its node lease is over.
    NoLease,
    /// The caller's ring is older than the owner's, which has this epoch.
    StaleRing(u64),
    /// The owner's own ring is older than the caller's.
    Behind,
    /// The file is another node's.
    NotOwner,
    /// Former owners have not released the ring yet.
    Settling,
    /// The file is being changed; ask again when it is done.
    Busy,
}

/// What may be done with an answer about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Believe it until it is recalled, while the pair lease with this incarnation lasts.
    Believe {
        /// Of the pair lease.
        incarnation: u64,
    },
    /// Use it once.
    Once,
    /// There is no answer.
    Refused(Refusal),
}

/// A change under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MutationId(pub u64);

/// How a change begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Nobody believes the state before: go on.
    Ready(MutationId),
    /// These must be told to forget; [`Owner::acknowledged`] or [`Owner::tick`] says when all have.
    Recall(MutationId, Vec<NodeId>),
    /// It does not begin.
    Refused(Refusal),
}

#[derive(Debug, Default)]
struct Pair {
    incarnation: u64,
    until: u64,
    /// The ring that the holder goes by.
    epoch: u64,
    /// What it may believe, and the number of the question that was answered so.
    files: HashMap<FileKey, u64>,
}

#[derive(Debug, Default)]
struct FileState {
    holders: BTreeSet<NodeId>,
    mutation: Option<MutationId>,
}

#[derive(Debug)]
struct Mutation {
    file: FileKey,
    waiting: BTreeSet<NodeId>,
    ready: bool,
    /// Another node has owned the file since it began.
    moved: bool,
}

/// One node as an owner.
#[derive(Debug)]
pub struct Owner {
    me: NodeId,
    /// When its process began: an earlier one's pairs may last until a pair lease later.
    began: u64,
    lease_until: u64,
    ring: Ring,
    /// Former owners that have not released the ring.
    settling: BTreeSet<NodeId>,
    /// The latest ring that was settled, and those since: a file that was this node's in all of them need not wait.
    unsettled: Vec<Ring>,
    pairs: BTreeMap<NodeId, Pair>,
    files: HashMap<FileKey, FileState>,
    mutations: BTreeMap<MutationId, Mutation>,
    grants: usize,
    next_incarnation: u64,
    next_mutation: u64,
}

impl Owner {
    /// A process that begins now, in no ring yet. `incarnation` is higher than any that an earlier process of the node gave.
    pub fn new(me: NodeId, incarnation: u64, now: u64) -> Owner {
        let ring = Ring { epoch: 0, members: BTreeSet::new(), placement: Arc::new(|_| None) };
        Owner {
            me,
            began: now,
            lease_until: 0,
            ring,
            settling: BTreeSet::new(),
            unsettled: Vec::new(),
            pairs: BTreeMap::new(),
            files: HashMap::new(),
            mutations: BTreeMap::new(),
            grants: 0,
            next_incarnation: incarnation,
            next_mutation: 1,
        }
    }

    /// The plane renewed the node lease with a call that was sent at `sent`, for `valid_ms` from then.
    pub fn leased(&mut self, sent: u64, valid_ms: u64) {
        self.lease_until = self.lease_until.max(sent + valid_ms);
    }

    /// The plane has taken the node out of the ring, or the node gives up by itself.
    pub fn lease_lost(&mut self) {
        self.lease_until = 0;
    }

    /// Whether it may act as an owner.
    pub fn has_lease(&self, now: u64) -> bool {
        now < self.lease_until
    }

    /// The epoch of the ring that it goes by.
    pub fn epoch(&self) -> u64 {
        self.ring.epoch
    }

    /// A new ring. `former` are the nodes that may have owned anything in rings before it and whose leases may still last: all but those that
    /// the plane has declared lost or that have left. This node waits for itself too: those who believed it may not have seen what moved away
    /// and came back. Rings may be left out; then every file counts as moved.
    pub fn ring_changed(&mut self, ring: Ring, former: &BTreeSet<NodeId>) {
        if ring.epoch <= self.ring.epoch {
            return;
        }
        if self.settling.is_empty() {
            self.unsettled.clear();
        }
        self.unsettled.push(self.ring.clone());
        let left_out = ring.epoch > self.ring.epoch + 1;
        if left_out {
            self.unsettled.push(Ring {
                epoch: ring.epoch - 1,
                members: BTreeSet::new(),
                placement: Arc::new(|_| None),
            });
        }
        self.settling.extend(former.iter().copied());
        self.settling.insert(self.me);
        self.ring = ring;
        let (me, placement) = (self.me, self.ring.placement.clone());
        for mutation in self.mutations.values_mut() {
            mutation.moved |= left_out || placement(mutation.file) != Some(me);
        }
        // Whoever believed something of these files forgets it with the new ring; who has not seen it holds up the release.
        self.files.retain(|file, state| {
            let stays = !left_out && placement(*file) == Some(me) || state.mutation.is_some();
            if !stays {
                self.grants -= state.holders.len();
                for holder in &state.holders {
                    self.pairs.get_mut(holder).map(|pair| pair.files.remove(file));
                }
            }
            stays
        });
    }

    /// A former owner has released the ring with this epoch, or a later one; or the plane has declared it lost.
    pub fn released_by(&mut self, node: NodeId, epoch: u64) {
        if epoch >= self.ring.epoch {
            self.settling.remove(&node);
        }
    }

    /// The plane says that the node's lease is over: nothing that it granted lasts.
    pub fn lost(&mut self, node: NodeId) {
        self.settling.remove(&node);
    }

    /// Former owners that are to be asked whether they have released the ring.
    pub fn settling(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.settling.iter().copied().filter(|node| *node != self.me)
    }

    /// Whether everybody who is waited for has released the ring.
    pub fn is_settled(&self) -> bool {
        self.settling.is_empty()
    }

    /// Whether this node may tell what it knows of a file as its owner's word: nobody changes it, and it is this node's.
    pub fn may_tell(&self, file: FileKey, now: u64) -> bool {
        self.has_lease(now)
            && self.owns_in_ring(file)
            && self.files.get(&file).is_none_or(|state| state.mutation.is_none())
    }

    /// The change of a file that is under way.
    pub fn under_way(&self, file: FileKey) -> Option<MutationId> {
        self.files.get(&file).and_then(|state| state.mutation)
    }

    /// A holder has forgotten what answers to its questions before `number` made it believe.
    pub fn forgot(&mut self, holder: NodeId, file: FileKey, number: u64) {
        if self.pairs.get(&holder).and_then(|pair| pair.files.get(&file)).is_some_and(|asked| *asked < number) {
            self.withdraw(holder, file);
        }
    }

    /// Whether this node has released its ring: nobody believes, or is changing, what is not its own any more.
    pub fn has_released(&self, now: u64) -> bool {
        let unseen = |pair: &Pair| pair.epoch < self.ring.epoch && now < pair.until;
        let owns = |file: FileKey| (self.ring.placement)(file) == Some(self.me);
        self.outlasts_its_past(now)
            && !self.pairs.values().any(unseen)
            && self.mutations.values().all(|mutation| owns(mutation.file))
    }

    /// Whether nobody can believe an earlier process of this node any more.
    fn outlasts_its_past(&self, now: u64) -> bool {
        now >= self.began + PAIR_LEASE_MS + DRIFT_MS
    }

    /// A holder's heartbeat. While a pair lease lasts its incarnation stays, whatever the holder says: its word may be old, and what was granted may
    /// still be believed.
    pub fn heartbeat(&mut self, heartbeat: Heartbeat, now: u64) -> HeartbeatReply {
        if let Err(refusal) = self.may_act(heartbeat.epoch, now) {
            return HeartbeatReply::Refused(refusal);
        }
        let valid_ms = PAIR_LEASE_MS.min(self.lease_until - now);
        if self.pairs.get(&heartbeat.from).is_none_or(|pair| pair.until <= now) {
            self.forget_holder(heartbeat.from);
            self.next_incarnation += 1;
        }
        let incarnation = self.next_incarnation;
        let fresh = || Pair { incarnation, ..Pair::default() };
        let pair = self.pairs.entry(heartbeat.from).or_insert_with(fresh);
        pair.until = pair.until.max(now + valid_ms + DRIFT_MS);
        pair.epoch = pair.epoch.max(heartbeat.epoch);
        HeartbeatReply::Lease { incarnation: pair.incarnation, valid_ms }
    }

    /// Whether `from`, which goes by the ring with this epoch, may be told of a file, and believe it. What it is told MUST be what the owner knows
    /// at this very moment. `number` is the question's, from [`super::Ask`].
    pub fn grant(&mut self, from: NodeId, epoch: u64, file: FileKey, number: u64, now: u64) -> Grant {
        let acting = self.may_act(epoch, now).and_then(|()| self.owns(file));
        if let Err(refusal) = acting {
            return Grant::Refused(refusal);
        }
        let state = self.files.entry(file).or_default();
        if state.mutation.is_some() {
            return Grant::Refused(Refusal::Busy);
        }
        match self.pairs.get_mut(&from).filter(|pair| now < pair.until) {
            Some(pair) if from != self.me && self.grants < GRANTS_MAX => {
                if state.holders.insert(from) {
                    self.grants += 1;
                }
                let latest = pair.files.entry(file).or_insert(number);
                *latest = number.max(*latest);
                Grant::Believe { incarnation: pair.incarnation }
            }
            _ => {
                self.forget_if_idle(file);
                Grant::Once
            }
        }
    }

    /// Begins a change of a file for `by`, which has forgotten what answers to questions before `number` made it believe. Also for a change that the source
    /// made and the owner has just seen.
    pub fn begin(&mut self, by: NodeId, epoch: u64, file: FileKey, number: u64, now: u64) -> Begun {
        let acting = self.may_act(epoch, now).and_then(|()| self.owns(file));
        if let Err(refusal) = acting {
            return Begun::Refused(refusal);
        }
        if self.files.get(&file).is_some_and(|state| state.mutation.is_some()) {
            return Begun::Refused(Refusal::Busy);
        }
        self.forgot(by, file, number);
        let id = MutationId(self.next_mutation);
        self.next_mutation += 1;
        let state = self.files.entry(file).or_default();
        state.mutation = Some(id);
        let believes = |holder: &&NodeId| self.pairs.get(holder).is_some_and(|pair| now < pair.until);
        let waiting: BTreeSet<NodeId> = state.holders.iter().filter(believes).copied().collect();
        let recall: Vec<NodeId> = waiting.iter().copied().collect();
        self.mutations.insert(id, Mutation { file, ready: waiting.is_empty(), waiting, moved: false });
        if recall.is_empty() { Begun::Ready(id) } else { Begun::Recall(id, recall) }
    }

    /// Whether a change still waits for a holder to forget.
    pub fn waits_for(&self, id: MutationId, holder: NodeId) -> bool {
        self.mutations.get(&id).is_some_and(|mutation| mutation.waiting.contains(&holder))
    }

    /// A holder has forgotten the file. `true` if the change is ready now.
    pub fn acknowledged(&mut self, id: MutationId, from: NodeId) -> bool {
        let Some(mutation) = self.mutations.get_mut(&id) else { return false };
        let file = mutation.file;
        if !mutation.waiting.remove(&from) {
            return false;
        }
        let ready = mutation.waiting.is_empty();
        mutation.ready |= ready;
        self.withdraw(from, file);
        ready
    }

    /// Changes that became ready since the holders that they waited for believe nothing any more.
    pub fn tick(&mut self, now: u64) -> Vec<MutationId> {
        let over: Vec<NodeId> =
            self.pairs.iter().filter(|(_, pair)| pair.until <= now).map(|(node, _)| *node).collect();
        let mut ready = Vec::new();
        for node in over {
            self.forget_holder(node);
            for (id, mutation) in &mut self.mutations {
                if mutation.waiting.remove(&node) && mutation.waiting.is_empty() {
                    mutation.ready = true;
                    ready.push(*id);
                }
            }
        }
        if self.has_released(now) {
            self.settling.remove(&self.me);
        }
        ready
    }

    /// Whether a change may go to the source now: it is ready, and the node is still the owner.
    pub fn may_proceed(&self, id: MutationId, now: u64) -> bool {
        self.has_lease(now) && self.mutations.get(&id).is_some_and(|mutation| mutation.ready && !mutation.moved)
    }

    /// The change is over, whatever came of it. `true` if it may be answered, and what the source said of it is news: the node has been the owner all along.
    pub fn finish(&mut self, id: MutationId, now: u64) -> bool {
        let Some(mutation) = self.mutations.remove(&id) else { return false };
        if let Some(state) = self.files.get_mut(&mutation.file) {
            state.mutation = None;
        }
        let owns = self.owns_in_ring(mutation.file);
        if !owns {
            let holders = self.files.get(&mutation.file).map(|state| state.holders.clone()).unwrap_or_default();
            holders.into_iter().for_each(|holder| self.withdraw(holder, mutation.file));
        }
        self.forget_if_idle(mutation.file);
        mutation.ready && !mutation.moved && self.has_lease(now)
    }

    fn may_act(&self, epoch: u64, now: u64) -> Result<(), Refusal> {
        if !self.has_lease(now) {
            return Err(Refusal::NoLease);
        }
        match epoch.cmp(&self.ring.epoch) {
            std::cmp::Ordering::Less => Err(Refusal::StaleRing(self.ring.epoch)),
            std::cmp::Ordering::Greater => Err(Refusal::Behind),
            std::cmp::Ordering::Equal => Ok(()),
        }
    }

    fn owns(&self, file: FileKey) -> Result<(), Refusal> {
        if !self.owns_in_ring(file) {
            return Err(Refusal::NotOwner);
        }
        let stayed = || self.unsettled.iter().all(|ring| (ring.placement)(file) == Some(self.me));
        if self.settling.is_empty() || stayed() { Ok(()) } else { Err(Refusal::Settling) }
    }

    fn owns_in_ring(&self, file: FileKey) -> bool {
        (self.ring.placement)(file) == Some(self.me)
    }

    fn withdraw(&mut self, holder: NodeId, file: FileKey) {
        if self.files.get_mut(&file).is_some_and(|state| state.holders.remove(&holder)) {
            self.grants -= 1;
        }
        self.pairs.get_mut(&holder).map(|pair| pair.files.remove(&file));
        self.forget_if_idle(file);
    }

    fn forget_holder(&mut self, holder: NodeId) {
        let Some(pair) = self.pairs.remove(&holder) else { return };
        for file in pair.files.into_keys() {
            if self.files.get_mut(&file).is_some_and(|state| state.holders.remove(&holder)) {
                self.grants -= 1;
            }
            self.forget_if_idle(file);
        }
    }

    fn forget_if_idle(&mut self, file: FileKey) {
        if self.files.get(&file).is_some_and(|state| state.holders.is_empty() && state.mutation.is_none()) {
            self.files.remove(&file);
        }
    }
}
