//! Changes: written through to the source, and what the cache holds set right before they are answered.
//!
//! Invariant: from the moment a change is sent until its answer is here nothing is kept of the object, and what was kept
//! before is used afterwards only if the source says that nobody else changed it meanwhile.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};

use super::{CHUNK, CachedFile, CachedSource, Kept, Need, data::chunk_length, for_client};
use crate::source::{
    Credentials, FileAttributes, FileKind, NewObject, SeekWhat, SetAttributes, SourceError, XattrSet,
    remote::{Changed, DirectoryChange, Made},
};

/// Chunks of a file that a change of ours carries over to its new content; larger files are fetched anew.
const CARRIED_MAX: u64 = 16;

/// Bytes of one COPY at most: the client asks again for the rest.
const COPY_MAX: u64 = 16 << 20;

/// A hidden name is tried to be removed for about an hour.
const HIDDEN_TRIES: u32 = 120;

/// What hidden names begin with; clients do not see them in listings.
pub const HIDDEN: &[u8] = b".nfs.forebay-";

/// What WRITE did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteDone {
    /// Bytes taken.
    pub count: u32,
    /// They are on stable storage.
    pub stable: bool,
    /// The source's write verifier.
    pub verifier: u64,
}

/// A name given to a removed file so that those who have it open can go on.
#[derive(Debug)]
pub struct Hidden {
    source: Arc<CachedSource>,
    dir: Arc<CachedFile>,
    name: Bytes,
    user: Credentials,
}

impl Hidden {
    /// Removes it, in the background. A node that is gone by then leaves a `.nfs.forebay-…` behind, as a Linux client
    /// does that crashes.
    pub fn remove(&self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (source, dir) = (self.source.clone(), self.dir.clone());
        let (name, user) = (self.name.clone(), self.user.clone());
        runtime.spawn(async move {
            let mut removed = source.remove(&user, &dir, &name, false).await;
            for attempt in 0..HIDDEN_TRIES {
                if !matches!(removed, Err(SourceError::Unavailable)) {
                    break;
                }
                tokio::time::sleep(Duration::from_secs(1 << attempt.min(5))).await;
                removed = source.remove(&user, &dir, &name, false).await;
            }
            if let Err(error) = removed {
                let name = String::from_utf8_lossy(&name).into_owned();
                tracing::warn!(%error, name, "a removed file's hidden name cannot be removed at the source");
            }
        });
    }
}

/// A change of one object under way. Dropped without an end, its outcome is not known.
struct Change<'a> {
    source: &'a CachedSource,
    file: &'a CachedFile,
    ticket: u64,
    began: Instant,
    open: bool,
}

impl<'a> Change<'a> {
    fn begin(source: &'a CachedSource, file: &'a CachedFile) -> Self {
        let mut state = file.state();
        // Numbered under the lock: of two changes of one object the later has the higher number.
        let ticket = source.next_change();
        state.begin_change(ticket);
        drop(state);
        Self { source, file, ticket, began: Instant::now(), open: true }
    }

    /// Whether nothing else happened to the object.
    fn is_alone(&self, before: Option<u64>) -> bool {
        self.file.state().is_ours_alone(self.ticket, before)
    }

    fn end(mut self, after: Option<&FileAttributes>, kept: Option<Kept>) {
        self.open = false;
        self.finish(after, kept);
    }

    fn finish(&self, after: Option<&FileAttributes>, kept: Option<Kept>) {
        let mut state = self.file.state();
        // Another change may have begun while the cache was set right.
        let is_alone = state.changing == 1 && state.epoch == self.ticket;
        let kept = kept.filter(|_| is_alone);
        if kept.is_none() {
            self.source.counters.private_contents.increment(1);
        }
        let epoch = self.source.next_change();
        let (nonce, policy) = (self.source.fresh(), self.source.policy());
        state.end_change(after, (self.began, epoch), (kept, is_alone), nonce, policy);
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if self.open {
            self.finish(None, None);
        }
    }
}

