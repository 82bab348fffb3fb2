//! Finding or making a store at a path.
//!
//! Owns: what may be used and what must not be touched, the lock against other processes, sizes. Never does: read chunks.
//! Invariant: nothing is written to a device or file that carries something else, a newer format, or another process's lock.

use std::{
    fs::{File, OpenOptions},
    io::{self, Seek, SeekFrom},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{FallocateFlags, FlockOperation, OFlags};

use super::{
    aligned::AlignedBuffer,
    device::{Device, FileDevice},
    layout::{BLOCK, DecodeError, FIRST_SEGMENT_BLOCK, FORMAT_VERSION, SEGMENT_HEADER_BLOCKS, Superblock},
};

/// Name of the store in a directory.
pub const FILE_NAME: &str = "forebay.cache";
/// The least a store can be.
pub const BYTES_MIN: u64 = 20 << 20;
/// Blocks are counted in 32 bits.
const BLOCKS_MAX: u64 = u32::MAX as u64;
/// Blocks at the beginning of a device in which other owners leave their marks.
const PROBE_BLOCKS: usize = 32;

/// Where and how large.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// A directory, or a block device.
    pub path: PathBuf,
    /// Size in bytes. Without it: an existing store as it is, else 90 % of what is free, or the whole device.
    pub bytes: Option<u64>,
    /// Bytes of a segment of a new store. Without it: by the store's size.
    pub segment_bytes: Option<u64>,
}

impl StoreOptions {
    /// A store there, as large as fits.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), bytes: None, segment_bytes: None }
    }
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum OpenError {
    #[error("cache store {path}: {source}; create the directory, or name a block device")]
    Missing { path: PathBuf, source: io::Error },
    #[error("cache store {path} is neither a directory nor a block device")]
    NotUsable { path: PathBuf },
    #[error("cache store {path} is in use by another process")]
    Locked { path: PathBuf },
    #[error(
        "{path} carries {found}, not a Forebay cache; it was not touched. To use it, erase it first (wipefs, blkdiscard)"
    )]
    Foreign { path: PathBuf, found: String },
    #[error(
        "cache store {path} has format version {found}, this binary reads version {FORMAT_VERSION}; \
         upgrade it, or remove the store to start with an empty one"
    )]
    Newer { path: PathBuf, found: u32 },
    #[error("cache store {path} would have {bytes} bytes; the least is {BYTES_MIN}")]
    TooSmall { path: PathBuf, bytes: u64 },
    #[error("cache store {path}: no space for {bytes} bytes; free some, or set a smaller size")]
    NoSpace { path: PathBuf, bytes: u64 },
    #[error("cache store {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

/// A store that was opened.
#[derive(Debug)]
pub struct Opened {
    /// Where it is.
    pub device: Arc<dyn Device>,
    /// How it is laid out.
    pub superblock: Superblock,
    /// Random, another each time.
    pub session: u64,
}

/// Opens the store, or makes one. With `fresh`, whatever store is there is emptied.
///
/// # Errors
/// See [`OpenError`].
pub fn open(options: &StoreOptions, fresh: bool, now: u64) -> Result<Opened, OpenError> {
    let path = &options.path;
    let failed = |source| OpenError::Io { path: path.clone(), source };
    let metadata = std::fs::metadata(path).map_err(|source| OpenError::Missing { path: path.clone(), source })?;
    let block_device = metadata.file_type().is_block_device();
    if !block_device && !metadata.is_dir() {
        return Err(OpenError::NotUsable { path: path.clone() });
    }
    let at = if block_device { path.clone() } else { path.join(FILE_NAME) };
    let file = open_file(&at, block_device).map_err(|source| match source.raw_os_error() {
        Some(libc::EBUSY) => {
            OpenError::Foreign { path: at.clone(), found: "a mounted or otherwise used file system".into() }
        }
        _ => failed(source),
    })?;
    lock(&file, &at)?;
    let length = length_of(&file).map_err(failed)?;
    let device = FileDevice::new(file.try_clone().map_err(failed)?, &at).map_err(failed)?;
    let found = if length == 0 { None } else { probe(&device, &at, length)? };
    let found = found.filter(|superblock| !fresh && length >= superblock.blocks() * BLOCK as u64);
    let bytes = wanted_bytes(options, block_device, length, found.as_ref()).map_err(failed)?;
    let layout = geometry(&at, bytes, options.segment_bytes, found.as_ref())?;
    let superblock = match found {
        Some(found) if layout.segments == found.segments => found,
        Some(found) if !block_device && layout.segments > found.segments => {
            let grown = Superblock { segments: layout.segments, ..found };
            allocate(&file, &at, &grown)?;
            write_superblock(&device, &grown).map_err(failed)?;
            grown
        }
        _ => format(&file, &device, &at, block_device, Superblock { created: now, ..layout })?,
    };
    Ok(Opened { device: Arc::new(device), superblock, session: uuid::Uuid::new_v4().as_u64_pair().0 })
}

