//! The bytes of the store: tables, golden file, arbitrary input.

use std::{path::PathBuf, sync::Arc};

use proptest::prelude::*;

use super::{TestDevice, cache_on, content, durable, formatted, key, options, superblock};
use crate::cache::{
    ChunkKey, Placement, Tier,
    store::{
        layout::{
            BLOCK, Checkpoint, DecodeError, Footer, Placed, RECORD_HEADER, Record, RecordKind, SUMMARY_ENTRY,
            SegmentHeader, Superblock, TOMBSTONES_MAX, chunk_blocks, decode_keys, decode_summary, encode_keys,
        },
        open,
    },
};

const UUID: u128 = 0x1234_5678_9abc_def0_0fed_cba9_8765_4321;

fn record() -> Record {
    Record {
        kind: RecordKind::Chunk,
        pinned: true,
        sequence: 0x0102_0304_0506_0708,
        key: ChunkKey { file: u128::MAX - 5, version: 0x1122_3344_5566_7788, index: 0xa1b2_c3d4 },
        length: 1 << 20,
        export: 0xdead_beef,
        expires: 1_800_000_000,
    }
}

#[test]
fn what_is_encoded_is_decoded() {
    let shape = superblock(16_384, 100);
    assert_eq!(Superblock::decode(&shape.encode()), Ok(shape));
    let header = SegmentHeader { sequence: 9, first_record: 77, tag: 5, free: true };
    assert_eq!(SegmentHeader::decode(&header.encode(UUID), UUID), Ok(header));
    let footer = Footer { tag: 9, summary_block: 3, entries: 64, summary_hash: 8 };
    assert_eq!(Footer::decode(&footer.encode(UUID), UUID, 9, 64), Ok(footer));
    let checkpoint = Checkpoint { record: 12 };
    assert_eq!(Checkpoint::decode(&checkpoint.encode(UUID), UUID), Ok(checkpoint));
    let decoded = Record::decode(&record().encode(UUID, 9, 0x55, true), UUID, 9).unwrap();
    assert_eq!((decoded.record, decoded.payload_hash, decoded.copy), (record(), 0x55, true));
    let placed = Placed { block: 17, record: record() };
    let mut bytes = Vec::new();
    placed.encode(&mut bytes);
    assert_eq!((bytes.len(), Placed::decode(&bytes)), (SUMMARY_ENTRY, Ok(placed)));
    let keys = vec![record().key; TOMBSTONES_MAX];
    assert_eq!(decode_keys(&encode_keys(&keys)), Ok(keys.clone()));
    assert!(RECORD_HEADER + encode_keys(&keys).len() <= BLOCK);
}

#[test]
fn fields_are_where_the_document_says() {
    let bytes = record().encode(UUID, 9, 0x55, false);
    let u64_at = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    let u32_at = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    assert_eq!(&bytes[..8], b"FBRECRD\n");
    assert_eq!(u128::from_le_bytes(*bytes[8..].first_chunk().unwrap()), UUID);
    assert_eq!((u64_at(24), u64_at(32)), (9, record().sequence));
    assert_eq!((u64_at(56), u32_at(64), u32_at(68)), (record().key.version, 0xa1b2_c3d4, 1 << 20));
    assert_eq!((u64_at(72), u32_at(80), bytes[84], bytes[85]), (0xdead_beef, 1_800_000_000, 1, 1));
    assert_eq!(u64_at(112), 0x55);
}

#[test]
fn every_flipped_bit_of_a_header_is_noticed() {
    let good = record().encode(UUID, 9, 0x55, false);
    for bit in 0..good.len() * 8 {
        let mut bytes = good;
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Record::decode(&bytes, UUID, 9).is_err(), "bit {bit}");
    }
    assert!(Record::decode(&good, UUID + 1, 9).is_err() && Record::decode(&good, UUID, 8).is_err());
}

