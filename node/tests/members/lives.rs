//! How clusters begin, and what becomes of nodes.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use crate::farm::Farm;

fn ids(farm: &Farm) -> BTreeSet<u64> {
    farm.running().into_iter().map(|node| farm.members(node).unwrap().me).collect()
}

/// However far apart they start, in whatever order: one cluster.
#[test]
fn nodes_that_start_together_or_apart_begin_one_cluster() {
    for (order, pause) in [([0, 1, 2], 0), ([2, 0, 1], 400), ([1, 2, 0], 1_500)] {
        let mut farm = Farm::new(3);
        for node in order {
            farm.start(node);
            std::thread::sleep(Duration::from_millis(pause));
        }
        farm.wait_for_ring();
        assert_eq!(ids(&farm), BTreeSet::from([1, 2, 3]), "{order:?}");
        let members = farm.members(0).unwrap();
        farm.wait_for_voters();
        assert_eq!(members.name, "farm");
    }
}

/// A node that comes back is the same; one that has lost its disk is another; the dead one's vote goes to one that lives.
#[test]
fn nodes_come_back_are_replaced_and_are_more() {
    let mut farm = Farm::new(3);
    (0..3).for_each(|node| farm.start(node));
    farm.wait_for_ring();
    let before = farm.members(1).unwrap().me;
    farm.nodes[1].as_mut().unwrap().terminate();
    farm.nodes[1] = None;
    farm.start(1);
    farm.wait_for_ring();
    assert_eq!(farm.members(1).unwrap().me, before, "it keeps its id");

    farm.start(3);
    farm.wait_for_ring();
    assert_eq!(farm.members(3).unwrap().me, 4);
    farm.wait_for_voters();
    farm.kill(2);
    let dead = (1..=4).find(|id| !ids(&farm).contains(id)).unwrap();
    farm.wait("the new node votes in place of the dead one", || {
        farm.members(0).is_some_and(|members| {
            let voters: BTreeSet<u64> =
                members.nodes.iter().filter(|node| node.role == "voter").map(|node| node.node).collect();
            voters.len() == 3 && !voters.contains(&dead)
        })
    });
    farm.wait("the dead node owns nothing", || farm.members(0).is_some_and(|members| members.ring_members == 3));

    farm.wipe(2);
    farm.start(2);
    farm.wait_for_ring_of(4);
    assert_eq!(farm.members(2).unwrap().me, 5, "without its disk it is another");
}

/// The leader dies by kill -9: commands go through again within three seconds.
#[test]
fn a_dead_leader_is_replaced_within_seconds() {
    let mut farm = Farm::new(3);
    (0..3).for_each(|node| farm.start(node));
    farm.wait_for_ring();
    farm.wait_for_voters();
    let leader = farm.members(0).unwrap().leader.unwrap();
    let node = (0..3).find(|node| farm.members(*node).unwrap().me == leader).unwrap();
    farm.kill(node);
    let died = Instant::now();
    let left = farm.running();
    farm.wait("another leader", || {
        left.iter().all(|node| farm.members(*node).is_some_and(|seen| seen.leader.is_some_and(|now| now != leader)))
    });
    let took = died.elapsed();
    println!("another leader after {took:?}");
    assert!(took < Duration::from_secs(3), "{took:?}");
    farm.start(node);
    farm.wait_for_ring();
    assert!(farm.source_is_there());
}

impl Farm {
    /// Until any one node may die.
    pub fn wait_for_voters(&self) {
        self.wait("three voters", || {
            let members = self.running().into_iter().find_map(|node| self.members(node));
            members.is_some_and(|members| members.nodes.iter().filter(|node| node.role == "voter").count() == 3)
        });
    }

    /// As [`Farm::wait_for_ring`], with so many in it.
    fn wait_for_ring_of(&self, members: usize) {
        self.wait("a ring of all", || {
            self.running().into_iter().all(|node| self.members(node).is_some_and(|seen| seen.ring_members == members))
        });
    }
}
