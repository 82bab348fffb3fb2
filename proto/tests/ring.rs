//! What the ring promises: the same placement for ever, an even load, weights, and that no more moves than must.
//!
//! `FOREBAY_WRITE_GOLDEN=1` writes the golden placements anew; another result than the committed one moves data in every
//! cluster there is.
#![allow(clippy::unwrap_used, reason = "in a test, failing where one stands is what is wanted")]

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use forebay_proto::cluster::{FileKey, NodeId, Ring, RingEpoch, RingError, STRIPE_BYTES, Stripe, Weight, moved};

/// What a figure of the simulation is made of.
const KEYS: u64 = 1_000_000;
/// How far from ideal a moved share may be, as a share of the ideal.
const MOVED_TOLERANCE: f64 = 0.05;
/// The most loaded node over the mean.
const SPREAD_MAX: f64 = 1.25;

fn ring(members: impl IntoIterator<Item = (u64, u32)>) -> Ring {
    let members: Vec<_> =
        members.into_iter().map(|(node, weight)| (NodeId(node), Weight::new(weight).unwrap())).collect();
    Ring::new(RingEpoch(1), &members).unwrap()
}

fn usual(nodes: impl IntoIterator<Item = u64>) -> Ring {
    ring(nodes.into_iter().map(|node| (node, Weight::STANDARD.units())))
}

/// Files as they occur: a few file systems, numbers in sequence or with gaps.
fn key(number: u64) -> FileKey {
    FileKey { fsid: (number % 3) as u32, fileid: 2 + number / 3 * (1 + number % 7) }
}

fn loads(ring: &Ring, keys: u64) -> BTreeMap<NodeId, u64> {
    let mut loads: BTreeMap<_, _> = ring.members().iter().map(|(node, _)| (*node, 0)).collect();
    (0..keys).for_each(|number| *loads.get_mut(&ring.file_owner(key(number))).unwrap() += 1);
    loads
}

