//! The local directory source (`file:///path`): objects of a directory tree, found again by kernel file handle.
//!
//! Owns: everything between a [`SourceHandle`] and the kernel, for one export. Never does: NFS, stateids, waiting for
//! anything but the kernel: every method is synchronous, and may be called from any thread at any time.
//!
//! Invariants:
//! * **As the caller.** What POSIX checks a permission for is done with the caller's identity ([`Identity`]). The
//!   exceptions are named where they are: opening by handle and `stat` of an open object (NFS wants both so), data
//!   descriptors, which root opens after the front has checked ([`LocalSource::read`], [`LocalSource::write`]), and
//!   the right to search a directory where mode, owner and group alone decide it (`access.rs`).
//! * **One component at a time.** Names are one path component; symbolic links are never followed; `..` only through
//!   [`LocalSource::parent`], which proves that the result is below the export's root.
//! * **Handles.** `[handle_type][f_handle]` as the kernel gives them, with the fsid of their file system. They name the
//!   same object through renames, remounts and restarts. A handle is believed only if the kernel gives the same bytes
//!   back. (Like every NFS server without subtree checks: who holds a handle of an object that was moved out of the
//!   export may go on using that object, and what is below it, but not climb from it.)
//! * **No lock is held across a system call** that may wait, but for scans of the mount table, which only wait for each
//!   other.
//!
//! Limits: on kernels before 6.6 tmpfs numbers directory entries by position, so there (only) a listing of a tmpfs
//! directory that changes meanwhile may miss or repeat an entry.

mod access;
mod attributes;
mod change;
mod create;
mod data;
mod directory;
mod entries;
mod extent;
mod file;
mod identity;
mod lookup;
mod mounts;
mod set_attributes;
mod sys;
#[cfg(test)]
mod tests;
mod xattr;

use std::{
    fmt,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    process::{Resource, getrlimit},
};

use self::{
    change::CoarseChanges,
    directory::Streams,
    file::Shared,
    mounts::{Mount, Mounts},
};
pub use self::{
    file::LocalFile,
    identity::{Identity, drop_resource_capability},
};
use super::{Credentials, FileKind, ObjectId, SourceError, SourceFsid, SourceHandle};

/// Descriptors assumed where the limit is infinite.
const OPEN_FILES_DEFAULT: u64 = 1 << 20;

/// How a [`LocalSource`] is opened.
#[derive(Clone, Debug, Default)]
pub struct LocalOptions {
    /// Most descriptors the source keeps open for objects nobody is using. `None`: half of `RLIMIT_NOFILE`.
    pub max_open_files: Option<usize>,
    /// Do not rely on multigrain timestamps even where the kernel's version says they are there.
    pub assume_coarse_clock: bool,
}

/// Why a directory cannot be exported: a full sentence that says what to do.
#[derive(Debug, thiserror::Error)]
#[error("cannot export {root}: {reason}", root = root.display())]
pub struct OpenError {
    /// The directory as given.
    pub root: PathBuf,
    /// What is wrong and what to do.
    pub reason: String,
}

/// One exported directory. Share it by [`Arc`].
pub struct LocalSource {
    shared: Arc<Shared>,
    mounts: Mounts,
    changes: CoarseChanges,
    streams: Streams,
    root: Arc<LocalFile>,
    /// `st_dev` and inode number of the root, to know it when climbing.
    root_identity: (u64, u64),
}

impl LocalSource {
    /// Opens the directory `root` as an export. The process must be root, see [`OpenError`] for what else is needed.
    pub fn open(root: &Path, options: LocalOptions) -> Result<Self, OpenError> {
        let refused = |reason: String| OpenError { root: root.to_owned(), reason };
        if let Some(reason) = identity::missing_privilege() {
            return Err(refused(reason.to_owned()));
        }
        let path = open_root(root).map_err(refused)?;
        let probe = Credentials { uid: 65_534, gid: 65_534, groups: Arc::from([65_534]) };
        Identity::assume(&probe).map(drop).map_err(|_| {
            refused(
                "the kernel does not let this process act as another user; run as root, not in a user namespace".into(),
            )
        })?;
        let (handle, _) = sys::name_to_handle(path.as_fd(), c"").map_err(|error| {
            refused(match error {
                SourceError::NoHandle => "its file system gives no file handles, so clients could not find files \
                    again after a rename or restart; export a directory on ext4, xfs, btrfs or tmpfs, or mount the \
                    overlay with nfs_export=on,index=on"
                    .to_owned(),
                other => format!("asking for its file handle failed with {other}; check the path and try again"),
            })
        })?;
        let fine = kernel_has_fine_clocks() && !options.assume_coarse_clock;
        let mounts = Mounts::new(path.as_fd(), fine).map_err(|errno| {
            refused(format!("it cannot be read ({errno}); is /proc mounted, and may root read it?"))
        })?;
        check_handle(&mounts, path.as_fd(), &handle).map_err(refused)?;

        let shared = Arc::new(Shared::new(options.max_open_files.unwrap_or_else(default_open_files)));
        Self::with_root(shared, mounts, path, handle).map_err(|error| refused(format!("stat failed with {error}")))
    }

    fn with_root(
        shared: Arc<Shared>,
        mounts: Mounts,
        path: OwnedFd,
        handle: SourceHandle,
    ) -> Result<Self, SourceError> {
        let stat = sys::stat(&path)?;
        let mount = mounts.by_id(stat.stx_mnt_id).ok_or(SourceError::NoHandle)?;
        let id = ObjectId { fsid: mount.fsid_of(path.as_fd(), &stat)?, handle };
        let root = Arc::new(LocalFile::new(&shared, path, mount, &id, FileKind::Directory, true));
        Ok(Self {
            shared,
            mounts,
            changes: CoarseChanges::new(),
            streams: Streams::default(),
            root,
            root_identity: (sys::device(&stat), stat.stx_ino),
        })
    }

