//! Who should vote: pure judgement of the leader's view of its cluster.
//!
//! Owns: the rule by which members come, vote, and go. Never does: changing anything; the leader carries out one [`Step`] at a time and asks
//! again. Invariants: a voter that is alive and eligible is never replaced for a better one; voters are an odd number; nobody votes
//! whose log is far behind.

use std::collections::{BTreeMap, BTreeSet};

use crate::state::{NodeId, NodeRecord, NodeState, Nodes};

/// How far behind a new voter's log may be: some milliseconds of a busy leader's work.
const LAG_MAX: u64 = 1_000;

/// What the leader knows of its group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Members that vote.
    pub voters: BTreeSet<NodeId>,
    /// Members that do not.
    pub learners: BTreeSet<NodeId>,
    /// How many entries each member's log is behind; absent while the leader has not heard of it.
    pub lag: BTreeMap<NodeId, u64>,
    /// For how long each member has not answered, in milliseconds; absent while it answers.
    pub silent_ms: BTreeMap<NodeId, u64>,
}

/// What the owner of the cluster wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// The most voters: 1, 3, 5 or 7.
    pub voters: usize,
    /// For how long a voter may be silent before another takes its place, in milliseconds.
    pub patience_ms: u64,
}

impl Default for Wishes {
    fn default() -> Self {
        // Longer than an election and a restart of the process, shorter than an operator notices.
        Wishes { voters: 3, patience_ms: 5_000 }
    }
}

/// What the leader should do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A node that the plane knows becomes a member.
    AddLearner(NodeId),
    /// From now on these vote; members that voted and are not among them stay as learners.
    SetVoters(BTreeSet<NodeId>),
    /// A node that the plane does not know any more is a member no longer. It does not vote.
    RemoveLearner(NodeId),
}

/// The next step, if anything is to be done. `leader` is the one who asks.
pub fn next_step(nodes: &Nodes, group: &Group, leader: NodeId, wishes: Wishes) -> Option<Step> {
    let is_member = |id: &NodeId| group.voters.contains(id) || group.learners.contains(id);
    if let Some((id, _)) = nodes.iter().find(|(id, _)| !is_member(id)) {
        return Some(Step::AddLearner(id));
    }
    let voters = chosen(nodes, group, leader, wishes);
    if voters != group.voters && !voters.is_empty() {
        return Some(Step::SetVoters(voters));
    }
    group.learners.iter().find(|id| nodes.node(**id).is_none()).copied().map(Step::RemoveLearner)
}

/// The best set of voters that can be had now.
fn chosen(nodes: &Nodes, group: &Group, leader: NodeId, wishes: Wishes) -> BTreeSet<NodeId> {
    let fit = |id: &NodeId| nodes.node(*id).is_some_and(|node| is_well(*id, node, group, leader, wishes));
    let mut voters: BTreeSet<NodeId> = group.voters.iter().copied().filter(fit).collect();
    let mut candidates: Vec<NodeId> = group.learners.iter().copied().filter(fit).collect();
    candidates.retain(|id| group.lag.get(id).is_some_and(|lag| *lag <= LAG_MAX));

    give_way_to_eligible(nodes, &mut voters, &candidates, leader);
    while voters.len() < wishes.voters {
        let Some(best) = best_of(nodes, &voters, &candidates) else { break };
        voters.insert(best);
        candidates.retain(|id| *id != best);
    }
    // Nobody is dropped before somebody else stands ready: a voter that is silent still counts once it is back.
    let mut missing: Vec<NodeId> =
        group.voters.iter().copied().filter(|id| !voters.contains(id) && nodes.node(*id).is_some()).collect();
    while voters.len().is_multiple_of(2) || voters.len() < group.voters.len().min(wishes.voters) {
        let Some(kept) = missing.pop() else { break };
        voters.insert(kept);
    }
    // One too many for an odd number, or more than are wished for.
    while voters.len().is_multiple_of(2) || voters.len() > wishes.voters.max(1) {
        let unneeded = voters.iter().copied().filter(|id| *id != leader).max_by_key(|id| worth(nodes, &voters, *id));
        let Some(unneeded) = unneeded else { break };
        voters.remove(&unneeded);
    }
    voters
}

