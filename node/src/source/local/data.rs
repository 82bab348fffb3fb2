//! READ, WRITE, COMMIT.
//!
//! Owns: data descriptors (opened by root, one for reading and one for reading and writing an object, cached) and the
//! loops around them. Never does: ask whether the caller may read or write: whoever calls these methods MUST have,
//! since an open file is used after its mode has changed. Invariant: bytes appended to a buffer are bytes the kernel
//! wrote.

use std::sync::Arc;

use bytes::BytesMut;
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use super::{Identity, LocalFile, LocalSource, file::DataFile, sys, sys::ProcPath};
use crate::source::{Credentials, FileKind, ReadOutcome, SourceError};

impl LocalSource {
    /// Appends up to `len` bytes at `offset` to `buf`, fewer only at the end of the file.
    ///
    /// Does NOT check permission: whoever calls this MUST have checked that the client may read. With `nowait` it never
    /// waits for a disk: if not all is in memory (or the file system cannot tell) it says `WouldBlock`.
    pub fn read(
        &self,
        file: &LocalFile,
        offset: u64,
        len: usize,
        buf: &mut BytesMut,
        nowait: bool,
    ) -> Result<ReadOutcome, SourceError> {
        let data = self.reader(file)?;
        let before = buf.len();
        let result = self.read_all(file, &data, offset, len, buf, nowait);
        if !matches!(result, Ok(ReadOutcome::Done { .. })) {
            buf.truncate(before);
        }
        result
    }

    fn read_all(
        &self,
        file: &LocalFile,
        data: &DataFile,
        offset: u64,
        len: usize,
        buf: &mut BytesMut,
        nowait: bool,
    ) -> Result<ReadOutcome, SourceError> {
        let flags = if nowait && !file.mount.is_memory { libc::RWF_NOWAIT } else { 0 };
        buf.reserve(len);
        let mut bytes = 0;
        loop {
            // No file has a byte at or beyond 2^63 - 1, and the kernel refuses ranges that reach beyond.
            let position = i64::try_from(offset.saturating_add(bytes as u64)).unwrap_or(i64::MAX);
            let last = usize::try_from(i64::MAX - position).unwrap_or(usize::MAX);
            let room = buf.spare_capacity_mut();
            let wanted = (len - bytes).min(room.len()).min(last);
            let read = match sys::read_at(data.as_fd(), &mut room[..wanted], position, flags) {
                Ok(read) => read,
                Err(Errno::AGAIN | Errno::OPNOTSUPP) if flags != 0 => return Ok(ReadOutcome::WouldBlock),
                Err(errno) => return Err(errno.into()),
            };
            // SAFETY: the kernel initialized `read` bytes (at most `wanted`) of the spare capacity.
            unsafe { buf.set_len(buf.len() + read) };
            bytes += read;
            let stat = self.live_stat_of(file, data)?;
            let eof = offset.saturating_add(bytes as u64) >= stat.stx_size;
            if eof || bytes == len || (read == 0 && flags == 0) {
                return Ok(ReadOutcome::Done { bytes, eof: eof || (read == 0 && wanted > 0) });
            }
            // Short and not at the end: the rest has to come from a disk.
            if flags != 0 {
                return Ok(ReadOutcome::WouldBlock);
            }
        }
    }

    /// Size and links by the data descriptor. `Stale` as for attributes.
    fn live_stat_of(&self, file: &LocalFile, data: &DataFile) -> Result<rustix::fs::Statx, SourceError> {
        let mask = rustix::fs::StatxFlags::SIZE | rustix::fs::StatxFlags::NLINK;
        let stat = rustix::fs::statx(data.as_fd(), c"", rustix::fs::AtFlags::EMPTY_PATH, mask)?;
        if stat.stx_nlink == 0 && !self.shared.is_pinned(file.key) {
            self.shared.forget(file.key);
            return Err(SourceError::Stale);
        }
        Ok(stat)
    }

