//! READDIR: listing a directory in steps, while it changes.
//!
//! Owns: cookies, and a few open directories to go on from. Never does: remember entries between calls.
//! Invariant: a cookie is the kernel's own position (`d_off`) plus [`COOKIE_OFFSET`], so it means the same for ever, to
//! any descriptor, after a restart; ext4, xfs, btrfs and (since 6.6) tmpfs keep it stable over changes. An open
//! directory that is already where a listing goes on only saves the kernel the way there.

use std::{
    collections::VecDeque,
    ops::ControlFlow,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::{
    fs::{Mode, OFlags, RawDir, SeekFrom},
    io::Errno,
};

use super::{
    Identity, LocalFile, LocalSource,
    access::SearchRight,
    attributes::changed_at,
    change::{coarse_now, is_settled},
    file::key_of,
    lookup::{Found, require_directory},
    sys::{self, Name, ProcPath},
};
use crate::source::{Credentials, DirectoryEntry, EntryObject, FileKind, ObjectId, SourceError, Time};

/// NFS keeps the cookies 0, 1 and 2 to itself.
const COOKIE_OFFSET: u64 = 3;
/// Directories kept open between calls: as many listings at a time go on without searching.
const STREAMS_MAX: usize = 64;
/// Entries looked up under one identity. More than one reply holds would be looked up in vain.
const BATCH: usize = 128;
/// What one `getdents` returns at most: about 1,000 short names.
const BUFFER: usize = 32 << 10;

/// Open directories, each where its listing stopped.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<VecDeque<Stream>>);

#[derive(Debug)]
struct Stream {
    key: u128,
    fd: OwnedFd,
    /// Where to go on.
    position: u64,
    /// The descriptor is elsewhere.
    needs_seek: bool,
}

impl Streams {
    fn take(&self, key: u128, position: u64) -> Option<Stream> {
        let mut streams = self.0.lock();
        let index = streams.iter().position(|stream| stream.key == key && stream.position == position)?;
        streams.remove(index)
    }

    fn put(&self, stream: Stream) {
        let oldest = {
            let mut streams = self.0.lock();
            streams.push_back(stream);
            if streams.len() > STREAMS_MAX { streams.pop_front() } else { None }
        };
        drop(oldest);
    }

    pub(super) fn forget(&self, key: u128) {
        let mut gone = Vec::new();
        let mut streams = self.0.lock();
        while let Some(index) = streams.iter().position(|stream| stream.key == key) {
            gone.extend(streams.remove(index));
        }
        drop(streams);
    }

    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        drop(all);
    }
}

/// What the directory itself has of an entry.
struct RawEntry {
    position: u64,
    name: Bytes,
    fileid: u64,
    kind: Option<FileKind>,
}

impl LocalSource {
    /// Entries after `cookie` (0: from the start) into `sink`, at most `max_entries`, as the caller. With `want_files`
    /// each is looked up; else only what the directory holds is told. `sink` breaks when an entry did not fit: that
    /// entry is not taken. `Ok(true)`: the end was reached and everything was taken. `EINVAL` for a cookie that the
    /// file system never gave, where it can tell.
    pub fn read_directory(
        &self,
        cred: &Credentials,
        dir: &LocalFile,
        cookie: u64,
        max_entries: usize,
        want_files: bool,
        sink: &mut dyn FnMut(DirectoryEntry<Arc<LocalFile>>) -> ControlFlow<()>,
    ) -> Result<bool, SourceError> {
        require_directory(dir)?;
        let position = match cookie {
            0 => 0,
            cookie => cookie.checked_sub(COOKIE_OFFSET).ok_or(Errno::INVAL)?,
        };
        let mut stream = self.retry_open(|| self.open_stream(cred, dir, position))?;
        if stream.needs_seek {
            rustix::fs::seek(&stream.fd, SeekFrom::Start(stream.position))?;
        }
        let mut buffer = Vec::with_capacity(BUFFER);
        let mut taken = 0;
        let mut entries = RawDir::new(stream.fd.as_fd(), buffer.spare_capacity_mut());
        let mut batch = Vec::new();
        let is_end = loop {
            let room = max_entries - taken;
            if room == 0 {
                break false;
            }
            let is_end = next_batch(&mut entries, room.min(BATCH), &mut batch)?;
            let count = batch.len();
            let sent = self.send(cred, dir, &mut batch, want_files, sink)?;
            if let Some(position) = sent.last {
                stream.position = position;
            }
            taken += sent.count;
            if sent.count < count || is_end {
                break is_end && sent.count == count;
            }
        };
        stream.needs_seek = true;
        if entries.is_buffer_empty() && batch.is_empty() {
            stream.needs_seek = false;
        }
        if !is_end && taken > 0 {
            self.streams.put(stream);
        }
        Ok(is_end)
    }

