//! Changes under hold: what a node of the cluster changes, its owner has taken back first.
//!
//! Owns: beginning a change at whoever owns the object, joining those under way, letting go; other nodes' changes of this node's objects.
//! Never does: decide who must forget what (the owner's rules do), make the change. Invariants: see [`super::coherence`].

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use forebay_meta::state::{FileKey, NodeId};

use super::{
    MutationId, Refusal,
    coherence::{Coherence, Inner, PAUSE, Route, SHORT},
    groups::{Entered, HoldId, Wish},
    messages::{Answer, Message, Named, Question},
};
use crate::source::{FileAttributes, ObjectId, SourceError};

/// For how long a change waits to begin before the client is told to come again.
const HOLD_WAIT: Duration = Duration::from_secs(8);
/// How long another node's change may take before it counts as over.
pub const HOLD_MAX: Duration = Duration::from_secs(10);
/// Changes of other nodes under way at most.
const HOLDS_MAX: usize = 64 << 10;

/// A change of another node.
pub(super) struct Held {
    pub(super) by: NodeId,
    key: FileKey,
    export: String,
    object: ObjectId,
    began: Option<u64>,
    pub(super) since: Instant,
}

/// A change that may be made: nobody believes the state before. Dropped, it is let go of in the background with an unknown outcome.
#[derive(Debug)]
pub struct Hold {
    coherence: Arc<Coherence>,
    export: String,
    object: ObjectId,
    key: FileKey,
    place: Option<HeldAt>,
    /// The subject is to be told of the end.
    told: Option<Option<u64>>,
    /// Nobody waits for its end any more.
    is_abandoned: bool,
    /// What the names stand for, as far as the owner knows.
    pub names: Vec<Named>,
}

#[derive(Clone, Copy, Debug)]
enum HeldAt {
    Here(HoldId),
    There(NodeId, u64),
}

impl Coherence {
    /// Begins a change of an object: returns when nobody believes the state before. `is_own`: the subject knows of it already.
    ///
    /// # Errors
    /// The owner is not there, or not ready; nothing was done.
    pub async fn hold(
        self: &Arc<Self>,
        export: &str,
        (object, key): (&ObjectId, FileKey),
        names: Vec<Bytes>,
        is_own: bool,
    ) -> Result<Hold, SourceError> {
        let number = self.inner.lock().holder.change_begins(key);
        let mut hold = Hold {
            coherence: self.clone(),
            export: export.to_owned(),
            object: *object,
            key,
            place: None,
            told: None,
            is_abandoned: false,
            names: Vec::new(),
        };
        let deadline = Instant::now() + HOLD_WAIT;
        while Instant::now() < deadline && !self.stop.is_cancelled() {
            if self.try_hold(&mut hold, &names, number, is_own, deadline).await {
                return Ok(hold);
            }
            self.wait_a_little().await;
        }
        Err(SourceError::Unavailable)
    }

    async fn try_hold(&self, hold: &mut Hold, names: &[Bytes], number: u64, is_own: bool, until: Instant) -> bool {
        match self.route(hold.key) {
            Route::Mine => {
                let wish = Wish { by: self.me, epoch: self.epoch(), key: hold.key, number, names: names.to_vec() };
                let Ok(id) = self.enter(wish, until).await else { return false };
                hold.place = Some(HeldAt::Here(id));
                if let Some(subject) = self.subject(&hold.export) {
                    hold.names = subject.names(&hold.object, names);
                    if !is_own {
                        hold.told = Some(subject.change_begins(&hold.object));
                    }
                }
                true
            }
            Route::At(node) => {
                let question = Question::Hold { object: hold.object, number, names: names.to_vec() };
                match self.question(node, &hold.export, question).await {
                    Ok(Answer::Held { hold: id, names }) => {
                        hold.place = Some(HeldAt::There(node, id));
                        hold.names = names;
                        true
                    }
                    _ => false,
                }
            }
            Route::Nobody => false,
        }
    }

    /// A change of an object of this node's begins, as soon as nobody believes the state before.
    async fn enter(&self, wish: Wish, until: Instant) -> Result<HoldId, Refusal> {
        let key = wish.key;
        let (id, recall) = loop {
            let changed = self.changed.notified();
            let now = self.now();
            let entered = {
                let mut inner = self.inner.lock();
                let Inner { owner, groups, .. } = &mut *inner;
                groups.enter(owner, &wish, now)
            };
            match entered {
                Entered::Member(id, recall) => break (id, recall),
                Entered::Refused(refusal) => return Err(refusal),
                Entered::Wait if Instant::now() >= until => return Err(Refusal::Busy),
                Entered::Wait => drop(tokio::time::timeout(PAUSE, changed).await),
            }
        };
        // Whoever stops waiting leaves.
        let guard = Leaving { coherence: self, key, id, armed: true };
        if let Some((mutation, nodes)) = recall {
            self.recall(key, mutation, nodes).await;
        }
        loop {
            let changed = self.changed.notified();
            let now = self.now();
            let may = {
                let inner = self.inner.lock();
                inner.groups.may_proceed(&inner.owner, key, now)
            };
            match may {
                Some(true) => {
                    guard.disarm();
                    return Ok(id);
                }
                Some(false) => return Err(Refusal::NotOwner),
                None if Instant::now() >= until => return Err(Refusal::Busy),
                None => drop(tokio::time::timeout(PAUSE, changed).await),
            }
        }
    }

