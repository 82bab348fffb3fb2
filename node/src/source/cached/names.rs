//! Names in directories: known, known to be missing, or asked for.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use futures_util::FutureExt;

use super::{CachedFile, CachedSource, Need, Place, Want, digest, file::Asked, for_client, policy::LookupCache};
use crate::source::{
    Credentials, FileAttributes, FileKind, SourceError,
    remote::{Seen, SeenObject, Word},
};

const NO_ENTRY: SourceError = SourceError::Errno(libc::ENOENT);
const NO_ACCESS: SourceError = SourceError::Errno(libc::EACCES);
const NOT_DIRECTORY: SourceError = SourceError::Errno(libc::ENOTDIR);

/// What is known of a name.
enum Known {
    Here(Arc<CachedFile>),
    Missing,
    Unknown,
}

impl CachedSource {
    /// A name, if the answer is known.
    pub fn lookup_now(
        &self,
        user: &Credentials,
        dir: &CachedFile,
        name: &[u8],
    ) -> Option<Result<Arc<CachedFile>, SourceError>> {
        if dir.kind() != FileKind::Directory {
            return Some(Err(NOT_DIRECTORY));
        }
        if !self.access_now(user, dir)?.execute {
            return Some(Err(NO_ACCESS));
        }
        let answer = match (self.known_name(dir, name), self.policy().lookupcache) {
            (Known::Here(file), LookupCache::All | LookupCache::Positive) => Ok(file),
            (Known::Missing, LookupCache::All) => Err(NO_ENTRY),
            _ => return None,
        };
        self.counters.name_hits.increment(1);
        Some(answer)
    }

    fn known_name(&self, dir: &CachedFile, name: &[u8]) -> Known {
        let known = dir.state().name(name);
        match known {
            None => Known::Unknown,
            Some(None) => Known::Missing,
            // The object may have been let go, or be no more: its name may stand for another now.
            Some(Some(key)) => match self.table.get(&key).filter(|file| !file.state().gone) {
                Some(file) => Known::Here(file),
                None => Known::Unknown,
            },
        }
    }

    /// A name.
    pub async fn lookup(
        self: &Arc<Self>,
        user: &Credentials,
        dir: &Arc<CachedFile>,
        name: &[u8],
    ) -> Result<Arc<CachedFile>, SourceError> {
        if dir.kind() != FileKind::Directory {
            return Err(NOT_DIRECTORY);
        }
        let wants_known = !matches!(self.policy().lookupcache, LookupCache::None);
        if wants_known && matches!(self.known_name(dir, name), Known::Here(_)) {
            // One question about the directory makes all its names good again.
            self.access(user, dir).await?;
            if let Some(answer) = self.lookup_now(user, dir, name) {
                return answer;
            }
        }
        self.counters.name_misses.increment(1);
        let asked = self.asking();
        let place = Place::Name(*dir.id(), Bytes::copy_from_slice(name));
        let seen = self.remote.look(&for_client(user), &place, Want { access: true, ..Want::default() }).await;
        let seen = match seen {
            Err(SourceError::Unavailable) => return self.lookup_stale(user, dir, name),
            Err(error) => return Err(self.lost(dir, error)),
            Ok(seen) => seen,
        };
        let found = self.note_name(user, dir, name, &seen, asked).await;
        found.map(|(file, _)| file)
    }

    /// The source cannot be reached: a name that was known not long ago.
    fn lookup_stale(&self, user: &Credentials, dir: &CachedFile, name: &[u8]) -> Result<Arc<CachedFile>, SourceError> {
        let may = {
            let state = dir.state();
            self.may_serve_stale(dir, &state).then(|| state.rights(digest(user))).flatten()
        };
        match (may, self.known_name(dir, name)) {
            (Some(may), Known::Here(file)) if may.execute => {
                self.counters.stale.increment(1);
                Ok(file)
            }
            _ => Err(SourceError::Unavailable),
        }
    }

    /// Remembers what was seen at a name; the object, or why there is none.
    async fn note_name(
        &self,
        user: &Credentials,
        dir: &Arc<CachedFile>,
        name: &[u8],
        seen: &Seen,
        asked: Asked,
    ) -> Result<(Arc<CachedFile>, Option<u64>), SourceError> {
        let current =
            seen.directory.as_ref().and_then(|told| self.observe_directory(dir, told, asked, &seen.directory_word));
        let change = seen.directory.as_ref().map(|told| told.change);
        match &seen.object {
            Ok(object) => {
                let file = self.admit_seen(user, object, None, asked).await;
                if let Some(content) = current {
                    self.set_name_if(dir, name, Some(file.key()), asked, content);
                }
                if current.is_some() && object.access.is_some() {
                    // Whoever may look up may search: the source has just let him.
                    self.note_search(user, dir);
                }
                Ok((file, change))
            }
            Err(NO_ENTRY) => {
                if let Some(content) = current {
                    self.set_name_if(dir, name, None, asked, content);
                }
                Err(NO_ENTRY)
            }
            Err(error) => Err(*error),
        }
    }

    /// The content that what came with these attributes belongs to, if that is the present one.
    fn observe_directory(&self, dir: &CachedFile, told: &FileAttributes, asked: Asked, word: &Word) -> Option<u64> {
        let mut state = dir.state();
        self.observe(&mut state, told, asked, word).then_some(state.content)
    }

