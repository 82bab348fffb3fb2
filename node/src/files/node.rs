//! An object of an export, and what can be done with it, wherever it is.
//!
//! Owns: which of it may wait for a disk and is therefore done on a blocking thread; telling a directory's change before
//! and after. Never does: judge opens, locks, shares. Invariant: what a local directory answers from memory is answered
//! without waiting, and so is what the cache holds.

use std::{ops::ControlFlow, sync::Arc};

use bytes::Bytes;
use forebay_proto::{
    limits::IO_MAX,
    nfs4::{ChangeInfo, Status},
};
use xxhash_rust::xxh3::xxh3_128;

use super::{Caller, Export, buffers};
use crate::{
    source::{
        AccessMask, Advice, Credentials, DirectoryEntry, EntryObject, File, FileAttributes, FileKind, NewObject,
        ReadOutcome, SOURCE_HANDLE_MAX, SeekWhat, SetAttributes, Source, SourceError, SpaceAttributes, XattrSet,
        cached::{CachedFile, CachedSource, HIDDEN, Hidden},
        local::{LocalFile, LocalSource},
        remote::DirectoryChange,
    },
    state::FileKey,
};

/// An object of an export.
#[derive(Clone, Debug)]
pub struct FileNode {
    /// Which export.
    pub export: Arc<Export>,
    /// Index of its file system.
    pub fsid: u32,
    /// The object.
    pub file: File,
}

/// What takes entries of a directory, and breaks when one does not fit.
pub type EntrySink<'a> = &'a mut (dyn FnMut(DirectoryEntry<File>) -> ControlFlow<()> + Send);

/// What WRITE did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes taken.
    pub count: usize,
    /// They are on stable storage.
    pub stable: bool,
    /// What the source's own write verifier adds to ours.
    pub verifier: u64,
}

/// What keeps a removed file working for those who have it open.
#[derive(Debug)]
pub enum Kept {
    /// Its descriptor.
    Pinned(Arc<LocalFile>),
    /// A hidden name at the source.
    Hidden(Hidden),
}

impl Drop for Kept {
    fn drop(&mut self) {
        match self {
            Self::Pinned(file) => file.unpin(),
            Self::Hidden(hidden) => hidden.remove(),
        }
    }
}

/// The two kinds, each with its own object.
enum Pair<'a> {
    Local(&'a LocalSource, &'a Arc<LocalFile>),
    Cached(&'a Arc<CachedSource>, &'a Arc<CachedFile>),
}

/// Runs what may wait for a disk where nobody else waits with it.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        tracing::error!(%error, "a blocking operation did not come back");
        Status::ServerFault
    })
}

impl FileNode {
    /// What state knows the object by.
    pub fn key(&self) -> FileKey {
        let mut bytes = [0_u8; 4 + SOURCE_HANDLE_MAX];
        let handle = self.file.handle().as_bytes();
        bytes[..4].copy_from_slice(&self.fsid.to_be_bytes());
        bytes[4..4 + handle.len()].copy_from_slice(handle);
        FileKey(xxh3_128(&bytes[..4 + handle.len()]))
    }

    /// The user that operations on this object are done as.
    pub fn credentials(&self, caller: &Caller) -> Credentials {
        self.export.credentials(caller)
    }

    /// Kind of object.
    pub fn kind(&self) -> FileKind {
        self.file.kind()
    }

