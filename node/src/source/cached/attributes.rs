//! Attributes and rights: from what is known, or by one question that all who ask share.

use std::{sync::Arc, time::Instant};

use futures_util::FutureExt;

use super::{AccessMask, CachedFile, CachedSource, Flight, Need, Place, Want, digest, for_client};
use crate::source::{Credentials, FileAttributes, FileKind, SourceError, remote::Word};

/// Files up to this size come along with the answer to an OPEN.
pub(super) const SMALL: u64 = 256 << 10;

impl CachedSource {
    /// Attributes, if what is known is fresh enough.
    pub fn attributes_now(&self, file: &CachedFile) -> Option<FileAttributes> {
        let now = Instant::now();
        let state = file.state();
        let fresh = !state.gone && self.holds(file, &state, Need::Window, now);
        fresh.then(|| state.attributes.clone())
    }

    /// Attributes.
    pub async fn attributes(
        self: &Arc<Self>,
        user: &Credentials,
        file: &Arc<CachedFile>,
    ) -> Result<FileAttributes, SourceError> {
        self.refresh(user, file, Need::Window).await
    }

    /// Attributes as fresh as needed: from what is known, from a question under way, or by a new one.
    pub(super) async fn refresh(
        self: &Arc<Self>,
        user: &Credentials,
        file: &Arc<CachedFile>,
        need: Need,
    ) -> Result<FileAttributes, SourceError> {
        let began = Instant::now();
        let mut may_join = true;
        loop {
            let (flight, joined) = {
                let mut state = file.state();
                if state.gone {
                    return Err(SourceError::Stale);
                }
                if self.holds(file, &state, need, began) {
                    return Ok(state.attributes.clone());
                }
                // An answer on its way is as good as one that came, if its question was asked late enough.
                let is_late_enough = |asked| may_join && state.would_be_fresh(asked, self.policy(), need, began);
                match state.flight.clone().filter(|(asked, _)| is_late_enough(*asked)) {
                    Some((_, flight)) => (flight, true),
                    None => {
                        let flight = self.ask(user, file, need, began);
                        state.flight = Some((began, flight.clone()));
                        (flight, false)
                    }
                }
            };
            if may_join {
                self.counters.revalidations.increment(1);
            }
            match flight.await {
                // In a cluster what it tells may have been taken back on its way.
                Ok(_) if joined && self.shared.is_some() => may_join = false,
                answer => return self.or_stale(file, answer),
            }
        }
    }

    /// An answer, or if the source cannot be reached what was known, where the policy allows that.
    pub(super) fn or_stale(
        &self,
        file: &CachedFile,
        answer: Result<FileAttributes, SourceError>,
    ) -> Result<FileAttributes, SourceError> {
        if answer == Err(SourceError::Unavailable) {
            let state = file.state();
            if self.may_serve_stale(file, &state) {
                self.counters.stale.increment(1);
                return Ok(state.attributes.clone());
            }
        }
        answer
    }

    /// A question that goes on whoever stops waiting for it.
    fn ask(self: &Arc<Self>, user: &Credentials, file: &Arc<CachedFile>, need: Need, began: Instant) -> Flight {
        let (source, file, by) = (self.clone(), file.clone(), for_client(user));
        let asking = tokio::spawn(async move {
            let asked = source.asking();
            let want = Want { open: need == Need::Open, ..Want::default() };
            let seen = source.remote.look(&by, &Place::Object(*file.id()), want).await;
            let seen = seen.and_then(|seen| seen.object).map(|seen| (seen.attributes, seen.word));
            let (answer, word) = match seen {
                Ok((attributes, word)) => (Ok(attributes), word),
                Err(error) => (Err(error), Word::Source),
            };
            let mut state = file.state();
            // Only its own: another may have been begun since a change of ours.
            if state.flight.as_ref().is_some_and(|(known, _)| *known == began) {
                state.flight = None;
            }
            match &answer {
                Ok(attributes) if attributes.kind != file.kind() => {
                    state.gone = true;
                    return Err(SourceError::Stale);
                }
                Ok(attributes) => {
                    source.observe(&mut state, attributes, asked, &word);
                }
                Err(SourceError::Stale | SourceError::BadHandle) => state.gone = true,
                Err(_) => {}
            }
            answer
        });
        asking.map(|joined| joined.unwrap_or(Err(SourceError::Unavailable))).boxed().shared()
    }

    /// What a user may do, if it is known.
    pub fn access_now(&self, user: &Credentials, file: &CachedFile) -> Option<AccessMask> {
        let now = Instant::now();
        let state = file.state();
        let fresh = !state.gone && self.holds(file, &state, Need::Window, now);
        if fresh { state.rights(digest(user)) } else { None }
    }

    /// What a user may do: the source's own answer.
    pub async fn access(
        self: &Arc<Self>,
        user: &Credentials,
        file: &Arc<CachedFile>,
    ) -> Result<AccessMask, SourceError> {
        if let Some(mask) = self.access_now(user, file) {
            return Ok(mask);
        }
        let asked = self.asking();
        let seen = self.look(user, Place::Object(*file.id()), Want { access: true, ..Want::default() }).await;
        let seen = match seen {
            Err(SourceError::Unavailable) => {
                let state = file.state();
                let known = state.rights(digest(user)).filter(|_| self.may_serve_stale(file, &state));
                return known.ok_or(SourceError::Unavailable);
            }
            Err(error) => return Err(self.lost(file, error)),
            Ok(seen) => seen,
        };
        self.admit_seen(user, &seen, Some(file), asked).await;
        seen.access.ok_or(SourceError::UNSUPPORTED)
    }

    /// Notes that an object is no more, if that is what the error says.
    pub(super) fn lost(&self, file: &CachedFile, error: SourceError) -> SourceError {
        if matches!(error, SourceError::Stale | SourceError::BadHandle) {
            file.state().gone = true;
        }
        error
    }

    /// An object is about to be opened: what an OPEN must see is seen, and what it needs comes along.
    pub async fn refresh_to_open(
        self: &Arc<Self>,
        user: &Credentials,
        file: &Arc<CachedFile>,
    ) -> Result<(), SourceError> {
        self.note_walk(user, file);
        self.await_coming(file).await;
        let now = Instant::now();
        let (fresh, known, read) = {
            let state = file.state();
            if state.gone {
                return Err(SourceError::Stale);
            }
            let fresh = self.holds(file, &state, Need::Open, now);
            (fresh, state.rights(digest(user)).is_some(), self.worth_reading(file, &state))
        };
        if fresh && known && read == 0 {
            return Ok(());
        }
        if !fresh && known && read == 0 {
            return self.refresh(user, file, Need::Open).await.map(drop);
        }
        let asked = self.asking();
        match self.look(user, Place::Object(*file.id()), Want { access: true, read, open: true }).await {
            Ok(seen) => {
                self.admit_seen(user, &seen, Some(file), asked).await;
                Ok(())
            }
            Err(SourceError::Unavailable) => self.or_stale(file, Err(SourceError::Unavailable)).map(drop),
            Err(error) => Err(self.lost(file, error)),
        }
    }

    /// How much of a file should come along with the answer to an OPEN: all of a small one that is not here.
    pub(super) fn worth_reading(&self, file: &CachedFile, state: &super::file::State) -> u32 {
        let size = state.attributes.size;
        let small = file.kind() == FileKind::Regular && (1..=SMALL).contains(&size) && state.changing == 0;
        if small && !self.has_chunk(file, state.content, 0) { u32::try_from(size).unwrap_or(0) } else { 0 }
    }
}
