//! LOOKUP and LOOKUPP: one step down, one step up.
//!
//! Owns: path walks. Never does: more than one component, symbolic links. Invariants: permissions are the caller's;
//! nothing above the export's root is ever returned.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use super::{Identity, LocalFile, LocalSource, access::SearchRight, mounts::Mount, sys, sys::Name};
use crate::source::{Credentials, FileKind, SourceError, SourceHandle};

/// Steps up before a directory counts as outside the export; `PATH_MAX` allows 2048.
const DEPTH_MAX: usize = 4096;

/// How objects are opened when walking.
pub(super) const WALK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// How often a name is looked up that is another file's each time.
const LOOKS_MAX: usize = 16;

/// A name that is removed while it is looked up is a name that is not there.
fn gone(error: SourceError) -> SourceError {
    if error == SourceError::Stale { Errno::NOENT.into() } else { error }
}

/// What the caller's own permissions found.
pub(super) enum Found {
    /// Its file system's handles say all; `mount` is its mount's id.
    Handle(SourceHandle, u64),
    /// It had to be opened.
    Open(OwnedFd),
}

impl LocalSource {
    /// The object called `name` in `dir`, as the caller. Never follows symbolic links; crosses into mounted file
    /// systems.
    pub fn lookup(&self, cred: &Credentials, dir: &LocalFile, name: &[u8]) -> Result<Arc<LocalFile>, SourceError> {
        require_directory(dir)?;
        let name = Name::parse(name)?;
        let mut looked = Err(SourceError::Stale);
        // What the name stood for may be gone by now because the name was given to another file: it never was without one.
        for _ in 0..LOOKS_MAX {
            let found = self.retry_open(|| self.find_name(&self.search_right(cred, dir)?, dir, &name))?;
            looked = self.admit_found(found, dir);
            if !matches!(looked, Err(SourceError::Stale)) {
                break;
            }
        }
        looked.map_err(gone)
    }

    /// The part of a lookup that needs the caller's right: one system call for an object that is already open.
    pub(super) fn find_name(&self, _right: &SearchRight, dir: &LocalFile, name: &Name) -> Result<Found, SourceError> {
        let (handle, mount) = sys::name_to_handle(dir.as_fd(), name.as_c_str())?;
        let uniform = if mount == dir.mount.id { Some(&dir.mount) } else { None };
        let known = match uniform {
            Some(mount) if mount.is_uniform => self.is_open(mount, &handle),
            _ => self.mounts.by_id(mount).is_some_and(|mount| mount.is_uniform && self.is_open(&mount, &handle)),
        };
        if known {
            return Ok(Found::Handle(handle, mount));
        }
        Ok(Found::Open(rustix::fs::openat(dir.as_fd(), name.as_c_str(), WALK, Mode::empty())?))
    }

    fn is_open(&self, mount: &Mount, handle: &SourceHandle) -> bool {
        self.root.handle() == handle || self.shared.find(mount.fsid, handle).is_some()
    }

    /// The part of a lookup that is done as root.
    pub(super) fn admit_found(&self, found: Found, dir: &LocalFile) -> Result<Arc<LocalFile>, SourceError> {
        match found {
            Found::Handle(handle, mount) => {
                let fsid = if mount == dir.mount.id { Some(dir.mount.fsid) } else { None };
                let fsid = fsid.or_else(|| self.mounts.by_id(mount).map(|mount| mount.fsid));
                self.resolve(fsid.ok_or(SourceError::NoHandle)?, &handle)
            }
            Found::Open(path) => self.admit_open(path),
        }
    }

    /// Makes an object known whose mount may be new.
    pub(super) fn admit_open(&self, path: OwnedFd) -> Result<Arc<LocalFile>, SourceError> {
        let (handle, id) = sys::name_to_handle(path.as_fd(), c"")?;
        let mount = match self.mounts.by_id(id) {
            Some(mount) => mount,
            None => {
                self.mounts.scan(self.root.as_fd());
                self.mounts.by_id(id).ok_or(SourceError::NoHandle)?
            }
        };
        self.admit(path, mount, handle)
    }

    /// The parent of a directory, as the caller; `None` at the export's root; `Stale` if the directory is no longer
    /// below the export. Climbs out of mounted file systems.
    pub fn parent(&self, cred: &Credentials, dir: &LocalFile) -> Result<Option<Arc<LocalFile>>, SourceError> {
        require_directory(dir)?;
        if dir.is_root() {
            return Ok(None);
        }
        let parent = {
            let _as_caller = Identity::assume(cred)?;
            rustix::fs::openat(dir.as_fd(), c"..", WALK | OFlags::DIRECTORY, Mode::empty())
        };
        // Above a bind mount's root there is no name for "..".
        let parent = parent.map_err(|errno| if errno == Errno::NOENT { SourceError::Stale } else { errno.into() })?;
        self.require_below_root(&parent)?;
        self.admit_open(parent).map(Some)
    }

    /// Climbs from a directory until the export's root is met; `Stale` if the machine's root is met first. As root,
    /// since it asks where the directory is and not what the caller may do.
    fn require_below_root(&self, dir: &OwnedFd) -> Result<(), SourceError> {
        let stat = sys::stat(dir)?;
        let mut here = (sys::device(&stat), stat.stx_ino);
        let mut above: Option<OwnedFd> = None;
        for _ in 0..DEPTH_MAX {
            if here == self.root_identity {
                return Ok(());
            }
            let current = above.as_ref().unwrap_or(dir);
            let next = rustix::fs::openat(current, c"..", WALK | OFlags::DIRECTORY, Mode::empty())
                .map_err(|errno| if errno == Errno::NOENT { SourceError::Stale } else { errno.into() })?;
            let stat = sys::stat(&next)?;
            let next_identity = (sys::device(&stat), stat.stx_ino);
            if next_identity == here {
                break;
            }
            here = next_identity;
            above = Some(next);
        }
        Err(SourceError::Stale)
    }
}

/// `ENOTDIR` for what is not a directory.
pub(super) fn require_directory(file: &LocalFile) -> Result<(), SourceError> {
    if file.kind() == FileKind::Directory { Ok(()) } else { Err(Errno::NOTDIR.into()) }
}
