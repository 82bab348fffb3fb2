//! Tests of the cache: codec, behaviour, simulation with crashes, real files.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    Cache, CacheOptions, ChunkKey, Placement, QUEUE_BYTES,
    store::{
        device::Device,
        layout::{BLOCK, Superblock},
        open::{self, Opened},
        writer::Opener,
    },
};

mod behaviour;
mod codec;
mod degraded;
mod device;
mod files;
mod kill;
mod measure;
mod simulation;

use device::TestDevice;

/// Steps of a sequence that a seed determines (splitmix64).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

pub fn key(file: u128, index: u32) -> ChunkKey {
    ChunkKey { file, version: 7, index }
}

pub fn durable() -> Placement {
    Placement { export: 1, durable: true, ..Placement::default() }
}

/// Bytes that say which they are.
pub fn content(seed: u64, length: usize) -> Bytes {
    let mut dice = Dice::new(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&dice.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes.into()
}

pub fn superblock(segment_blocks: u32, segments: u32) -> Superblock {
    Superblock { uuid: 0x1234_5678_9abc_def0_0fed_cba9_8765_4321, segment_blocks, segments, created: 1_700_000_000 }
}

/// A device in memory that carries an empty store.
pub fn formatted(superblock: &Superblock) -> Arc<TestDevice> {
    let device = Arc::new(TestDevice::new(vec![0; usize::try_from(superblock.blocks()).unwrap() * BLOCK]));
    open::write_superblock(device.as_ref(), superblock).unwrap();
    device
}

/// Opens the store on a device in memory.
pub fn opener(device: &Arc<TestDevice>) -> Opener {
    let device = Arc::clone(device);
    Box::new(move |fresh| {
        let at = std::path::Path::new("memory");
        device.check().map_err(|source| open::OpenError::Missing { path: at.into(), source })?;
        let superblock = open::probe(device.as_ref(), at, device.len())?.unwrap();
        if fresh {
            let renamed = Superblock { uuid: superblock.uuid + 1, ..superblock };
            open::write_superblock(device.as_ref(), &renamed)
                .map_err(|source| open::OpenError::Io { path: at.into(), source })?;
        }
        let superblock = open::probe(device.as_ref(), at, device.len())?.unwrap();
        Ok(Opened { device: Arc::clone(&device) as Arc<dyn Device>, superblock, session: device.next_session() })
    })
}

pub fn options(ram_bytes: u64) -> CacheOptions {
    CacheOptions { ram_bytes, store: None, quotas: HashMap::new(), queue_bytes: QUEUE_BYTES }
}

pub fn now() -> u64 {
    1_700_000_100
}

pub fn cache_on(device: &Arc<TestDevice>, options: &CacheOptions) -> Arc<Cache> {
    Cache::open_with(options, Some(opener(device)), now, Duration::from_millis(20)).unwrap()
}

/// A cache whose RAM holds nothing, so that everything comes from the device.
pub fn without_ram(device: &Arc<TestDevice>) -> Arc<Cache> {
    cache_on(device, &options(1))
}
