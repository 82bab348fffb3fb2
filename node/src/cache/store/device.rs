//! What the store is kept on: blocks that are read, written and synced.
//!
//! Owns: the trait and its implementation over a file or block device. Never does: know what is in the blocks.
//! Contract: offsets and lengths are whole blocks; a write that returned is read back by every later read of the process;
//! what was written before a `sync` that returned survives a power cut.

use std::{
    fs::File,
    io,
    mem::MaybeUninit,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use super::{aligned::AlignedBuffer, layout::BLOCK};

/// See the module for the contract.
pub trait Device: Send + Sync + std::fmt::Debug {
    /// Reads `blocks` blocks.
    ///
    /// # Errors
    /// The system's; `UnexpectedEof` beyond the end.
    fn read(&self, block: u64, blocks: usize) -> io::Result<AlignedBuffer>;

    /// Writes whole blocks.
    ///
    /// # Errors
    /// The system's; how much was written is unknown then.
    fn write(&self, block: u64, bytes: &[u8]) -> io::Result<()>;

    /// Puts what was written on stable storage.
    ///
    /// # Errors
    /// The system's; nothing can be said of what was written since the last one then.
    fn sync(&self) -> io::Result<()>;

    /// Whether it is still where it was opened.
    ///
    /// # Errors
    /// It is not: it would be lost at a restart.
    fn check(&self) -> io::Result<()>;
}

/// A file or a block device.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    path: PathBuf,
    identity: (u64, u64),
}

impl FileDevice {
    /// A file opened for reading and writing at `path`.
    ///
    /// # Errors
    /// Those of `fstat`.
    pub fn new(file: File, path: &Path) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self { file, path: path.to_path_buf(), identity: (metadata.dev(), metadata.ino()) })
    }
}

/// Reads until `memory` is full.
fn read_full(file: &File, memory: &mut [MaybeUninit<u8>], offset: u64) -> io::Result<usize> {
    let wanted = memory.len();
    let mut done = 0;
    while done < wanted {
        match rustix::io::pread(file, &mut memory[done..], offset + done as u64) {
            Ok(([], _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((read, _)) => done += read.len(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(done)
}

impl Device for FileDevice {
    fn read(&self, block: u64, blocks: usize) -> io::Result<AlignedBuffer> {
        let offset = block * BLOCK as u64;
        // SAFETY: `read_full` returns how many bytes from the beginning the system filled.
        unsafe { AlignedBuffer::filled_by(blocks, |memory| read_full(&self.file, memory, offset)) }
    }

    fn write(&self, block: u64, bytes: &[u8]) -> io::Result<()> {
        let mut offset = block * BLOCK as u64;
        let mut rest = bytes;
        while !rest.is_empty() {
            match rustix::io::pwrite(&self.file, rest, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    rest = &rest[count..];
                    offset += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        rustix::fs::fdatasync(&self.file).map_err(io::Error::from)
    }

    fn check(&self) -> io::Result<()> {
        let metadata = std::fs::metadata(&self.path)?;
        if (metadata.dev(), metadata.ino()) == self.identity {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::NotFound, "another file is in its place"))
        }
    }
}
