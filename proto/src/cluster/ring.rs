//! Who owns a file, and each stripe of it: consistent hashing over weighted nodes.
//!
//! Owns: the function from (members, key) to nodes. Never does: know who is alive or reachable; change. A membership has
//! a ring, and the next membership has another.
//!
//! Invariants:
//! * The order in which members are given, the machine and the compiler make no difference: points and keys are XXH3 of
//!   little-endian numbers under fixed seeds. `testdata/ring-v1.txt` holds what came out when the rule was made.
//! * When a node joins, keys move to it and nowhere else; when one leaves, only its keys move.
//!
//! The circle is a sorted array of points, each with its node in the low bits, and a table by the first bits of a hash
//! that says where to begin. A look-up reads one word of the table and mostly one of the array.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::keys::{FileKey, NodeId, RingEpoch, Stripe, Weight};

/// Points for each unit of weight; a node of usual weight has 4,096. A node's share then differs from its due by 1.6 %
/// (standard deviation), so that what moves when it comes or goes is within 5 % of ideal. Part of the rule: another
/// number is another ring.
pub const POINTS_PER_UNIT: u32 = 64;
/// Members at most: their number shares a word with the point.
pub const MEMBERS_MAX: usize = 4096;
/// Points at most: 64 MiB of them, two thousand usual nodes.
pub const POINTS_MAX: usize = 8 << 20;

/// Low bits of a point that hold its member.
const MEMBER_BITS: u32 = 16;
const MEMBER_MASK: u64 = (1 << MEMBER_BITS) - 1;
/// Any numbers would do as long as they stay and have nothing in common: XXH3 mixes seed and input so simply that with
/// seeds close to each other the points of some node are the very positions of some file system's first files.
const POINT_SEED: u64 = 0x9d37_c1f2_58a4_e06b;
const KEY_SEED: u64 = 0x3be9_4a1d_c6f0_7582;

const _: () = assert!(MEMBERS_MAX <= 1 << MEMBER_BITS);

/// Why members make no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// Nobody to own anything.
    #[error("a ring needs a member")]
    Empty,
    /// A node is there twice.
    #[error("node {} is a member twice", .0.0)]
    Duplicate(NodeId),
    /// More than [`MEMBERS_MAX`].
    #[error("{0} members where at most {MEMBERS_MAX} are allowed")]
    TooManyMembers(usize),
    /// All weights together are more than the ring has room for.
    #[error("weights need {0} points where at most {POINTS_MAX} are allowed")]
    TooHeavy(usize),
}

/// The owners of one ring epoch.
#[derive(Clone, Debug)]
pub struct Ring {
    epoch: RingEpoch,
    /// By number of the node.
    members: Vec<(NodeId, Weight)>,
    /// Hash in the upper bits, place in `members` in the lower; ascending.
    points: Vec<u64>,
    /// For each value of a hash's first bits: the first point that is not before it.
    starts: Vec<u32>,
    shift: u32,
}

