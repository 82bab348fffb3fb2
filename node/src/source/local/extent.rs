//! SEEK, ALLOCATE, DEALLOCATE, COPY, IO_ADVISE.
//!
//! Owns: ranges of a file's storage. Never does: ask whether the caller may read or write: whoever calls these methods
//! MUST have. Invariant: ranges end at or below 2^63 - 1.

use rustix::{
    fs::{FallocateFlags, SeekFrom},
    io::Errno,
};

use super::{Identity, LocalFile, LocalSource, file::DataFile, sys};
use crate::source::{Advice, Credentials, SeekWhat, SourceError};

/// Most that one call copies: about a second of a slow disk.
const COPY_MAX: u64 = 256 << 20;
/// Most that one system call copies.
const COPY_STEP: usize = 64 << 20;
/// The buffer where the kernel does not copy.
const COPY_BUFFER: usize = 1 << 20;

impl LocalSource {
    /// The next data or hole at or after `offset`; `None` where there is none (`ENXIO`). Permission to read MUST have
    /// been checked.
    pub fn seek(&self, file: &LocalFile, offset: u64, what: SeekWhat) -> Result<Option<u64>, SourceError> {
        let data = self.reader(file)?;
        if i64::try_from(offset).is_err() {
            return Ok(None);
        }
        let from = match what {
            SeekWhat::Data => SeekFrom::Data(offset),
            SeekWhat::Hole => SeekFrom::Hole(offset),
        };
        match rustix::fs::seek(data.as_fd(), from) {
            Ok(position) => Ok(Some(position)),
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reserves space; the file grows if need be. Permission to write MUST have been checked.
    pub fn allocate(&self, cred: &Credentials, file: &LocalFile, offset: u64, len: u64) -> Result<(), SourceError> {
        self.fallocate(cred, file, FallocateFlags::empty(), offset, len)
    }

    /// Punches a hole, size unchanged. Permission to write MUST have been checked.
    pub fn deallocate(&self, cred: &Credentials, file: &LocalFile, offset: u64, len: u64) -> Result<(), SourceError> {
        self.fallocate(cred, file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)
    }

    fn fallocate(
        &self,
        cred: &Credentials,
        file: &LocalFile,
        flags: FallocateFlags,
        offset: u64,
        len: u64,
    ) -> Result<(), SourceError> {
        let data = self.writer(file)?;
        check_range(offset, len)?;
        let result = {
            let _as_caller = Identity::assume(cred)?;
            rustix::fs::fallocate(data.as_fd(), flags, offset, len)
        };
        self.shared.release_unpinned_writer(file.key);
        self.record_change(file);
        Ok(result?)
    }

    /// Copies up to `len` bytes inside the kernel where it can; less at the end of `from`, and at most 256 MiB a call.
    /// Permission to read `from` and write `to` MUST have been checked. `EINVAL` for ranges of one file that overlap.
    pub fn copy_range(
        &self,
        cred: &Credentials,
        from: &LocalFile,
        from_offset: u64,
        to: &LocalFile,
        to_offset: u64,
        len: u64,
    ) -> Result<u64, SourceError> {
        let source = self.reader(from)?;
        let target = self.writer(to)?;
        // A length that reaches beyond the last possible byte of the source means "to its end".
        let len = len.min(COPY_MAX).min((i64::MAX as u64).saturating_sub(from_offset));
        check_range(to_offset, len)?;
        if from.id() == to.id() && from_offset.abs_diff(to_offset) < len {
            return Err(Errno::INVAL.into());
        }
        let result = {
            let _as_caller = Identity::assume(cred)?;
            copy_all(&source, from_offset, &target, to_offset, len)
        };
        target.mark_dirty();
        self.shared.release_unpinned_writer(to.key);
        self.record_change(to);
        result
    }

    /// Tells the page cache how data will be used. A hint that the file system does not take is not an error.
    pub fn advise(&self, file: &LocalFile, offset: u64, len: u64, advice: Advice) -> Result<(), SourceError> {
        let data = self.reader(file)?;
        let advice = match advice {
            Advice::Normal => rustix::fs::Advice::Normal,
            Advice::Sequential => rustix::fs::Advice::Sequential,
            Advice::Random => rustix::fs::Advice::Random,
            Advice::WillNeed => rustix::fs::Advice::WillNeed,
            Advice::DontNeed => rustix::fs::Advice::DontNeed,
            Advice::NoReuse => rustix::fs::Advice::NoReuse,
        };
        if check_range(offset, len).is_ok() {
            let _hint = rustix::fs::fadvise(data.as_fd(), offset, std::num::NonZeroU64::new(len), advice);
        }
        Ok(())
    }
}

/// `EFBIG` for a range that no file can have.
fn check_range(offset: u64, len: u64) -> Result<(), SourceError> {
    match offset.checked_add(len).map(i64::try_from) {
        Some(Ok(_)) => Ok(()),
        _ => Err(Errno::FBIG.into()),
    }
}

fn copy_all(from: &DataFile, from_offset: u64, to: &DataFile, to_offset: u64, len: u64) -> Result<u64, SourceError> {
    let mut copied = 0;
    while copied < len {
        let step = usize::try_from(len - copied).unwrap_or(COPY_STEP).min(COPY_STEP);
        let mut input = from_offset + copied;
        let mut output = to_offset + copied;
        match rustix::fs::copy_file_range(from.as_fd(), Some(&mut input), to.as_fd(), Some(&mut output), step) {
            Ok(0) => break,
            Ok(bytes) => copied += bytes as u64,
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) if copied == 0 => {
                return copy_by_hand(from, from_offset, to, to_offset, len);
            }
            Err(_) if copied > 0 => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(copied)
}

/// Where the kernel does not copy: between some file systems, or the same one on older kernels.
fn copy_by_hand(
    from: &DataFile,
    from_offset: u64,
    to: &DataFile,
    to_offset: u64,
    len: u64,
) -> Result<u64, SourceError> {
    let mut buffer: Vec<u8> = Vec::with_capacity(COPY_BUFFER);
    let mut copied = 0;
    while copied < len {
        buffer.clear();
        let room = buffer.spare_capacity_mut();
        let step = usize::try_from(len - copied).unwrap_or(COPY_BUFFER).min(room.len());
        let position = i64::try_from(from_offset + copied).map_err(|_| Errno::FBIG)?;
        let read = match sys::read_at(from.as_fd(), &mut room[..step], position, 0) {
            Ok(0) => break,
            Ok(read) => read,
            Err(_) if copied > 0 => break,
            Err(errno) => return Err(errno.into()),
        };
        // SAFETY: the kernel initialized `read` bytes, at most the room there was.
        unsafe { buffer.set_len(read) };
        let position = i64::try_from(to_offset + copied).map_err(|_| Errno::FBIG)?;
        match sys::write_at(to.as_fd(), &buffer, position, 0) {
            Ok(0) => break,
            Ok(bytes) => copied += bytes as u64,
            Err(_) if copied > 0 => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(copied)
}