    /// The export's root directory.
    pub fn root(&self) -> Arc<LocalFile> {
        Arc::clone(&self.root)
    }

    /// The object a handle names: `Stale` if it is gone, `BadHandle` if the bytes were never a handle. No permission is
    /// asked: NFS checks when the object is used.
    pub fn resolve(&self, fsid: SourceFsid, handle: &SourceHandle) -> Result<Arc<LocalFile>, SourceError> {
        if fsid == self.root.fsid() && handle == self.root.handle() {
            return Ok(self.root());
        }
        if let Some(file) = self.shared.find(fsid, handle) {
            return Ok(file);
        }
        let mut mount = self.mounts.by_fsid(fsid);
        if mount.is_none() && self.mounts.have_changed() {
            self.mounts.scan(self.root.as_fd());
            mount = self.mounts.by_fsid(fsid);
        }
        if let Some(mount) = mount {
            return self.resolve_on(mount, fsid, handle);
        }
        // A subvolume has an fsid of its own, but is reached through any mount of its file system.
        let candidates = self.mounts.with_subvolumes();
        candidates.into_iter().find_map(|mount| self.resolve_on(mount, fsid, handle).ok()).ok_or(SourceError::Stale)
    }

    fn resolve_on(
        &self,
        mount: Arc<Mount>,
        fsid: SourceFsid,
        handle: &SourceHandle,
    ) -> Result<Arc<LocalFile>, SourceError> {
        let path = self.retry_open(|| sys::open_by_handle(mount.fd.as_fd(), handle))?;
        // Some file systems ignore what they do not need: only bytes that the kernel itself would give are a handle.
        let (canonical, _) = sys::name_to_handle(path.as_fd(), c"")?;
        if canonical != *handle {
            return Err(SourceError::BadHandle);
        }
        let file = self.admit(path, mount, canonical)?;
        if file.fsid() == fsid { Ok(file) } else { Err(SourceError::Stale) }
    }

    /// Makes an open object known. `Stale` if it has no name left and nobody has it open.
    fn admit(&self, path: OwnedFd, mount: Arc<Mount>, handle: SourceHandle) -> Result<Arc<LocalFile>, SourceError> {
        let stat = sys::stat(&path)?;
        let id = ObjectId { fsid: mount.fsid_of(path.as_fd(), &stat)?, handle };
        if id == self.root.id() {
            return Ok(self.root());
        }
        if let Some(file) = self.shared.find(id.fsid, &id.handle) {
            return Ok(file);
        }
        if stat.stx_nlink == 0 {
            return Err(SourceError::Stale);
        }
        let kind = sys::kind_of_mode(u32::from(stat.stx_mode));
        let file = Arc::new(LocalFile::new(&self.shared, path, mount, &id, kind, false));
        self.shared.keep(&file);
        Ok(file)
    }

    /// Drops cached descriptors of objects that were deleted by others on this machine, so that their space is freed,
    /// and closes what is open for writing without need (waits for the disk if clients wrote and never committed).
    /// For a slow timer (every 10 s) where blocking is allowed. Returns how many deleted objects were dropped.
    pub fn release_deleted(&self) -> usize {
        self.streams.clear();
        self.shared.sweep_writers();
        let cached = self.shared.cached();
        let deleted = cached.iter().filter(|file| {
            !self.shared.is_pinned(file.key) && sys::stat(&file.path).is_ok_and(|stat| stat.stx_nlink == 0)
        });
        deleted.map(|file| self.shared.forget(file.key)).count()
    }

    /// Does `open`, and once again with the caches emptied if the process is out of descriptors.
    fn retry_open<T>(&self, open: impl Fn() -> Result<T, SourceError>) -> Result<T, SourceError> {
        match open() {
            Err(SourceError::Errno(libc::EMFILE)) => {
                self.shared.close_idle();
                self.streams.clear();
                open()
            }
            result => result,
        }
    }
}

impl fmt::Debug for LocalSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalSource").field("root", &self.root).field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// The root as `O_PATH`, or what is wrong with it.
fn open_root(root: &Path) -> Result<OwnedFd, String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(root, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT => "there is no such directory; create it or correct the export's URL".to_owned(),
        Errno::NOTDIR => "it is not a directory; name the directory that holds the files".to_owned(),
        errno => format!("opening it failed with {errno}; check that it exists and that root may open it"),
    })
}

/// Proves that the root's handle can be opened, as every client's will have to be.
fn check_handle(mounts: &Mounts, root: std::os::fd::BorrowedFd<'_>, handle: &SourceHandle) -> Result<(), String> {
    let id = sys::stat(root).map_err(|errno| format!("stat failed with {errno}; check the file system"))?.stx_mnt_id;
    let mount =
        mounts.by_id(id).ok_or_else(|| "the kernel tells no mount ids; Linux 5.8 or newer is needed".to_owned())?;
    sys::open_by_handle(mount.fd.as_fd(), handle).map(drop).map_err(|error| match error {
        SourceError::Errno(libc::EPERM) => "the process may not open files by handle: CAP_DAC_READ_SEARCH is missing; \
            run as root, not in a user namespace, in a container add that capability"
            .to_owned(),
        other => format!("its file system does not open its own file handles ({other}); export another one"),
    })
}

/// Half of what the process may open.
fn default_open_files() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(OPEN_FILES_DEFAULT).min(OPEN_FILES_DEFAULT);
    usize::try_from(limit / 2).unwrap_or(1024)
}

/// Linux 6.13 brought multigrain timestamps.
fn kernel_has_fine_clocks() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (6, 13)
}
