//! ACCESS: what the caller may do with an object.
//!
//! Owns: the two ways to know it. Never does: change anything.
//!
//! The kernel knows: asked as the caller, so that ACLs, capabilities and anything special of a file system count. But
//! becoming the caller costs ten times what the question costs, and the kernel answers about one set of bits at a time.
//! So on the file systems that use nothing but the kernel's generic check (ext4, xfs, tmpfs, f2fs), an object that is
//! known to have no ACL is decided here, from the mode, owner and group that `statx` tells now. For root, whom no ACL
//! binds, any object is. Invariant: both ways give the same answer (a
//! test compares them); that an object has no ACL is believed only for the `ctime` it was asked at, and only once that
//! `ctime` cannot be given to another change.

use std::sync::atomic::Ordering;

use rustix::{
    fs::{StatVfsMountFlags, Statx, StatxAttributes},
    io::Errno,
};

use super::{
    Identity, LocalFile, LocalSource,
    change::{coarse_now, is_settled, nanoseconds},
    sys::{self, ProcPath},
};
use crate::source::{AccessMask, Credentials, FileKind, SourceError, Time};

/// Proof that names may be looked up in a directory: the thread acts as the caller, or the caller's right was checked.
pub(super) enum SearchRight {
    /// The kernel checks each walk, for as long as the identity lives.
    AsCaller(#[expect(dead_code, reason = "held, never read")] Identity),
    /// Checked, and walks are done as root.
    Checked,
}

impl LocalSource {
    /// What the caller may do, ACLs included. One question if everything is allowed, else one for each bit.
    pub fn access(&self, cred: &Credentials, file: &LocalFile) -> Result<AccessMask, SourceError> {
        if let Some(stat) = plain_permissions(cred, file)? {
            let mut mask = from_mode(cred, &stat);
            if mask.write || mask.execute {
                let flags = rustix::fs::fstatvfs(file.as_fd())?.f_flag;
                let has_storage = matches!(file.kind(), FileKind::Regular | FileKind::Directory | FileKind::Symlink);
                mask.write &= !(has_storage && flags.contains(StatVfsMountFlags::RDONLY));
                mask.write &= !stat.stx_attributes.contains(StatxAttributes::IMMUTABLE);
                mask.execute &= !(file.kind() == FileKind::Regular && flags.contains(StatVfsMountFlags::NOEXEC));
            }
            return Ok(mask);
        }
        let as_caller = Identity::assume(cred)?;
        match sys::effective_access(file.as_fd(), libc::R_OK | libc::W_OK | libc::X_OK) {
            Ok(()) => return Ok(AccessMask { read: true, write: true, execute: true }),
            Err(Errno::NOSYS) => {
                drop(as_caller);
                return emulate(cred, file);
            }
            Err(_) => {}
        }
        Ok(AccessMask {
            read: allowed(file, libc::R_OK)?,
            write: allowed(file, libc::W_OK)?,
            execute: allowed(file, libc::X_OK)?,
        })
    }

    /// The right to look names up in `dir`. The kernel may still refuse each walk if it is to check them.
    pub(super) fn search_right(&self, cred: &Credentials, dir: &LocalFile) -> Result<SearchRight, SourceError> {
        match plain_permissions(cred, dir)? {
            Some(stat) if from_mode(cred, &stat).execute => Ok(SearchRight::Checked),
            Some(_) => Err(Errno::ACCESS.into()),
            None => Ok(SearchRight::AsCaller(Identity::assume(cred)?)),
        }
    }

    /// `EACCES` unless the caller may do all of `mask`.
    pub(super) fn require_access(
        &self,
        cred: &Credentials,
        file: &LocalFile,
        mask: AccessMask,
    ) -> Result<(), SourceError> {
        let has = self.access(cred, file)?;
        let is_enough = (has.read || !mask.read) && (has.write || !mask.write) && (has.execute || !mask.execute);
        if is_enough { Ok(()) } else { Err(Errno::ACCESS.into()) }
    }
}

/// One bit, as the identity the thread has.
fn allowed(file: &LocalFile, mode: libc::c_int) -> Result<bool, SourceError> {
    match sys::effective_access(file.as_fd(), mode) {
        Ok(()) => Ok(true),
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// For sandboxes that hide `faccessat2`: the mode bits. An ACL is not read: where there is one only the owner gets
/// anything, which may be too little but never too much.
fn emulate(cred: &Credentials, file: &LocalFile) -> Result<AccessMask, SourceError> {
    let stat = sys::stat(file.as_fd())?;
    if cred.uid == 0 {
        return Ok(from_mode(cred, &stat));
    }
    let path = ProcPath::new(file.as_fd());
    let has_acl = rustix::fs::getxattr_query(path.as_c_str(), c"system.posix_acl_access").is_ok();
    if has_acl && cred.uid != stat.stx_uid {
        return Ok(AccessMask::default());
    }
    Ok(from_mode(cred, &stat))
}

/// What the mode gives a caller. Root may do all, but for running what nobody may run.
fn from_mode(cred: &Credentials, stat: &Statx) -> AccessMask {
    let mode = u32::from(stat.stx_mode);
    if cred.uid == 0 {
        let execute = sys::kind_of_mode(mode) == FileKind::Directory || mode & 0o111 != 0;
        return AccessMask { read: true, write: true, execute };
    }
    let bits = if cred.uid == stat.stx_uid {
        mode >> 6
    } else if cred.gid == stat.stx_gid || cred.groups.contains(&stat.stx_gid) {
        mode >> 3
    } else {
        mode
    };
    AccessMask { read: bits & 4 != 0, write: bits & 2 != 0, execute: bits & 1 != 0 }
}

/// The object's attributes if they alone decide what this caller may do.
fn plain_permissions(cred: &Credentials, file: &LocalFile) -> Result<Option<Statx>, SourceError> {
    // -1 is nobody's user or group: only the kernel's refusal is right for it.
    if !file.mount.is_uniform || cred.uid == u32::MAX || cred.gid == u32::MAX {
        return Ok(None);
    }
    let stat = sys::stat(file.as_fd())?;
    if cred.uid == 0 {
        return Ok(Some(stat));
    }
    let changed = Time { seconds: stat.stx_ctime.tv_sec, nanoseconds: stat.stx_ctime.tv_nsec };
    let stamp = nanoseconds(changed);
    if stamp != 0 && file.no_acl_at.load(Ordering::Relaxed) == stamp {
        return Ok(Some(stat));
    }
    if !is_settled(changed, coarse_now()) {
        return Ok(None);
    }
    let path = ProcPath::new(file.as_fd());
    let acl = rustix::fs::getxattr_query(path.as_c_str(), c"system.posix_acl_access");
    // A change between the two questions must not be taken for the state before it.
    let is_same = sys::stat(file.as_fd())?.stx_ctime;
    if !matches!(acl, Err(Errno::NODATA | Errno::OPNOTSUPP))
        || (is_same.tv_sec, is_same.tv_nsec) != (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec)
    {
        return Ok(None);
    }
    file.no_acl_at.store(stamp, Ordering::Relaxed);
    Ok(Some(stat))
}
