//! Opens and locks by file: share reservations, stateids, byte ranges (RFC 8881 §9).
//!
//! Owns: one [`FileTable`] per shard; [`Files`] picks the shard by file, so calls on different files do not meet.
//! Invariants: every stateid is in the shard its first byte names; a file without opens or locks has no entry.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use forebay_proto::nfs4::{ClientId, Stateid, Status, open};
use parking_lot::{Mutex, MutexGuard};

use super::{
    FileKey,
    locks::{Held, LockOwner, Range, Ranges},
};

/// Shards: enough that a busy machine's cores seldom meet; the stateid's first byte holds the number.
const SHARDS: usize = 64;

/// Access or deny bits: 1 read, 2 write.
pub type ShareBits = u32;

/// Keeps an unlinked file alive while somebody has it open.
pub trait Kept: Send + Sync + std::fmt::Debug {}

type Other = [u8; 12];

#[derive(Debug)]
struct Open {
    other: Other,
    seqid: u32,
    client: ClientId,
    owner: Bytes,
    access: ShareBits,
    deny: ShareBits,
    /// Bit `access * 4 + deny` for each OPEN since the last downgrade: what OPEN_DOWNGRADE may go back to.
    history: u16,
    /// Who opened it: calls of the same user need no further permission check, as with a descriptor.
    uid: u32,
}

#[derive(Debug)]
struct LockState {
    other: Other,
    seqid: u32,
    owner: Arc<LockOwner>,
    open: Other,
}

#[derive(Debug, Default)]
struct FileState {
    opens: Vec<Open>,
    locks: Vec<LockState>,
    ranges: Ranges,
    kept: Option<Box<dyn Kept>>,
}

/// Why a share or a lock cannot be had.
#[derive(Debug)]
pub enum Conflict {
    /// A client that holds something in the way; if its lease is over, expire it and try again.
    Held(ClientId, Denied),
    /// Nothing can be done about it.
    Status(Status),
}

/// What is in the way.
#[derive(Debug, Clone)]
pub enum Denied {
    /// A share reservation.
    Share,
    /// A byte-range lock.
    Lock(Held),
}

impl From<Status> for Conflict {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// What a stateid allows, for READ and WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Access bits of the open.
    pub access: ShareBits,
    /// Who opened the file.
    pub uid: u32,
}

/// An OPEN, as far as state cares.
#[derive(Clone, Debug)]
pub struct OpenRequest {
    /// The client.
    pub client: ClientId,
    /// The client's name for the opener.
    pub owner: Bytes,
    /// 1 read, 2 write, 3 both.
    pub access: ShareBits,
    /// 0 none, 1 read, 2 write, 3 both.
    pub deny: ShareBits,
    /// The caller's uid.
    pub uid: u32,
}

/// All opens and locks of this node.
#[derive(Debug)]
pub struct Files {
    shards: Box<[Mutex<FileTable>]>,
}

impl Files {
    /// No opens; stateids carry `epoch`, which no earlier process had.
    pub fn new(epoch: u32) -> Self {
        Self { shards: (0..SHARDS).map(|shard| Mutex::new(FileTable::new(shard as u8, epoch))).collect() }
    }