/// O_DIRECT, or through the page cache where the file system does not take it.
fn open_file(at: &Path, block_device: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(!block_device).mode(0o600);
    // O_EXCL without O_CREAT: not if the device is mounted.
    let exclusive = if block_device { OFlags::EXCL } else { OFlags::empty() };
    let flags = |more: OFlags| i32::try_from((exclusive | more).bits()).unwrap_or(0);
    match options.clone().custom_flags(flags(OFlags::DIRECT)).open(at) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            tracing::info!(path = %at.display(), "no O_DIRECT here: the cache store goes through the page cache");
            options.custom_flags(flags(OFlags::empty())).open(at)
        }
        opened => opened,
    }
}

fn lock(file: &File, at: &Path) -> Result<(), OpenError> {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
        rustix::io::Errno::WOULDBLOCK => OpenError::Locked { path: at.to_path_buf() },
        errno => OpenError::Io { path: at.to_path_buf(), source: errno.into() },
    })
}

fn length_of(file: &File) -> io::Result<u64> {
    (&mut &*file).seek(SeekFrom::End(0))
}

/// The superblock that is there, from whichever of its copies is whole; `None` if it may be overwritten.
pub fn probe(device: &dyn Device, at: &Path, length: u64) -> Result<Option<Superblock>, OpenError> {
    let failed = |source| OpenError::Io { path: at.to_path_buf(), source };
    let blocks = usize::try_from(length / BLOCK as u64).unwrap_or(usize::MAX).min(PROBE_BLOCKS);
    if blocks < 2 {
        return Err(OpenError::Foreign { path: at.to_path_buf(), found: format!("{length} bytes of something") });
    }
    let bytes = device.read(0, blocks).map_err(failed)?;
    let copies = [Superblock::decode(&bytes[..BLOCK]), Superblock::decode(&bytes[BLOCK..2 * BLOCK])];
    if let Some(superblock) = copies.iter().find_map(|copy| copy.ok()) {
        return Ok(Some(superblock));
    }
    for copy in copies {
        if let Err(DecodeError::Version(found)) = copy {
            return Err(OpenError::Newer { path: at.to_path_buf(), found });
        }
    }
    if copies.contains(&Err(DecodeError::Damaged)) {
        tracing::warn!(path = %at.display(), "the cache store's superblock is damaged: starting with an empty store");
        return Ok(None);
    }
    match foreign(&bytes) {
        Some(found) => Err(OpenError::Foreign { path: at.to_path_buf(), found: found.into() }),
        None => Ok(None),
    }
}

/// Whose mark is on a device; `None` if its beginning is blank.
pub fn foreign(bytes: &[u8]) -> Option<&'static str> {
    const MARKS: &[(usize, &[u8], &str)] = &[
        (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
        (0, b"XFSB", "an XFS file system"),
        (0x10040, b"_BHRfS_M", "a btrfs file system"),
        (0, b"LUKS\xba\xbe", "a LUKS volume"),
        (512, b"LABELONE", "an LVM physical volume"),
        (512, b"EFI PART", "a GPT partition table"),
        (4086, b"SWAPSPACE2", "swap space"),
        (4096, b"\xfc\x4e\x2b\xa9", "a member of an MD array"),
        (1024, b"\x10\x20\xf5\xf2", "an F2FS file system"),
        (0, b"hsqs", "a squashfs image"),
        (3, b"NTFS    ", "an NTFS file system"),
        (32769, b"CD001", "an ISO 9660 image"),
        (510, b"\x55\xaa", "a partition table or boot sector"),
    ];
    let has = |(at, mark, _): &&(usize, &[u8], &str)| bytes.get(*at..at + mark.len()) == Some(*mark);
    let found = MARKS.iter().find(has).map(|(_, _, name)| *name);
    found.or_else(|| bytes.iter().any(|byte| *byte != 0).then_some("data of an unknown kind"))
}

