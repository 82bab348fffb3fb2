//! Byte-range locks and share reservations of the whole cluster, and who waits.
//!
//! Invariants: ranges of one owner never overlap; no exclusive range overlaps another owner's; nobody has a file open for what
//! another denies. What a client holds is found without looking at all files.

use std::collections::{BTreeMap, BTreeSet};

pub use forebay_proto::cluster::FileKey;
use serde::{Deserialize, Serialize};

use super::changes::{Bytes, Changes, Damaged, Table, decode_row};

fn key_bytes(file: FileKey) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&file.fsid.to_be_bytes());
    key[4..].copy_from_slice(&file.fileid.to_be_bytes());
    key
}

fn key_from(bytes: &[u8]) -> Option<FileKey> {
    let (fsid, fileid) = bytes.split_at_checked(4)?;
    Some(FileKey {
        fsid: u32::from_be_bytes(fsid.try_into().ok()?),
        fileid: u64::from_be_bytes(fileid.try_into().ok()?),
    })
}

/// Whom a lock or an open belongs to (RFC 8881 §9.1.4).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// The client.
    pub clientid: u64,
    /// The client's name for its process.
    pub name: Bytes,
}

/// First to last byte, both inclusive, so that "to the end of the file" is `u64::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// First byte.
    pub first: u64,
    /// Last byte; not before the first.
    pub last: u64,
}

impl Range {
    fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// One lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Where.
    pub range: Range,
    /// Exclusive or shared.
    pub exclusive: bool,
    /// Whose.
    pub owner: Owner,
}

/// An open that reserves shares (RFC 8881 §9.7): bit 1 is read, bit 2 write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Whose.
    pub owner: Owner,
    /// What it may do.
    pub access: u8,
    /// What nobody else may.
    pub deny: u8,
}

/// Somebody who asked for a lock that was taken, and will ask again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Waiter {
    lock: Held,
    asked_ms: u64,
    /// Between its last two questions.
    pause_ms: u64,
}

/// What is held of one file. Files have few locks; lists are as fast as anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLocks {
    ranges: Vec<Held>,
    shares: Vec<Share>,
    waiters: Vec<Waiter>,
}

/// Ranges of one file; a program that locks records one by one reaches some thousands.
const RANGES_MAX: usize = 4_096;
/// Opens of one file that are reserved: one for each process of each client.
const SHARES_MAX: usize = 4_096;
/// Those who wait in order; others ask again all the same, and are served as they come.
const WAITERS_MAX: usize = 64;
/// RFC 8881 §3.3: NFS4_OPAQUE_LIMIT.
const OWNER_MAX: usize = 1_024;
/// A Linux client asks again after 1 s at first.
const FIRST_PAUSE_MS: u64 = 1_000;
/// It asks at least every 30 s; who is silent for longer than twice that has gone.
const PATIENCE_MAX_MS: u64 = 60_000;

impl FileLocks {
    /// The locks.
    pub fn ranges(&self) -> &[Held] {
        &self.ranges
    }

    /// The reserved opens.
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// A lock of somebody else that excludes this one.
    pub fn conflict(&self, lock: &Held) -> Option<&Held> {
        self.ranges.iter().find(|held| excludes(held, lock))
    }

    /// An open of somebody else that excludes this one.
    pub fn share_conflict(&self, share: &Share) -> Option<&Share> {
        let excludes = |held: &&Share| {
            held.owner != share.owner && (held.deny & share.access != 0 || held.access & share.deny != 0)
        };
        self.shares.iter().find(excludes)
    }

    fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.shares.is_empty() && self.waiters.is_empty()
    }

    fn lock(&mut self, lock: Held) {
        self.unlock(&lock.owner, lock.range);
        let Held { range: mut merged, exclusive, owner } = lock;
        // Neighbours of the same kind become one, or a program that locks byte after byte grows the list for ever.
        self.ranges.retain(|held| {
            let same = held.owner == owner && held.exclusive == exclusive;
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
        self.ranges.push(Held { range: merged, exclusive, owner });
    }

    /// Gives up a range, splitting locks that reach beyond it; whether there was any.
    fn unlock(&mut self, owner: &Owner, range: Range) -> bool {
        let mut kept = Vec::new();
        if range.first > range.last {
            return false;
        }
        let before = self.ranges.len();
        self.ranges.retain(|held| {
            if held.owner != *owner || !held.range.overlaps(range) {
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
        let found = self.ranges.len() != before;
        self.ranges.append(&mut kept);
        found
    }

    /// An earlier waiter that this lock would overtake.
    fn ahead(&self, lock: &Held, now_ms: u64) -> Option<&Held> {
        let mut before = self.waiters.iter().take_while(|waiter| waiter.lock.owner != lock.owner);
        before.find(|waiter| waiter.is_patient(now_ms) && excludes(&waiter.lock, lock)).map(|waiter| &waiter.lock)
    }

    /// Remembers who waits, in the order of their first questions. Returns clients of those who do not any more.
    fn wait(&mut self, lock: Held, now_ms: u64) -> Vec<u64> {
        let gone = self.waiters.extract_if(.., |waiter| !waiter.is_patient(now_ms));
        let gone = gone.map(|waiter| waiter.lock.owner.clientid).collect();
        let place = self.waiters.iter().position(|waiter| waiter.lock.owner == lock.owner);
        if let Some(waiter) = place.and_then(|place| self.waiters.get_mut(place)) {
            let pause_ms = now_ms.saturating_sub(waiter.asked_ms).max(FIRST_PAUSE_MS);
            *waiter = Waiter { lock, asked_ms: now_ms, pause_ms };
        } else if self.waiters.len() < WAITERS_MAX {
            self.waiters.push(Waiter { lock, asked_ms: now_ms, pause_ms: FIRST_PAUSE_MS });
        }
        gone
    }

    /// Whether a client holds anything here, or waits.
    fn knows(&self, clientid: u64) -> bool {
        let holds = self.ranges.iter().map(|held| &held.owner).chain(self.shares.iter().map(|share| &share.owner));
        holds.chain(self.waiters.iter().map(|waiter| &waiter.lock.owner)).any(|owner| owner.clientid == clientid)
    }

    fn forget_waiter(&mut self, owner: &Owner) {
        self.waiters.retain(|waiter| waiter.lock.owner != *owner);
    }
}

fn excludes(held: &Held, wanted: &Held) -> bool {
    held.range.overlaps(wanted.range) && (held.exclusive || wanted.exclusive) && held.owner != wanted.owner
}

impl Waiter {
    /// Clients double their pauses: one that is silent for longer than that does not wait any more.
    fn is_patient(&self, now_ms: u64) -> bool {
        let patience_ms = self.pause_ms.saturating_mul(2).saturating_add(FIRST_PAUSE_MS).min(PATIENCE_MAX_MS);
        now_ms.saturating_sub(self.asked_ms) <= patience_ms
    }
}

/// Why a lock or an open is not granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockRefused {
    /// Somebody holds it, or is to have it first.
    Held(Held),
    /// Somebody has the file open, and they exclude each other.
    Shared(Share),
    /// It is more than the plane keeps, or makes no sense.
    Limit,
}

/// What is held of all files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Locks {
    files: BTreeMap<FileKey, FileLocks>,
    of_client: BTreeMap<u64, BTreeSet<FileKey>>,
}

impl Locks {
    /// What is held of a file.
    pub fn file(&self, file: FileKey) -> Option<&FileLocks> {
        self.files.get(&file)
    }

    /// How many files have anything held.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Takes a lock. One that `waits` keeps its place among those who ask again; others are not served before it.
    pub(super) fn lock(
        &mut self,
        file: FileKey,
        lock: Held,
        waits: bool,
        now_ms: u64,
        changes: &mut Changes,
    ) -> Result<(), LockRefused> {
        if lock.owner.name.0.len() > OWNER_MAX || lock.range.first > lock.range.last {
            return Err(LockRefused::Limit);
        }
        let locks = self.files.entry(file).or_default();
        let refused = locks.conflict(&lock).or_else(|| if waits { locks.ahead(&lock, now_ms) } else { None });
        let mut gone = Vec::new();
        let outcome = match refused.cloned() {
            Some(held) => {
                if waits {
                    gone = locks.wait(lock.clone(), now_ms);
                }
                Err(LockRefused::Held(held))
            }
            None if locks.ranges.len() + 2 > RANGES_MAX => Err(LockRefused::Limit),
            None => {
                locks.forget_waiter(&lock.owner);
                locks.lock(lock.clone());
                Ok(())
            }
        };
        if waits || outcome.is_ok() {
            self.index(file, lock.owner.clientid);
            gone.into_iter().for_each(|clientid| self.index(file, clientid));
            self.put(file, changes);
        } else {
            self.drop_if_empty(file);
        }
        outcome
    }

    pub(super) fn unlock(&mut self, file: FileKey, owner: &Owner, range: Range, changes: &mut Changes) {
        self.change(file, owner.clientid, changes, |locks| {
            let waiters = locks.waiters.len();
            locks.forget_waiter(owner);
            locks.unlock(owner, range) || waiters != locks.waiters.len()
        });
    }

    /// Gives up every range of one owner.
    pub(super) fn release_owner(&mut self, file: FileKey, owner: &Owner, changes: &mut Changes) {
        self.change(file, owner.clientid, changes, |locks| {
            let before = (locks.ranges.len(), locks.waiters.len());
            locks.ranges.retain(|held| held.owner != *owner);
            locks.forget_waiter(owner);
            before != (locks.ranges.len(), locks.waiters.len())
        });
    }

    /// Reserves an open, or changes what the owner's open reserves.
    pub(super) fn share(&mut self, file: FileKey, share: Share, changes: &mut Changes) -> Result<(), LockRefused> {
        if share.owner.name.0.len() > OWNER_MAX {
            return Err(LockRefused::Limit);
        }
        let locks = self.files.entry(file).or_default();
        if let Some(held) = locks.share_conflict(&share) {
            let held = held.clone();
            self.drop_if_empty(file);
            return Err(LockRefused::Shared(held));
        }
        let clientid = share.owner.clientid;
        match locks.shares.iter().position(|held| held.owner == share.owner) {
            Some(place) => locks.shares[place] = share,
            None if locks.shares.len() >= SHARES_MAX => return Err(LockRefused::Limit),
            None => locks.shares.push(share),
        }
        self.index(file, clientid);
        self.put(file, changes);
        Ok(())
    }

    /// Gives up an open.
    pub(super) fn unshare(&mut self, file: FileKey, owner: &Owner, changes: &mut Changes) {
        self.change(file, owner.clientid, changes, |locks| {
            let before = locks.shares.len();
            locks.shares.retain(|held| held.owner != *owner);
            before != locks.shares.len()
        });
    }

    /// Gives up all that a client holds or waits for.
    pub(super) fn release_client(&mut self, clientid: u64, changes: &mut Changes) {
        for file in self.of_client.remove(&clientid).unwrap_or_default() {
            let Some(locks) = self.files.get_mut(&file) else { continue };
            locks.ranges.retain(|held| held.owner.clientid != clientid);
            locks.shares.retain(|held| held.owner.clientid != clientid);
            locks.waiters.retain(|waiter| waiter.lock.owner.clientid != clientid);
            self.put(file, changes);
        }
    }

    fn change(
        &mut self,
        file: FileKey,
        clientid: u64,
        changes: &mut Changes,
        change: impl FnOnce(&mut FileLocks) -> bool,
    ) {
        let Some(locks) = self.files.get_mut(&file) else { return };
        if !change(locks) {
            return;
        }
        self.index(file, clientid);
        self.put(file, changes);
    }

    /// Brings the client's list of files up to date with what is held of this one.
    fn index(&mut self, file: FileKey, clientid: u64) {
        if self.files.get(&file).is_some_and(|locks| locks.knows(clientid)) {
            self.of_client.entry(clientid).or_default().insert(file);
        } else if let Some(files) = self.of_client.get_mut(&clientid) {
            files.remove(&file);
            if files.is_empty() {
                self.of_client.remove(&clientid);
            }
        }
    }

    fn put(&mut self, file: FileKey, changes: &mut Changes) {
        match self.files.get(&file) {
            Some(locks) if !locks.is_empty() => changes.put(Table::Locks, key_bytes(file), locks),
            _ => {
                self.files.remove(&file);
                changes.remove(Table::Locks, key_bytes(file));
            }
        }
    }

    fn drop_if_empty(&mut self, file: FileKey) {
        if self.files.get(&file).is_some_and(FileLocks::is_empty) {
            self.files.remove(&file);
        }
    }

    pub(super) fn rows(&self, changes: &mut Changes) {
        for (file, locks) in &self.files {
            changes.put(Table::Locks, key_bytes(*file), locks);
        }
    }

    pub(super) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), Damaged> {
        let file = key_from(key);
        let file = file.ok_or_else(|| Damaged::Row { table: Table::Locks, what: "its key is no file".into() })?;
        let locks: FileLocks = decode_row(Table::Locks, value)?;
        let owners = locks.ranges.iter().map(|held| &held.owner).chain(locks.shares.iter().map(|share| &share.owner));
        for owner in owners.chain(locks.waiters.iter().map(|waiter| &waiter.lock.owner)) {
            self.of_client.entry(owner.clientid).or_default().insert(file);
        }
        self.files.insert(file, locks);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileKey = FileKey { fsid: 1, fileid: 7 };

    fn owner(clientid: u64) -> Owner {
        Owner { clientid, name: Bytes(b"p".to_vec()) }
    }

    fn held(clientid: u64, first: u64, last: u64, exclusive: bool) -> Held {
        Held { range: Range { first, last }, exclusive, owner: owner(clientid) }
    }

    /// A model: each of 64 bytes has a writer or a set of readers; the last stands for all bytes from there on.
    struct Model {
        write: [Option<u64>; 64],
        read: [u8; 64],
    }

    impl Model {
        fn conflict(&self, lock: &Held) -> bool {
            let who = lock.owner.clientid;
            (lock.range.first..=lock.range.last.min(63)).any(|byte| {
                let byte = byte as usize;
                let others = self.read[byte] & !(1 << who) != 0;
                self.write[byte].is_some_and(|holder| holder != who) || (lock.exclusive && others)
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
            let (mut locks, mut model) = (Locks::default(), Model { write: [None; 64], read: [0; 64] });
            let mut changes = Changes::default();
            for step in 0..200 {
                let (who, first) = (next(3), next(64));
                let last = first + next(64 - first);
                let lock = held(who, first, if last == 63 { u64::MAX } else { last }, next(2) == 0);
                if next(3) == 0 {
                    locks.unlock(FILE, &owner(who), lock.range, &mut changes);
                    model.set(who, lock.range, None);
                    continue;
                }
                let granted = locks.lock(FILE, lock.clone(), false, 0, &mut changes).is_ok();
                assert_eq!(granted, !model.conflict(&lock), "seed {seed} step {step}");
                if granted {
                    model.set(who, lock.range, Some(lock.exclusive));
                }
                let count = locks.file(FILE).map_or(0, |locks| locks.ranges().len());
                assert!(count <= 3 * 64, "seed {seed}: neighbours are merged");
            }
            for who in 0..3 {
                locks.release_client(who, &mut changes);
            }
            assert!(locks.is_empty() && locks.of_client.is_empty(), "seed {seed}: nothing is left of nobody");
        }
    }

    #[test]
    fn who_waits_is_served_in_order_until_silent() {
        let (mut locks, mut changes) = (Locks::default(), Changes::default());
        let whole = |who| held(who, 0, 9, true);
        let mut ask =
            |locks: &mut Locks, who, waits, now_ms| locks.lock(FILE, whole(who), waits, now_ms, &mut changes).is_ok();
        assert!(ask(&mut locks, 1, false, 0));
        assert!(!ask(&mut locks, 2, true, 10));
        assert!(!ask(&mut locks, 3, true, 20));
        locks.unlock(FILE, &owner(1), Range { first: 0, last: 9 }, &mut Changes::default());
        assert!(!ask(&mut locks, 3, true, 1_020), "2 was first");
        assert!(ask(&mut locks, 2, true, 1_030));
        locks.release_owner(FILE, &owner(2), &mut Changes::default());
        assert!(ask(&mut locks, 4, false, 1_040), "who only tries takes what is free");
        locks.release_owner(FILE, &owner(4), &mut Changes::default());
        assert!(!ask(&mut locks, 5, true, 1_050), "3 still waits");
        assert!(ask(&mut locks, 5, true, 10_000), "3 has been silent for too long");
    }

    #[test]
    fn shares_exclude_each_other_both_ways() {
        let (mut locks, mut changes) = (Locks::default(), Changes::default());
        let share = |who, access, deny| Share { owner: owner(who), access, deny };
        assert!(locks.share(FILE, share(1, 1, 2), &mut changes).is_ok());
        assert!(
            matches!(locks.share(FILE, share(2, 2, 0), &mut changes), Err(LockRefused::Shared(_))),
            "1 denies writers"
        );
        assert!(locks.share(FILE, share(2, 1, 0), &mut changes).is_ok());
        assert!(locks.share(FILE, share(3, 1, 1), &mut changes).is_err(), "two read already");
        assert!(locks.share(FILE, share(1, 1, 0), &mut changes).is_ok(), "its own open downgraded");
        assert!(locks.share(FILE, share(2, 3, 0), &mut changes).is_ok());
        locks.unshare(FILE, &owner(1), &mut changes);
        locks.unshare(FILE, &owner(2), &mut changes);
        assert!(locks.is_empty());
        assert_eq!(changes.rows().last().expect("rows changed").value, None);
    }
}
