//! The file systems of an export: its own and those mounted below it.
//!
//! Owns: one open descriptor per file system (what `open_by_handle_at` needs), its stable [`SourceFsid`], which inode a
//! mount covers. Never does: look up files. Invariants: an entry keeps its mount from going away, so a mount id in the
//! table is never reused for another; one fsid never names two file systems at a time.
//!
//! A file system that was crossed into is busy (`umount` says so) until the source is closed, as with any NFS server;
//! after `umount -l` the next scan lets go of it.

use std::{
    ffi::{CStr, CString, OsStr},
    fs::File,
    io::{Read, Seek, SeekFrom},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};
use rustix::{
    fs::{Mode, OFlags, RawDir, ResolveFlags, Statx},
    io::Errno,
};
use xxhash_rust::xxh3::xxh3_64;

use super::sys::{self, ProcPath};
use crate::source::{FileKind, SourceFsid};

const EXT: u64 = 0xEF53;
const XFS: u64 = 0x5846_5342;
const TMPFS: u64 = 0x0102_1994;
const BTRFS: u64 = 0x9123_683E;
const F2FS: u64 = 0xF2F5_2010;

/// Longest `/proc/self/mountinfo` read: 100,000 mounts of ordinary length.
const MOUNTINFO_MAX: u64 = 32 << 20;

/// One mounted file system.
#[derive(Debug)]
pub(super) struct Mount {
    /// As `statx` and `name_to_handle_at` tell it.
    pub(super) id: u64,
    /// Any object on it, opened for reading.
    pub(super) fd: OwnedFd,
    pub(super) fsid: SourceFsid,
    /// What `statfs` says, before two alike were told apart.
    pub(super) raw_fsid: u64,
    /// `st_dev` of its root.
    pub(super) device: u64,
    /// The inode its root covers, or of the root itself.
    pub(super) mounted_on: u64,
    /// All objects of one mount have one fsid: no subvolumes.
    pub(super) is_uniform: bool,
    /// `ctime` of what is not a directory differs after every change that anybody could have told apart.
    pub(super) has_fine_clock: bool,
    /// The same of directories.
    pub(super) has_fine_directories: bool,
    /// Reads never wait for a disk.
    pub(super) is_memory: bool,
}

/// The table.
#[derive(Debug)]
pub(super) struct Mounts {
    /// The first is the export's own and stays.
    list: RwLock<Vec<Arc<Mount>>>,
    /// Held while scanning, by nobody who serves from the table.
    scanner: Mutex<File>,
    fine_clocks: bool,
}

impl Mounts {
    /// With the export's own file system. `fine_clocks`: the kernel has multigrain timestamps.
    pub(super) fn new(root: BorrowedFd<'_>, fine_clocks: bool) -> Result<Self, Errno> {
        let (_, id) = sys::name_to_handle(root, c"").map_err(|_| Errno::OPNOTSUPP)?;
        let stat = sys::stat(root)?;
        let fd = open_for_reading(root)?;
        let own = Mount::new(id, fd, &stat, stat.stx_ino, fine_clocks, |raw, _| raw)?;
        let mountinfo = File::open("/proc/thread-self/mountinfo")
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let mounts = Self { list: RwLock::new(vec![Arc::new(own)]), scanner: Mutex::new(mountinfo), fine_clocks };
        mounts.scan(root);
        Ok(mounts)
    }

    /// By mount id.
    pub(super) fn by_id(&self, id: u64) -> Option<Arc<Mount>> {
        self.list.read().iter().find(|mount| mount.id == id).cloned()
    }

    /// By fsid of the root.
    pub(super) fn by_fsid(&self, fsid: SourceFsid) -> Option<Arc<Mount>> {
        self.list.read().iter().find(|mount| mount.fsid == fsid).cloned()
    }

    /// Those whose objects may have an fsid that no mount has.
    pub(super) fn with_subvolumes(&self) -> Vec<Arc<Mount>> {
        self.list.read().iter().filter(|mount| !mount.is_uniform).cloned().collect()
    }