    /// The shard of a file.
    pub fn of(&self, file: FileKey) -> MutexGuard<'_, FileTable> {
        self.shards[file.0 as usize % SHARDS].lock()
    }

    /// The shard a stateid names.
    pub fn of_stateid(&self, stateid: &Stateid) -> Result<MutexGuard<'_, FileTable>, Status> {
        self.shards.get(usize::from(stateid.other[0])).map(Mutex::lock).ok_or(Status::BadStateid)
    }

    /// Whether a client holds anything.
    pub fn has_state(&self, client: ClientId) -> bool {
        self.shards.iter().any(|shard| shard.lock().has_state(client))
    }

    /// Frees everything a client holds.
    pub fn release_client(&self, client: ClientId) {
        for shard in &self.shards {
            let kept = shard.lock().release_client(client);
            drop(kept);
        }
    }

    /// Opens and locks held, for metrics.
    pub fn counts(&self) -> (usize, usize) {
        self.shards.iter().map(|shard| shard.lock().counts()).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

/// Opens and locks of the files of one shard.
#[derive(Debug)]
pub struct FileTable {
    shard: u8,
    epoch: u32,
    next: u64,
    files: HashMap<FileKey, FileState>,
    stateids: HashMap<Other, FileKey>,
}

impl FileTable {
    fn new(shard: u8, epoch: u32) -> Self {
        Self { shard, epoch, next: 1, files: HashMap::new(), stateids: HashMap::new() }
    }

    /// `other` of a new stateid: shard, epoch, and a number never used before.
    fn fresh(&mut self) -> Other {
        let mut other = [0; 12];
        other[0] = self.shard;
        other[1..5].copy_from_slice(&self.epoch.to_be_bytes());
        other[5..].copy_from_slice(&self.next.to_be_bytes()[1..]);
        self.next += 1;
        other
    }

    /// OPEN: a new open, or more of one the owner has (RFC 8881 §9.7).
    pub fn open(&mut self, file: FileKey, request: OpenRequest) -> Result<Stateid, Conflict> {
        let fresh = self.fresh();
        let state = self.files.entry(file).or_default();
        let mine = |open: &Open| open.client == request.client && open.owner == request.owner;
        let excludes = |open: &&Open| request.access & open.deny != 0 || request.deny & open.access != 0;
        let conflict = state.opens.iter().filter(|open| !mine(open)).find(excludes).map(|open| open.client);
        if let Some(holder) = conflict {
            self.tidy(file);
            return Err(Conflict::Held(holder, Denied::Share));
        }
        let history = 1_u16 << (request.access * 4 + request.deny);
        if let Some(open) = state.opens.iter_mut().find(|open| mine(open)) {
            open.access |= request.access;
            open.deny |= request.deny;
            open.history |= history;
            open.seqid = next_seqid(open.seqid);
            open.uid = request.uid;
            return Ok(Stateid { seqid: open.seqid, other: open.other });
        }
        // The owner's bytes are copied: a slice would keep the whole call's record in memory as long as the open.
        let OpenRequest { client, owner, access, deny, uid } = request;
        let owner = Bytes::copy_from_slice(&owner);
        state.opens.push(Open { other: fresh, seqid: 1, client, owner, access, deny, history, uid });
        self.stateids.insert(fresh, file);
        Ok(Stateid { seqid: 1, other: fresh })
    }

    /// What the owner's open of a file has: access and deny bits.
    pub fn open_bits(&self, file: FileKey, client: ClientId, owner: &[u8]) -> (ShareBits, ShareBits) {
        let opens = self.files.get(&file).map_or(&[][..], |state| &state.opens);
        let mine = opens.iter().find(|open| open.client == client && open.owner == owner);
        mine.map_or((0, 0), |open| (open.access, open.deny))
    }

    /// Somebody else whose open excludes one with these bits.
    pub fn opened_against(
        &self,
        file: FileKey,
        (client, owner): (ClientId, &[u8]),
        access: ShareBits,
        deny: ShareBits,
    ) -> Option<ClientId> {
        let opens = &self.files.get(&file)?.opens;
        let mut others = opens.iter().filter(|open| open.client != client || open.owner != owner);
        others.find(|open| access & open.deny != 0 || deny & open.access != 0).map(|open| open.client)
    }

    /// Whose open a stateid names, what it denies, and who has locks through it.
    pub fn of_open(
        &self,
        file: FileKey,
        client: ClientId,
        stateid: &Stateid,
    ) -> Result<(Bytes, ShareBits, Vec<Arc<LockOwner>>), Status> {
        let state = self.files.get(&file).ok_or(Status::BadStateid)?;
        let open = state.opens.iter().find(|open| open.other == stateid.other && open.client == client);
        let open = open.ok_or(Status::BadStateid)?;
        check_seqid(stateid.seqid, open.seqid)?;
        let through = state.locks.iter().filter(|lock| lock.open == open.other && state.ranges.holds(&lock.owner));
        Ok((open.owner.clone(), open.deny, through.map(|lock| lock.owner.clone()).collect()))
    }

    /// Whose lock stateid this is, if its open may lock so; `None` for unlocking.
    pub fn lock_owner(
        &self,
        file: FileKey,
        client: ClientId,
        stateid: &Stateid,
        write: Option<bool>,
    ) -> Result<Arc<LockOwner>, Status> {
        let state = self.files.get(&file).ok_or(Status::BadStateid)?;
        let lock = state.locks.iter().find(|lock| lock.other == stateid.other && lock.owner.client == client);
        let lock = lock.ok_or(Status::BadStateid)?;
        check_seqid(stateid.seqid, lock.seqid)?;
        let open = state.opens.iter().find(|open| open.other == lock.open).ok_or(Status::BadStateid)?;
        if write.is_some_and(|write| open.access & lock_access(write) == 0) {
            return Err(Status::OpenMode);
        }
        Ok(lock.owner.clone())
    }

    /// CLOSE: the open and its locks are gone. What was kept for the last open is given back: letting go of a file can
    /// take the disk's time, which nobody should wait for with this table locked.
    pub fn close(
        &mut self,
        file: FileKey,
        client: ClientId,
        stateid: &Stateid,
    ) -> Result<Option<Box<dyn Kept>>, Status> {
        let state = self.files.get_mut(&file).ok_or(Status::BadStateid)?;
        let place = state.opens.iter().position(|open| open.other == stateid.other && open.client == client);
        let place = place.ok_or(Status::BadStateid)?;
        check_seqid(stateid.seqid, state.opens[place].seqid)?;
        state.opens.swap_remove(place);
        let (stateids, ranges) = (&mut self.stateids, &mut state.ranges);
        stateids.remove(&stateid.other);
        state.locks.retain(|lock| {
            let stays = lock.open != stateid.other;
            if !stays {
                stateids.remove(&lock.other);
                ranges.release(&lock.owner);
            }
            stays
        });
        Ok(self.tidy(file))
    }

    /// OPEN_DOWNGRADE: only to what some OPENs together had (RFC 8881 §18.18.3).
    pub fn downgrade(
        &mut self,
        file: FileKey,
        client: ClientId,
        stateid: &Stateid,
        access: ShareBits,
        deny: ShareBits,
    ) -> Result<Stateid, Status> {
        let state = self.files.get_mut(&file).ok_or(Status::BadStateid)?;
        let open = state.opens.iter_mut().find(|open| open.other == stateid.other && open.client == client);
        let open = open.ok_or(Status::BadStateid)?;
        check_seqid(stateid.seqid, open.seqid)?;
        let within = |bits: u32| (bits / 4) & !access == 0 && (bits % 4) & !deny == 0;
        let parts = (0..16_u32).filter(|&bits| open.history & (1 << bits) != 0 && within(bits));
        let (mut have, mut history) = ((0, 0), 0);
        for bits in parts {
            have = (have.0 | (bits / 4), have.1 | (bits % 4));
            history |= 1 << bits;
        }
        if have != (access, deny) {
            return Err(Status::Inval);
        }
        (open.access, open.deny, open.history) = (access, deny, history);
        open.seqid = next_seqid(open.seqid);
        Ok(Stateid { seqid: open.seqid, other: open.other })
    }

    /// What a stateid allows on a file: the open's access, also through a lock's stateid.
    pub fn granted(&self, file: FileKey, client: ClientId, stateid: &Stateid) -> Result<Granted, Status> {
        let state = self.files.get(&file).ok_or(Status::BadStateid)?;
        let open = match state.locks.iter().find(|lock| lock.other == stateid.other && lock.owner.client == client) {
            Some(lock) => {
                check_seqid(stateid.seqid, lock.seqid)?;
                state.opens.iter().find(|open| open.other == lock.open)
            }
            None => {
                let open = state.opens.iter().find(|open| open.other == stateid.other && open.client == client);
                check_seqid(stateid.seqid, open.ok_or(Status::BadStateid)?.seqid)?;
                open
            }
        };
        open.map(|open| Granted { access: open.access, uid: open.uid }).ok_or(Status::BadStateid)
    }

    /// Somebody whose deny mode forbids what a call without an open wants to do.
    pub fn denied(&self, file: FileKey, access: ShareBits) -> Option<ClientId> {
        let state = self.files.get(&file)?;
        state.opens.iter().find(|open| open.deny & access != 0).map(|open| open.client)
    }

    /// LOCK by an owner that has no lock stateid for this open yet.
    pub fn lock_new(
        &mut self,
        file: FileKey,
        open: &Stateid,
        owner: LockOwner,
        range: Range,
        write: bool,
    ) -> Result<Stateid, Conflict> {
        self.check_lock_open(file, owner.client, open, write)?;
        let fresh = self.fresh();
        let state = self.files.get_mut(&file).ok_or(Status::BadStateid)?;
        if let Some(held) = state.ranges.conflict(&owner, range, write) {
            return Err(Conflict::Held(held.owner.client, Denied::Lock(held.clone())));
        }
        let known = state.locks.iter_mut().find(|lock| *lock.owner == owner && lock.open == open.other);
        let lock = match known {
            Some(lock) => {
                lock.seqid = next_seqid(lock.seqid);
                lock
            }
            None => {
                let owner = LockOwner { owner: Bytes::copy_from_slice(&owner.owner), ..owner };
                self.stateids.insert(fresh, file);
                let lock = LockState { other: fresh, seqid: 1, owner: Arc::new(owner), open: open.other };
                state.locks.push(lock);
                state.locks.last_mut().expect("pushed in the line above")
            }
        };
        state.ranges.lock(&lock.owner, range, write);
        Ok(Stateid { seqid: lock.seqid, other: lock.other })
    }

    /// LOCK by an owner that has a lock stateid.
    pub fn lock_more(
        &mut self,
        file: FileKey,
        client: ClientId,
        stateid: &Stateid,
        range: Range,
        write: bool,
    ) -> Result<Stateid, Conflict> {
        let state = self.files.get_mut(&file).ok_or(Status::BadStateid)?;
        let lock = find_lock(&mut state.locks, client, stateid)?;
        let open = state.opens.iter().find(|open| open.other == lock.open).ok_or(Status::BadStateid)?;
        if open.access & lock_access(write) == 0 {
            return Err(Conflict::Status(Status::OpenMode));
        }
        if let Some(held) = state.ranges.conflict(&lock.owner, range, write) {
            return Err(Conflict::Held(held.owner.client, Denied::Lock(held.clone())));
        }
        lock.seqid = next_seqid(lock.seqid);
        state.ranges.lock(&lock.owner, range, write);
        Ok(Stateid { seqid: lock.seqid, other: lock.other })
    }

    /// Whether an open may lock so.
    pub fn check_lock_open(&self, file: FileKey, client: ClientId, open: &Stateid, write: bool) -> Result<(), Status> {
        let state = self.files.get(&file).ok_or(Status::BadStateid)?;
        let known = state.opens.iter().find(|known| known.other == open.other && known.client == client);
        let known = known.ok_or(Status::BadStateid)?;
        check_seqid(open.seqid, known.seqid)?;
        if known.access & lock_access(write) == 0 { Err(Status::OpenMode) } else { Ok(()) }
    }

    /// LOCKT: what is in the way of a lock, if anything.
    pub fn test_lock(&self, file: FileKey, owner: &LockOwner, range: Range, write: bool) -> Option<Held> {
        self.files.get(&file)?.ranges.conflict(owner, range, write).cloned()
    }

    /// LOCKU.
    pub fn unlock(
        &mut self,
        file: FileKey,
        client: ClientId,
        stateid: &Stateid,
        range: Range,
    ) -> Result<Stateid, Status> {
        let state = self.files.get_mut(&file).ok_or(Status::BadStateid)?;
        let lock = find_lock(&mut state.locks, client, stateid)?;
        lock.seqid = next_seqid(lock.seqid);
        state.ranges.unlock(&lock.owner, range);
        Ok(Stateid { seqid: lock.seqid, other: lock.other })
    }

    /// FREE_STATEID: only a lock stateid without locks can go (RFC 8881 §18.38.3).
    pub fn free(&mut self, client: ClientId, stateid: &Stateid) -> Result<(), Status> {
        let file = *self.stateids.get(&stateid.other).ok_or(Status::BadStateid)?;
        let state = self.files.get_mut(&file).ok_or(Status::BadStateid)?;
        if state.opens.iter().any(|open| open.other == stateid.other && open.client == client) {
            return Err(Status::LocksHeld);
        }
        let owner = find_lock(&mut state.locks, client, stateid)?.owner.clone();
        if state.ranges.holds(&owner) {
            return Err(Status::LocksHeld);
        }
        state.locks.retain(|lock| lock.other != stateid.other);
        self.stateids.remove(&stateid.other);
        self.tidy(file);
        Ok(())
    }

    /// TEST_STATEID for one stateid.
    pub fn test(&self, client: ClientId, stateid: &Stateid) -> Result<(), Status> {
        let file = *self.stateids.get(&stateid.other).ok_or(Status::BadStateid)?;
        self.granted(file, client, stateid).map(|_| ())
    }

    /// Whether somebody has the file open.
    pub fn is_open(&self, file: FileKey) -> bool {
        self.files.get(&file).is_some_and(|state| !state.opens.is_empty())
    }

    /// A file lost a name: if somebody has it open, `kept` goes on working until the last CLOSE. What is not (or no
    /// longer) kept is given back.
    pub fn keep(&mut self, file: FileKey, kept: Box<dyn Kept>) -> Option<Box<dyn Kept>> {
        match self.files.get_mut(&file) {
            Some(state) => state.kept.replace(kept),
            None => Some(kept),
        }
    }

    fn has_state(&self, client: ClientId) -> bool {
        self.files.values().any(|state| state.opens.iter().any(|open| open.client == client))
    }

    fn release_client(&mut self, client: ClientId) -> Vec<Box<dyn Kept>> {
        let mut kept = Vec::new();
        let stateids = &mut self.stateids;
        self.files.retain(|_, state| {
            state.locks.retain(|lock| lock.owner.client != client || stateids.remove(&lock.other).is_none());
            state.opens.retain(|open| open.client != client || stateids.remove(&open.other).is_none());
            state.ranges.release_client(client);
            let stays = !state.opens.is_empty();
            if !stays {
                kept.extend(state.kept.take());
            }
            stays
        });
        kept
    }

    fn counts(&self) -> (usize, usize) {
        let count = |state: &FileState| (state.opens.len(), state.ranges.len());
        self.files.values().map(count).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// A file without opens needs no entry (locks cannot be without an open).
    fn tidy(&mut self, file: FileKey) -> Option<Box<dyn Kept>> {
        let empty = self.files.get(&file).is_some_and(|state| state.opens.is_empty());
        empty.then(|| self.files.remove(&file))?.and_then(|state| state.kept)
    }
}

fn find_lock<'a>(locks: &'a mut [LockState], client: ClientId, stateid: &Stateid) -> Result<&'a mut LockState, Status> {
    let known = |lock: &&mut LockState| lock.other == stateid.other && lock.owner.client == client;
    let lock = locks.iter_mut().find(known).ok_or(Status::BadStateid)?;
    check_seqid(stateid.seqid, lock.seqid)?;
    Ok(lock)
}