    /// Sets a name unless the directory was changed since it was asked. That a name is missing is remembered only where it
    /// would be believed.
    fn set_name_if(&self, dir: &CachedFile, name: &[u8], key: Option<u128>, asked: Asked, content: u64) {
        let mut state = dir.state();
        if state.changing > 0 || state.epoch > asked.epoch || state.content != content {
            return;
        }
        if key.is_some() || self.policy().lookupcache == LookupCache::All {
            state.set_name(name, key);
        } else {
            state.forget_name(name);
        }
    }

    /// That a name was found proves the right to search, and nothing about the others.
    fn note_search(&self, user: &Credentials, dir: &CachedFile) {
        let user = digest(user);
        let mut state = dir.state();
        if state.rights(user).is_none() && state.search_proven != Some(user) {
            state.search_proven = Some(user);
        }
    }

    /// A name that is about to be opened, and the directory's change attribute: the directory, the file, what the user
    /// may do with it and its data if it is small, all in one round trip.
    pub async fn lookup_to_open(
        self: &Arc<Self>,
        user: &Credentials,
        dir: &Arc<CachedFile>,
        name: &[u8],
    ) -> Result<(Arc<CachedFile>, u64), SourceError> {
        if dir.kind() != FileKind::Directory {
            return Err(NOT_DIRECTORY);
        }
        if let Known::Here(file) = self.known_name(dir, name) {
            self.note_walk(user, &file);
            self.await_coming(&file).await;
        }
        if let Some(found) = self.open_now(user, dir, name) {
            return Ok(found);
        }
        // Whoever opens the same name at the same time waits for one answer and then has only his own rights to ask for.
        let key = (dir.key(), Bytes::copy_from_slice(name));
        let under_way = self.opening.lock().get(&key).cloned();
        if let Some(flight) = under_way {
            let _ = flight.await;
            if let Some(found) = self.open_now(user, dir, name) {
                return Ok(found);
            }
        }
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let flight = receiver.map(|told| told.unwrap_or(Err(SourceError::Unavailable))).boxed().shared();
        self.opening.lock().insert(key.clone(), flight);
        let found = self.look_to_open(user, dir, &key.1).await;
        self.opening.lock().remove(&key);
        let told = match &found {
            Ok((file, _)) => Ok(file.state().attributes.clone()),
            Err(error) => Err(*error),
        };
        // Nobody may be waiting.
        let _ = sender.send(told);
        found
    }

    /// The answer to [`CachedSource::lookup_to_open`], if directory and file are fresh enough for an OPEN.
    fn open_now(&self, user: &Credentials, dir: &CachedFile, name: &[u8]) -> Option<(Arc<CachedFile>, u64)> {
        let now = Instant::now();
        let change = {
            let state = dir.state();
            let may = state.rights(digest(user)).map(|mask| mask.execute);
            let may = may.unwrap_or(state.search_proven == Some(digest(user)));
            let fresh = may && self.holds(dir, &state, Need::Open, now);
            fresh.then_some(state.attributes.change)
        }?;
        let Known::Here(file) = self.known_name(dir, name) else { return None };
        let ready = {
            let state = file.state();
            self.holds(&file, &state, Need::Open, now)
                && state.rights(digest(user)).is_some()
                && self.worth_reading(&file, &state) == 0
        };
        ready.then(|| {
            self.counters.name_hits.increment(1);
            (file, change)
        })
    }

    async fn look_to_open(
        self: &Arc<Self>,
        user: &Credentials,
        dir: &Arc<CachedFile>,
        name: &Bytes,
    ) -> Result<(Arc<CachedFile>, u64), SourceError> {
        let read = match self.known_name(dir, name) {
            Known::Here(file) => self.worth_reading(&file, &file.state()),
            // Not known to be small: most files are, and the source sends no more than there is.
            _ => 32 << 10,
        };
        self.counters.name_misses.increment(1);
        let asked = self.asking();
        let place = Place::Name(*dir.id(), name.clone());
        match self.remote.look(&for_client(user), &place, Want { access: true, read, open: true }).await {
            Ok(seen) => {
                let (file, change) = self.note_name(user, dir, name, &seen, asked).await?;
                let is_told = self.holds(&file, &file.state(), Need::Open, asked.at);
                if self.shared.is_some() && !is_told {
                    // The directory's owner knows no more than its name.
                    self.refresh_to_open(user, &file).await?;
                }
                let change = change.unwrap_or_else(|| dir.state().attributes.change);
                Ok((file, change))
            }
            Err(SourceError::Unavailable) => {
                let file = self.lookup_stale(user, dir, name)?;
                let change = dir.state().attributes.change;
                Ok((file, change))
            }
            Err(error) => Err(self.lost(dir, error)),
        }
    }

    /// Objects that a listing told of become known by their names.
    pub(super) fn note_entry(
        &self,
        dir: &CachedFile,
        name: &[u8],
        seen: &SeenObject,
        asked: Asked,
        current: Option<u64>,
    ) {
        let file = self.admit(&seen.id, &seen.attributes, asked, &seen.word);
        if let Some(content) = current {
            self.set_name_if(dir, name, Some(file.key()), asked, content);
        }
    }
}
