//! Byte ranges of one file: who holds what, POSIX splitting and merging.
//!
//! Invariants: ranges of one owner never overlap; no write range overlaps another owner's range.

use std::sync::Arc;

use bytes::Bytes;
use forebay_proto::nfs4::{ClientId, Status};

/// Whom a lock belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockOwner {
    /// The client.
    pub client: ClientId,
    /// The client's name for the process.
    pub owner: Bytes,
}

/// First to last byte, both inclusive, so that "to the end of the file" is `u64::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub first: u64,
    /// Last byte.
    pub last: u64,
}

impl Range {
    /// From the wire's offset and length, where a length of all ones is "to the end" (RFC 8881 §18.10.3).
    pub fn from_wire(offset: u64, length: u64) -> Result<Self, Status> {
        match length {
            0 => Err(Status::Inval),
            u64::MAX => Ok(Self { first: offset, last: u64::MAX }),
            _ => offset.checked_add(length - 1).map(|last| Self { first: offset, last }).ok_or(Status::Inval),
        }
    }

    /// The wire's length.
    pub fn wire_length(self) -> u64 {
        if self.last == u64::MAX { u64::MAX } else { self.last - self.first + 1 }
    }

    fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// One lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Where.
    pub range: Range,
    /// Exclusive or shared.
    pub write: bool,
    /// Whose.
    pub owner: Arc<LockOwner>,
}

/// All locks of one file. Files have few; a list is as fast as anything.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    held: Vec<Held>,
}

impl Ranges {
    /// A lock of somebody else that excludes this one.
    pub fn conflict(&self, owner: &LockOwner, range: Range, write: bool) -> Option<&Held> {
        let excludes = |held: &&Held| held.range.overlaps(range) && (write || held.write) && *held.owner != *owner;
        self.held.iter().find(excludes)
    }

    /// Takes a lock; the caller has asked [`Ranges::conflict`].
    pub fn lock(&mut self, owner: &Arc<LockOwner>, range: Range, write: bool) {
        self.unlock(owner, range);
        let mut merged = range;
        // Neighbours of the same kind become one, or a program that locks byte after byte grows the list for ever.
        self.held.retain(|held| {
            let same = *held.owner == **owner && held.write == write;
            let before = held.range.last.checked_add(1) == Some(merged.first);
            let after = merged.last.checked_add(1) == Some(held.range.first);
            if same && before {
                merged.first = held.range.first;
            }
            if same && after {
                merged.last = held.range.last;
            }
            !(same && (before || after))
        });
        self.held.push(Held { range: merged, write, owner: owner.clone() });
    }

    /// Gives up a range, splitting locks that reach beyond it.
    pub fn unlock(&mut self, owner: &LockOwner, range: Range) {
        let mut kept = Vec::new();
        self.held.retain(|held| {
            if *held.owner != *owner || !held.range.overlaps(range) {
                return true;
            }
            if held.range.first < range.first {
                kept.push(Held { range: Range { last: range.first - 1, ..held.range }, ..held.clone() });
            }
            if held.range.last > range.last {
                kept.push(Held { range: Range { first: range.last + 1, ..held.range }, ..held.clone() });
            }
            false
        });
        self.held.append(&mut kept);
    }

    /// Gives up everything of one owner.
    pub fn release(&mut self, owner: &LockOwner) {
        self.held.retain(|held| *held.owner != *owner);
    }

    /// Whether an owner holds anything.
    pub fn holds(&self, owner: &LockOwner) -> bool {
        self.held.iter().any(|held| *held.owner == *owner)
    }

    /// Gives up everything of one client.
    pub fn release_client(&mut self, client: ClientId) {
        self.held.retain(|held| held.owner.client != client);
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: u64) -> Arc<LockOwner> {
        Arc::new(LockOwner { client: ClientId(name), owner: Bytes::from_static(b"p") })
    }

    /// A model: each of 64 bytes has a writer or a set of readers; the last stands for all bytes from there on.
    struct Model {
        write: [Option<u64>; 64],
        read: [u8; 64],
    }

    impl Model {
        fn conflict(&self, who: u64, range: Range, write: bool) -> bool {
            (range.first..=range.last.min(63)).any(|byte| {
                let byte = byte as usize;
                let others = self.read[byte] & !(1 << who) != 0;
                self.write[byte].is_some_and(|holder| holder != who) || (write && others)
            })
        }

        fn set(&mut self, who: u64, range: Range, kind: Option<bool>) {
            for byte in range.first..=range.last.min(63) {
                let byte = byte as usize;
                self.read[byte] &= !(1 << who);
                if self.write[byte] == Some(who) {
                    self.write[byte] = None;
                }
                match kind {
                    Some(true) => self.write[byte] = Some(who),
                    Some(false) => self.read[byte] |= 1 << who,
                    None => {}
                }
            }
        }
    }

    #[test]
    fn ranges_agree_with_a_byte_by_byte_model() {
        for seed in 0..200_u64 {
            let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut next = |below: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % below
            };
            let (mut ranges, mut model) = (Ranges::default(), Model { write: [None; 64], read: [0; 64] });
            for step in 0..200 {
                let (who, first) = (next(3), next(64));
                let last = first + next(64 - first);
                let last = if last == 63 { u64::MAX } else { last };
                let range = Range { first, last };
                match next(3) {
                    0 => {
                        ranges.unlock(&owner(who), range);
                        model.set(who, range, None);
                    }
                    kind => {
                        let write = kind == 1;
                        let conflict = ranges.conflict(&owner(who), range, write).is_some();
                        assert_eq!(conflict, model.conflict(who, range, write), "seed {seed} step {step}");
                        if !conflict {
                            ranges.lock(&owner(who), range, write);
                            model.set(who, range, Some(write));
                        }
                    }
                }
                assert!(ranges.len() <= 3 * 64, "seed {seed}: neighbours are merged");
            }
        }
    }

    #[test]
    fn wire_ranges() {
        assert_eq!(Range::from_wire(5, 0), Err(Status::Inval));
        assert_eq!(Range::from_wire(u64::MAX, 2), Err(Status::Inval));
        let all = Range::from_wire(0, u64::MAX).unwrap();
        assert_eq!((all.last, all.wire_length()), (u64::MAX, u64::MAX));
        let one = Range::from_wire(u64::MAX - 1, 1).unwrap();
        assert_eq!((one.last, one.wire_length()), (u64::MAX - 1, 1));
    }
}