impl CachedSource {
    /// Writes through.
    pub async fn write(
        self: &Arc<Self>,
        user: &Credentials,
        file: &Arc<CachedFile>,
        offset: u64,
        data: Bytes,
        stable: bool,
    ) -> Result<WriteDone, SourceError> {
        let change = Change::begin(self, file);
        let by = for_client(user);
        let written = self.remote.write(&by, file.id(), offset, data.clone(), stable).await;
        let written = written.map_err(|error| self.lost(file, error))?;
        let after = &written.changed.attributes;
        let kept = if change.is_alone(written.changed.before) {
            let taken = data.slice(..data.len().min(written.count as usize));
            self.carry_over(file, offset, &taken, after.size).await
        } else {
            None
        };
        change.end(Some(after), kept.map(Kept::Under));
        Ok(WriteDone { count: written.count, stable: written.stable, verifier: written.verifier })
    }

    /// Puts what is in RAM of a file, changed as it was just written, under a content of its own.
    async fn carry_over(&self, file: &CachedFile, offset: u64, data: &Bytes, size: u64) -> Option<u64> {
        let (old, old_size) = {
            let state = file.state();
            (state.content, state.attributes.size)
        };
        let chunks = size.div_ceil(CHUNK);
        let end = offset + data.len() as u64;
        if chunks > CARRIED_MAX || end > size {
            return None;
        }
        let content = self.fresh();
        for index in 0..chunks {
            let start = index * CHUNK;
            let length = chunk_length(size, index);
            let touched = offset < start + length && end > start;
            let before = self.whole_in_ram(file, old, index, old_size);
            let now = if touched {
                let from = offset.max(start) - offset;
                let to = end.min(start + length) - offset;
                let part = data.slice(from as usize..to as usize);
                overlay(before, part, offset.max(start) - start, length, start >= old_size)
            } else {
                // What grew elsewhere has holes here, which the source knows best.
                before.filter(|chunk| chunk.len() as u64 == length)
            };
            if let Some(bytes) = now {
                self.keep_private(file, content, index, bytes).await;
            }
        }
        Some(content)
    }

    /// Puts what was written on stable storage; the source's write verifier.
    pub async fn commit(&self, user: &Credentials, file: &CachedFile) -> Result<u64, SourceError> {
        let committed = self.remote.commit(&for_client(user), file.id()).await;
        Ok(committed.map_err(|error| self.lost(file, error))?.verifier)
    }

    /// A change of attributes.
    pub async fn set_attributes(
        &self,
        user: &Credentials,
        file: &CachedFile,
        set: &SetAttributes,
    ) -> Result<(), SourceError> {
        if *set == SetAttributes::default() {
            return Ok(());
        }
        let change = Change::begin(self, file);
        let changed = self.remote.set_attributes(&for_client(user), file.id(), set).await;
        self.end_attributes(change, changed, set.size.is_none()).map(drop)
    }

    /// Ends a change that did not touch data (or did).
    fn end_attributes(
        &self,
        change: Change<'_>,
        changed: Result<Changed, SourceError>,
        same_data: bool,
    ) -> Result<DirectoryChange, SourceError> {
        let changed = changed.map_err(|error| self.lost(change.file, error))?;
        let same = same_data && change.is_alone(changed.before);
        let before = changed.before.unwrap_or_else(|| change.file.state().attributes.change);
        let (after, attributes) = (changed.attributes.change, changed.attributes);
        change.end(Some(&attributes), same.then_some(Kept::Same));
        Ok(DirectoryChange { atomic: false, before, after, attributes: Some(attributes) })
    }

    /// A regular file; whether this call made it, and what it did to the directory.
    pub async fn create(
        &self,
        user: &Credentials,
        dir: &Arc<CachedFile>,
        name: &[u8],
        exclusive: bool,
        set: &SetAttributes,
    ) -> Result<(Arc<CachedFile>, bool, DirectoryChange), SourceError> {
        let change = Change::begin(self, dir);
        let asked = self.asking();
        let made = self.remote.create(&for_client(user), dir.id(), name, exclusive, set).await;
        let made = made.map_err(|error| self.lost(dir, error))?;
        let file = self.admit_made(change, name, &made, asked);
        Ok((file, made.created, made.directory))
    }

    /// Anything but a regular file.
    pub async fn make(
        &self,
        user: &Credentials,
        dir: &Arc<CachedFile>,
        name: &[u8],
        object: &NewObject,
        set: &SetAttributes,
    ) -> Result<(Arc<CachedFile>, DirectoryChange), SourceError> {
        let change = Change::begin(self, dir);
        let asked = self.asking();
        let made = self.remote.make(&for_client(user), dir.id(), name, object, set).await;
        let made = made.map_err(|error| self.lost(dir, error))?;
        let file = self.admit_made(change, name, &made, asked);
        Ok((file, made.directory))
    }