    /// Something was mounted or unmounted since the last scan.
    pub(super) fn have_changed(&self) -> bool {
        let scanner = self.scanner.lock();
        let mut poll = libc::pollfd {
            fd: std::os::fd::AsRawFd::as_raw_fd(&*scanner),
            events: libc::POLLPRI | libc::POLLERR,
            revents: 0,
        };
        // SAFETY: one pollfd that outlives the call; it does not wait.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
        ready != 0
    }

    /// Reads the mount table and takes in what is mounted below `root` now. Mounts that cannot be served (no handles,
    /// covered by another, gone meanwhile) are left out: looking them up says so.
    pub(super) fn scan(&self, root: BorrowedFd<'_>) {
        let mut scanner = self.scanner.lock();
        let mut text = Vec::new();
        let read =
            scanner.seek(SeekFrom::Start(0)).and_then(|_| (&mut *scanner).take(MOUNTINFO_MAX).read_to_end(&mut text));
        let path = rustix::fs::readlinkat(rustix::fs::CWD, ProcPath::new(root).as_c_str(), Vec::new());
        let (Ok(_), Ok(path)) = (read, path) else {
            return;
        };
        let known = self.list.read().clone();
        let mut found: Vec<Arc<Mount>> = known.first().cloned().into_iter().collect();
        for line in text.split(|&byte| byte == b'\n').filter_map(|line| MountLine::parse(line, path.to_bytes())) {
            let old = known.iter().find(|mount| mount.id == line.id).cloned();
            if found.iter().any(|mount| mount.id == line.id) {
                continue;
            }
            if let Some(mount) = old.or_else(|| self.probe(root, &line, &found).ok().map(Arc::new)) {
                found.push(mount);
            }
        }
        *self.list.write() = found;
    }

    /// Opens one mount found in the table.
    fn probe(&self, root: BorrowedFd<'_>, line: &MountLine, others: &[Arc<Mount>]) -> Result<Mount, Errno> {
        let relative = line.relative.as_c_str();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let path = rustix::fs::openat2(root, relative, flags, Mode::empty(), resolve)?;
        let (_, id) = sys::name_to_handle(path.as_fd(), c"").map_err(|_| Errno::OPNOTSUPP)?;
        if id != line.id {
            return Err(Errno::NOENT);
        }
        let stat = sys::stat(&path)?;
        let fd = open_for_reading(path.as_fd())?;
        let mounted_on = covered_inode(root, relative, resolve).unwrap_or(stat.stx_ino);
        Mount::new(id, fd, &stat, mounted_on, self.fine_clocks, |raw, device| {
            let taken = others.iter().any(|other| other.raw_fsid == raw && other.device != device);
            // Two copies of one image, or a file system without an identity: where it is mounted tells it apart, which
            // is as stable as the administrator's mount table.
            if raw == 0 || taken { raw ^ xxh3_64(relative.to_bytes()) } else { raw }
        })
    }
}

impl Mount {
    fn new(
        id: u64,
        fd: OwnedFd,
        stat: &Statx,
        mounted_on: u64,
        fine_clocks: bool,
        unique: impl FnOnce(u64, u64) -> u64,
    ) -> Result<Self, Errno> {
        let magic = rustix::fs::fstatfs(&fd)?.f_type.cast_unsigned();
        let raw_fsid = raw_fsid(&fd)?;
        let device = sys::device(stat);
        // ext4 with 128-byte inodes keeps whole seconds only, and no time of creation.
        let keeps_nanoseconds = stat.stx_mask & rustix::fs::StatxFlags::BTIME.bits() != 0;
        let fine_clocks = fine_clocks && keeps_nanoseconds;
        Ok(Self {
            id,
            fsid: SourceFsid(unique(raw_fsid, device)),
            raw_fsid,
            device,
            mounted_on,
            is_uniform: matches!(magic, EXT | XFS | TMPFS | F2FS),
            has_fine_clock: fine_clocks && matches!(magic, EXT | XFS | TMPFS | BTRFS),
            // tmpfs stamps a directory with the time it gave the object that was linked or removed, which is coarse if
            // nobody asked for that object's (seen with Linux 6.18); btrfs has not been proven either way.
            has_fine_directories: fine_clocks && matches!(magic, EXT | XFS),
            is_memory: magic == TMPFS,
            fd,
        })
    }

