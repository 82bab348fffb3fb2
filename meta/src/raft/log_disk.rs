//! The log as it is on the disk, read.
//!
//! Invariant: a record that does not check out, is not where it belongs, or is not there is an error.

use std::{io, path::Path};

use rocksdb::{DB, Direction, IteratorMode, ReadOptions};

use super::{
    database::{OpenError, broken, damaged},
    log_store::Contents,
    log_tail::{Tail, weight},
    records::{self, Owner, Record},
    types::{Entry, LogIdOf, NodeId},
};

const ENTRY: u8 = b'e';
const OWNER_KEY: &[u8] = b"m.owner";
pub(super) const VOTE_KEY: &[u8] = b"m.vote";
pub(super) const PURGED_KEY: &[u8] = b"m.purged";
pub(super) const COMMITTED_KEY: &[u8] = b"m.committed";

/// The key of the entry at `index`: in the order of indices.
pub(super) fn entry_key(index: u64) -> [u8; 9] {
    let mut key = [ENTRY; 9];
    key[1..].copy_from_slice(&index.to_be_bytes());
    key
}

/// Notes whose log it is, or checks it.
pub(super) fn claim(database: &DB, directory: &Path, node: NodeId) -> Result<(), OpenError> {
    let at = OpenError::at(directory);
    match read_record::<Owner>(database, OWNER_KEY).map_err(&at)? {
        Some(Owner(found)) if found == node => Ok(()),
        Some(Owner(found)) => Err(OpenError::OtherNode { path: directory.to_owned(), found, expected: node }),
        None => {
            let mut options = rocksdb::WriteOptions::default();
            options.set_sync(true);
            let record = records::encode(OWNER_KEY, &Owner(node));
            database.put_opt(OWNER_KEY, record, &options).map_err(broken).map_err(&at)
        }
    }
}

pub(super) fn read_contents(database: &DB) -> io::Result<Contents> {
    let vote = read_record(database, VOTE_KEY)?;
    let committed = read_record(database, COMMITTED_KEY)?;
    let purged: Option<LogIdOf> = read_record(database, PURGED_KEY)?;
    let mut expected = purged.map(|purged| purged.index + 1);
    let (mut last, mut first, mut tail) = (purged, expected, Tail::default());
    for item in entries_from(database, 0, u64::MAX) {
        let entry = item?;
        let id = entry.log_id;
        if expected.is_some_and(|expected| expected != id.index) {
            return Err(damaged(format!("the Raft log has no entry before {}", id.index)));
        }
        expected = Some(id.index + 1);
        last = Some(id);
        first = first.or(last.map(|id| id.index));
        tail.push(entry);
        tail.durable(id.index + 1);
    }
    Ok(Contents { vote, purged, last, first: first.unwrap_or(0), committed, tail, removals: 0 })
}

fn read_record<R: Record>(database: &DB, key: &[u8]) -> io::Result<Option<R>> {
    let record = database.get(key).map_err(broken)?;
    let damage = |error| damaged(format!("{}: {error}", String::from_utf8_lossy(key)));
    record.map(|record| records::decode(key, &record).map_err(damage)).transpose()
}

fn entries_from(database: &DB, start: u64, end: u64) -> impl Iterator<Item = io::Result<Entry>> + '_ {
    let mut options = ReadOptions::default();
    options.set_iterate_upper_bound(match end {
        u64::MAX => vec![ENTRY + 1],
        end => entry_key(end).to_vec(),
    });
    let first = entry_key(start);
    database.iterator_opt(IteratorMode::From(&first, Direction::Forward), options).map(|item| {
        let (key, record) = item.map_err(broken)?;
        let entry: Entry = records::decode(&key, &record).map_err(|error| damaged(format!("Raft log: {error}")))?;
        match key[..] == entry_key(entry.log_id.index) {
            true => Ok(entry),
            false => Err(damaged("an entry of the Raft log is under another's index")),
        }
    })
}

/// Entries from the disk, and whether they are all that was asked for.
pub(super) fn read_entries(database: &DB, start: u64, end: u64, max_bytes: usize) -> io::Result<(Vec<Entry>, bool)> {
    let (mut entries, mut bytes, mut expected) = (Vec::new(), 0, start);
    if start >= end {
        return Ok((entries, true));
    }
    for item in entries_from(database, start, end) {
        let entry = item?;
        if bytes >= max_bytes {
            return Ok((entries, false));
        }
        if entry.log_id.index != expected {
            return Err(damaged(format!("the Raft log has no entry {expected}")));
        }
        expected = entry.log_id.index + 1;
        bytes += weight(&entry);
        entries.push(entry);
    }
    match expected == end {
        true => Ok((entries, true)),
        false => Err(damaged(format!("the Raft log has no entry {expected}"))),
    }
}