    fn admit_made(&self, change: Change<'_>, name: &[u8], made: &Made, asked: super::Asked) -> Arc<CachedFile> {
        let file = self.admit(&made.object.id, &made.object.attributes, asked, &made.object.word);
        self.end_directory(change, &made.directory, &[(name, Some(file.key()))]);
        file
    }

    /// Ends a change of names: those known stay known if nobody else changed the directory.
    fn end_directory(&self, change: Change<'_>, done: &DirectoryChange, names: &[(&[u8], Option<u128>)]) {
        let alone = done.atomic && change.is_alone(Some(done.before));
        let dir = change.file;
        let (after, told) = {
            let mut state = dir.state();
            if alone {
                names.iter().for_each(|(name, key)| state.set_name(name, *key));
            }
            let known = FileAttributes { change: done.after, ..state.attributes.clone() };
            (done.attributes.clone().unwrap_or(known), done.attributes.is_some())
        };
        // Listings are kept under the content: it must be another, though the names stay.
        change.end(Some(&after), alone.then(|| Kept::Under(self.fresh())));
        if !told {
            dir.state().asked = None;
        }
    }

    /// Another name for an object.
    pub async fn link(
        &self,
        user: &Credentials,
        file: &Arc<CachedFile>,
        dir: &Arc<CachedFile>,
        name: &[u8],
    ) -> Result<DirectoryChange, SourceError> {
        let (of_dir, of_file) = (Change::begin(self, dir), Change::begin(self, file));
        let linked = self.remote.link(&for_client(user), file.id(), dir.id(), name).await;
        // Which of the two is stale it does not say.
        let done = linked?;
        self.end_directory(of_dir, &done, &[(name, Some(file.key()))]);
        // What the link did to the file's attributes nobody has said.
        of_file.end(None, None);
        Ok(done)
    }

    /// Removes a name. With `hide` the file gets a hidden name instead, until what comes back is told to remove it.
    pub async fn remove(
        self: &Arc<Self>,
        user: &Credentials,
        dir: &Arc<CachedFile>,
        name: &[u8],
        hide: bool,
    ) -> Result<(DirectoryChange, Option<Hidden>), SourceError> {
        if hide {
            let hidden = self.hidden_name();
            let (change, _, _) = self.rename(user, (dir, name), (dir, &hidden), None).await?;
            return Ok((change, Some(self.hidden(dir, hidden, user))));
        }
        let target = self.known_object(dir, name);
        let change = Change::begin(self, dir);
        let of_file = target.as_deref().map(|file| Change::begin(self, file));
        let removed = self.remote.remove(&for_client(user), dir.id(), name).await;
        let done = removed.map_err(|error| self.lost(dir, error))?;
        self.end_directory(change, &done, &[(name, None)]);
        if let Some(of_file) = of_file {
            // It may have other names.
            of_file.end(None, None);
        }
        Ok((done, None))
    }

    fn hidden_name(&self) -> Bytes {
        let mut name = HIDDEN.to_vec();
        name.extend_from_slice(uuid::Uuid::new_v4().simple().to_string().as_bytes());
        name.into()
    }

    fn hidden(self: &Arc<Self>, dir: &Arc<CachedFile>, name: Bytes, user: &Credentials) -> Hidden {
        Hidden { source: self.clone(), dir: dir.clone(), name, user: user.clone() }
    }

    fn known_object(&self, dir: &CachedFile, name: &[u8]) -> Option<Arc<CachedFile>> {
        let key = dir.state().name(name)??;
        self.table.get(&key)
    }

