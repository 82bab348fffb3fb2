//! GETATTR: what `stat` and `statvfs` tell, and the change attribute.
//!
//! Owns: turning them into the source's vocabulary; remembering changes where clocks are coarse. Never does: permission
//! checks, since NFS wants attributes of an open object readable by all. Invariant: one system call for attributes.

use rustix::{fs::Statx, io::Errno};

use super::{
    LocalFile, LocalSource,
    change::{coarse_now, nanoseconds},
    mounts::Mount,
    sys,
};
use crate::source::{FileAttributes, FileKind, SourceError, SourceFsid, SpaceAttributes, Time};

impl LocalSource {
    /// What `stat` tells. `Stale` if unlinked and not pinned.
    pub fn attributes(&self, file: &LocalFile) -> Result<FileAttributes, SourceError> {
        let stat = self.live_stat(file)?;
        let is_mount_root = stat.stx_attributes.contains(rustix::fs::StatxAttributes::MOUNT_ROOT) && !file.is_root();
        let mut told = self.told_by(&stat, file.fsid(), file.key, &file.mount);
        if is_mount_root {
            told.mounted_on_fileid = self.covered_by(file, &stat);
        }
        Ok(told)
    }

    /// What a `statx` of the object `key` on `mount` tells.
    pub(super) fn told_by(&self, stat: &Statx, fsid: SourceFsid, key: u128, mount: &Mount) -> FileAttributes {
        let changed = changed_at(stat);
        let has_birth = stat.stx_mask & rustix::fs::StatxFlags::BTIME.bits() != 0;
        let kind = sys::kind_of_mode(u32::from(stat.stx_mode));
        FileAttributes {
            fsid,
            fileid: stat.stx_ino,
            mounted_on_fileid: stat.stx_ino,
            kind,
            mode: u32::from(stat.stx_mode) & 0o7777,
            links: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            size: stat.stx_size,
            space_used: stat.stx_blocks.saturating_mul(512),
            device: (stat.stx_rdev_major, stat.stx_rdev_minor),
            accessed: Time { seconds: stat.stx_atime.tv_sec, nanoseconds: stat.stx_atime.tv_nsec },
            modified: Time { seconds: stat.stx_mtime.tv_sec, nanoseconds: stat.stx_mtime.tv_nsec },
            changed,
            created: has_birth.then_some(Time { seconds: stat.stx_btime.tv_sec, nanoseconds: stat.stx_btime.tv_nsec }),
            change: if has_fine_clock(kind, mount) {
                nanoseconds(changed)
            } else {
                self.changes.value(key, changed, coarse_now())
            },
        }
    }

    /// `statx`, or `Stale` if the object has no name left and nobody has it open.
    pub(super) fn live_stat(&self, file: &LocalFile) -> Result<Statx, SourceError> {
        let stat = sys::stat(file.as_fd())?;
        if stat.stx_nlink == 0 && !self.shared.is_pinned(file.key) {
            self.shared.forget(file.key);
            return Err(SourceError::Stale);
        }
        Ok(stat)
    }

    /// The inode a mount's root covers.
    fn covered_by(&self, file: &LocalFile, stat: &Statx) -> u64 {
        if file.mount.id == stat.stx_mnt_id { file.mount.mounted_on } else { stat.stx_ino }
    }

    /// Called after each change of an object: where the clock is coarse, `ctime` alone may not show it.
    pub(super) fn record_change(&self, file: &LocalFile) {
        if has_fine_clock(file.kind(), &file.mount) {
            return;
        }
        if let Ok(stat) = sys::stat(file.as_fd()) {
            self.changes.record(file.key, changed_at(&stat));
        }
    }

    /// Space on the object's file system.
    pub fn space(&self, file: &LocalFile) -> Result<SpaceAttributes, SourceError> {
        let stat = rustix::fs::fstatvfs(file.as_fd())?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(SpaceAttributes {
            space_total: bytes(stat.f_blocks),
            space_free: bytes(stat.f_bfree),
            space_available: bytes(stat.f_bavail),
            files_total: stat.f_files,
            files_free: stat.f_ffree,
            name_max: u32::try_from(stat.f_namemax).map_err(|_| Errno::OVERFLOW)?,
        })
    }
}

/// `ctime`.
pub(super) fn changed_at(stat: &Statx) -> Time {
    Time { seconds: stat.stx_ctime.tv_sec, nanoseconds: stat.stx_ctime.tv_nsec }
}

/// `ctime` alone tells every change of such an object.
fn has_fine_clock(kind: FileKind, mount: &Mount) -> bool {
    if kind == FileKind::Directory { mount.has_fine_directories } else { mount.has_fine_clock }
}