/// Spot instances vote only while there are not enough others.
fn give_way_to_eligible(nodes: &Nodes, voters: &mut BTreeSet<NodeId>, candidates: &[NodeId], leader: NodeId) {
    let may_vote = |id: NodeId| nodes.node(id).is_some_and(|node| node.description.may_vote);
    let mut better: Vec<NodeId> = candidates.iter().copied().filter(|id| may_vote(*id)).collect();
    let stopgaps: Vec<NodeId> = voters.iter().copied().filter(|id| !may_vote(*id) && *id != leader).collect();
    for stopgap in stopgaps {
        let others: BTreeSet<NodeId> = voters.iter().copied().filter(|id| *id != stopgap).collect();
        let Some(best) = best_of(nodes, &others, &better) else { return };
        better.retain(|id| *id != best);
        *voters = others;
        voters.insert(best);
    }
}

/// Alive, and meant to stay.
fn is_well(id: NodeId, node: &NodeRecord, group: &Group, leader: NodeId, wishes: Wishes) -> bool {
    let silent = group.silent_ms.get(&id).is_some_and(|silent| *silent > wishes.patience_ms);
    id == leader || (!silent && node.state != NodeState::Draining)
}

/// The candidate whose loss together with the others' is least likely.
fn best_of(nodes: &Nodes, voters: &BTreeSet<NodeId>, candidates: &[NodeId]) -> Option<NodeId> {
    candidates.iter().copied().min_by_key(|id| worth(nodes, voters, *id))
}

