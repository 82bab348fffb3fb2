//! GETXATTR, SETXATTR, REMOVEXATTR, LISTXATTRS (RFC 8276).
//!
//! Owns: the `user.` prefix, which callers neither give nor see. Never does: touch another namespace.
//! Invariant: as the caller; the kernel's own limits (names of 255 bytes, values and lists of 64 KiB) hold.

use bytes::Bytes;
use rustix::{fs::XattrFlags, io::Errno};

use super::{Identity, LocalFile, LocalSource, sys::ProcPath};
use crate::source::{AccessMask, Credentials, SourceError, XattrSet};

const PREFIX: &[u8] = b"user.";
const NAME_MAX: usize = 255;
/// `XATTR_SIZE_MAX` and `XATTR_LIST_MAX`.
const VALUE_MAX: usize = 65_536;

impl LocalSource {
    /// The value of `user.<name>`; `ENODATA` if there is none.
    pub fn xattr_get(&self, cred: &Credentials, file: &LocalFile, name: &[u8]) -> Result<Bytes, SourceError> {
        let name = full_name(name)?;
        let path = ProcPath::new(file.as_fd());
        let _as_caller = Identity::assume(cred)?;
        read_growing(|buffer| rustix::fs::getxattr(path.as_c_str(), &name[..], buffer))
    }

    /// Sets `user.<name>`; `EEXIST` for `Create` if it is there, `ENODATA` for `Replace` if it is not, `E2BIG` beyond
    /// 64 KiB.
    pub fn xattr_set(
        &self,
        cred: &Credentials,
        file: &LocalFile,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<(), SourceError> {
        let name = full_name(name)?;
        if value.len() > VALUE_MAX {
            return Err(Errno::TOOBIG.into());
        }
        let flags = match how {
            XattrSet::Either => XattrFlags::empty(),
            XattrSet::Create => XattrFlags::CREATE,
            XattrSet::Replace => XattrFlags::REPLACE,
        };
        let path = ProcPath::new(file.as_fd());
        let result = {
            let _as_caller = Identity::assume(cred)?;
            rustix::fs::setxattr(path.as_c_str(), &name[..], value, flags)
        };
        self.record_change(file);
        Ok(result?)
    }

    /// Removes `user.<name>`; `ENODATA` if there is none.
    pub fn xattr_remove(&self, cred: &Credentials, file: &LocalFile, name: &[u8]) -> Result<(), SourceError> {
        let name = full_name(name)?;
        let path = ProcPath::new(file.as_fd());
        let result = {
            let _as_caller = Identity::assume(cred)?;
            rustix::fs::removexattr(path.as_c_str(), &name[..])
        };
        self.record_change(file);
        Ok(result?)
    }

    /// The names in the user namespace, without `user.`. Asks for permission to read, as for the values.
    pub fn xattr_list(&self, cred: &Credentials, file: &LocalFile) -> Result<Vec<Bytes>, SourceError> {
        self.require_access(cred, file, AccessMask { read: true, ..AccessMask::default() })?;
        let path = ProcPath::new(file.as_fd());
        let _as_caller = Identity::assume(cred)?;
        let list = read_growing(|buffer| rustix::fs::listxattr(path.as_c_str(), buffer))?;
        let names = list.split(|&byte| byte == 0).filter_map(|name| name.strip_prefix(PREFIX));
        Ok(names.filter(|name| !name.is_empty()).map(|name| list.slice_ref(name)).collect())
    }
}

/// `user.<name>`; `EINVAL` for an empty one or one with NUL, `ENAMETOOLONG` beyond the kernel's limit.
fn full_name(name: &[u8]) -> Result<Vec<u8>, SourceError> {
    if name.len() > NAME_MAX - PREFIX.len() {
        return Err(Errno::NAMETOOLONG.into());
    }
    if name.is_empty() || name.contains(&0) {
        return Err(Errno::INVAL.into());
    }
    Ok([PREFIX, name].concat())
}

/// Most values are small: tries on the stack's worth of memory, then with all the kernel may give.
fn read_growing(read: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Bytes, SourceError> {
    let mut buffer = vec![0; 512];
    let len = match read(&mut buffer) {
        Err(Errno::RANGE) => {
            buffer.resize(VALUE_MAX, 0);
            read(&mut buffer)?
        }
        result => result?,
    };
    buffer.truncate(len);
    Ok(Bytes::from(buffer))
}