    /// Moves a name. `hide`: what is replaced, if it is to get a hidden name first.
    pub async fn rename(
        self: &Arc<Self>,
        user: &Credentials,
        (from, old): (&Arc<CachedFile>, &[u8]),
        (to, new): (&Arc<CachedFile>, &[u8]),
        hide: Option<&Arc<CachedFile>>,
    ) -> Result<(DirectoryChange, DirectoryChange, Option<Hidden>), SourceError> {
        let replaced = hide.cloned().or_else(|| self.known_object(to, new));
        let mut hidden = None;
        if let Some(file) = hide {
            let name = self.hidden_name();
            match self.link(user, file, to, &name).await {
                Ok(_) => hidden = Some(self.hidden(to, name, user)),
                // A source without hard links: then the file is gone for those who have it open.
                Err(SourceError::UNSUPPORTED | SourceError::Errno(libc::EMLINK | libc::EPERM | libc::EACCES)) => {}
                Err(error) => return Err(error),
            }
        }
        let moved = self.known_object(from, old);
        let same_directory = Arc::ptr_eq(from, to);
        let of_from = Change::begin(self, from);
        let of_to = (!same_directory).then(|| Change::begin(self, to));
        let of_files = [moved.as_deref(), replaced.as_deref()];
        let of_files = of_files.map(|file| file.map(|file| Change::begin(self, file)));
        let renamed = self.remote.rename(&for_client(user), (from.id(), old), (to.id(), new)).await;
        let (done_from, done_to) = match renamed {
            Ok(done) => done,
            Err(error) => {
                if let Some(hidden) = hidden {
                    hidden.remove();
                }
                return Err(error);
            }
        };
        let key = moved.as_ref().map(|file| file.key());
        // Two names of one object: nothing was moved.
        let is_same_object = key.is_some() && key == replaced.as_ref().map(|file| file.key());
        let old_name = if is_same_object { key } else { None };
        let known = key.is_some();
        let new_name = (new, key);
        match of_to {
            None if known => self.end_directory(of_from, &done_from, &[(old, old_name), new_name]),
            None => {
                self.end_directory(of_from, &done_from, &[(old, None)]);
                from.state().forget_name(new);
            }
            Some(of_to) => {
                self.end_directory(of_from, &done_from, &[(old, old_name)]);
                self.end_directory(of_to, &done_to, if known { std::slice::from_ref(&new_name) } else { &[] });
                if !known {
                    to.state().forget_name(new);
                }
            }
        }
        of_files.into_iter().flatten().for_each(|change| change.end(None, None));
        Ok((done_from, done_to, hidden))
    }

    /// Where a symbolic link points.
    pub async fn read_link(&self, user: &Credentials, link: &CachedFile) -> Result<Bytes, SourceError> {
        if link.kind() != FileKind::Symlink {
            return Err(SourceError::Errno(libc::EINVAL));
        }
        // What a link says never changes while it is the same object.
        if let Some(target) = self.cached_link(link) {
            return Ok(target);
        }
        let target = self.remote.read_link(&for_client(user), link.id()).await.map_err(|e| self.lost(link, e))?;
        link.state().link = Some(target.clone());
        Ok(target)
    }

    fn cached_link(&self, link: &CachedFile) -> Option<Bytes> {
        let state = link.state();
        if state.gone { None } else { state.link.clone() }
    }

    /// The next data or hole. A source that does not know says that all is data.
    pub async fn seek(
        self: &Arc<Self>,
        user: &Credentials,
        file: &Arc<CachedFile>,
        offset: u64,
        what: SeekWhat,
    ) -> Result<Option<u64>, SourceError> {
        match self.remote.seek(&for_client(user), file.id(), offset, what).await {
            Err(SourceError::UNSUPPORTED) => {
                let size = self.refresh(user, file, Need::Window).await?.size;
                let found = if what == SeekWhat::Data { offset } else { size };
                Ok((offset < size).then_some(found))
            }
            other => other,
        }
    }

    /// Reserves or frees space.
    pub async fn allocate(
        &self,
        user: &Credentials,
        file: &CachedFile,
        offset: u64,
        length: u64,
        punch: bool,
    ) -> Result<(), SourceError> {
        let change = Change::begin(self, file);
        let changed = self.remote.allocate(&for_client(user), file.id(), offset, length, punch).await;
        self.end_attributes(change, changed, false).map(drop)
    }

