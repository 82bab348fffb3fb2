//! Opens that are kept because a source does not let everybody read or write without one (RFC 8881 §8.2.3, §18.16).
//!
//! Owns: the stateids of those opens, at most [`OPENS_MAX`], and their end. Never does: share reservations: nothing is
//! denied to others.
//! Invariant: each open has an owner of its own, so that closing one closes no other.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use forebay_proto::{
    limits::TEST_STATEIDS_MAX,
    nfs4::{
        ClientId, Op, OpReply, StateOwner, Stateid, Status, open,
        ops::{
            close::CloseArgs,
            free_stateid::FreeStateidArgs,
            open::{OpenArgs, OpenClaim, OpenDelegation, OpenHow, OpenOk},
            test_stateid::TestStateidArgs,
        },
    },
    xdr::{List, Opaque},
};
use parking_lot::Mutex;

use super::{
    callback,
    engine::{Engine, Request},
    errors::Failure,
    session::Session,
    wire::{self, take},
};
use crate::source::{
    Credentials, ObjectId, SourceHandle,
    counters::Kind,
    remote::{OnBehalf, Purpose},
};

/// Opens kept at once.
const OPENS_MAX: usize = 1024;

/// What is opened, by whom, for what.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    /// The file.
    pub file: ObjectId,
    /// The user.
    pub user: Credentials,
    /// `open::ACCESS_READ` or `open::ACCESS_WRITE`.
    pub access: u32,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    stateid: Stateid,
    used: u64,
}

#[derive(Debug, Default)]
struct Table {
    kept: HashMap<Key, Kept>,
    clock: u64,
}

/// The table of opens.
#[derive(Debug, Default)]
pub(super) struct Opens {
    table: Mutex<Table>,
}

impl Opens {
    /// What to read or write with: a kept open's stateid, else the anonymous one.
    pub fn stateid(&self, key: &Key) -> Stateid {
        let mut table = self.table.lock();
        if table.kept.is_empty() {
            return Stateid::ANONYMOUS;
        }
        table.clock += 1;
        let clock = table.clock;
        table.kept.get_mut(key).map_or(Stateid::ANONYMOUS, |kept| {
            kept.used = clock;
            kept.stateid
        })
    }

    /// Opens the file, since `refused` did not do; what is kept for it already is used if it is another.
    pub async fn open(&self, engine: &Arc<Engine>, key: &Key, refused: Stateid) -> Result<Stateid, Failure> {
        {
            let mut table = self.table.lock();
            match table.kept.get(key).map(|kept| kept.stateid) {
                Some(stateid) if stateid != refused => return Ok(stateid),
                _ => table.kept.remove(key),
            };
        }
        let by = OnBehalf { user: key.user.clone(), purpose: Purpose::Client };
        let ops = vec![wire::putfh(&key.file.handle), open_file(key, OpenClaim::FileHandle)];
        let mut results = engine.call(Request::changing(engine, Kind::Open, &by, ops, 1)).await?;
        take!(results, PutFh)?;
        let opened = take!(results, Open)?;
        return_delegation(engine, &key.file.handle, &opened);
        let stateid = current(opened.stateid);
        if let Some((old, kept)) = self.keep(key.clone(), stateid) {
            close(engine, &old.file.handle, kept);
        }
        Ok(stateid)
    }

    /// Remembers an open; what had not been used for longest has to go when there is no room.
    fn keep(&self, key: Key, stateid: Stateid) -> Option<(Key, Stateid)> {
        let mut table = self.table.lock();
        table.clock += 1;
        let used = table.clock;
        let full = table.kept.len() >= OPENS_MAX && !table.kept.contains_key(&key);
        let oldest =
            if full { table.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| key.clone()) } else { None };
        let gone = oldest.and_then(|oldest| table.kept.remove_entry(&oldest)).map(|(key, kept)| (key, kept.stateid));
        table.kept.insert(key, Kept { stateid, used });
        gone
    }

    fn all(&self) -> Vec<(Key, Stateid)> {
        self.table.lock().kept.iter().map(|(key, kept)| (key.clone(), kept.stateid)).collect()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.table.lock().kept.len()
    }

    /// After a restart of the server: what was open is claimed again; what is refused is forgotten.
    pub async fn reclaim(&self, engine: &Arc<Engine>, session: &Arc<Session>) {
        for (key, before) in self.all() {
            let by = OnBehalf { user: key.user.clone(), purpose: Purpose::Client };
            let ops = vec![wire::putfh(&key.file.handle), open_file(&key, OpenClaim::Previous(0))];
            let request = Request { essential: 0, ..Request::changing(engine, Kind::Open, &by, ops, 1) };
            let reclaimed = match engine.call_in(session, request).await {
                Ok(mut results) => take!(results, PutFh).and_then(|()| take!(results, Open)),
                // The session is gone again: the next one reclaims.
                Err(_) => return,
            };
            let mut table = self.table.lock();
            if table.kept.get(&key).is_none_or(|kept| kept.stateid != before) {
                continue;
            }
            match reclaimed {
                Ok(opened) => {
                    let stateid = current(opened.stateid);
                    table.kept.entry(key).and_modify(|kept| kept.stateid = stateid);
                }
                Err(status) => {
                    tracing::debug!(status = status.name(), "an open could not be reclaimed");
                    table.kept.remove(&key);
                }
            }
        }
    }

    /// The server has revoked something: what it was is asked for, acknowledged and forgotten.
    pub async fn free_revoked(&self, engine: &Arc<Engine>, session: &Arc<Session>) {
        for some in self.all().chunks(TEST_STATEIDS_MAX.min(64)) {
            let stateids = List::new(some.iter().map(|(_, stateid)| *stateid).collect()).unwrap_or_default();
            let ops = vec![Op::TestStateid(TestStateidArgs { stateids })];
            let results = engine.call_in(session, Request::machine(engine, Kind::Session, ops)).await;
            let Ok(Ok(tested)) = results.map(|mut results| take!(results, TestStateid)) else { return };
            for ((key, stateid), status) in some.iter().zip(tested.statuses.iter()) {
                if *status == Status::Ok {
                    continue;
                }
                self.table.lock().kept.remove(key);
                let ops = vec![Op::FreeStateid(FreeStateidArgs { stateid: *stateid })];
                let _ = engine.call_in(session, Request::machine(engine, Kind::Session, ops)).await;
            }
        }
    }

    /// Closes everything.
    pub async fn close_all(&self, engine: &Arc<Engine>) {
        let all: Vec<_> = self.table.lock().kept.drain().collect();
        for (key, kept) in all {
            let ops = closing(&key.file.handle, kept.stateid);
            let _ = engine.call(Request::machine(engine, Kind::Close, ops)).await;
        }
    }
}

