//! LINK, REMOVE, RENAME, READLINK: names of objects that exist.
//!
//! Owns: changing directory entries as the caller, and letting go of objects that lost their last name. Never does:
//! remove or replace what the kernel would not let the caller. Invariant: what is returned about the object that was
//! removed or replaced is what the name meant just before; who races another remover may be told of the other's object.

use std::sync::Arc;

use bytes::Bytes;
use rustix::{fs::AtFlags, io::Errno};

use super::{
    Identity, LocalFile, LocalSource,
    lookup::require_directory,
    sys::{self, Name, ProcPath},
};
use crate::source::{Credentials, FileKind, ObjectId, SourceError};

impl LocalSource {
    /// Where a symbolic link points; `EINVAL` for other kinds. No permission is needed.
    pub fn read_link(&self, file: &LocalFile) -> Result<Bytes, SourceError> {
        if file.kind() != FileKind::Symlink {
            return Err(Errno::INVAL.into());
        }
        let target = rustix::fs::readlinkat(file.as_fd(), c"", Vec::with_capacity(256))?;
        Ok(Bytes::from(target.into_bytes()))
    }

    /// Another name for `file`. `EISDIR` for directories, `EXDEV` across file systems.
    pub fn link(&self, cred: &Credentials, file: &LocalFile, dir: &LocalFile, name: &[u8]) -> Result<(), SourceError> {
        require_directory(dir)?;
        let name = Name::parse(name)?;
        if file.kind() == FileKind::Directory {
            return Err(Errno::ISDIR.into());
        }
        let path = ProcPath::new(file.as_fd());
        {
            let _as_caller = Identity::assume(cred)?;
            let flags = AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(rustix::fs::CWD, path.as_c_str(), dir.as_fd(), name.as_c_str(), flags)?;
        }
        self.record_change(file);
        self.record_change(dir);
        Ok(())
    }

    /// Removes a file's name or an empty directory; returns which object it was. Pin first what must go on working.
    pub fn remove(&self, cred: &Credentials, dir: &LocalFile, name: &[u8]) -> Result<ObjectId, SourceError> {
        let file = self.lookup(cred, dir, name)?;
        let name = Name::parse(name)?;
        let is_directory = file.kind() == FileKind::Directory;
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        {
            let _as_caller = Identity::assume(cred)?;
            rustix::fs::unlinkat(dir.as_fd(), name.as_c_str(), flags)?;
        }
        self.after_unlink(&file);
        self.record_change(dir);
        Ok(file.id())
    }

    /// Renames; returns the object that was replaced. Nothing happens if both names are one object. `EXDEV` across file
    /// systems.
    pub fn rename(
        &self,
        cred: &Credentials,
        from_dir: &LocalFile,
        from: &[u8],
        to_dir: &LocalFile,
        to: &[u8],
    ) -> Result<Option<ObjectId>, SourceError> {
        require_directory(to_dir)?;
        let (from_name, to_name) = (Name::parse(from)?, Name::parse(to)?);
        let moved = self.lookup(cred, from_dir, from)?;
        let replaced = match self.lookup(cred, to_dir, to) {
            Ok(file) => Some(file),
            Err(SourceError::Errno(libc::ENOENT)) => None,
            Err(error) => return Err(error),
        };
        {
            let _as_caller = Identity::assume(cred)?;
            rustix::fs::renameat(from_dir.as_fd(), from_name.as_c_str(), to_dir.as_fd(), to_name.as_c_str())?;
        }
        let replaced = replaced.filter(|file| file.id() != moved.id());
        if let Some(file) = &replaced {
            self.after_unlink(file);
        }
        self.record_change(&moved);
        self.record_change(from_dir);
        self.record_change(to_dir);
        Ok(replaced.map(|file| file.id()))
    }

    /// A name of the object is gone; if it was the last, so is the object once nobody has it open.
    fn after_unlink(&self, file: &Arc<LocalFile>) {
        if sys::stat(file.as_fd()).is_ok_and(|stat| stat.stx_nlink == 0) {
            self.shared.forget(file.key);
            self.streams.forget(file.key);
        } else {
            self.record_change(file);
        }
    }
}
