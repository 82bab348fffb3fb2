//! The files that servers are measured on.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::{
    pattern::{self, PAGE},
    process::Scratch,
    servers::EXPORT,
    works::Kind,
};

/// How much there is of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Of the file read, and of the file written, in order.
    pub sequential_bytes: u64,
    /// Of the file read at random.
    pub random_bytes: u64,
    /// Files of 4 KiB in one directory.
    pub names: u32,
    /// Entries of the directory that is listed.
    pub entries: u32,
}

impl Sizes {
    /// What the figures are about.
    pub const FULL: Self = Self { sequential_bytes: 512 << 20, random_bytes: 256 << 20, names: 1000, entries: 10_000 };
    /// To see whether it all works.
    pub const QUICK: Self = Self { sequential_bytes: 64 << 20, random_bytes: 16 << 20, names: 200, entries: 2000 };

    fn bytes(self) -> u64 {
        2 * self.sequential_bytes + self.random_bytes + u64::from(self.names + self.entries) * PAGE as u64
    }
}

/// A tree on disk, in memory where possible.
#[derive(Debug)]
pub struct Tree {
    scratch: Scratch,
    /// Whether no disk is under it.
    pub in_memory: bool,
}

impl Tree {
    /// Makes one, in shared memory if that has room for it and for as much again.
    ///
    /// # Errors
    /// When there is no room anywhere.
    pub fn generate(sizes: Sizes) -> Result<Self> {
        let memory = Path::new("/dev/shm");
        let in_memory = room(memory).is_some_and(|room| room > 2 * sizes.bytes());
        let parent: PathBuf = if in_memory { memory.into() } else { std::env::temp_dir() };
        if room(&parent).is_some_and(|room| room < sizes.bytes()) {
            bail!("{} has no room for {} MiB", parent.display(), sizes.bytes() >> 20);
        }
        let scratch = Scratch::new(&parent)?;
        let root = scratch.path();
        write_file(&root.join("read"), sizes.sequential_bytes)?;
        write_file(&root.join("write"), sizes.sequential_bytes)?;
        write_file(&root.join("random"), sizes.random_bytes)?;
        for (directory, count, bytes) in [("names", sizes.names, PAGE as u64), ("entries", sizes.entries, 0)] {
            fs::create_dir(root.join(directory))?;
            for number in 0..count {
                write_file(&root.join(directory).join(format!("file-{number:06}.dat")), bytes)?;
            }
        }
        Ok(Self { scratch, in_memory })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.scratch.path()
    }
}

/// What a work uses, as clients see it.
pub fn path_of(kind: Kind) -> String {
    let name = match kind {
        Kind::SequentialRead => "read",
        Kind::SequentialWrite => "write",
        Kind::RandomRead => "random",
        Kind::Getattr | Kind::Lookup | Kind::OpenReadClose => "names",
        Kind::Readdir => "entries",
    };
    format!("{EXPORT}/{name}")
}

/// A file of the known pattern.
///
/// # Errors
/// When it cannot be written.
pub fn write_file(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path).with_context(|| format!("making {}", path.display()))?;
    let mut block = vec![0; bytes.min(1 << 20) as usize];
    let mut at = 0;
    while at < bytes {
        pattern::fill(at / PAGE as u64, &mut block);
        file.write_all(&block).with_context(|| format!("writing {}", path.display()))?;
        at += block.len() as u64;
    }
    Ok(())
}

/// Free bytes for us.
fn room(path: &Path) -> Option<u64> {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).ok()?;
    // SAFETY: a statvfs is plain numbers, for which zeros are values.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a C string and the struct is ours.
    let result = unsafe { libc::statvfs(path.as_ptr(), &mut found) };
    (result == 0).then_some(found.f_bavail * found.f_frsize)
}