    /// The fsid of an object on this mount.
    pub(super) fn fsid_of(&self, fd: BorrowedFd<'_>, stat: &Statx) -> Result<SourceFsid, Errno> {
        if self.is_uniform || sys::device(stat) == self.device {
            return Ok(self.fsid);
        }
        let raw = raw_fsid(fd)?;
        // Subvolumes differ from their root in `raw`; keep that difference if the root had to be told apart.
        Ok(SourceFsid(self.fsid.0 ^ self.raw_fsid ^ raw))
    }
}

/// The file system's own identity.
fn raw_fsid(fd: impl AsFd) -> Result<u64, Errno> {
    Ok(rustix::fs::fstatvfs(fd)?.f_fsid)
}

/// A readable descriptor of a directory or regular file.
fn open_for_reading(path: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let kind = sys::kind_of_mode(u32::from(sys::stat(path)?.stx_mode));
    if !matches!(kind, FileKind::Directory | FileKind::Regular) {
        return Err(Errno::OPNOTSUPP);
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    rustix::fs::openat(rustix::fs::CWD, ProcPath::new(path).as_c_str(), flags, Mode::empty())
}

/// The inode number a mount at `relative` covers: what its parent directory has under that name.
fn covered_inode(root: BorrowedFd<'_>, relative: &CStr, resolve: ResolveFlags) -> Option<u64> {
    let relative = Path::new(OsStr::from_bytes(relative.to_bytes()));
    let name = relative.file_name()?.as_bytes();
    let parent = match relative.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::openat2(root, parent, flags, Mode::empty(), resolve).ok()?;
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(parent, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry.ok()?;
        if entry.file_name().to_bytes() == name {
            return Some(entry.ino());
        }
    }
    None
}

/// What is needed of one line of `mountinfo`.
struct MountLine {
    id: u64,
    /// Where, from the export's root.
    relative: CString,
}

impl MountLine {
    /// `None` for a line that is not about a mount below `root`.
    fn parse(line: &[u8], root: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let point = unescape(fields.nth(3)?);
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        // Opening an autofs mount point would start what it waits for.
        if kind == b"autofs" {
            return None;
        }
        let root = if root == b"/" { b"" } else { root };
        let relative = point.strip_prefix(root)?.strip_prefix(b"/")?;
        if relative.is_empty() {
            return None;
        }
        Some(Self { id, relative: CString::new(relative).ok()? })
    }
}

/// Undoes the `\ooo` of `mountinfo`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|digits| byte == b'\\' && digits.iter().all(|d| (b'0'..b'8').contains(d)));
        if let Some(digits) = digits {
            let value = digits.iter().fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0'));
            out.push(value as u8);
            rest = &tail[3..];
        } else {
            out.push(byte);
            rest = tail;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_below_the_root_are_taken() {
        let line = b"36 35 98:0 / /srv/x\\040y/mnt rw,noatime master:1 - ext3 /dev/root rw";
        let parsed = MountLine::parse(line, b"/srv/x y").expect("below");
        assert_eq!((parsed.id, parsed.relative.as_bytes()), (36, &b"mnt"[..]));
        assert!(MountLine::parse(line, b"/srv/x y/mnt").is_none(), "the root itself");
        assert!(MountLine::parse(line, b"/srv/x").is_none(), "a name that only starts alike");
        assert!(MountLine::parse(line, b"/").is_some());
        assert!(MountLine::parse(b"36 35 98:0 / /a/b rw - autofs x rw", b"/a").is_none());
        for cut in 0..line.len() {
            let _ = MountLine::parse(&line[..cut], b"/");
        }
    }
}