impl Ring {
    /// The ring of `members` in any order.
    ///
    /// # Errors
    /// There are none, too many, or one twice.
    pub fn new(epoch: RingEpoch, members: &[(NodeId, Weight)]) -> Result<Self, RingError> {
        let mut members = members.to_vec();
        members.sort_unstable();
        let count = members.iter().map(|(_, weight)| points_of(*weight)).sum();
        if members.is_empty() {
            return Err(RingError::Empty);
        }
        if members.len() > MEMBERS_MAX {
            return Err(RingError::TooManyMembers(members.len()));
        }
        if let Some(twice) = members.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(RingError::Duplicate(twice[0].0));
        }
        if count > POINTS_MAX {
            return Err(RingError::TooHeavy(count));
        }
        let mut points = Vec::with_capacity(count);
        for (place, (node, weight)) in (0_u64..).zip(&members) {
            let hashes = (0_u64..).take(points_of(*weight)).map(|point| point_hash(*node, point));
            points.extend(hashes.map(|hash| (hash & !MEMBER_MASK) | place));
        }
        points.sort_unstable();
        let (starts, shift) = index(&points);
        Ok(Self { epoch, members, points, starts, shift })
    }

    /// Which ring this is.
    pub fn epoch(&self) -> RingEpoch {
        self.epoch
    }

    /// The members, by number.
    pub fn members(&self) -> &[(NodeId, Weight)] {
        &self.members
    }

    /// Whether `node` owns anything here.
    pub fn contains(&self, node: NodeId) -> bool {
        self.members.binary_search_by_key(&node, |member| member.0).is_ok()
    }

    /// The node that answers for a file: its attributes, names, locks, and its first stripe.
    pub fn file_owner(&self, key: FileKey) -> NodeId {
        self.stripe_owner(key, Stripe(0))
    }

    /// The node that fetches the data at `offset`.
    pub fn data_owner(&self, key: FileKey, offset: u64) -> NodeId {
        self.stripe_owner(key, Stripe::of(offset))
    }

    /// The node that fetches a stripe.
    pub fn stripe_owner(&self, key: FileKey, stripe: Stripe) -> NodeId {
        self.node_at(self.place(position(key, stripe)))
    }

    /// Every member in the order in which they would own the stripe if those before were not there; the owner is first.
    pub fn preference(&self, key: FileKey, stripe: Stripe) -> impl Iterator<Item = NodeId> {
        let first = self.place(position(key, stripe));
        let (mut seen, mut left) = (vec![false; self.members.len()], self.members.len());
        let around = self.points[first..].iter().chain(&self.points[..first]);
        let mut around = around.map(|point| member(*point));
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let next = around.find(|place| !std::mem::replace(&mut seen[*place], true))?;
            Some(self.members[next].0)
        })
    }

    /// Who comes after the owner of the file: whom its state is handed to when the owner goes.
    pub fn successors(&self, key: FileKey) -> impl Iterator<Item = NodeId> {
        self.preference(key, Stripe(0)).skip(1)
    }

    /// The share of all keys that `node` owns, from 0 to 1.
    pub fn share(&self, node: NodeId) -> f64 {
        let arcs = self.arcs().filter(|(_, owner)| *owner == node);
        arcs.map(|(length, _)| length as f64).sum::<f64>() / CIRCLE
    }

    /// The first point at or after a position, around the end if need be.
    fn place(&self, position: u64) -> usize {
        let bucket = usize::try_from(position >> self.shift).expect("there are at most 2^23 buckets");
        let start = self.starts[bucket] as usize;
        let ahead = self.points[start..].iter().take_while(|point| **point < position).count();
        let place = start + ahead;
        if place == self.points.len() { 0 } else { place }
    }

    fn node_at(&self, place: usize) -> NodeId {
        self.members[member(self.points[place])].0
    }

    /// Stretches of the circle, whose length is 2⁴⁸, and their owners.
    fn arcs(&self) -> impl Iterator<Item = (u64, NodeId)> {
        let last = self.points.last().map_or(0, |point| point >> MEMBER_BITS);
        let before = std::iter::once(last).chain(self.points.iter().map(|point| point >> MEMBER_BITS));
        self.points.iter().zip(before).enumerate().map(|(place, (point, before))| {
            let length = (point >> MEMBER_BITS).wrapping_sub(before) & (u64::MAX >> MEMBER_BITS);
            // A single point has all of the circle, which is as long as nothing.
            let whole = self.points.len() == 1;
            (if whole { 1 << (64 - MEMBER_BITS) } else { length }, self.node_at(place))
        })
    }
}

/// The length of the circle.
const CIRCLE: f64 = (1_u64 << (64 - MEMBER_BITS)) as f64;

/// The share of all keys, from 0 to 1, that has another owner in `new` than in `old`.
pub fn moved(old: &Ring, new: &Ring) -> f64 {
    // Between two neighbouring points of either ring both owners stay the same.
    let mut cuts: Vec<u64> = old.points.iter().chain(&new.points).map(|point| point & !MEMBER_MASK).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let length = |from: u64, to: u64| (to.wrapping_sub(from) >> MEMBER_BITS) as f64;
    let other = |at: u64| old.node_at(old.place(at)) != new.node_at(new.place(at));
    let (Some(first), Some(last)) = (cuts.first(), cuts.last()) else { return 0.0 };
    let inner = cuts.windows(2).filter(|pair| other(pair[1])).map(|pair| length(pair[0], pair[1])).sum::<f64>();
    let around = if other(*first) { CIRCLE - length(*first, *last) } else { 0.0 };
    (inner + around) / CIRCLE
}

fn points_of(weight: Weight) -> usize {
    (weight.units() * POINTS_PER_UNIT) as usize
}

fn member(point: u64) -> usize {
    usize::try_from(point & MEMBER_MASK).expect("sixteen bits")
}

/// Where a stripe is on the circle: fsid and stripe share the first number, the fileid is the second.
fn position(key: FileKey, stripe: Stripe) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&((u64::from(key.fsid) << 32) | u64::from(stripe.0)).to_le_bytes());
    bytes[8..].copy_from_slice(&key.fileid.to_le_bytes());
    xxh3_64_with_seed(&bytes, KEY_SEED) & !MEMBER_MASK
}

/// Where a node's point is. Longer than a key, so that XXH3 goes another way with it.
fn point_hash(node: NodeId, point: u64) -> u64 {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&node.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&point.to_le_bytes());
    bytes[16..].copy_from_slice(&POINT_SEED.to_le_bytes());
    xxh3_64_with_seed(&bytes, POINT_SEED)
}

/// The table of beginnings, with about as many rows as there are points, and how far a hash is shifted to be a row.
fn index(points: &[u64]) -> (Vec<u32>, u32) {
    let bits = points.len().next_power_of_two().trailing_zeros().max(1);
    let shift = u64::BITS - bits;
    let mut starts = Vec::with_capacity(1 << bits);
    let mut place = 0;
    for row in 0..1_u64 << bits {
        while points.get(place).is_some_and(|point| point >> shift < row) {
            place += 1;
        }
        starts.push(u32::try_from(place).expect("at most POINTS_MAX"));
    }
    (starts, shift)
}