    fn pair(&self) -> Pair<'_> {
        match (&self.export.source, &self.file) {
            (Source::Local(source), File::Local(file)) => Pair::Local(source, file),
            (Source::Cached(source), File::Cached(file)) => Pair::Cached(source, file),
            _ => unreachable!("an object comes from its own export's source"),
        }
    }

    fn local(file: &File) -> &Arc<LocalFile> {
        match file {
            File::Local(file) => file,
            File::Cached(_) => unreachable!("both objects are of one export"),
        }
    }

    fn cached(file: &File) -> &Arc<CachedFile> {
        match file {
            File::Cached(file) => file,
            File::Local(_) => unreachable!("both objects are of one export"),
        }
    }

    /// Attributes, if they can be told without waiting.
    pub fn attributes_now(&self) -> Option<Result<FileAttributes, SourceError>> {
        match self.pair() {
            Pair::Local(source, file) => Some(source.attributes(file)),
            Pair::Cached(source, file) => source.attributes_now(file).map(Ok),
        }
    }

    /// Attributes, as fresh as the export's policy wants them.
    pub async fn attributes(&self, caller: &Caller) -> Result<FileAttributes, Status> {
        if let Some(told) = self.attributes_now() {
            return Ok(told?);
        }
        match self.pair() {
            Pair::Local(source, file) => Ok(source.attributes(file)?),
            Pair::Cached(source, file) => Ok(Box::pin(source.attributes(&self.credentials(caller), file)).await?),
        }
    }

    /// Space of its file system.
    pub async fn space(&self, caller: &Caller) -> Result<SpaceAttributes, Status> {
        match self.pair() {
            Pair::Local(source, file) => Ok(source.space(file)?),
            Pair::Cached(source, file) => Ok(Box::pin(source.space(&self.credentials(caller), file)).await?),
        }
    }

    /// What the caller may do with it.
    pub async fn access(&self, caller: &Caller) -> Result<AccessMask, Status> {
        let credentials = self.credentials(caller);
        match self.pair() {
            Pair::Local(source, file) => Ok(source.access(&credentials, file)?),
            Pair::Cached(source, file) => match source.access_now(&credentials, file) {
                Some(mask) => Ok(mask),
                None => Ok(Box::pin(source.access(&credentials, file)).await?),
            },
        }
    }

    /// A name in this directory.
    pub async fn lookup(&self, caller: &Caller, name: &[u8]) -> Result<File, SourceError> {
        let credentials = self.credentials(caller);
        match self.pair() {
            Pair::Local(source, file) => source.lookup(&credentials, file, name).map(File::Local),
            Pair::Cached(source, file) => match source.lookup_now(&credentials, file, name) {
                Some(found) => found.map(File::Cached),
                None => Box::pin(source.lookup(&credentials, file, name)).await.map(File::Cached),
            },
        }
    }

    /// A name in this directory that is about to be opened, and the directory's change attribute: here consistency
    /// between close and open is made.
    pub async fn lookup_to_open(&self, caller: &Caller, name: &[u8]) -> Result<(File, u64), SourceError> {
        let credentials = self.credentials(caller);
        match self.pair() {
            Pair::Local(source, file) => {
                let found = source.lookup(&credentials, file, name)?;
                Ok((File::Local(found), source.attributes(file)?.change))
            }
            Pair::Cached(source, file) => {
                let (found, change) = Box::pin(source.lookup_to_open(&credentials, file, name)).await?;
                Ok((File::Cached(found), change))
            }
        }
    }

    /// The object itself is about to be opened.
    pub async fn refresh_to_open(&self, caller: &Caller) -> Result<(), Status> {
        match self.pair() {
            Pair::Local(..) => Ok(()),
            Pair::Cached(source, file) => Ok(Box::pin(source.refresh_to_open(&self.credentials(caller), file)).await?),
        }
    }

    /// The directory above; `None` at the export's root.
    pub async fn parent(&self, caller: &Caller) -> Result<Option<File>, Status> {
        let credentials = self.credentials(caller);
        match self.pair() {
            Pair::Local(source, file) => Ok(source.parent(&credentials, file)?.map(File::Local)),
            Pair::Cached(source, file) => Ok(Box::pin(source.parent(&credentials, file)).await?.map(File::Cached)),
        }
    }

    /// Data: what is in memory at once, the rest where waiting hinders nobody. Permission MUST have been checked.
    pub async fn read(&self, caller: &Caller, offset: u64, count: usize) -> Result<(Bytes, bool), Status> {
        if offset > i64::MAX.cast_unsigned() - u64::from(IO_MAX) {
            return Ok((Bytes::new(), true));
        }
        match self.pair() {
            Pair::Local(source, file) => {
                let mut buffer = buffers::take(count);
                let outcome = source.read(file, offset, count, &mut buffer, true)?;
                if let ReadOutcome::Done { eof, .. } = outcome {
                    return Ok((buffer.freeze(), eof));
                }
                let node = self.clone();
                blocking(move || {
                    let Pair::Local(source, file) = node.pair() else { return Err(Status::ServerFault) };
                    match source.read(file, offset, count, &mut buffer, false)? {
                        ReadOutcome::Done { eof, .. } => Ok((buffer.freeze(), eof)),
                        ReadOutcome::WouldBlock => Err(Status::Delay),
                    }
                })
                .await?
            }
            Pair::Cached(source, file) => match source.read_now(file, offset, count) {
                Some(read) => Ok(read),
                None => Ok(Box::pin(source.read(&self.credentials(caller), file, offset, count)).await?),
            },
        }
    }

    /// Whether lost writes of this object are told by our own write verifier; a file server has one of its own.
    pub fn has_our_verifier(&self) -> bool {
        matches!(self.file, File::Local(_))
    }

    /// Whether reading costs a copy that is worth another worker's time.
    pub fn read_copies(&self) -> bool {
        matches!(self.file, File::Local(_))
    }

    /// Writes. Permission MUST have been checked.
    pub async fn write(&self, caller: &Caller, offset: u64, data: Bytes, stable: bool) -> Result<Written, Status> {
        let credentials = self.credentials(caller);
        match self.pair() {
            Pair::Local(source, file) if !stable => {
                let count = source.write(&credentials, file, offset, &data, false)?;
                Ok(Written { count, stable, verifier: 0 })
            }
            Pair::Local(..) => {
                let write = move |source: &LocalSource, file: &Arc<LocalFile>| {
                    source.write(&credentials, file, offset, &data, true)
                };
                let count = self.on_disk(write).await??;
                Ok(Written { count, stable, verifier: 0 })
            }
            Pair::Cached(source, file) => {
                let done = Box::pin(source.write(&credentials, file, offset, data, stable)).await?;
                Ok(Written { count: done.count as usize, stable: done.stable, verifier: done.verifier })
            }
        }
    }

    /// Puts data on stable storage; what the source's verifier adds to ours.
    pub async fn commit(&self, caller: &Caller) -> Result<u64, Status> {
        match self.pair() {
            Pair::Local(..) => {
                self.on_disk(|source: &LocalSource, file: &Arc<LocalFile>| source.commit(file)).await??;
                Ok(0)
            }
            Pair::Cached(source, file) => Ok(Box::pin(source.commit(&self.credentials(caller), file)).await?),
        }
    }

    /// Whether names and attributes that were changed still have to be put on disk. A file server has done it.
    pub fn must_sync(&self) -> bool {
        self.export.options.sync && matches!(self.file, File::Local(_))
    }

    /// Puts a local object on disk, with all its attributes. For a blocking thread.
    pub fn sync(&self) -> Result<(), SourceError> {
        match self.pair() {
            Pair::Local(source, file) => source.commit_all(file),
            Pair::Cached(..) => Ok(()),
        }
    }

    /// Sets attributes. `by_open`: the caller has it open for writing, so its mode is not asked about its size.
    pub async fn set_attributes(&self, caller: &Caller, set: &SetAttributes, by_open: bool) -> Result<(), Status> {
        let credentials = self.credentials(caller);
        match self.pair() {
            // Cutting a large file frees many blocks; the rest is quick.
            Pair::Local(..) if set.size.is_some() => {
                let set = set.clone();
                let apply = move |source: &LocalSource, file: &Arc<LocalFile>| {
                    source.set_attributes(&credentials, file, &set, by_open)
                };
                Ok(self.on_disk(apply).await??)
            }
            Pair::Local(source, file) => Ok(source.set_attributes(&credentials, file, set, by_open)?),
            Pair::Cached(source, file) => Ok(Box::pin(source.set_attributes(&credentials, file, set)).await?),
        }
    }

    /// A regular file; `true` if this call made it. If the name is taken: EXIST if `exclusive`, else what is there.
    pub async fn create(
        &self,
        caller: &Caller,
        name: &[u8],
        mode: u32,
        exclusive: bool,
        set: &SetAttributes,
    ) -> Result<(File, bool, ChangeInfo), Status> {
        let credentials = self.credentials(caller);
        match self.pair() {
            Pair::Local(source, dir) => {
                let make = || source.create(&credentials, dir, name, mode, exclusive, set);
                let ((file, created), change) = with_change(source, dir, make)?;
                Ok((File::Local(file), created, change))
            }
            Pair::Cached(source, dir) => {
                reserved(name)?;
                let set = SetAttributes { mode: Some(mode), ..set.clone() };
                let made = Box::pin(source.create(&credentials, dir, name, exclusive, &set)).await?;
                Ok((File::Cached(made.0), made.1, change_info(&made.2)))
            }
        }
    }

    /// Anything but a regular file.
    pub async fn make(
        &self,
        caller: &Caller,
        name: &[u8],
        object: &NewObject,
        mode: u32,
        set: &SetAttributes,
    ) -> Result<(File, ChangeInfo), Status> {
        let credentials = self.credentials(caller);
        match self.pair() {
            Pair::Local(source, dir) => {
                let make = || source.make(&credentials, dir, name, object, mode, set);
                let (file, change) = with_change(source, dir, make)?;
                Ok((File::Local(file), change))
            }
            Pair::Cached(source, dir) => {
                reserved(name)?;
                let set = SetAttributes { mode: Some(mode), size: None, ..set.clone() };
                let (file, change) = Box::pin(source.make(&credentials, dir, name, object, &set)).await?;
                Ok((File::Cached(file), change_info(&change)))
            }
        }
    }

    /// Another name, in this directory, for `target`.
    pub async fn link(&self, caller: &Caller, target: &File, name: &[u8]) -> Result<ChangeInfo, Status> {
        let credentials = self.credentials(caller);
        match self.pair() {
            Pair::Local(source, dir) => {
                let link = || source.link(&credentials, Self::local(target), dir, name);
                Ok(with_change(source, dir, link)?.1)
            }
            Pair::Cached(source, dir) => {
                reserved(name)?;
                let link = source.link(&credentials, Self::cached(target), dir, name);
                Ok(change_info(&Box::pin(link).await?))
            }
        }
    }

    /// Removes a name. What it stood for stays usable through what comes back, if `in_use` says that somebody has it
    /// open.
    pub async fn remove(
        &self,
        caller: &Caller,
        name: &Bytes,
        in_use: impl FnOnce(FileKey) -> bool,
    ) -> Result<(ChangeInfo, Option<(FileKey, Kept)>), Status> {
        let credentials = self.credentials(caller);
        match self.pair() {
            Pair::Local(..) => {
                let (node, name) = (self.clone(), name.clone());
                // Freeing a large file's blocks can take seconds.
                let remove = move |source: &LocalSource, dir: &Arc<LocalFile>| {
                    let kept = node.pin_name(source, &credentials, dir, &name);
                    let remove = || source.remove(&credentials, dir, &name);
                    with_change(source, dir, remove).map(|(_, change)| (change, kept))
                };
                Ok(self.on_disk(remove).await??)
            }
            Pair::Cached(source, dir) => {
                let keep = self.cached_in_use(caller, name, in_use).await?;
                let hide = keep.is_some();
                let (change, hidden) = Box::pin(source.remove(&credentials, dir, name, hide)).await?;
                Ok((change_info(&change), keep.map(|(key, _)| key).zip(hidden.map(Kept::Hidden))))
            }
        }
    }

    /// Moves a name of this directory to another; the change of both. What was replaced stays usable as with
    /// [`FileNode::remove`].
    pub async fn rename(
        &self,
        caller: &Caller,
        old: &Bytes,
        target: &Self,
        new: &Bytes,
        in_use: impl FnOnce(FileKey) -> bool,
    ) -> Result<(ChangeInfo, ChangeInfo, Option<(FileKey, Kept)>), Status> {
        let credentials = target.credentials(caller);
        match self.pair() {
            Pair::Local(..) => {
                let (old, target, new) = (old.clone(), target.clone(), new.clone());
                // A large file that is replaced is freed, which can take seconds.
                let rename = move |source: &LocalSource, from: &Arc<LocalFile>| {
                    let to = Self::local(&target.file);
                    let kept = target.pin_name(source, &credentials, to, &new);
                    let moved = || source.rename(&credentials, from, &old, to, &new);
                    let both = with_change(source, from, || with_change(source, to, moved));
                    both.map(|((_, to), from)| (from, to, kept))
                };
                Ok(self.on_disk(rename).await??)
            }
            Pair::Cached(source, from) => {
                reserved(new)?;
                let keep = target.cached_in_use(caller, new, in_use).await?;
                let (hide, to) = (keep.as_ref().map(|(_, file)| Self::cached(file)), Self::cached(&target.file));
                let rename = source.rename(&credentials, (from, old), (to, new), hide);
                let (from, to, hidden) = Box::pin(rename).await?;
                let keep = keep.map(|(key, _)| key);
                Ok((change_info(&from), change_info(&to), keep.zip(hidden.map(Kept::Hidden))))
            }
        }
    }

    /// Pins what `name` stands for, before the name goes: somebody may open the file until the very moment.
    fn pin_name(
        &self,
        source: &LocalSource,
        credentials: &Credentials,
        dir: &LocalFile,
        name: &[u8],
    ) -> Option<(FileKey, Kept)> {
        let file = source.lookup(credentials, dir, name).ok().filter(|file| file.kind() == FileKind::Regular)?;
        file.pin();
        let node = Self { export: self.export.clone(), fsid: self.fsid, file: File::Local(file.clone()) };
        Some((node.key(), Kept::Pinned(file)))
    }

    async fn cached_in_use(
        &self,
        caller: &Caller,
        name: &[u8],
        in_use: impl FnOnce(FileKey) -> bool,
    ) -> Result<Option<(FileKey, File)>, SourceError> {
        let file = match self.lookup(caller, name).await {
            Ok(file) if file.kind() == FileKind::Regular => file,
            Ok(_) | Err(SourceError::Errno(libc::ENOENT | libc::EACCES)) => return Ok(None),
            // Whether somebody has it open cannot be told, and then it must not go.
            Err(error) => return Err(error),
        };
        let key = Self { export: self.export.clone(), fsid: self.fsid, file: file.clone() }.key();
        Ok(in_use(key).then_some((key, file)))
    }

    /// Where a symbolic link points.
    pub async fn read_link(&self, caller: &Caller) -> Result<Bytes, Status> {
        match self.pair() {
            Pair::Local(source, file) => Ok(source.read_link(file)?),
            Pair::Cached(source, file) => Ok(Box::pin(source.read_link(&self.credentials(caller), file)).await?),
        }
    }

    /// Entries after `cookie` into `sink`, at most `max` or about `bytes`; `true` if the end was reached.
    pub async fn read_directory(
        &self,
        caller: &Caller,
        cookie: u64,
        (max, bytes): (usize, usize),
        want_files: bool,
        sink: EntrySink<'_>,
    ) -> Result<bool, Status> {
        let credentials = self.credentials(caller);
        match self.pair() {
            Pair::Local(source, dir) => {
                let mut sink = |entry: DirectoryEntry<Arc<LocalFile>>| sink(any_entry(entry));
                Ok(source.read_directory(&credentials, dir, cookie, max, want_files, &mut sink)?)
            }
            Pair::Cached(source, dir) => {
                Ok(Box::pin(source.read_directory(&credentials, dir, cookie, (max, bytes), want_files, sink)).await?)
            }
        }
    }

    /// The next data or hole; `None` beyond the end. Permission MUST have been checked.
    pub async fn seek(&self, caller: &Caller, offset: u64, what: SeekWhat) -> Result<Option<u64>, Status> {
        match self.pair() {
            Pair::Local(source, file) => Ok(source.seek(file, offset, what)?),
            Pair::Cached(source, file) => {
                Ok(Box::pin(source.seek(&self.credentials(caller), file, offset, what)).await?)
            }
        }
    }

    /// Reserves or, with `punch`, frees space. Permission MUST have been checked.
    pub async fn allocate(&self, caller: &Caller, offset: u64, length: u64, punch: bool) -> Result<(), Status> {
        let credentials = self.credentials(caller);
        match self.pair() {
            Pair::Local(..) => {
                let work = move |source: &LocalSource, file: &Arc<LocalFile>| match punch {
                    true => source.deallocate(&credentials, file, offset, length),
                    false => source.allocate(&credentials, file, offset, length),
                };
                Ok(self.on_disk(work).await??)
            }
            Pair::Cached(source, file) => {
                Ok(Box::pin(source.allocate(&credentials, file, offset, length, punch)).await?)
            }
        }
    }

    /// Copies into `target` of the same export. Permission MUST have been checked.
    pub async fn copy_to(
        &self,
        caller: &Caller,
        offset: u64,
        target: &Self,
        at: u64,
        length: u64,
    ) -> Result<Written, Status> {
        let credentials = target.credentials(caller);
        match self.pair() {
            Pair::Local(..) => {
                let target = target.file.clone();
                let copy = move |source: &LocalSource, file: &Arc<LocalFile>| {
                    source.copy_range(&credentials, file, offset, Self::local(&target), at, length)
                };
                let count = self.on_disk(copy).await??;
                Ok(Written { count: usize::try_from(count).unwrap_or(usize::MAX), stable: false, verifier: 0 })
            }
            Pair::Cached(source, file) => {
                let copy = source.copy(&credentials, (file, offset), (Self::cached(&target.file), at), length);
                let (count, verifier) = Box::pin(copy).await?;
                // Of nothing there is nothing to commit.
                let stable = count == 0;
                Ok(Written { count: usize::try_from(count).unwrap_or(usize::MAX), stable, verifier })
            }
        }
    }

    /// A hint; whether it was taken.
    pub fn advise(&self, offset: u64, length: u64, advice: Advice) -> bool {
        match self.pair() {
            Pair::Local(source, file) => source.advise(file, offset, length, advice).is_ok(),
            Pair::Cached(source, file) => source.advise(file, advice),
        }
    }

    /// The value of an extended attribute.
    pub async fn xattr_get(&self, caller: &Caller, name: &[u8]) -> Result<Bytes, Status> {
        let credentials = self.credentials(caller);
        match self.pair() {
            Pair::Local(source, file) => Ok(source.xattr_get(&credentials, file, name)?),
            Pair::Cached(source, file) => Ok(Box::pin(source.xattr_get(&credentials, file, name)).await?),
        }
    }

    /// Names of extended attributes.
    pub async fn xattr_list(&self, caller: &Caller) -> Result<Vec<Bytes>, Status> {
        let credentials = self.credentials(caller);
        match self.pair() {
            Pair::Local(source, file) => Ok(source.xattr_list(&credentials, file)?),
            Pair::Cached(source, file) => Ok(Box::pin(source.xattr_list(&credentials, file)).await?),
        }
    }

    /// Sets an extended attribute.
    pub async fn xattr_set(
        &self,
        caller: &Caller,
        name: &[u8],
        value: &Bytes,
        how: XattrSet,
    ) -> Result<ChangeInfo, SourceError> {
        let credentials = self.credentials(caller);
        match self.pair() {
            Pair::Local(source, file) => {
                let set = || source.xattr_set(&credentials, file, name, value, how);
                Ok(with_change(source, file, set)?.1)
            }
            Pair::Cached(source, file) => {
                let change = Box::pin(source.xattr_set(&credentials, file, name, value, how)).await?;
                Ok(change_info(&change))
            }
        }
    }

    /// Removes an extended attribute.
    pub async fn xattr_remove(&self, caller: &Caller, name: &[u8]) -> Result<ChangeInfo, SourceError> {
        let credentials = self.credentials(caller);
        match self.pair() {
            Pair::Local(source, file) => {
                let remove = || source.xattr_remove(&credentials, file, name);
                Ok(with_change(source, file, remove)?.1)
            }
            Pair::Cached(source, file) => {
                Ok(change_info(&Box::pin(source.xattr_remove(&credentials, file, name)).await?))
            }
        }
    }

    /// Work on a local object that may wait for a disk.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LocalSource, &Arc<LocalFile>) -> Result<T, SourceError> + Send + 'static,
    ) -> Result<Result<T, SourceError>, Status> {
        let node = self.clone();
        blocking(move || match node.pair() {
            Pair::Local(source, file) => work(source, file),
            Pair::Cached(..) => Err(SourceError::BadHandle),
        })
        .await
    }
}