fn wanted_bytes(
    options: &StoreOptions,
    block_device: bool,
    length: u64,
    found: Option<&Superblock>,
) -> io::Result<u64> {
    if block_device {
        let all = found.map_or(length, |found| found.blocks() * BLOCK as u64);
        return Ok(options.bytes.unwrap_or(all).min(length));
    }
    if let Some(bytes) = options.bytes {
        return Ok(bytes);
    }
    if let Some(found) = found {
        return Ok(found.blocks() * BLOCK as u64);
    }
    let space = rustix::fs::statvfs(&options.path)?;
    Ok((space.f_bavail * space.f_frsize + length) / 10 * 9)
}

/// How a store of `bytes` is laid out; as the one that is there, in as many segments as fit.
fn geometry(
    at: &Path,
    bytes: u64,
    segment_bytes: Option<u64>,
    found: Option<&Superblock>,
) -> Result<Superblock, OpenError> {
    let too_small = || OpenError::TooSmall { path: at.to_path_buf(), bytes };
    let by_size = match bytes {
        ..0x400_0000 => 4 << 20,
        0x400_0000..0x2000_0000 => 8 << 20,
        0x2000_0000..0x8000_0000 => 16 << 20,
        0x8000_0000..0x400_0000_0000 => 64 << 20,
        _ => 256 << 20,
    };
    let segment_blocks = found.map(|found| found.segment_blocks);
    let segment_blocks = match segment_blocks {
        Some(blocks) => blocks,
        None => u32::try_from(segment_bytes.unwrap_or(by_size) / BLOCK as u64).map_err(|_| too_small())?,
    };
    let blocks = (bytes / BLOCK as u64).min(BLOCKS_MAX);
    let segments = blocks.saturating_sub(FIRST_SEGMENT_BLOCK) / u64::from(segment_blocks.max(1));
    if segments < 4 || segment_blocks < 8 {
        return Err(too_small());
    }
    let segments = u32::try_from(segments).map_err(|_| too_small())?;
    let uuid = found.map_or_else(|| uuid::Uuid::new_v4().as_u128(), |found| found.uuid);
    Ok(Superblock { uuid, segment_blocks, segments, created: 0 })
}

/// Reserves the space, so that a full file system is found out now and not later.
fn allocate(file: &File, at: &Path, superblock: &Superblock) -> Result<(), OpenError> {
    let bytes = superblock.blocks() * BLOCK as u64;
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::NOSPC) => Err(OpenError::NoSpace { path: at.to_path_buf(), bytes }),
        Err(rustix::io::Errno::OPNOTSUPP) => {
            tracing::info!(path = %at.display(), "space cannot be reserved here: the cache store may run out of it later");
            file.set_len(bytes).map_err(|source| OpenError::Io { path: at.to_path_buf(), source })
        }
        Err(errno) => Err(OpenError::Io { path: at.to_path_buf(), source: errno.into() }),
    }
}

fn format(
    file: &File,
    device: &dyn Device,
    at: &Path,
    block_device: bool,
    superblock: Superblock,
) -> Result<Superblock, OpenError> {
    let failed = |source| OpenError::Io { path: at.to_path_buf(), source };
    if block_device {
        blank(device, &superblock).map_err(failed)?;
    } else {
        file.set_len(0).map_err(failed)?;
        if let Err(error) = allocate(file, at, &superblock) {
            // What was reserved before space ran out is of use to others.
            file.set_len(0).ok();
            return Err(error);
        }
    }
    write_superblock(device, &superblock).map_err(failed)?;
    Ok(superblock)
}

/// Segment headers of zeros: nothing that was there is taken for one.
fn blank(device: &dyn Device, superblock: &Superblock) -> io::Result<()> {
    let zeros = AlignedBuffer::zeroed(SEGMENT_HEADER_BLOCKS as usize);
    (0..superblock.segments).try_for_each(|slot| device.write(superblock.segment_start(slot), &zeros))
}

/// Both copies, and everything before them, on stable storage.
///
/// # Errors
/// The device's.
pub fn write_superblock(device: &dyn Device, superblock: &Superblock) -> io::Result<()> {
    device.sync()?;
    let mut blocks = AlignedBuffer::zeroed(2);
    let encoded = superblock.encode();
    blocks.chunks_exact_mut(BLOCK).for_each(|block| block.copy_from_slice(&encoded));
    device.write(0, &blocks)?;
    device.sync()
}
