//! Read-ahead of directories: whoever opens one small file of a listing after the other finds the next ones already here.
//!
//! Owns: finding such walks, fetching what comes next, many files in one round trip. Never does: fetch what is large or
//! is here already. Invariant: at most [`REACH`] files ahead of a walk, and each of them once.

use std::{collections::HashMap, ops::Range, sync::Arc};

use futures_util::FutureExt;
use parking_lot::Mutex;

use super::{
    CachedFile, CachedSource, Flight,
    attributes::SMALL,
    directory::{KeptEntry, KeptPage},
};
use crate::source::{
    Credentials, FileKind, SourceError,
    remote::{OnBehalf, Place, Purpose, Want},
};

/// Opens in a row, nearly, before anything is fetched.
const RUN_MIN: u32 = 3;
/// Several processes walk one directory a little out of order.
const JITTER: usize = 16;
/// Files fetched at once.
const BATCH: usize = 32;
/// Files fetched ahead of a walk at most.
const REACH: usize = 2 * BATCH;
/// Bytes fetched at once.
const BATCH_BYTES: u64 = 1 << 20;

/// Files on their way, by their keys.
pub(super) type Coming = Mutex<HashMap<u128, Flight>>;

/// How a page's files are opened.
#[derive(Debug, Default)]
pub(super) struct Walk {
    last: usize,
    run: u32,
    ahead: usize,
}

impl Walk {
    /// The file at `place` is opened; `count` files are in the page. What to fetch now.
    fn on_open(&mut self, place: usize, count: usize) -> Range<usize> {
        if place == self.last && self.run > 0 {
            return 0..0;
        }
        let near = place + JITTER >= self.last && place <= self.last + JITTER;
        self.run = if near { self.run.saturating_add(1) } else { 1 };
        self.last = if near { self.last.max(place) } else { place };
        if !near {
            self.ahead = 0;
        }
        if self.run < RUN_MIN {
            return 0..0;
        }
        let begin = self.ahead.max(self.last + 1);
        // The next batch sets out while the one before is still being read.
        if begin > self.last + 1 + REACH - BATCH {
            return 0..0;
        }
        let end = (begin + BATCH).min(count);
        self.ahead = self.ahead.max(end);
        begin.min(end)..end
    }
}

impl CachedSource {
    /// A file is about to be opened. If it is on its way already, waits until it is here.
    pub(super) async fn await_coming(&self, file: &CachedFile) {
        let coming = self.coming.lock().get(&file.key()).cloned();
        if let Some(coming) = coming {
            let _ = coming.await;
        }
    }

    /// A file is opened: perhaps the next ones of its listing will be.
    pub(super) fn note_walk(self: &Arc<Self>, user: &Credentials, file: &CachedFile) {
        let listed = file.state().listed.clone();
        let Some((page, place)) = listed.and_then(|(page, place)| Some((page.upgrade()?, place as usize))) else {
            return;
        };
        let range = page.walk.lock().on_open(place, page.entries.len());
        if !range.is_empty() {
            self.fetch_files(user, &page, range);
        }
    }

    fn fetch_files(self: &Arc<Self>, user: &Credentials, page: &KeptPage, range: Range<usize>) {
        let mut bytes = 0;
        let wanted = page.entries[range].iter().filter_map(|entry| self.wants(entry));
        let wanted: Vec<_> = wanted
            .take_while(|(_, size)| {
                bytes += size;
                bytes <= BATCH_BYTES
            })
            .collect();
        let most = wanted.iter().map(|(_, size)| *size).max().unwrap_or(0);
        if wanted.len() < 2 {
            return;
        }
        let Ok(permit) = self.ahead.clone().try_acquire_owned() else { return };
        let files: Vec<_> = wanted.into_iter().map(|(file, _)| file).collect();
        let keys: Vec<_> = files.iter().map(|file| file.key()).collect();
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        // Waiting for it is all that is wanted: what came is asked of the cache.
        let flight: Flight = receiver.map(|_| Err(SourceError::Unavailable)).boxed().shared();
        self.coming.lock().extend(keys.iter().map(|key| (*key, flight.clone())));
        self.counters.ahead_files.increment(files.len() as u64);
        let (source, by) = (self.clone(), OnBehalf { user: user.clone(), purpose: Purpose::Ahead });
        tokio::spawn(async move {
            source.take_files(&by, &files, u32::try_from(most).unwrap_or(0)).await;
            let mut coming = source.coming.lock();
            keys.iter().for_each(|key| drop(coming.remove(key)));
            drop((coming, sender, permit));
        });
    }

    /// A file worth fetching, and its size.
    fn wants(&self, entry: &KeptEntry) -> Option<(Arc<CachedFile>, u64)> {
        let (_, key, _) = entry.object.as_ref().ok()?;
        let file = self.table.get(key).filter(|file| file.kind() == FileKind::Regular)?;
        let size = {
            let state = file.state();
            let is_small = (1..=SMALL).contains(&state.attributes.size);
            let is_quiet = state.changing == 0 && !state.gone;
            (is_small && is_quiet && !self.has_chunk(&file, state.content, 0)).then_some(state.attributes.size)
        }?;
        let is_coming = self.coming.lock().contains_key(key);
        (!is_coming).then_some((file, size))
    }

    async fn take_files(&self, by: &OnBehalf, files: &[Arc<CachedFile>], read: u32) {
        let places: Vec<_> = files.iter().map(|file| Place::Object(*file.id())).collect();
        let asked = self.asking();
        let Ok(all) = self.remote.look_many(by, &places, Want { access: true, read, open: false }).await else {
            return;
        };
        for (file, seen) in files.iter().zip(all) {
            if let Ok(object) = seen.and_then(|seen| seen.object) {
                self.admit_seen(&by.user, &object, Some(file), asked).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_in_order_has_every_file_fetched_once_and_ahead_of_it() {
        let (mut walk, mut fetched) = (Walk::default(), Vec::new());
        for place in 0..200 {
            let range = walk.on_open(place, 200);
            assert!(range.clone().all(|file| file > place && file <= place + REACH + 1), "{place}: {range:?}");
            fetched.extend(range);
        }
        assert_eq!(fetched, (3..200).collect::<Vec<_>>());
    }

    #[test]
    fn walks_that_jump_about_fetch_nothing() {
        let mut walk = Walk::default();
        let fetched: usize = (0..200).map(|step| walk.on_open(step * 7919 % 5000, 5000).len()).sum();
        assert_eq!(fetched, 0);
    }

    #[test]
    fn a_walk_a_little_out_of_order_is_one() {
        let (mut walk, mut fetched) = (Walk::default(), Vec::new());
        for step in 0..100_usize {
            fetched.extend(walk.on_open(step ^ 3, 100));
        }
        let mut once = fetched.clone();
        once.dedup();
        assert_eq!(once, fetched);
        assert!(fetched.len() > 80);
    }
}
