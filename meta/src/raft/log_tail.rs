//! The end of the log in memory: what is not on the disk yet, and as much of what is as followers that keep up ask for.
//!
//! Invariants: entries follow each other without a gap; an entry leaves from the front, and only when it is durable.

use std::collections::VecDeque;

use openraft::EntryPayload;

use super::types::Entry;

/// Followers that are at most this far behind are served from memory.
const MAX_BYTES: usize = 16 << 20;
/// Small entries cost more memory than their bytes: about 10 MB for this many.
const MAX_ENTRIES: usize = 65_536;

/// What an entry counts beside its command.
const ENTRY_BYTES: usize = 96;

/// The last entries.
#[derive(Debug, Default)]
pub(super) struct Tail {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Entries below this index are on the disk.
    durable_before: u64,
}

/// About how much memory an entry takes.
pub(super) fn weight(entry: &Entry) -> usize {
    match &entry.payload {
        EntryPayload::Normal(command) => ENTRY_BYTES + command.0.len(),
        EntryPayload::Blank | EntryPayload::Membership(_) => ENTRY_BYTES,
    }
}

impl Tail {
    /// The index of the first entry here; `None`: there is none.
    pub(super) fn first(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.log_id.index)
    }

    /// Takes an entry that follows the last one.
    pub(super) fn push(&mut self, entry: Entry) {
        if self.entries.back().is_some_and(|last| last.log_id.index + 1 != entry.log_id.index) {
            // The caller checks that entries follow each other; those before a jump (after a snapshot) are of no use.
            self.clear();
        }
        self.bytes += weight(&entry);
        self.entries.push_back(entry);
    }

    /// Entries from `start` to before `end`, those that are here.
    pub(super) fn range(&self, start: u64, end: u64) -> impl Iterator<Item = &Entry> {
        let first = self.first().unwrap_or(u64::MAX);
        let skip = usize::try_from(start.saturating_sub(first)).unwrap_or(usize::MAX);
        self.entries.iter().skip(skip).take_while(move |entry| entry.log_id.index < end)
    }

    /// Entries below `index` are on the disk; lets go of what is more than is to be kept.
    pub(super) fn durable(&mut self, index: u64) {
        self.durable_before = self.durable_before.max(index);
        while self.bytes > MAX_BYTES || self.entries.len() > MAX_ENTRIES {
            match self.entries.front() {
                Some(entry) if entry.log_id.index < self.durable_before => self.pop_front(),
                _ => break,
            }
        }
    }

    /// Entries from `index` on are no more.
    pub(super) fn truncate_from(&mut self, index: u64) {
        while self.entries.back().is_some_and(|entry| entry.log_id.index >= index) {
            if let Some(entry) = self.entries.pop_back() {
                self.bytes -= weight(&entry);
            }
        }
    }

    /// Whatever comes at `index` and after it is not on the disk.
    pub(super) fn not_durable_from(&mut self, index: u64) {
        self.durable_before = self.durable_before.min(index);
    }

    /// Entries up to `index` are no more.
    pub(super) fn purge(&mut self, index: u64) {
        while self.entries.front().is_some_and(|entry| entry.log_id.index <= index) {
            self.pop_front();
        }
    }

    fn pop_front(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= weight(&entry);
        }
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::types::{CommandBytes, log_id};

    fn entry(index: u64, bytes: usize) -> Entry {
        Entry { log_id: log_id(1, 1, index), payload: EntryPayload::Normal(CommandBytes(vec![0; bytes].into())) }
    }

    fn indices(tail: &Tail, start: u64, end: u64) -> Vec<u64> {
        tail.range(start, end).map(|entry| entry.log_id.index).collect()
    }

    #[test]
    fn only_what_is_durable_leaves() {
        let mut tail = Tail::default();
        for index in 10..30 {
            tail.push(entry(index, 1 << 20));
        }
        tail.durable(10);
        assert_eq!(tail.first(), Some(10), "nothing is durable, so all of it stays, more than is to be kept");
        tail.durable(30);
        assert!(tail.first().is_some_and(|first| (14..=15).contains(&first)), "{:?}", tail.first());
        assert_eq!(indices(&tail, 0, 17).last(), Some(&16));
        assert_eq!(indices(&tail, 27, 99), [27, 28, 29]);
    }

    #[test]
    fn both_ends_can_go() {
        let mut tail = Tail::default();
        for index in 0..10 {
            tail.push(entry(index, 1));
        }
        tail.truncate_from(7);
        tail.purge(2);
        assert_eq!(indices(&tail, 0, 100), [3, 4, 5, 6]);
        tail.push(entry(7, 1));
        assert_eq!(indices(&tail, 6, 8), [6, 7]);
        tail.purge(100);
        assert_eq!(tail.first(), None);
        assert_eq!(tail.bytes, 0);
        tail.push(entry(101, 1));
        tail.push(entry(103, 1));
        assert_eq!(indices(&tail, 0, 200), [103], "a jump leaves nothing before it");
    }
}
