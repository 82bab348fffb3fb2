//! The holder's side: what this node may believe of other owners' files.
//!
//! Invariants: nothing is believed beyond its pair lease, under another incarnation, or of a node that is not the owner in the ring that this
//! node goes by; an answer that was on its way when the file was recalled is used once and not believed.

use std::collections::{BTreeMap, HashMap};

use forebay_meta::state::{FileKey, NodeId};

use super::owner::{Heartbeat, HeartbeatReply, Ring};

/// Files that are believed at most, at about 64 bytes each. Beyond that some are forgotten, which costs a question when they are wanted.
const BELIEVED_MAX: usize = 512 << 10;

#[derive(Debug, Clone, Copy)]
struct PairLease {
    incarnation: u64,
    until: u64,
}

#[derive(Debug, Clone, Copy)]
struct Believed {
    owner: NodeId,
    incarnation: u64,
    /// Of the question whose answer it is.
    number: u64,
}

/// Questions and changes of one file that are under way.
#[derive(Debug, Default)]
struct UnderWay {
    asks: u32,
    changes: u32,
    /// Counts up with each recall.
    recalls: u64,
}

/// A question to an owner that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// The file.
    pub file: FileKey,
    /// Counts up with each question and change of this node.
    pub number: u64,
    /// The ring that the question goes by.
    pub epoch: u64,
    recalls: u64,
}

/// One node as a holder.
#[derive(Debug)]
pub struct Holder {
    me: NodeId,
    ring: Option<Ring>,
    pairs: BTreeMap<NodeId, PairLease>,
    believed: HashMap<FileKey, Believed>,
    under_way: HashMap<FileKey, UnderWay>,
    number: u64,
}

impl Holder {
    /// One that believes nothing. `number` is higher than any that an earlier process of the node used.
    pub fn new(me: NodeId, number: u64) -> Holder {
        Holder { me, ring: None, pairs: BTreeMap::new(), believed: HashMap::new(), under_way: HashMap::new(), number }
    }

    /// The epoch of the ring that it goes by; 0 if there is none yet.
    pub fn epoch(&self) -> u64 {
        self.ring.as_ref().map_or(0, |ring| ring.epoch)
    }

    /// A new ring: what moved is not believed any more, which is everything if rings were left out. Only afterwards may a heartbeat say that it
    /// was seen.
    pub fn ring_changed(&mut self, ring: Ring) {
        if ring.epoch <= self.epoch() {
            return;
        }
        if ring.epoch > self.epoch() + 1 {
            self.believed.clear();
        }
        self.believed.retain(|file, believed| (ring.placement)(*file) == Some(believed.owner));
        self.ring = Some(ring);
    }

    /// The heartbeat to send to an owner now.
    pub fn heartbeat(&self, owner: NodeId) -> Heartbeat {
        let incarnation = self.pairs.get(&owner).map(|pair| pair.incarnation);
        Heartbeat { from: self.me, incarnation, epoch: self.epoch() }
    }

    /// What came back on the heartbeat that was sent at `sent`.
    pub fn heartbeat_answered(&mut self, owner: NodeId, sent: u64, reply: HeartbeatReply) {
        let HeartbeatReply::Lease { incarnation, valid_ms } = reply else { return };
        let until = sent + valid_ms;
        match self.pairs.get_mut(&owner) {
            // A reply that was overtaken by one of a newer incarnation says nothing.
            Some(pair) if pair.incarnation > incarnation => {}
            Some(pair) if pair.incarnation == incarnation => pair.until = pair.until.max(until),
            _ => drop(self.pairs.insert(owner, PairLease { incarnation, until })),
        }
    }

    /// Whether what is cached of the file may be told without asking.
    pub fn believes(&self, file: FileKey, now: u64) -> bool {
        self.believed(file, now).is_some()
    }

    /// The number of the question whose answer may be told without asking again.
    pub fn believed(&self, file: FileKey, now: u64) -> Option<u64> {
        let believed = self.believed.get(&file)?;
        let pair = self.pairs.get(&believed.owner)?;
        (pair.incarnation == believed.incarnation && now < pair.until).then_some(believed.number)
    }

    /// Whether anything that an owner grants now could be believed.
    pub fn is_paired(&self, owner: NodeId, now: u64) -> bool {
        self.pairs.get(&owner).is_some_and(|pair| now < pair.until)
    }

    /// A question to the owner begins; `None` while a change by this node is under way: its reply will tell.
    pub fn ask(&mut self, file: FileKey) -> Option<Ask> {
        let epoch = self.epoch();
        let state = self.under_way.entry(file).or_default();
        if state.changes > 0 {
            return None;
        }
        state.asks += 1;
        self.number += 1;
        Some(Ask { file, number: self.number, epoch, recalls: state.recalls })
    }

    /// The question is over. With a grant from the owner, the answer may be believed from now on; `false` if it must not be: it is of before a
    /// recall, or of another ring.
    pub fn asked(&mut self, ask: Ask, grant: Option<(NodeId, u64)>) -> bool {
        let Some(state) = self.under_way.get_mut(&ask.file) else { return false };
        state.asks = state.asks.saturating_sub(1);
        let overtaken = state.recalls != ask.recalls || state.changes > 0;
        self.forget_if_idle(ask.file);
        let Some((owner, incarnation)) = grant else { return false };
        if overtaken || ask.epoch != self.epoch() || self.owner_of(ask.file) != Some(owner) {
            return false;
        }
        if self.believed.len() >= BELIEVED_MAX {
            let some: Vec<FileKey> = self.believed.keys().take(BELIEVED_MAX / 16).copied().collect();
            for file in some {
                self.believed.remove(&file);
            }
        }
        let news = Believed { owner, incarnation, number: ask.number };
        let known = self.believed.entry(ask.file).or_insert(news);
        // Of two answers that came in the other order the later question's counts.
        if known.number <= news.number {
            *known = news;
        }
        true
    }

    /// The owner takes a file back, or this node is about to change it.
    pub fn recall(&mut self, file: FileKey) {
        self.believed.remove(&file);
        if let Some(state) = self.under_way.get_mut(&file) {
            state.recalls += 1;
        }
    }

    /// A change by this node begins: what was believed is forgotten before the owner is asked. Returns the change's number.
    pub fn change_begins(&mut self, file: FileKey) -> u64 {
        self.under_way.entry(file).or_default().changes += 1;
        self.recall(file);
        self.number += 1;
        self.number
    }

    /// The change is over.
    pub fn change_ends(&mut self, file: FileKey) {
        if let Some(state) = self.under_way.get_mut(&file) {
            state.changes = state.changes.saturating_sub(1);
        }
        self.forget_if_idle(file);
    }

    /// Who owns a file in the ring that this node goes by.
    pub fn owner_of(&self, file: FileKey) -> Option<NodeId> {
        self.ring.as_ref().and_then(|ring| (ring.placement)(file))
    }

    /// How many files are believed.
    pub fn len(&self) -> usize {
        self.believed.len()
    }

    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.believed.is_empty()
    }

    fn forget_if_idle(&mut self, file: FileKey) {
        if self.under_way.get(&file).is_some_and(|state| state.asks == 0 && state.changes == 0) {
            self.under_way.remove(&file);
        }
    }
}
