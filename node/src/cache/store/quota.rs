//! Bytes an export may have on the device.
//!
//! Owns: which chunks go when an export has too many: its own, oldest first. Never does: touch another export's, or pinned
//! chunks. Invariant: a cursor only moves forward; what is behind it was looked at, or was copied ahead of it.

use std::{collections::HashMap, io};

use super::{
    Store,
    layout::{Placed, RecordKind},
    log::{Log, Sealed},
};

/// Where the oldest chunks of an export may be.
#[derive(Debug, Default, Clone)]
struct Cursor {
    segment: u64,
    entry: usize,
    entries: Option<Vec<Placed>>,
}

/// Cursors of exports that have a quota.
#[derive(Debug, Default)]
pub struct Quotas {
    cursors: HashMap<u64, Cursor>,
}

impl Quotas {
    /// Evicts until every export is within its quota.
    ///
    /// # Errors
    /// The device's.
    pub fn enforce(&mut self, log: &Log, store: &Store) -> io::Result<()> {
        for (&export, &quota) in &store.limits.quotas {
            while excess(store, export, quota) {
                let cursor = self.cursors.entry(export).or_default();
                if !cursor.step(log, store, export, quota)? {
                    break;
                }
            }
        }
        Ok(())
    }
}

fn excess(store: &Store, export: u64, quota: u64) -> bool {
    let core = store.core.lock();
    let usage = core.index.usage();
    usage.exports.iter().any(|usage| usage.export == export && usage.bytes > quota)
}

impl Cursor {
    /// Looks at one segment; false if there is no other after it.
    fn step(&mut self, log: &Log, store: &Store, export: u64, quota: u64) -> io::Result<bool> {
        let open = log.open_entries();
        let next = log.sealed.iter().copied().find(|sealed| sealed.sequence >= self.segment);
        let (segment, is_open) = match (next, open) {
            (Some(sealed), _) => (sealed, false),
            (None, Some((sealed, _))) if sealed.sequence >= self.segment => (sealed, true),
            _ => return Ok(false),
        };
        if segment.sequence != self.segment {
            *self = Self { segment: segment.sequence, entry: 0, entries: None };
        }
        if is_open {
            let entries = open.map(|(_, entries)| entries).unwrap_or_default();
            self.entry = evict(log, store, segment, entries, self.entry, (export, quota));
            return Ok(false);
        }
        let entries = match self.entries.take() {
            Some(entries) => entries,
            None => log.medium.summary(segment.slot, segment.tag)?.unwrap_or_default(),
        };
        self.entry = evict(log, store, segment, &entries, self.entry, (export, quota));
        if self.entry >= entries.len() {
            *self = Self { segment: segment.sequence + 1, entry: 0, entries: None };
        } else {
            self.entries = Some(entries);
        }
        Ok(true)
    }
}

/// Evicts the export's chunks among these, from `from` on, until it is within its quota; where it stopped.
fn evict(
    log: &Log,
    store: &Store,
    segment: Sealed,
    entries: &[Placed],
    from: usize,
    (export, quota): (u64, u64),
) -> usize {
    let mut core = store.core.lock();
    let bytes = |core: &super::Core| {
        let usage = core.index.usage();
        usage.exports.iter().find(|usage| usage.export == export).map_or(0, |usage| usage.bytes)
    };
    let mut at = from;
    while at < entries.len() && bytes(&core) > quota {
        let Placed { block, record } = entries[at];
        at += 1;
        if record.kind != RecordKind::Chunk || record.export != export {
            continue;
        }
        let block = log.medium.block(segment.slot, block);
        let chunk = core.index.find(&record.key);
        if chunk.is_some_and(|chunk| u64::from(chunk.block) == block && !chunk.pinned()) {
            core.index.remove(&record.key);
            core.forget_later(record.key);
            store.metrics.evicted_quota.add(1);
        }
    }
    at
}