/// Less is better: eligible before Spot, a zone with few voters before others, then by id.
fn worth(nodes: &Nodes, voters: &BTreeSet<NodeId>, id: NodeId) -> (bool, usize, NodeId) {
    let Some(node) = nodes.node(id) else { return (true, usize::MAX, id) };
    let zone = &node.description.zone;
    let others = voters.iter().filter(|voter| **voter != id);
    let neighbours = others.filter(|voter| nodes.node(**voter).is_some_and(|other| other.description.zone == *zone));
    (!node.description.may_vote, neighbours.count(), id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Changes, Command, NodeDescription, State};

    /// Nodes 1… in zones, some of which may vote.
    fn cluster(nodes: &[(&str, bool)]) -> State {
        let mut state = State::default();
        for (place, (zone, may_vote)) in nodes.iter().enumerate() {
            let node = NodeId(place as u64 + 1);
            let description = NodeDescription {
                nfs: String::new(),
                peer: String::new(),
                control: String::new(),
                zone: (*zone).into(),
                weight: 1,
                may_vote: *may_vote,
            };
            state.apply(&Command::Join { node, description }, &mut Changes::default());
        }
        state
    }

    fn ids(list: &[u64]) -> BTreeSet<NodeId> {
        list.iter().copied().map(NodeId).collect()
    }

    fn group(voters: &[u64], learners: &[u64]) -> Group {
        let lag = voters.iter().chain(learners).map(|id| (NodeId(*id), 0)).collect();
        Group { voters: ids(voters), learners: ids(learners), lag, silent_ms: BTreeMap::new() }
    }

    /// What the leader would come to, step by step.
    fn settle(state: &State, group: &mut Group, leader: u64) {
        for _ in 0..50 {
            match next_step(&state.nodes, group, NodeId(leader), Wishes::default()) {
                None => return,
                Some(Step::AddLearner(id)) => {
                    assert!(group.learners.insert(id));
                    group.lag.insert(id, 0);
                }
                Some(Step::SetVoters(voters)) => {
                    assert_ne!(voters, group.voters);
                    let all: BTreeSet<NodeId> = group.voters.union(&group.learners).copied().collect();
                    assert!(voters.is_subset(&all), "only members vote");
                    group.learners = all.difference(&voters).copied().collect();
                    group.voters = voters;
                }
                Some(Step::RemoveLearner(id)) => assert!(group.learners.remove(&id)),
            }
        }
        panic!("no end: {group:?}");
    }

    #[test]
    fn a_cluster_grows_to_three_voters_in_three_zones() {
        let state = cluster(&[("a", true), ("a", true), ("b", true), ("c", true), ("a", false)]);
        let mut group = group(&[1], &[]);
        settle(&state, &mut group, 1);
        assert_eq!((&group.voters, &group.learners), (&ids(&[1, 3, 4]), &ids(&[2, 5])));
        let pair = cluster(&[("a", true), ("b", true)]);
        let mut two = super::tests::group(&[1], &[]);
        settle(&pair, &mut two, 1);
        assert_eq!(two.voters, ids(&[1]), "two voters survive less than one");
    }

    #[test]
    fn who_is_behind_does_not_vote_yet() {
        let state = cluster(&[("a", true), ("b", true), ("c", true)]);
        let mut group = group(&[1], &[2, 3]);
        group.lag.insert(NodeId(3), LAG_MAX + 1);
        settle(&state, &mut group, 1);
        assert_eq!(group.voters, ids(&[1]));
        group.lag.insert(NodeId(3), LAG_MAX);
        settle(&state, &mut group, 1);
        assert_eq!(group.voters, ids(&[1, 2, 3]));
    }

    #[test]
    fn a_silent_voter_is_replaced_once_and_only_by_somebody() {
        let state = cluster(&[("a", true), ("b", true), ("c", true), ("c", false)]);
        let mut group = group(&[1, 2, 3], &[4]);
        group.silent_ms.insert(NodeId(3), 4_000);
        settle(&state, &mut group, 1);
        assert_eq!(group.voters, ids(&[1, 2, 3]), "it may be restarting");
        group.silent_ms.insert(NodeId(3), 6_000);
        settle(&state, &mut group, 1);
        assert_eq!(group.voters, ids(&[1, 2, 4]), "better a Spot instance than nobody");
        group.silent_ms.insert(NodeId(2), 6_000);
        settle(&state, &mut group, 1);
        assert_eq!(group.voters, ids(&[1, 2, 4]), "nobody is there to take its place");
        group.silent_ms.clear();
        settle(&state, &mut group, 1);
        assert_eq!(group.voters, ids(&[1, 2, 3]), "an On-Demand instance is back");
    }

    #[test]
    fn who_drains_or_left_does_not_vote() {
        let mut state = cluster(&[("a", true), ("b", true), ("c", true), ("b", true)]);
        let mut group = group(&[1, 2, 3], &[4]);
        state.apply(&Command::StartEpoch { node: NodeId(2) }, &mut Changes::default());
        let drain = Command::SetNodeState { node: NodeId(2), epoch: 1, state: NodeState::Draining };
        state.apply(&drain, &mut Changes::default());
        settle(&state, &mut group, 1);
        assert_eq!(group.voters, ids(&[1, 3, 4]));
        for gone in [2, 3] {
            state.apply(&Command::Leave { node: NodeId(gone) }, &mut Changes::default());
        }
        settle(&state, &mut group, 1);
        assert_eq!((&group.voters, group.learners.len()), (&ids(&[1]), 1), "of two one votes; who left is no member");
    }

    #[test]
    fn whatever_happens_it_settles_with_an_odd_number_of_members() {
        for seed in 1..2_000_u64 {
            let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut next = |below: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % below
            };
            let size = next(7) + 1;
            let kinds: Vec<_> = (0..size).map(|_| (["a", "b", "c"][next(3) as usize], next(3) > 0)).collect();
            let state = cluster(&kinds);
            let mut group = group(&[1], &[]);
            settle(&state, &mut group, 1);
            for _ in 0..10 {
                let id = NodeId(next(size) + 1);
                match next(4) {
                    0 => drop(group.silent_ms.insert(id, next(10_000))),
                    1 => drop(group.silent_ms.remove(&id)),
                    2 => drop(group.lag.insert(id, next(2 * LAG_MAX))),
                    _ => group.silent_ms.clear(),
                }
                let before = group.voters.clone();
                settle(&state, &mut group, 1);
                assert!(group.voters.len() % 2 == 1 && group.voters.len() <= 3, "seed {seed}: {group:?}");
                assert!(group.voters.contains(&NodeId(1)), "seed {seed}: the leader goes on voting");
                assert!(
                    group.voters.len() >= before.len(),
                    "seed {seed}: silence alone costs no vote: {before:?} {group:?}"
                );
            }
        }
    }
}