    /// Copies through this node, which saves the client's way: out of the cache, written through. May copy less than
    /// all. How much, and the source's write verifier.
    pub async fn copy(
        self: &Arc<Self>,
        user: &Credentials,
        (from, offset): (&Arc<CachedFile>, u64),
        (to, at): (&Arc<CachedFile>, u64),
        length: u64,
    ) -> Result<(u64, u64), SourceError> {
        let (mut copied, mut verifier) = (0, 0);
        while copied < length.min(COPY_MAX) {
            let count = (length - copied).min(CHUNK - (offset + copied) % CHUNK);
            let read = self.read(user, from, offset + copied, count as usize).await;
            let written = match read {
                Ok((data, _)) if data.is_empty() => break,
                Ok((data, _)) => self.write(user, to, at + copied, data, false).await,
                Err(error) => Err(error),
            };
            match written {
                // A verifier that changes on the way tells of writes lost on the way: the first is what must still hold.
                Ok(done) if copied > 0 && done.verifier != verifier => break,
                Ok(done) => {
                    copied += u64::from(done.count);
                    verifier = done.verifier;
                }
                Err(error) if copied == 0 => return Err(error),
                // What was copied is told; the next call meets the error again.
                Err(_) => break,
            }
        }
        Ok((copied, verifier))
    }

    /// Hints are taken by nobody: read-ahead finds streams by itself.
    pub fn advise(&self, _file: &CachedFile, _advice: crate::source::Advice) -> bool {
        false
    }

    /// The value of an extended attribute: asked each time.
    pub async fn xattr_get(&self, user: &Credentials, file: &CachedFile, name: &[u8]) -> Result<Bytes, SourceError> {
        self.remote.xattr_get(&for_client(user), file.id(), name).await
    }

    /// Names of extended attributes: asked each time.
    pub async fn xattr_list(&self, user: &Credentials, file: &CachedFile) -> Result<Vec<Bytes>, SourceError> {
        self.remote.xattr_list(&for_client(user), file.id()).await
    }

    /// Sets an extended attribute.
    pub async fn xattr_set(
        &self,
        user: &Credentials,
        file: &CachedFile,
        name: &[u8],
        value: &Bytes,
        how: XattrSet,
    ) -> Result<DirectoryChange, SourceError> {
        let change = Change::begin(self, file);
        let changed = self.remote.xattr_set(&for_client(user), file.id(), name, value, how).await;
        self.end_attributes(change, changed, file.kind() != FileKind::Directory)
    }

    /// Removes an extended attribute.
    pub async fn xattr_remove(
        &self,
        user: &Credentials,
        file: &CachedFile,
        name: &[u8],
    ) -> Result<DirectoryChange, SourceError> {
        let change = Change::begin(self, file);
        let changed = self.remote.xattr_remove(&for_client(user), file.id(), name).await;
        self.end_attributes(change, changed, file.kind() != FileKind::Directory)
    }
}

/// A chunk of `length` bytes with `part` at `at`; `None` if the rest of it is not here. `new`: there was nothing before.
fn overlay(before: Option<Bytes>, part: Bytes, at: u64, length: u64, new: bool) -> Option<Bytes> {
    if part.len() as u64 == length {
        // A slice of a larger call's buffer would keep all of that in memory.
        return Some(Bytes::copy_from_slice(&part));
    }
    let before = match before {
        Some(before) => before,
        None if new && at == 0 => Bytes::new(),
        None => return None,
    };
    let at = usize::try_from(at).ok()?;
    let end = at + part.len();
    // Between the old end and what was written lies a hole.
    let mut bytes = BytesMut::zeroed(usize::try_from(length).ok()?);
    let kept = before.len().min(bytes.len());
    bytes[..kept].copy_from_slice(&before[..kept]);
    bytes.get_mut(at..end)?.copy_from_slice(&part);
    Some(bytes.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_part_lies_over_what_was_there_and_holes_are_zero() {
        let chunk = |bytes: &[u8]| Some(Bytes::copy_from_slice(bytes));
        let part = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        assert_eq!(overlay(chunk(b"abcdef"), part(b"XY"), 2, 6, false), chunk(b"abXYef"));
        assert_eq!(overlay(chunk(b"abc"), part(b"XY"), 5, 7, false), chunk(b"abc\0\0XY"));
        assert_eq!(overlay(None, part(b"XY"), 0, 2, true), chunk(b"XY"));
        assert_eq!(overlay(None, part(b"XY"), 0, 2, false), chunk(b"XY"), "all of it was written");
        assert_eq!(overlay(None, part(b"XY"), 1, 3, false), None, "the rest is not known");
        assert_eq!(overlay(None, part(b"XY"), 0, 3, true), chunk(b"XY\0"));
        assert_eq!(overlay(None, part(b"XY"), 1, 3, true), None);
    }
}
