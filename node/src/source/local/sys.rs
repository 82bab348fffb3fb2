//! System calls that rustix does not have, and the paths and names they take.
//!
//! Owns: kernel file handles as bytes (`[handle_type][f_handle…]`), parsed names, `/proc/self/fd/N` paths.
//! Never does: identity, caching. Invariant: a [`Name`] is one path component, so no call here can leave its directory.

use std::{
    ffi::{CStr, c_int},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, FileType, Statx, StatxFlags},
    io::Errno,
};

use crate::source::{FileKind, SOURCE_HANDLE_MAX, SourceError, SourceHandle};

/// `NAME_MAX` of every Linux file system that matters, and what the kernel's dcache allows.
const NAME_BYTES_MAX: usize = 255;

/// What every `statx` here asks for.
pub(super) const STAT_MASK: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME).union(StatxFlags::MNT_ID);

/// The last error as rustix has it.
fn last_errno() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// One path component with its terminating NUL, on the stack.
pub(super) struct Name {
    len: usize,
    bytes: [u8; NAME_BYTES_MAX + 1],
}

impl Name {
    /// Refuses what is not one component: `EINVAL` for empty, `.`, `..`, `/` and NUL; `ENAMETOOLONG` beyond 255 bytes.
    pub(super) fn parse(name: &[u8]) -> Result<Self, SourceError> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        if matches!(name, b"" | b"." | b"..") || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
            return Err(Errno::INVAL.into());
        }
        let mut bytes = [0; NAME_BYTES_MAX + 1];
        bytes[..name.len()].copy_from_slice(name);
        Ok(Self { len: name.len(), bytes })
    }

    pub(super) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.bytes[..=self.len]).expect("parse refused NUL and left one at the end")
    }
}

/// `/proc/self/fd/N`: names the object of an `O_PATH` descriptor to calls that want a path. Following it needs no
/// permission on any directory, and never follows the object itself if that is a symbolic link.
pub(super) struct ProcPath([u8; 32]);

impl ProcPath {
    pub(super) fn new(fd: BorrowedFd<'_>) -> Self {
        const PREFIX: &[u8] = b"/proc/self/fd/";
        let mut path = [0_u8; 32];
        path[..PREFIX.len()].copy_from_slice(PREFIX);
        let mut digits = [0_u8; 10];
        let mut start = digits.len();
        let mut rest = fd.as_raw_fd().unsigned_abs();
        loop {
            start -= 1;
            digits[start] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let digits = &digits[start..];
        path[PREFIX.len()..PREFIX.len() + digits.len()].copy_from_slice(digits);
        Self(path)
    }

    pub(super) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).expect("14 + 10 bytes leave room for NUL in 32")
    }
}

/// `struct file_handle` with the most room the kernel ever fills.
#[repr(C)]
struct RawHandle {
    handle_bytes: u32,
    handle_type: c_int,
    f_handle: [u8; SOURCE_HANDLE_MAX],
}

/// The handle of `name` below `dir` (of `dir` itself for the empty name), not following a symbolic link, and the id of
/// the mount it is on. `NoHandle` where the file system has none, or one that does not fit.
pub(super) fn name_to_handle(dir: BorrowedFd<'_>, name: &CStr) -> Result<(SourceHandle, u64), SourceError> {
    let mut raw =
        RawHandle { handle_bytes: (SOURCE_HANDLE_MAX - 1) as u32, handle_type: 0, f_handle: [0; SOURCE_HANDLE_MAX] };
    let mut mount_id: c_int = 0;
    let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    // SAFETY: `name` is NUL-terminated; `raw` has `handle_bytes` bytes of room; both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            dir.as_raw_fd(),
            name.as_ptr(),
            &raw mut raw,
            &raw mut mount_id,
            flags,
        )
    };
    if result < 0 {
        return Err(match last_errno() {
            Errno::OVERFLOW | Errno::OPNOTSUPP => SourceError::NoHandle,
            errno => errno.into(),
        });
    }
    let kind = u8::try_from(raw.handle_type).map_err(|_| SourceError::NoHandle)?;
    let len = usize::try_from(raw.handle_bytes).map_err(|_| SourceError::NoHandle)?;
    let mut bytes = [0; SOURCE_HANDLE_MAX];
    bytes[0] = kind;
    let data = raw.f_handle.get(..len).ok_or(SourceError::NoHandle)?;
    bytes.get_mut(1..=len).ok_or(SourceError::NoHandle)?.copy_from_slice(data);
    let handle = SourceHandle::new(&bytes[..=len]).ok_or(SourceError::NoHandle)?;
    Ok((handle, u64::from(mount_id.unsigned_abs())))
}