/// Hidden names are ours alone: a client's own would be seen by nobody.
fn reserved(name: &[u8]) -> Result<(), Status> {
    if name.starts_with(HIDDEN) { Err(Status::Access) } else { Ok(()) }
}

fn any_entry(entry: DirectoryEntry<Arc<LocalFile>>) -> DirectoryEntry<File> {
    let file = entry.file.map(|file| {
        file.map(|object| match object {
            EntryObject::Open(file) => EntryObject::Open(File::Local(file)),
            EntryObject::Told { id, attributes } => EntryObject::Told { id, attributes },
        })
    });
    DirectoryEntry { cookie: entry.cookie, name: entry.name, fileid: entry.fileid, kind: entry.kind, file }
}

fn change_info(change: &DirectoryChange) -> ChangeInfo {
    ChangeInfo { atomic: change.atomic, before: change.before, after: change.after }
}

/// Makes a change and tells an object's change attribute before and after. Never atomic: others may change it as well.
fn with_change<T>(
    source: &LocalSource,
    file: &LocalFile,
    change: impl FnOnce() -> Result<T, SourceError>,
) -> Result<(T, ChangeInfo), SourceError> {
    let before = source.attributes(file)?.change;
    let done = change()?;
    // The change is made: that its effect cannot be read must not turn it into a failure.
    let after = source.attributes(file).map_or(before.wrapping_add(1), |told| told.change);
    Ok((done, ChangeInfo { atomic: false, before, after }))
}