    /// Writes at `offset`, with the caller's identity so that quota counts and suid and sgid are cleared. May write
    /// less than all (disk full, quota): at least one byte unless `data` is empty.
    ///
    /// Does NOT check permission: whoever calls this MUST have checked that the client may write. `stable`: what was
    /// written is on disk when it returns.
    pub fn write(
        &self,
        cred: &Credentials,
        file: &LocalFile,
        offset: u64,
        data: &[u8],
        stable: bool,
    ) -> Result<usize, SourceError> {
        let target = self.writer(file)?;
        if offset.checked_add(data.len() as u64).is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(Errno::FBIG.into());
        }
        let result = {
            let _as_caller = Identity::assume(cred)?;
            write_all(&target, offset, data, stable)
        };
        self.shared.release_unpinned_writer(file.key);
        self.record_change(file);
        result
    }

    /// Puts written data (of a directory: its entries) on disk.
    ///
    /// An error, also one of an earlier write-back, may be reported to one caller only: on `Err` the front MUST change
    /// its write verifier, so that all clients write again what they have not committed.
    pub fn commit(&self, file: &LocalFile) -> Result<(), SourceError> {
        if file.kind() == FileKind::Directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let open = || Ok(rustix::fs::openat(file.as_fd(), c".", flags, Mode::empty())?);
            return Ok(rustix::fs::fsync(self.retry_open(open)?)?);
        }
        let data = match self.shared.find_data(file.key, true) {
            Some(data) => data,
            None => self.reader(file)?,
        };
        let synced = data.sync();
        self.shared.release_unpinned_writer(file.key);
        match self.shared.take_failure(file.key) {
            Some(errno) => Err(errno.into()),
            None => Ok(synced?),
        }
    }

    /// As [`LocalSource::commit`], with owner, mode and times, which `fdatasync` may leave behind. Of links, fifos, sockets
    /// and devices the kernel lets nobody ask for it.
    pub fn commit_all(&self, file: &LocalFile) -> Result<(), SourceError> {
        match file.kind() {
            FileKind::Directory => self.commit(file),
            FileKind::Regular => {
                self.commit(file)?;
                Ok(rustix::fs::fsync(self.reader(file)?.as_fd())?)
            }
            _ => Ok(()),
        }
    }

    /// A descriptor to read data from.
    pub(super) fn reader(&self, file: &LocalFile) -> Result<Arc<DataFile>, SourceError> {
        self.data_file(file, false)
    }

    /// A descriptor to write data to.
    pub(super) fn writer(&self, file: &LocalFile) -> Result<Arc<DataFile>, SourceError> {
        self.data_file(file, true)
    }

    fn data_file(&self, file: &LocalFile, writable: bool) -> Result<Arc<DataFile>, SourceError> {
        match file.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::ISDIR.into()),
            _ => return Err(Errno::INVAL.into()),
        }
        if let Some(data) = self.shared.find_data(file.key, writable) {
            return Ok(data);
        }
        let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY;
        let path = ProcPath::new(file.as_fd());
        let fd = self.retry_open(|| Ok(rustix::fs::openat(rustix::fs::CWD, path.as_c_str(), flags, Mode::empty())?))?;
        Ok(self.shared.keep_data(file.key, writable, fd))
    }
}

/// The loop of a write, as the identity the thread has.
fn write_all(target: &DataFile, offset: u64, data: &[u8], stable: bool) -> Result<usize, SourceError> {
    let mut written = 0;
    let mut flags = if stable { libc::RWF_DSYNC } else { 0 };
    while written < data.len() {
        let position = i64::try_from(offset + written as u64).map_err(|_| Errno::FBIG)?;
        match sys::write_at(target.as_fd(), &data[written..], position, flags) {
            Ok(0) => break,
            Ok(bytes) => written += bytes,
            Err(Errno::OPNOTSUPP) if flags != 0 => flags = 0,
            Err(_) if written > 0 => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    if flags == 0 && written > 0 {
        target.mark_dirty();
        if stable {
            target.sync()?;
        }
    }
    Ok(written)
}