/// An `O_PATH` descriptor of what `handle` names on the file system of `mount`.
pub(super) fn open_by_handle(mount: BorrowedFd<'_>, handle: &SourceHandle) -> Result<OwnedFd, SourceError> {
    let (&kind, data) = handle.as_bytes().split_first().ok_or(SourceError::BadHandle)?;
    if kind == 0 || kind == u8::MAX || data.is_empty() {
        return Err(SourceError::BadHandle);
    }
    let mut raw =
        RawHandle { handle_bytes: data.len() as u32, handle_type: c_int::from(kind), f_handle: [0; SOURCE_HANDLE_MAX] };
    raw.f_handle[..data.len()].copy_from_slice(data);
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: `raw` holds `handle_bytes` (at most 127) initialized bytes and outlives the call.
    let fd = unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw const raw, flags) };
    if fd < 0 {
        return Err(match last_errno() {
            Errno::STALE | Errno::NOENT => SourceError::Stale,
            Errno::INVAL => SourceError::BadHandle,
            errno => errno.into(),
        });
    }
    // SAFETY: the kernel just gave us this descriptor, nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as c_int) })
}

/// `statx` of the object itself.
pub(super) fn stat(fd: impl AsFd) -> Result<Statx, Errno> {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW, STAT_MASK)
}

/// `statx` of a name in a directory; a symbolic link is the link itself.
pub(super) fn stat_name(dir: BorrowedFd<'_>, name: &CStr) -> Result<Statx, Errno> {
    rustix::fs::statx(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, STAT_MASK)
}

/// The device number as one value.
pub(super) fn device(stat: &Statx) -> u64 {
    u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor)
}

/// The kind in `stx_mode`.
pub(super) fn kind_of_mode(mode: u32) -> FileKind {
    kind_of_type(FileType::from_raw_mode(mode)).unwrap_or(FileKind::Regular)
}

/// The kind of a directory entry, if the file system told.
pub(super) fn kind_of_type(kind: FileType) -> Option<FileKind> {
    Some(match kind {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::Unknown => return None,
    })
}

/// `faccessat2` of the object itself with the thread's effective (file system) identity.
pub(super) fn effective_access(fd: BorrowedFd<'_>, mode: c_int) -> Result<(), Errno> {
    let flags = libc::AT_EACCESS | libc::AT_EMPTY_PATH;
    // SAFETY: the path is NUL-terminated; the call touches no other memory.
    let result = unsafe { libc::syscall(libc::SYS_faccessat2, fd.as_raw_fd(), c"".as_ptr(), mode, flags) };
    if result < 0 { Err(last_errno()) } else { Ok(()) }
}

/// `preadv2` into memory that need not be initialized; the first `n` bytes are on return.
pub(super) fn read_at(
    fd: BorrowedFd<'_>,
    buf: &mut [MaybeUninit<u8>],
    offset: i64,
    flags: c_int,
) -> Result<usize, Errno> {
    let iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    loop {
        // SAFETY: `iov` describes `buf`, which is writable and outlives the call; the kernel only writes to it.
        let result = unsafe { libc::preadv2(fd.as_raw_fd(), &raw const iov, 1, offset, flags) };
        match usize::try_from(result) {
            Ok(bytes) => return Ok(bytes),
            Err(_) => match last_errno() {
                Errno::INTR => {}
                errno => return Err(errno),
            },
        }
    }
}

/// `pwritev2`.
pub(super) fn write_at(fd: BorrowedFd<'_>, data: &[u8], offset: i64, flags: c_int) -> Result<usize, Errno> {
    let iov = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    loop {
        // SAFETY: `iov` describes `data`, which outlives the call; the kernel only reads from it.
        let result = unsafe { libc::pwritev2(fd.as_raw_fd(), &raw const iov, 1, offset, flags) };
        match usize::try_from(result) {
            Ok(bytes) => return Ok(bytes),
            Err(_) => match last_errno() {
                Errno::INTR => {}
                errno => return Err(errno),
            },
        }
    }
}
