//! A device in memory that fails, is slow, and loses power, when told.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;

use super::Dice;
use crate::cache::store::{aligned::AlignedBuffer, device::Device, layout::BLOCK};

#[derive(Default)]
struct Image {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Blocks written since the last sync.
    unsynced: Vec<u64>,
}

#[derive(Default)]
pub struct TestDevice {
    image: Mutex<Image>,
    pub fail_writes: AtomicBool,
    pub fail_reads: AtomicBool,
    pub gone: AtomicBool,
    pub write_delay_ms: AtomicU64,
    pub writes: AtomicU64,
    pub sessions: AtomicU64,
}

impl std::fmt::Debug for TestDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TestDevice")
    }
}

impl TestDevice {
    pub fn new(bytes: Vec<u8>) -> Self {
        let image = Image { durable: bytes.clone(), now: bytes, unsynced: Vec::new() };
        Self { image: Mutex::new(image), ..Self::default() }
    }

    pub fn len(&self) -> u64 {
        self.image.lock().now.len() as u64
    }

    /// Another each time, the same in every run of a test.
    pub fn next_session(&self) -> u64 {
        let image = self.image.lock();
        self.sessions.fetch_add(1 << 32, Ordering::Relaxed) + (xxhash_rust::xxh3::xxh3_64(&image.now) >> 33 << 16)
    }

    /// What is on it.
    pub fn bytes(&self) -> Vec<u8> {
        self.image.lock().now.clone()
    }

    /// What a power cut leaves: of the blocks that were not synced, some.
    pub fn after_power_cut(&self, dice: &mut Dice) -> Vec<u8> {
        let image = self.image.lock();
        let mut left = image.durable.clone();
        let kept = dice.below(5);
        for block in &image.unsynced {
            if dice.below(4) < kept {
                let at = usize::try_from(*block).unwrap() * BLOCK;
                left[at..at + BLOCK].copy_from_slice(&image.now[at..at + BLOCK]);
            }
        }
        left
    }
}

impl Device for TestDevice {
    fn read(&self, block: u64, blocks: usize) -> io::Result<AlignedBuffer> {
        if self.fail_reads.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let image = self.image.lock();
        let at = usize::try_from(block).unwrap() * BLOCK;
        let bytes = image.now.get(at..at + blocks * BLOCK).ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut buffer = AlignedBuffer::zeroed(blocks);
        buffer.copy_from_slice(bytes);
        Ok(buffer)
    }

    fn write(&self, block: u64, bytes: &[u8]) -> io::Result<()> {
        let delay = self.write_delay_ms.load(Ordering::Relaxed);
        if delay > 0 {
            std::thread::sleep(Duration::from_millis(delay));
        }
        if self.fail_writes.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        assert!(bytes.len().is_multiple_of(BLOCK) && (bytes.as_ptr() as usize).is_multiple_of(BLOCK));
        self.writes.fetch_add(1, Ordering::Relaxed);
        let mut image = self.image.lock();
        let at = usize::try_from(block).unwrap() * BLOCK;
        image.now[at..at + bytes.len()].copy_from_slice(bytes);
        image.unsynced.extend((0..bytes.len() / BLOCK).map(|more| block + more as u64));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        if self.fail_writes.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let mut image = self.image.lock();
        let Image { now, durable, unsynced } = &mut *image;
        for block in unsynced.drain(..) {
            let at = usize::try_from(block).unwrap() * BLOCK;
            durable[at..at + BLOCK].copy_from_slice(&now[at..at + BLOCK]);
        }
        Ok(())
    }

    fn check(&self) -> io::Result<()> {
        if self.gone.load(Ordering::Relaxed) { Err(io::ErrorKind::NotFound.into()) } else { Ok(()) }
    }
}