    /// A descriptor that is where the listing goes on or needs a seek, if the caller may read the directory.
    fn open_stream(&self, cred: &Credentials, dir: &LocalFile, position: u64) -> Result<Stream, SourceError> {
        let path = ProcPath::new(dir.as_fd());
        // A new listing starts on a new descriptor: some file systems decide at open which entries one shows.
        let old = if position == 0 { None } else { self.streams.take(dir.key, position) };
        let _as_caller = Identity::assume(cred)?;
        if let Some(stream) = old
            && sys::effective_access(dir.as_fd(), libc::R_OK).is_ok()
        {
            return Ok(stream);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(rustix::fs::CWD, path.as_c_str(), flags, Mode::empty())?;
        Ok(Stream { key: dir.key, fd, position, needs_seek: position != 0 })
    }

    /// Gives a batch to `sink`; what was not taken stays in `batch`.
    fn send(
        &self,
        cred: &Credentials,
        dir: &LocalFile,
        batch: &mut Vec<RawEntry>,
        want_files: bool,
        sink: &mut dyn FnMut(DirectoryEntry<Arc<LocalFile>>) -> ControlFlow<()>,
    ) -> Result<Sent, SourceError> {
        let found = if want_files { self.find_batch(cred, dir, batch)? } else { Vec::new() };
        let mut found = found.into_iter();
        let opened = |result: Result<Arc<LocalFile>, SourceError>| Some(result.map(EntryObject::Open));
        let mut sent = Sent { count: 0, last: None };
        for entry in batch.iter() {
            let file = match found.next() {
                None => None,
                Some(Err(SourceError::Errno(libc::EMFILE))) => opened(self.lookup(cred, dir, &entry.name)),
                Some(Err(error)) => Some(Err(error)),
                Some(Ok(EntryObject::Told { id, attributes })) => Some(Ok(EntryObject::Told { id, attributes })),
                // Its name may be another file's by now.
                Some(Ok(EntryObject::Open(found))) => match self.admit_found(found, dir) {
                    Err(SourceError::Stale) => opened(self.lookup(cred, dir, &entry.name)),
                    admitted => opened(admitted),
                },
            };
            // Removed since the directory was read: then it is not an entry.
            let is_gone = matches!(file, Some(Err(SourceError::Errno(libc::ENOENT))));
            if !is_gone {
                let (name, fileid, kind) = (entry.name.clone(), entry.fileid, entry.kind);
                let cookie = entry.position.wrapping_add(COOKIE_OFFSET);
                if sink(DirectoryEntry { cookie, name, fileid, kind, file }).is_break() {
                    break;
                }
            }
            sent.count += 1;
            sent.last = Some(entry.position);
        }
        batch.drain(..sent.count);
        Ok(sent)
    }

    /// Looks a batch up under one right.
    fn find_batch(
        &self,
        cred: &Credentials,
        dir: &LocalFile,
        batch: &[RawEntry],
    ) -> Result<Vec<Result<EntryObject<Found>, SourceError>>, SourceError> {
        let right = match self.search_right(cred, dir) {
            Ok(right) => right,
            // Who may list but not search learns the names, and this for each of them.
            Err(error) => return Ok(batch.iter().map(|_| Err(error)).collect()),
        };
        let open = |entry: &RawEntry| {
            let found = self.find_name(&right, dir, &Name::parse(&entry.name)?)?;
            Ok(EntryObject::Open(found))
        };
        let Some(before) = quiet_since(dir)? else { return Ok(batch.iter().map(open).collect()) };
        let told: Vec<_> = batch.iter().map(|entry| self.told(&right, dir, entry)).collect();
        if quiet_since(dir)? != Some(before) {
            return Ok(batch.iter().map(open).collect());
        }
        let found = batch.iter().zip(told).map(|(entry, told)| told.transpose().unwrap_or_else(|| open(entry)));
        Ok(found.collect())
    }

    /// Handle and attributes of an entry by its name: two system calls and no descriptor, where opening it takes five.
    /// They are of one object only if the directory did not change in between, which the caller MUST see to. `None` for
    /// what has to be opened: another file system's root.
    fn told(
        &self,
        _right: &SearchRight,
        dir: &LocalFile,
        entry: &RawEntry,
    ) -> Result<Option<EntryObject<Found>>, SourceError> {
        let name = Name::parse(&entry.name)?;
        let stat = sys::stat_name(dir.as_fd(), name.as_c_str())?;
        let (handle, mount) = sys::name_to_handle(dir.as_fd(), name.as_c_str())?;
        if mount != dir.mount.id || stat.stx_mnt_id != dir.mount.id || handle == *self.root.handle() {
            return Ok(None);
        }
        let id = ObjectId { fsid: dir.mount.fsid, handle };
        let attributes = self.told_by(&stat, id.fsid, key_of(id.fsid, &id.handle), &dir.mount);
        Ok(Some(EntryObject::Told { id, attributes }))
    }
}

/// When the directory last changed, if a further change is sure to give another time; `None` if it may not.
fn quiet_since(dir: &LocalFile) -> Result<Option<Time>, SourceError> {
    if !dir.mount.is_uniform {
        return Ok(None);
    }
    let changed = changed_at(&sys::stat(dir.as_fd())?);
    Ok((dir.mount.has_fine_directories || is_settled(changed, coarse_now())).then_some(changed))
}

/// What `sink` took: how many, and the position after the last.
struct Sent {
    count: usize,
    last: Option<u64>,
}

/// Reads entries until there are `max`, or what one system call gave is used up; `true` at the directory's end.
fn next_batch<Fd: AsFd>(
    entries: &mut RawDir<'_, Fd>,
    max: usize,
    batch: &mut Vec<RawEntry>,
) -> Result<bool, SourceError> {
    while batch.len() < max {
        if !batch.is_empty() && entries.is_buffer_empty() {
            return Ok(false);
        }
        let entry = match entries.next() {
            None => return Ok(true),
            // A directory that was removed cannot be read.
            Some(Err(Errno::NOENT)) => return Err(SourceError::Stale),
            Some(entry) => entry?,
        };
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        batch.push(RawEntry {
            position: entry.next_entry_cookie(),
            name: Bytes::copy_from_slice(name),
            fileid: entry.ino(),
            kind: sys::kind_of_type(entry.file_type()),
        });
    }
    Ok(false)
}
