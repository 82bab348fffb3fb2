//! OPEN for creation and CREATE: new objects.
//!
//! Owns: making them with exactly the mode asked for, and taking back what could not be finished. Never does: follow a
//! symbolic link that is in the way, open anything that was there before. Invariant: the caller owns what it makes.

use std::{
    ffi::CString,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
};

use super::{
    Identity, LocalFile, LocalSource,
    identity::NoUmask,
    lookup::require_directory,
    set_attributes::mode_of,
    sys::{self, Name, ProcPath},
};
use crate::source::{Credentials, NewObject, SetAttributes, SourceError};

/// Tries when others create and remove the same name meanwhile.
const RACES_MAX: usize = 16;

impl LocalSource {
    /// A regular file; `true` if this call made it. If the name is taken: `EEXIST` if `exclusive`, else what is there,
    /// of any kind, with neither `mode` nor `rest` applied: the front maps directories, links and others.
    pub fn create(
        &self,
        cred: &Credentials,
        dir: &LocalFile,
        name: &[u8],
        mode: u32,
        exclusive: bool,
        rest: &SetAttributes,
    ) -> Result<(Arc<LocalFile>, bool), SourceError> {
        require_directory(dir)?;
        let parsed = Name::parse(name)?;
        for _ in 0..RACES_MAX {
            match self.retry_open(|| create_file(cred, dir, &parsed, mode)) {
                Ok((fd, is_exact)) => {
                    let file = self.admit_created(fd)?;
                    // A change of owner or group clears suid and sgid.
                    let is_cut = mode & 0o6000 != 0 && (rest.uid.is_some() || rest.gid.is_some());
                    let rest = SetAttributes {
                        mode: (is_cut || !is_exact).then_some(mode),
                        size: rest.size.filter(|&size| size != 0),
                        ..rest.clone()
                    };
                    self.finish(cred, dir, &parsed, &file, &rest)?;
                    return Ok((file, true));
                }
                Err(SourceError::Errno(libc::EEXIST)) if !exclusive => {}
                Err(error) => return Err(error),
            }
            match self.lookup(cred, dir, name) {
                Err(SourceError::Errno(libc::ENOENT)) => {}
                result => return result.map(|file| (file, false)),
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// The object of a new file's descriptor, which is kept: who creates a file most often writes it.
    fn admit_created(&self, fd: OwnedFd) -> Result<Arc<LocalFile>, SourceError> {
        let link = ProcPath::new(fd.as_fd());
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let path =
            self.retry_open(|| Ok(rustix::fs::openat(rustix::fs::CWD, link.as_c_str(), flags, Mode::empty())?))?;
        let file = self.admit_open(path)?;
        self.shared.keep_data(file.key, true, fd);
        Ok(file)
    }

    /// Makes what is not a regular file. `mode` is exact (no umask), a directory's sgid is inherited; not for symbolic
    /// links. `rest.mode` and `rest.size` are ignored. `EPERM` for devices unless the caller is root.
    pub fn make(
        &self,
        cred: &Credentials,
        dir: &LocalFile,
        name: &[u8],
        object: &NewObject,
        mode: u32,
        rest: &SetAttributes,
    ) -> Result<Arc<LocalFile>, SourceError> {
        require_directory(dir)?;
        let parsed = Name::parse(name)?;
        let is_exact = {
            let _as_caller = Identity::assume(cred)?;
            let umask = NoUmask::new();
            make_object(dir, &parsed, object, mode)?;
            umask.is_exact()
        };
        self.record_change(dir);
        let file = self.lookup(cred, dir, name)?;
        let is_link = matches!(object, NewObject::Symlink { .. });
        // mkdir takes neither suid nor sgid.
        let is_cut = matches!(object, NewObject::Directory) && mode & 0o6000 != 0;
        let mode = if !is_link && (is_cut || !is_exact) { Some(mode | (mode_of(&file)? & 0o2000)) } else { None };
        self.finish(cred, dir, &parsed, &file, &SetAttributes { mode, size: None, ..rest.clone() })?;
        Ok(file)
    }

    /// Sets the other attributes of a new object. If that is refused, the object is removed again.
    fn finish(
        &self,
        cred: &Credentials,
        dir: &LocalFile,
        name: &Name,
        file: &LocalFile,
        rest: &SetAttributes,
    ) -> Result<(), SourceError> {
        self.record_change(dir);
        self.record_change(file);
        let result = self.set_attributes(cred, file, rest, true);
        if result.is_err()
            && let Ok(_as_caller) = Identity::assume(cred)
        {
            // Only if the name is still ours to take back.
            if sys::name_to_handle(dir.as_fd(), name.as_c_str()).is_ok_and(|(handle, _)| handle == *file.handle()) {
                let flags = if require_directory(file).is_ok() { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                let _gone = rustix::fs::unlinkat(dir.as_fd(), name.as_c_str(), flags);
            }
        }
        result
    }
}

/// Creates a file as the caller; `false` if its mode may have lost bits to the umask.
fn create_file(cred: &Credentials, dir: &LocalFile, name: &Name, mode: u32) -> Result<(OwnedFd, bool), SourceError> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
    let _as_caller = Identity::assume(cred)?;
    let umask = NoUmask::new();
    let fd = rustix::fs::openat(dir.as_fd(), name.as_c_str(), flags, Mode::from_raw_mode(mode & 0o7777))?;
    Ok((fd, umask.is_exact()))
}

/// Makes one object, as the identity the thread has.
fn make_object(dir: &LocalFile, name: &Name, object: &NewObject, mode: u32) -> Result<(), SourceError> {
    let mode = Mode::from_raw_mode(mode & 0o7777);
    let (dir, name) = (dir.as_fd(), name.as_c_str());
    let node = |kind, device| rustix::fs::mknodat(dir, name, kind, mode, device);
    let result = match object {
        NewObject::Directory => rustix::fs::mkdirat(dir, name, mode),
        NewObject::Symlink { target } => {
            let target = CString::new(&target[..]).map_err(|_| Errno::INVAL)?;
            rustix::fs::symlinkat(target.as_c_str(), dir, name)
        }
        NewObject::Fifo => node(FileType::Fifo, 0),
        NewObject::Socket => node(FileType::Socket, 0),
        NewObject::BlockDevice { major, minor } => node(FileType::BlockDevice, rustix::fs::makedev(*major, *minor)),
        NewObject::CharDevice { major, minor } => node(FileType::CharacterDevice, rustix::fs::makedev(*major, *minor)),
    };
    Ok(result?)
}