fn lock_access(write: bool) -> ShareBits {
    if write { open::ACCESS_WRITE } else { open::ACCESS_READ }
}

/// RFC 8881 §8.2.2: 0 stands for the latest; older and newer ones are told apart.
fn check_seqid(given: u32, current: u32) -> Result<(), Status> {
    match given {
        0 => Ok(()),
        given if given == current => Ok(()),
        given if given < current => Err(Status::OldStateid),
        _ => Err(Status::BadStateid),
    }
}

/// 0 is never a stateid's seqid.
fn next_seqid(seqid: u32) -> u32 {
    seqid.checked_add(1).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileKey = FileKey(7);

    fn request(client: u64, owner: &'static str, access: u32, deny: u32) -> OpenRequest {
        OpenRequest { client: ClientId(client), owner: Bytes::from_static(owner.as_bytes()), access, deny, uid: 1 }
    }

    fn table() -> FileTable {
        FileTable::new(7, 1)
    }

    fn lock_owner(client: u64, owner: &'static str) -> LockOwner {
        LockOwner { client: ClientId(client), owner: Bytes::from_static(owner.as_bytes()) }
    }

    #[test]
    fn share_reservations_exclude_others_and_not_oneself() {
        for (first, second, fits) in [
            ((1, 0), (1, 0), true),
            ((1, 1), (2, 0), true),
            ((1, 1), (1, 0), false),
            ((1, 2), (2, 0), false),
            ((2, 0), (1, 2), false),
            ((2, 0), (1, 1), true),
            ((3, 3), (1, 0), false),
        ] {
            let mut table = table();
            table.open(FILE, request(1, "a", first.0, first.1)).unwrap();
            let other_owner = table.open(FILE, request(1, "b", second.0, second.1)).is_ok();
            assert_eq!(other_owner, fits, "{first:?} {second:?}");
        }
        let mut table = table();
        table.open(FILE, request(1, "a", 1, 3)).unwrap();
        assert!(table.open(FILE, request(1, "a", 3, 0)).is_ok(), "one's own deny does not bind");
    }

    #[test]
    fn an_open_upgrades_downgrades_and_closes() {
        let mut table = table();
        let read = table.open(FILE, request(1, "a", 1, 0)).unwrap();
        let both = table.open(FILE, request(1, "a", 2, 2)).unwrap();
        assert_eq!((read.other, read.seqid, both.seqid), (both.other, 1, 2));
        let client = ClientId(1);
        assert_eq!(table.granted(FILE, client, &read), Err(Status::OldStateid));
        assert_eq!(table.granted(FILE, client, &Stateid { seqid: 9, ..both }), Err(Status::BadStateid));
        assert_eq!(table.granted(FILE, ClientId(2), &both), Err(Status::BadStateid), "a stranger's stateid");
        assert_eq!(table.granted(FileKey(71), client, &both), Err(Status::BadStateid), "another file's stateid");
        assert_eq!(table.granted(FILE, client, &both).unwrap().access, 3);
        assert_eq!(table.downgrade(FILE, client, &both, 1, 2), Err(Status::Inval), "no open had deny alone");
        let down = table.downgrade(FILE, client, &both, 1, 0).unwrap();
        assert_eq!(table.granted(FILE, client, &down).unwrap().access, 1);
        assert_eq!(table.downgrade(FILE, client, &down, 2, 2), Err(Status::Inval), "what was given up is gone");
        assert_eq!(table.free(client, &down), Err(Status::LocksHeld));
        table.close(FILE, client, &Stateid { seqid: 0, ..down }).unwrap();
        assert_eq!(table.close(FILE, client, &down).err(), Some(Status::BadStateid));
        assert!(table.files.is_empty() && table.stateids.is_empty(), "nothing is left behind");
    }

    #[test]
    fn locks_need_an_open_of_their_kind_and_go_with_it() {
        let mut table = table();
        let all = Range { first: 0, last: u64::MAX };
        let read = table.open(FILE, request(1, "a", 1, 0)).unwrap();
        let write = table.open(FILE, request(2, "b", 3, 0)).unwrap();
        let refused = table.lock_new(FILE, &read, lock_owner(1, "p"), all, true);
        assert!(matches!(refused, Err(Conflict::Status(Status::OpenMode))));
        let first = table.lock_new(FILE, &read, lock_owner(1, "p"), all, false).unwrap();
        match table.lock_new(FILE, &write, lock_owner(2, "q"), all, true) {
            Err(Conflict::Held(ClientId(1), Denied::Lock(held))) => assert!(!held.write),
            other => panic!("{other:?}"),
        }
        assert!(table.test_lock(FILE, &lock_owner(2, "q"), all, true).is_some());
        assert_eq!(table.free(ClientId(1), &first), Err(Status::LocksHeld));
        let half = Range { first: 0, last: 9 };
        let unlocked = table.unlock(FILE, ClientId(1), &first, half).unwrap();
        assert_eq!((unlocked.other, unlocked.seqid), (first.other, 2));
        assert!(table.lock_new(FILE, &write, lock_owner(2, "q"), half, true).is_ok());
        table.close(FILE, ClientId(1), &read).unwrap();
        assert_eq!(table.granted(FILE, ClientId(1), &unlocked), Err(Status::BadStateid), "locks go with the open");
        let more = table.lock_new(FILE, &write, lock_owner(2, "q"), all, true).unwrap();
        assert_eq!(more.seqid, 2, "one stateid per owner and open");
        table.release_client(ClientId(2));
        assert!(table.files.is_empty() && table.stateids.is_empty(), "nothing is left behind");
    }
}