#[test]
fn versions_and_bounds_are_refused() {
    let mut bytes = superblock(16_384, 100).encode();
    bytes[8] = 2;
    assert_eq!(Superblock::decode(&bytes), Err(DecodeError::Version(2)));
    assert_eq!(Superblock::decode(&superblock(7, 100).encode()), Err(DecodeError::Damaged));
    assert_eq!(Superblock::decode(&superblock(u32::MAX, u32::MAX).encode()), Err(DecodeError::Damaged));
    let long = Record { length: (8 << 20) + 1, ..record() };
    assert!(Record::decode(&long.encode(UUID, 9, 0, false), UUID, 9).is_err());
    let outside = Footer { tag: 9, summary_block: 63, entries: 1, summary_hash: 0 };
    assert!(Footer::decode(&outside.encode(UUID), UUID, 9, 64).is_err());
    for (length, blocks) in [(0, 1), (3968, 1), (3969, 2), (1 << 20, 257)] {
        assert_eq!(chunk_blocks(length), blocks);
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..9000), tag in any::<u64>()) {
        let _ = Superblock::decode(&bytes);
        let _ = SegmentHeader::decode(&bytes, UUID);
        let _ = Checkpoint::decode(&bytes, UUID);
        let _ = Record::decode(&bytes, UUID, tag);
        let _ = Placed::decode(&bytes);
        let _ = decode_keys(&bytes);
        let _ = open::foreign(&bytes);
        let _ = Footer::decode(&bytes, UUID, tag, 64);
        let _ = decode_summary(&bytes, &Footer { tag, summary_block: 2, entries: tag as u32, summary_hash: 0 });
    }

    /// Past the hashes: what they cover is arbitrary.
    #[test]
    fn no_well_hashed_bytes_make_a_decoder_panic(mut bytes in proptest::collection::vec(any::<u8>(), 4096), at in 0_usize..6) {
        let good = [
            superblock(64, 9).encode(),
            SegmentHeader { sequence: 1, first_record: 1, tag: 3, free: false }.encode(UUID),
            Footer { tag: 3, summary_block: 1, entries: 1, summary_hash: 0 }.encode(UUID),
            record().encode(UUID, 3, 0, false).to_vec(),
        ];
        for (good, hashed) in good.iter().zip([48, 56, 48, 120]) {
            let keep = 8 + at * 4;
            bytes[..keep].copy_from_slice(&good[..keep]);
            let hash = xxhash_rust::xxh3::xxh3_64(&bytes[..hashed]);
            bytes[hashed..hashed + 8].copy_from_slice(&hash.to_le_bytes());
            let _ = Superblock::decode(&bytes);
            let _ = SegmentHeader::decode(&bytes, UUID);
            let _ = Footer::decode(&bytes, UUID, 3, 64);
            let _ = Record::decode(&bytes, UUID, 3);
            let _ = Placed::decode(&bytes);
        }
    }
}

fn golden_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/cache-store-v1.bin")
}

/// The blocks that are not zero, each with its number: the file is small and shows what changed.
fn sparse(image: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, block) in
        image.chunks_exact(BLOCK).enumerate().filter(|(_, block)| block.iter().any(|byte| *byte != 0))
    {
        out.extend_from_slice(&u32::try_from(number).unwrap().to_le_bytes());
        out.extend_from_slice(block);
    }
    out
}

fn unfold(sparse: &[u8], length: usize) -> Vec<u8> {
    let mut image = vec![0; length];
    for entry in sparse.chunks_exact(4 + BLOCK) {
        let at = u32::from_le_bytes(*entry.first_chunk().unwrap()) as usize * BLOCK;
        image[at..at + BLOCK].copy_from_slice(&entry[4..]);
    }
    image
}

/// To write it anew after a deliberate change of the format: `FOREBAY_BLESS=1 cargo test golden`.
#[tokio::test]
async fn the_golden_store_is_written_as_it_was_and_can_be_read() {
    let shape = superblock(16, 8);
    let device = formatted(&shape);
    let cache = cache_on(&device, &options(1));
    // One flush a step, so that batches and checkpoints do not depend on timing.
    cache.insert(key(1, 0), content(1, 100), durable()).await.unwrap();
    cache.flush().await.unwrap();
    let placement = Placement { export: 2, expires: Some(1_900_000_000), pinned: true, ..durable() };
    cache.insert(key(2, 3), content(2, 5000), placement).await.unwrap();
    cache.flush().await.unwrap();
    cache.remove(&key(1, 0)).await;
    cache.flush().await.unwrap();
    cache.pin_file(2, true).await.unwrap();
    cache.flush().await.unwrap();
    cache.close().await;
    let written = sparse(&device.bytes());
    if std::env::var_os("FOREBAY_BLESS").is_some() {
        std::fs::write(golden_path(), &written).unwrap();
    }
    let golden = std::fs::read(golden_path()).unwrap();
    assert!(written == golden, "the store is written otherwise than before: is it a new format version?");

    let device = Arc::new(TestDevice::new(unfold(&golden, usize::try_from(shape.blocks()).unwrap() * BLOCK)));
    let cache = cache_on(&device, &options(1));
    assert_eq!(cache.contains(&key(1, 0)), None);
    assert_eq!(cache.get(&key(2, 3)).await, Some((content(2, 5000), Tier::Nvme)));
    assert_eq!(cache.stats().pinned_bytes, 8192);
}