/// Seqid zero is "the newest" (RFC 8881 §8.2.2): no race with whoever opens the same again.
fn current(stateid: Stateid) -> Stateid {
    Stateid { seqid: 0, ..stateid }
}

fn closing(file: &SourceHandle, stateid: Stateid) -> Vec<Op> {
    vec![wire::putfh(file), Op::Close(CloseArgs { seqid: 0, stateid })]
}

/// Closes an open in the background: nobody waits for it.
pub(super) fn close(engine: &Arc<Engine>, file: &SourceHandle, stateid: Stateid) {
    let (engine, ops) = (engine.clone(), closing(file, stateid));
    tokio::spawn(async move {
        let request = Request::machine(&engine, Kind::Close, ops);
        if let Err(error) = engine.asking(engine.call(request)).await {
            tracing::debug!(%error, "an open could not be closed");
        }
    });
}

/// We never ask for one; a server may grant one all the same.
pub(super) fn return_delegation(engine: &Arc<Engine>, file: &SourceHandle, opened: &OpenOk) {
    let stateid = match &opened.delegation {
        OpenDelegation::Read(read) => read.stateid,
        OpenDelegation::Write(write) => write.stateid,
        OpenDelegation::None | OpenDelegation::NoneExtended(_) => return,
    };
    callback::give_back(engine, wire::filehandle(file), stateid);
}

/// OPEN without creation.
fn open_file(key: &Key, claim: OpenClaim) -> Op {
    // During reclaim the "want" bits mean nothing, and some servers mind them.
    let want = if claim == OpenClaim::FileHandle { open::WANT_NO_DELEG } else { 0 };
    Op::Open(OpenArgs {
        seqid: 0,
        share_access: key.access | want,
        share_deny: 0,
        owner: owner(&key.user, key.access),
        how: OpenHow::NoCreate,
        claim,
    })
}

/// An open-owner for each user and kind of access; the server adds the file.
pub(super) fn owner(user: &Credentials, access: u32) -> StateOwner {
    let groups: Vec<u8> = user.groups.iter().flat_map(|group| group.to_be_bytes()).collect();
    let text = format!("{}.{}.{:x}.{access}", user.uid, user.gid, xxhash_rust::xxh3::xxh3_64(&groups));
    // RFC 8881 §18.16.3: the server goes by the session's client, whatever is written here.
    StateOwner { clientid: ClientId(0), owner: Opaque::new(Bytes::from(text)).unwrap_or_default() }
}

/// The stateid of a CLOSE that failed although its OPEN did not: it is closed by itself.
pub(super) fn close_left_open(engine: &Arc<Engine>, file: &SourceHandle, opened: &OpenOk, closed: Option<OpReply>) {
    if closed.is_none_or(|reply| reply.status() != Status::Ok) {
        close(engine, file, current(opened.stateid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SourceFsid;

    fn key(number: u16) -> Key {
        let file = ObjectId { fsid: SourceFsid(1), handle: SourceHandle::new(&number.to_be_bytes()).unwrap() };
        Key { file, user: Credentials { uid: 1, gid: 1, groups: [].into() }, access: open::ACCESS_READ }
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let opens = Opens::default();
        let stateid = |number: u16| Stateid { seqid: 0, other: [number as u8 | 1; 12] };
        for number in 0..OPENS_MAX as u16 {
            assert_eq!(opens.keep(key(number), stateid(number)), None);
        }
        assert_eq!(opens.stateid(&key(0)), stateid(0));
        assert_eq!(opens.keep(key(5000), stateid(7)), Some((key(1), stateid(1))));
        assert_eq!(opens.stateid(&key(1)), Stateid::ANONYMOUS);
        assert_eq!(opens.len(), OPENS_MAX);
    }
}
