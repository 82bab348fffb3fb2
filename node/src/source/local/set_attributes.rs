//! SETATTR: size, mode, owner, group, times.
//!
//! Owns: the order, and which steps need what. Never does: change an object as anybody but the caller.
//! Invariant: what can be refused is refused before data is cut: permission and the writable descriptor first, then the
//! owner (most often refused), then the size, then the mode (a change of owner or size clears suid), then the times
//! (a change of size sets them).

use std::sync::Arc;

use rustix::{
    fs::{AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid},
    io::Errno,
};

use super::{Identity, LocalFile, LocalSource, file::DataFile, sys, sys::ProcPath};
use crate::source::{AccessMask, Credentials, FileKind, SetAttributes, SetTime, SourceError};

impl LocalSource {
    /// Sets what is `Some`, as the caller. `override_owner_write`: the caller MUST hold an open for write of the
    /// file; then the mode is not asked about a change of size.
    pub fn set_attributes(
        &self,
        cred: &Credentials,
        file: &LocalFile,
        set: &SetAttributes,
        override_owner_write: bool,
    ) -> Result<(), SourceError> {
        if *set == SetAttributes::default() {
            return Ok(());
        }
        let checked = self.check(cred, file, set, override_owner_write)?;
        let result = {
            let _as_caller = Identity::assume(cred)?;
            apply(file, set, &checked)
        };
        if checked.size.is_some() {
            self.shared.release_unpinned_writer(file.key);
        }
        self.record_change(file);
        result
    }

    /// All that can be refused before anything is changed.
    fn check(
        &self,
        cred: &Credentials,
        file: &LocalFile,
        set: &SetAttributes,
        override_owner_write: bool,
    ) -> Result<Checked, SourceError> {
        let stat = self.live_stat(file)?;
        let owner = match set.uid {
            Some(uid) => Some(Uid::from_raw(valid_id(uid)?)),
            None => None,
        };
        let group = match set.gid {
            Some(gid) => Some(Gid::from_raw(valid_id(gid)?)),
            None => None,
        };
        if set.mode.is_some() && file.kind() == FileKind::Symlink {
            return Err(Errno::OPNOTSUPP.into());
        }
        let times = timestamps(set)?;
        let sets_time = [set.accessed, set.modified].iter().any(|time| matches!(time, Some(SetTime::To(_))));
        if (set.mode.is_some() || sets_time) && cred.uid != 0 && cred.uid != stat.stx_uid {
            return Err(Errno::PERM.into());
        }
        let size = match set.size {
            None => None,
            Some(size) => {
                let data = self.writer(file)?;
                if i64::try_from(size).is_err() {
                    return Err(Errno::FBIG.into());
                }
                if !override_owner_write {
                    self.require_access(cred, file, AccessMask { write: true, ..AccessMask::default() })?;
                }
                Some((data, size))
            }
        };
        Ok(Checked { owner, group, size, times })
    }
}

/// What the kernel will be asked for.
struct Checked {
    owner: Option<Uid>,
    group: Option<Gid>,
    size: Option<(Arc<DataFile>, u64)>,
    times: Option<Timestamps>,
}

/// The changes, as the identity the thread has.
fn apply(file: &LocalFile, set: &SetAttributes, checked: &Checked) -> Result<(), SourceError> {
    if checked.owner.is_some() || checked.group.is_some() {
        rustix::fs::chownat(file.as_fd(), c"", checked.owner, checked.group, AtFlags::EMPTY_PATH)?;
    }
    if let Some((data, size)) = &checked.size {
        rustix::fs::ftruncate(data.as_fd(), *size)?;
    }
    if let Some(mode) = set.mode {
        change_mode(file, mode)?;
    }
    if let Some(times) = &checked.times {
        set_times(file, times)?;
    }
    Ok(())
}

/// `chmod` of an object that is open as `O_PATH`.
fn change_mode(file: &LocalFile, mode: u32) -> Result<(), SourceError> {
    let path = ProcPath::new(file.as_fd());
    let mode = Mode::from_raw_mode(mode & 0o7777);
    Ok(rustix::fs::chmodat(rustix::fs::CWD, path.as_c_str(), mode, AtFlags::empty())?)
}

fn set_times(file: &LocalFile, times: &Timestamps) -> Result<(), SourceError> {
    let result = rustix::fs::utimensat(file.as_fd(), c"", times, AtFlags::EMPTY_PATH);
    let is_now = |time: &Timespec| time.tv_nsec == UTIME_NOW;
    let is_left = |time: &Timespec| time.tv_nsec == UTIME_OMIT;
    let both = [times.last_access, times.last_modification];
    // Who may write may set times to now, but the kernel grants that to others than the owner for both times only.
    if result == Err(Errno::PERM) && both.iter().all(|time| is_now(time) || is_left(time)) {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        return Ok(rustix::fs::utimensat(file.as_fd(), c"", &times, AtFlags::EMPTY_PATH)?);
    }
    Ok(result?)
}

/// The times as the kernel takes them; `None` if none is set.
fn timestamps(set: &SetAttributes) -> Result<Option<Timestamps>, SourceError> {
    if set.accessed.is_none() && set.modified.is_none() {
        return Ok(None);
    }
    let one = |time: Option<SetTime>| match time {
        None => Ok(Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }),
        Some(SetTime::Now) => Ok(Timespec { tv_sec: 0, tv_nsec: UTIME_NOW }),
        Some(SetTime::To(time)) if time.nanoseconds < 1_000_000_000 => {
            Ok(Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() })
        }
        Some(SetTime::To(_)) => Err(SourceError::from(Errno::INVAL)),
    };
    Ok(Some(Timestamps { last_access: one(set.accessed)?, last_modification: one(set.modified)? }))
}

/// The kernel takes -1 for "leave it": nobody can own a file as that.
fn valid_id(id: u32) -> Result<u32, SourceError> {
    if id == u32::MAX { Err(Errno::INVAL.into()) } else { Ok(id) }
}

/// `st_mode` without the kind.
pub(super) fn mode_of(file: &LocalFile) -> Result<u32, SourceError> {
    Ok(u32::from(sys::stat(file.as_fd())?.stx_mode) & 0o7777)
}