#[test]
fn placements_are_what_they_were() {
    let memberships: &[&[(u64, u32)]] = &[
        &[(1, 64)],
        &[(1, 64), (2, 64), (3, 64)],
        &[(1, 1), (7, 1024), (u64::MAX, 300), (1 << 40, 64)],
        &[(11, 64), (12, 64), (13, 32), (14, 128), (15, 64), (16, 64), (17, 96)],
    ];
    let mut told =
        String::from("# members (node:weight), then: fsid fileid offset = owner, then the others in order\n");
    for members in memberships {
        let list: Vec<_> = members.iter().map(|(node, weight)| format!("{node}:{weight}")).collect();
        writeln!(told, "members {}", list.join(" ")).unwrap();
        let ring = ring(members.iter().copied());
        for number in 0..24_u64 {
            let fileid = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (number % 5 * 12);
            let (key, offset) = (FileKey { fsid: (number % 4) as u32, fileid }, number % 3 * (STRIPE_BYTES + 1));
            let order: Vec<_> = ring.preference(key, Stripe::of(offset)).map(|node| node.0.to_string()).collect();
            assert_eq!(order[0], ring.data_owner(key, offset).0.to_string());
            writeln!(told, "{} {} {offset} = {}", key.fsid, key.fileid, order.join(" ")).unwrap();
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/ring-v1.txt");
    if std::env::var_os("FOREBAY_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &told).unwrap();
    }
    assert_eq!(told, std::fs::read_to_string(path).unwrap(), "placements changed");
}

#[test]
fn the_order_of_members_makes_no_difference() {
    let (one, other) = (usual([5, 3, 9, 1]), usual([1, 9, 3, 5]));
    (0..10_000).for_each(|number| assert_eq!(one.file_owner(key(number)), other.file_owner(key(number))));
    assert_eq!(moved(&one, &other), 0.0);
}

#[test]
fn load_is_spread_evenly() {
    for nodes in [3, 4, 5, 8, 13, 21, 34, 55, 100] {
        // Numbers of nodes are not always 1, 2, 3: some have gone, and each fleet has its own.
        for first in [1, 1_000_003] {
            let ring = usual((0..nodes).map(|node| first + node * 3));
            let loads = loads(&ring, KEYS);
            let mean = KEYS as f64 / nodes as f64;
            let (least, most) = (loads.values().min().unwrap(), loads.values().max().unwrap());
            let (least, most) = (*least as f64 / mean, *most as f64 / mean);
            println!("{nodes:3} nodes from {first}: max/mean {most:.3}, min/mean {least:.3} over {KEYS} keys");
            assert!(most <= SPREAD_MAX, "{nodes} nodes: {most}");
        }
    }
}

/// Files of one file system in the order in which most make them: where nodes and files are hashed too much alike, a node
/// gets thousands of neighbours too many.
#[test]
fn files_made_one_after_the_other_are_spread_evenly() {
    let ring = usual(1..=100);
    for fsid in 0..4 {
        let mut loads = BTreeMap::new();
        let files = (0..100_000).map(|fileid| FileKey { fsid, fileid });
        files.for_each(|file| *loads.entry(ring.file_owner(file)).or_insert(0_u64) += 1);
        let most = *loads.values().max().unwrap() as f64 / 1e3;
        println!("fsid {fsid}: max/mean {most:.3} of 100 nodes over the first 100,000 files");
        assert!(loads.len() == 100 && most <= SPREAD_MAX);
    }
}

#[test]
fn weights_are_respected() {
    let weights = [(1, 16), (2, 32), (3, 64), (4, 128), (5, 256), (6, 64), (7, 512)];
    let ring = ring(weights);
    let total: u32 = weights.iter().map(|(_, weight)| weight).sum();
    let loads = loads(&ring, KEYS);
    for (node, weight) in weights {
        let due = f64::from(weight) / f64::from(total);
        let (share, load) = (ring.share(NodeId(node)) / due, loads[&NodeId(node)] as f64 / KEYS as f64 / due);
        println!("weight {weight:3}: {share:.3} of its due by arcs, {load:.3} by keys");
        // Four standard deviations of the smallest node's points, and of the keys that fall to it.
        let tolerance = 4.0 / f64::from(weight * 64).sqrt() + 4.0 / (KEYS as f64 * due).sqrt();
        assert!((share - 1.0).abs() <= tolerance && (load - 1.0).abs() <= tolerance, "weight {weight}");
    }
    let all: f64 = weights.iter().map(|(node, _)| ring.share(NodeId(*node))).sum();
    assert!((all - 1.0).abs() < 1e-9, "{all}");
}

#[test]
fn what_moves_is_what_must() {
    let mut worst: f64 = 0.0;
    for nodes in [3, 4, 5, 8, 16, 30, 60, 100] {
        let old = usual(1..=nodes);
        for joins in [nodes + 1, nodes + 2, 4711, 1 << 33] {
            let new = usual((1..=nodes).chain([joins]));
            // Joining and leaving are the same two rings, seen from either side.
            let (share, ideal) = (new.share(NodeId(joins)), 1.0 / (nodes + 1) as f64);
            let off = (share / ideal - 1.0).abs();
            println!(
                "{nodes:3} nodes and node {joins}: {share:.5} moves, {:+.1} % of ideal",
                (share / ideal - 1.0) * 1e2
            );
            assert!(off <= MOVED_TOLERANCE, "{nodes} nodes: {share} moved, {ideal} would be ideal");
            worst = worst.max(off);
            for number in 0..20_000 {
                let (before, after) = (old.file_owner(key(number)), new.file_owner(key(number)));
                assert!(before == after || after == NodeId(joins), "a key moved from one that stays to one that stays");
            }
        }
    }
    println!("at worst {:.1} % from ideal", worst * 1e2);
}

#[test]
fn the_moved_share_is_what_keys_show() {
    let (old, new) = (usual(1..=9), usual((1..=11).filter(|node| *node != 4)));
    let counted = (0..KEYS).filter(|number| old.file_owner(key(*number)) != new.file_owner(key(*number))).count();
    let (counted, told) = (counted as f64 / KEYS as f64, moved(&old, &new));
    println!("one of 9 leaves and two join: {told:.4} moves, {counted:.4} by keys");
    assert!((counted - told).abs() < 0.002 && told == moved(&new, &old));
    assert_eq!(moved(&usual([1]), &usual([2])), 1.0);
    let joined = usual((1..=9).chain([77]));
    assert!((moved(&old, &joined) - joined.share(NodeId(77))).abs() < 1e-9);
}

#[test]
fn the_next_in_order_owns_what_the_owner_leaves() {
    let ring = usual(1..=7);
    for number in 0..2_000 {
        let key = key(number);
        let order: Vec<_> = ring.preference(key, Stripe(0)).collect();
        assert_eq!(order.iter().collect::<std::collections::BTreeSet<_>>().len(), 7, "everybody once");
        assert!(ring.successors(key).eq(order[1..].iter().copied()));
        if number % 100 == 0 {
            let without = usual((1..=7).filter(|node| NodeId(*node) != order[0]));
            assert_eq!(without.file_owner(key), order[1]);
        }
    }
}

#[test]
fn stripes_of_a_file_are_owned_by_many_and_the_first_by_the_files_owner() {
    let ring = usual(1..=5);
    let file = FileKey { fsid: 1, fileid: 99 };
    assert_eq!(ring.data_owner(file, 0), ring.file_owner(file));
    assert_eq!(ring.data_owner(file, STRIPE_BYTES - 1), ring.file_owner(file));
    let mut stripes = BTreeMap::new();
    (0..10_000).for_each(|stripe| *stripes.entry(ring.stripe_owner(file, Stripe(stripe))).or_insert(0) += 1);
    assert!(stripes.len() == 5 && stripes.values().all(|count| (1_600..2_400).contains(count)), "{stripes:?}");
}

#[test]
fn members_that_make_no_ring_are_refused() {
    let standard = |node| (NodeId(node), Weight::STANDARD);
    let refused = |members: &[_]| Ring::new(RingEpoch(1), members).map(|_| ()).unwrap_err();
    assert_eq!(refused(&[]), RingError::Empty);
    assert_eq!(refused(&[standard(1), standard(2), (NodeId(1), Weight::MIN)]), RingError::Duplicate(NodeId(1)));
    let many: Vec<_> = (0..4097).map(|node| (NodeId(node), Weight::MIN)).collect();
    assert_eq!(refused(&many), RingError::TooManyMembers(4097));
    let heavy: Vec<_> = (0..129).map(|node| (NodeId(node), Weight::MAX)).collect();
    assert_eq!(refused(&heavy), RingError::TooHeavy(129 * 65_536));
    let one = usual([7]);
    assert_eq!((one.share(NodeId(7)), one.successors(key(1)).count(), one.contains(NodeId(8))), (1.0, 0, false));
}