    /// Takes a file back from those who believe it, until they have forgotten it or their pair lease is over.
    async fn recall(&self, key: FileKey, mutation: MutationId, nodes: Vec<NodeId>) {
        let all = nodes.into_iter().map(|node| async move {
            while self.inner.lock().owner.waits_for(mutation, node) {
                let answer = self.call(node, &Message::Recall { file: key }, SHORT).await;
                if answer == Ok(Answer::Done) {
                    let mut inner = self.inner.lock();
                    if inner.owner.acknowledged(mutation, node) {
                        inner.groups.ready(mutation);
                    }
                    drop(inner);
                    self.changed.notify_waiters();
                } else {
                    self.wait_a_little().await;
                }
            }
        });
        futures_util::future::join_all(all).await;
    }

    /// A change of this node, as a member of its group, is over. Whether the node has owned the object all along.
    fn leave(&self, key: FileKey, id: HoldId) -> bool {
        let now = self.now();
        let good = {
            let mut inner = self.inner.lock();
            let Inner { owner, groups, .. } = &mut *inner;
            groups.leave(owner, key, id, now)
        };
        self.changed.notify_waiters();
        good
    }

    /// Another node's change of one of our objects begins.
    pub(super) async fn hold_for(
        &self,
        from: NodeId,
        epoch: u64,
        export: &str,
        wish: (ObjectId, u64, Vec<Bytes>),
    ) -> Answer {
        let (object, number, names) = wish;
        let Some(subject) = self.subject(export) else { return Answer::Failed(SourceError::BadHandle) };
        if self.inner.lock().held.len() >= HOLDS_MAX {
            return Answer::Refused(Refusal::Busy);
        }
        let key = subject.key(&object);
        self.inner.lock().owner.forgot(from, key, number);
        let wish = Wish { by: from, epoch, key, number, names: names.clone() };
        let id = match self.enter(wish, Instant::now() + HOLD_WAIT / 2).await {
            Ok(id) => id,
            Err(refusal) => return Answer::Refused(refusal),
        };
        let names = subject.names(&object, &names);
        let began = subject.change_begins(&object);
        let held = Held { by: from, key, export: export.to_owned(), object, began, since: Instant::now() };
        self.inner.lock().held.insert(id.0, held);
        Answer::Held { hold: id.0, names }
    }

    /// And is over.
    pub(super) fn let_go_for(&self, from: Option<NodeId>, id: u64, after: Option<&FileAttributes>) -> bool {
        let held = {
            let mut inner = self.inner.lock();
            if from.is_some_and(|from| inner.held.get(&id).is_some_and(|held| held.by != from)) {
                return false;
            }
            inner.held.remove(&id)
        };
        let Some(held) = held else { return false };
        // Before anybody may be told anything again.
        if let Some(subject) = self.subject(&held.export) {
            subject.change_ends(&held.object, held.began, after);
        }
        self.leave(held.key, HoldId(id))
    }

    /// A change is over; returns when it may be answered.
    pub async fn let_go(mut hold: Hold, after: Option<&FileAttributes>) {
        let coherence = hold.coherence.clone();
        let mut good = coherence.let_go_once(&mut hold, after).await;
        // Somebody else owned the object meanwhile, or may have: whoever owns it now is to see that it changed.
        while !good && !coherence.stop.is_cancelled() {
            let number = coherence.inner.lock().holder.change_begins(hold.key);
            let until = Instant::now() + HOLD_WAIT;
            let held = coherence.try_hold(&mut hold, &[], number, false, until).await;
            coherence.inner.lock().holder.change_ends(hold.key);
            good = held && coherence.let_go_once(&mut hold, None).await;
            if !good {
                coherence.wait_a_little().await;
            }
        }
    }

    async fn let_go_once(&self, hold: &mut Hold, after: Option<&FileAttributes>) -> bool {
        if let Some(began) = hold.told.take()
            && let Some(subject) = self.subject(&hold.export)
        {
            subject.change_ends(&hold.object, began, after);
        }
        match hold.place.take() {
            Some(HeldAt::Here(id)) => self.leave(hold.key, id),
            Some(HeldAt::There(node, id)) => {
                let after = after.cloned().map(Box::new);
                let question = Question::LetGo { hold: id, object: hold.object, after };
                matches!(self.question(node, &hold.export, question).await, Ok(Answer::LetGo(true)))
            }
            None => false,
        }
    }
}

/// Leaves a group unless it is told not to.
struct Leaving<'a> {
    coherence: &'a Coherence,
    key: FileKey,
    id: HoldId,
    armed: bool,
}

impl Leaving<'_> {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.coherence.leave(self.key, self.id);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let is_over = self.place.is_none() && self.told.is_none();
        if is_over || self.is_abandoned || self.coherence.stop.is_cancelled() {
            if let (Some(began), Some(subject)) = (self.told, self.coherence.subject(&self.export)) {
                subject.change_ends(&self.object, began, None);
            }
            if let Some(HeldAt::Here(id)) = self.place {
                self.coherence.leave(self.key, id);
            }
            self.coherence.inner.lock().holder.change_ends(self.key);
            return;
        }
        // Its future was dropped: what it did is not known.
        let rest = Hold {
            coherence: self.coherence.clone(),
            export: std::mem::take(&mut self.export),
            object: self.object,
            key: self.key,
            place: self.place.take(),
            told: self.told.take(),
            is_abandoned: true,
            names: Vec::new(),
        };
        // The change goes on as the other's: nothing may be believed in between, so it is not ended here.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(Coherence::let_go(rest, None));
        }
    }
}
