//! Changes that run together: of one object several may be under way, and to its owner they are one.
//!
//! Owns: which changes of which object are under way on this node as its owner, and the names they touch. Never does: waiting, asking; it
//! is pure. Invariants: nobody joins a group before everybody has forgotten the object; of one name in a directory one change is under way.

use std::collections::HashMap;

use bytes::Bytes;
use forebay_meta::state::{FileKey, NodeId};

use super::owner::{Begun, MutationId, Owner, Refusal};

/// A change under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HoldId(pub u64);

#[derive(Debug)]
struct Group {
    mutation: MutationId,
    is_ready: bool,
    members: Vec<HoldId>,
    names: Vec<(HoldId, Bytes)>,
}

/// Who wants to change what.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Who.
    pub by: NodeId,
    /// The ring by which it knows that this node is the owner.
    pub epoch: u64,
    /// What.
    pub key: FileKey,
    /// Of the change, by its node's count.
    pub number: u64,
    /// In a directory: names.
    pub names: Vec<Bytes>,
}

/// What became of a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entered {
    /// A member; the group may go on at once, or once these have forgotten.
    Member(HoldId, Option<(MutationId, Vec<NodeId>)>),
    /// Another change is in the way, or the owner is not ready: ask again soon.
    Wait,
    /// This node is not the owner.
    Refused(Refusal),
}

/// All of them.
#[derive(Debug, Default)]
pub struct Groups {
    by_key: HashMap<FileKey, Group>,
    next: u64,
}

impl Groups {
    /// Begins or joins.
    pub fn enter(&mut self, owner: &mut Owner, wish: &Wish, now: u64) -> Entered {
        let hold = HoldId(self.next + 1);
        if let Some(group) = self.by_key.get_mut(&wish.key) {
            let overlaps = group.names.iter().any(|(_, name)| wish.names.contains(name));
            if !group.is_ready || overlaps || !owner.may_proceed(group.mutation, now) {
                return Entered::Wait;
            }
            if wish.epoch != owner.epoch() {
                return Entered::Refused(Refusal::StaleRing(owner.epoch()));
            }
            self.next = hold.0;
            group.members.push(hold);
            group.names.extend(wish.names.iter().map(|name| (hold, name.clone())));
            return Entered::Member(hold, None);
        }
        let (mutation, recall) = match owner.begin(wish.by, wish.epoch, wish.key, wish.number, now) {
            Begun::Ready(mutation) => (mutation, None),
            Begun::Recall(mutation, nodes) => (mutation, Some((mutation, nodes))),
            Begun::Refused(Refusal::NoLease | Refusal::Settling | Refusal::Busy) => return Entered::Wait,
            Begun::Refused(refusal) => return Entered::Refused(refusal),
        };
        self.next = hold.0;
        let names = wish.names.iter().map(|name| (hold, name.clone())).collect();
        self.by_key.insert(wish.key, Group { mutation, is_ready: recall.is_none(), members: vec![hold], names });
        Entered::Member(hold, recall)
    }

    /// Everybody has forgotten what the change is of.
    pub fn ready(&mut self, mutation: MutationId) {
        let group = self.by_key.values_mut().find(|group| group.mutation == mutation);
        group.into_iter().for_each(|group| group.is_ready = true);
    }

    /// Whether a member may change the object now; `None` while not everybody has forgotten it.
    pub fn may_proceed(&self, owner: &Owner, key: FileKey, now: u64) -> Option<bool> {
        let group = self.by_key.get(&key)?;
        group.is_ready.then(|| owner.may_proceed(group.mutation, now))
    }

    /// A member's change is over. Whether this node has owned the object all along.
    pub fn leave(&mut self, owner: &mut Owner, key: FileKey, hold: HoldId, now: u64) -> bool {
        let Some(group) = self.by_key.get_mut(&key) else { return false };
        let Some(place) = group.members.iter().position(|member| *member == hold) else { return false };
        group.members.swap_remove(place);
        group.names.retain(|(member, _)| *member != hold);
        let good = group.is_ready && owner.may_proceed(group.mutation, now);
        if !group.members.is_empty() {
            return good;
        }
        let mutation = group.mutation;
        self.by_key.remove(&key);
        owner.finish(mutation, now) && good
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Arc};

    use super::{super::owner::Ring, *};

    const ME: NodeId = NodeId(1);
    const KEY: FileKey = FileKey { fsid: 0, fileid: 7 };

    fn owner() -> Owner {
        let mut owner = Owner::new(ME, 0, 0);
        owner.ring_changed(
            Ring { epoch: 1, members: BTreeSet::from([ME]), placement: Arc::new(|_| Some(ME)) },
            &BTreeSet::new(),
        );
        owner.leased(10_000, 3_000);
        owner.tick(10_000);
        owner
    }

    fn wish(names: &[&'static str]) -> Wish {
        let names = names.iter().map(|name| Bytes::from_static(name.as_bytes())).collect();
        Wish { by: ME, epoch: 1, key: KEY, number: 1, names }
    }

    #[test]
    fn changes_run_together_but_for_those_of_one_name() {
        let (mut owner, mut groups) = (owner(), Groups::default());
        let Entered::Member(first, None) = groups.enter(&mut owner, &wish(&["a"]), 10_001) else { panic!() };
        let Entered::Member(second, None) = groups.enter(&mut owner, &wish(&["b"]), 10_002) else { panic!() };
        assert_eq!(groups.enter(&mut owner, &wish(&["c", "a"]), 10_003), Entered::Wait);
        assert!(!owner.may_tell(KEY, 10_003));
        assert!(groups.leave(&mut owner, KEY, first, 10_004));
        assert!(!groups.leave(&mut owner, KEY, first, 10_004), "it has left");
        let Entered::Member(third, None) = groups.enter(&mut owner, &wish(&["c", "a"]), 10_005) else { panic!() };
        assert!(groups.leave(&mut owner, KEY, second, 10_006) && groups.leave(&mut owner, KEY, third, 10_007));
        assert!(owner.may_tell(KEY, 10_008) && groups.by_key.is_empty());
    }

    #[test]
    fn nobody_joins_before_all_have_forgotten_and_a_lease_that_ends_is_told() {
        let (mut owner, mut groups) = (owner(), Groups::default());
        let holder = NodeId(2);
        let heartbeat = super::super::Heartbeat { from: holder, incarnation: None, epoch: 1 };
        owner.heartbeat(heartbeat, 10_001);
        owner.grant(holder, 1, KEY, 1, 10_002);
        let Entered::Member(first, Some((mutation, recall))) = groups.enter(&mut owner, &wish(&[]), 10_003) else {
            panic!()
        };
        assert_eq!(recall, [holder]);
        assert_eq!(groups.may_proceed(&owner, KEY, 10_004), None);
        assert_eq!(groups.enter(&mut owner, &wish(&[]), 10_004), Entered::Wait);
        assert!(owner.acknowledged(mutation, holder));
        groups.ready(mutation);
        assert_eq!(groups.may_proceed(&owner, KEY, 10_005), Some(true));
        let Entered::Member(second, None) = groups.enter(&mut owner, &wish(&[]), 10_005) else { panic!() };
        assert!(groups.leave(&mut owner, KEY, first, 10_006));
        assert!(!groups.leave(&mut owner, KEY, second, 99_999), "the node lease is over");
    }
}
