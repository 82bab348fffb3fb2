//! The form of a snapshot on the wire and in a file: a stream of chunks with checksums, of which none is large.
//!
//! A chunk is its body's length (4 bytes), its number from 0 (4), the checksum of number and body (8), and the body. The first body says what the
//! snapshot covers; then come rows in the order of (table, key), each once; the last body says how many there were. Integers are little
//! endian. Owns: that form. Never does: I/O. Invariants: a stream that ends early, lacks a chunk, has two the same or in another order, or
//! is altered is an error; nothing is allocated that a length asks for before the bytes are there.

use bytes::{BufMut, Bytes, BytesMut};
use xxhash_rust::xxh3::Xxh3;

use super::{
    core::Damaged,
    records::{self, Applied},
};

/// The version that is written; only this one is read.
const VERSION: u16 = 1;
const MAGIC: &[u8; 8] = b"FBAYMETA";
const HEADER_BYTES: usize = 16;
/// A chunk is closed when it has this many bytes.
const CHUNK_BYTES: usize = 1 << 20;
/// The largest row: one command's worth.
pub const MAX_ROW_BYTES: usize = 4 << 20;
/// The largest chunk: one row more than it is closed at.
pub const MAX_CHUNK_BYTES: usize = HEADER_BYTES + 1 + CHUNK_BYTES + ROW_HEADER_BYTES + MAX_ROW_BYTES;
const ROW_HEADER_BYTES: usize = 9;

const KIND_START: u8 = 0;
const KIND_ROWS: u8 = 1;
const KIND_END: u8 = 2;

/// Makes chunks of rows.
#[derive(Debug)]
pub struct ChunkEncoder {
    number: u32,
    rows: u64,
    body: BytesMut,
}

impl ChunkEncoder {
    /// A snapshot that covers `applied`, and its first chunk.
    pub fn new(applied: &Applied) -> (Self, Bytes) {
        let mut encoder = Self { number: 0, rows: 0, body: BytesMut::new() };
        let mut body = BytesMut::new();
        body.put_u8(KIND_START);
        body.put_slice(MAGIC);
        body.put_u16_le(VERSION);
        body.put_slice(&records::encode(MAGIC, applied));
        let chunk = encoder.seal(&body);
        (encoder, chunk)
    }

    /// Adds a row; gives a chunk when one is full.
    pub fn row(&mut self, table: u8, key: &[u8], value: &[u8]) -> Result<Option<Bytes>, Damaged> {
        if key.len() + value.len() > MAX_ROW_BYTES {
            return Err(Damaged::new(format!("a row of table {table} has more than {MAX_ROW_BYTES} bytes")));
        }
        if self.body.is_empty() {
            self.body.put_u8(KIND_ROWS);
        }
        self.body.put_u8(table);
        self.body.put_u32_le(key.len() as u32);
        self.body.put_u32_le(value.len() as u32);
        self.body.put_slice(key);
        self.body.put_slice(value);
        self.rows += 1;
        Ok((self.body.len() >= CHUNK_BYTES).then(|| self.flush()))
    }

    /// The last chunks.
    pub fn finish(mut self) -> Vec<Bytes> {
        let mut chunks = Vec::new();
        if !self.body.is_empty() {
            chunks.push(self.flush());
        }
        let mut body = BytesMut::new();
        body.put_u8(KIND_END);
        body.put_u64_le(self.rows);
        chunks.push(self.seal(&body));
        chunks
    }

    fn flush(&mut self) -> Bytes {
        let body = std::mem::take(&mut self.body);
        self.seal(&body)
    }

    fn seal(&mut self, body: &[u8]) -> Bytes {
        let mut chunk = BytesMut::with_capacity(HEADER_BYTES + body.len());
        chunk.put_u32_le(body.len() as u32);
        chunk.put_u32_le(self.number);
        chunk.put_u64_le(checksum(self.number, body));
        chunk.put_slice(body);
        self.number += 1;
        chunk.freeze()
    }
}

/// Reads chunks, in order.
#[derive(Debug, Default)]
pub struct ChunkDecoder {
    number: u32,
    rows: u64,
    /// The last row's table and key: the next one's are greater.
    last: Option<(u8, Vec<u8>)>,
    ended: bool,
}

/// A row of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// Its table.
    pub table: u8,
    /// Its key within the table.
    pub key: &'a [u8],
    /// What it is.
    pub value: &'a [u8],
}

/// What a chunk had.
#[derive(Debug)]
pub enum Decoded<'a> {
    /// What the snapshot covers. The first chunk, and only that.
    Start(Box<Applied>),
    /// Rows.
    Rows(Vec<Row<'a>>),
    /// That was all, and it was whole.
    End,
}

impl ChunkDecoder {
    /// Reads the next chunk.
    pub fn chunk<'a>(&mut self, chunk: &'a [u8]) -> Result<Decoded<'a>, Damaged> {
        let body = self.open(chunk)?;
        let first = self.number == 0;
        self.number += 1;
        match (body.split_first(), first) {
            (Some((&KIND_START, rest)), true) => start(rest),
            (Some((&KIND_ROWS, rest)), false) => self.rows(rest).map(Decoded::Rows),
            (Some((&KIND_END, rest)), false) => self.end(rest),
            _ => Err(Damaged::new("a chunk of the snapshot is not where it belongs, or of no known kind")),
        }
    }

    /// Whether the last chunk has come.
    pub fn ended(&self) -> bool {
        self.ended
    }

    fn open<'a>(&self, chunk: &'a [u8]) -> Result<&'a [u8], Damaged> {
        if self.ended || chunk.len() > MAX_CHUNK_BYTES {
            return Err(Damaged::new("the snapshot goes on after its end, or has a chunk that is too large"));
        }
        let mut reader = Reader(chunk);
        let (length, number, sum) = (reader.u32()?, reader.u32()?, reader.u64()?);
        if reader.0.len() != length as usize || number != self.number || sum != checksum(number, reader.0) {
            return Err(Damaged::new(format!("chunk {} of the snapshot is damaged, or not the next one", self.number)));
        }
        Ok(reader.0)
    }

    fn rows<'a>(&mut self, body: &'a [u8]) -> Result<Vec<Row<'a>>, Damaged> {
        let (mut reader, mut rows) = (Reader(body), Vec::new());
        while !reader.0.is_empty() {
            let (table, key, value) = (reader.bytes(1)?[0], reader.u32()?, reader.u32()?);
            let (key, value) = (reader.bytes(key as usize)?, reader.bytes(value as usize)?);
            let follows = match (rows.last(), &self.last) {
                (Some(Row { table: last_table, key: last_key, .. }), _) => (*last_table, *last_key) < (table, key),
                (None, Some((last_table, last_key))) => (*last_table, last_key.as_slice()) < (table, key),
                (None, None) => true,
            };
            if !follows {
                return Err(Damaged::new("the rows of the snapshot are not in order"));
            }
            rows.push(Row { table, key, value });
        }
        self.rows += rows.len() as u64;
        if let Some(row) = rows.last() {
            self.last = Some((row.table, row.key.to_vec()));
        }
        Ok(rows)
    }

    fn end<'a>(&mut self, body: &[u8]) -> Result<Decoded<'a>, Damaged> {
        let mut reader = Reader(body);
        let rows = reader.u64()?;
        if rows != self.rows || !reader.0.is_empty() {
            return Err(Damaged::new(format!("the snapshot had {} rows and says {rows}", self.rows)));
        }
        self.ended = true;
        Ok(Decoded::End)
    }
}

fn start<'a>(body: &[u8]) -> Result<Decoded<'a>, Damaged> {
    let mut reader = Reader(body);
    if reader.bytes(MAGIC.len())? != MAGIC {
        return Err(Damaged::new("this is no snapshot"));
    }
    let version = u16::from_le_bytes(reader.bytes(2)?.try_into().expect("two bytes were asked for"));
    if version != VERSION {
        return Err(Damaged::new(format!("the snapshot has version {version}; this program reads {VERSION}")));
    }
    Ok(Decoded::Start(Box::new(records::decode(MAGIC, reader.0)?)))
}

fn checksum(number: u32, body: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&number.to_le_bytes());
    hash.update(body);
    hash.digest()
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Damaged> {
        let (bytes, rest) =
            self.0.split_at_checked(count).ok_or_else(|| Damaged::new("a chunk of the snapshot is too short"))?;
        self.0 = rest;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, Damaged> {
        Ok(u32::from_le_bytes(self.bytes(4)?.try_into().expect("four bytes were asked for")))
    }

    fn u64(&mut self) -> Result<u64, Damaged> {
        Ok(u64::from_le_bytes(self.bytes(8)?.try_into().expect("eight bytes were asked for")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::raft::{golden, types::log_id};

    type OwnedRow = (u8, Vec<u8>, Vec<u8>);

    fn encode(applied: &Applied, rows: &[OwnedRow]) -> Vec<Bytes> {
        let (mut encoder, first) = ChunkEncoder::new(applied);
        let mut chunks = vec![first];
        for (table, key, value) in rows {
            chunks.extend(encoder.row(*table, key, value).expect("rows of tests are small"));
        }
        chunks.extend(encoder.finish());
        chunks
    }

    fn decode(chunks: &[Bytes]) -> Result<(Option<Applied>, Vec<OwnedRow>), Damaged> {
        let (mut decoder, mut applied, mut rows) = (ChunkDecoder::default(), None, Vec::new());
        for chunk in chunks {
            match decoder.chunk(chunk)? {
                Decoded::Start(start) => applied = Some(*start),
                Decoded::Rows(more) => {
                    rows.extend(more.iter().map(|row| (row.table, row.key.to_vec(), row.value.to_vec())));
                }
                Decoded::End => {}
            }
        }
        match decoder.ended() {
            true => Ok((applied, rows)),
            false => Err(Damaged::new("it has no end")),
        }
    }

    fn applied() -> Applied {
        Applied { last: Some(log_id(4, 2, 1000)), ..Applied::default() }
    }

    #[test]
    fn a_snapshot_is_sent_in_the_form_that_it_always_had() {
        let rows: Vec<OwnedRow> = vec![
            (1, b"".to_vec(), b"an empty key".to_vec()),
            (1, b"k".to_vec(), b"".to_vec()),
            (2, vec![0], vec![9; 300]),
            (255, vec![255; 20], b"last".to_vec()),
        ];
        let chunks = encode(&applied(), &rows);
        let golden = golden("raft-snapshot.bin", &chunks.concat());
        let (mut rest, mut read) = (golden.as_slice(), Vec::new());
        while let Some((length, _)) = rest.split_first_chunk::<4>() {
            let (chunk, tail) = rest.split_at(HEADER_BYTES + u32::from_le_bytes(*length) as usize);
            read.push(Bytes::copy_from_slice(chunk));
            rest = tail;
        }
        assert_eq!(decode(&read), Ok((Some(applied()), rows)));
    }

    #[test]
    fn rows_out_of_order_or_too_large_are_refused() {
        let (a, b) = ((3, b"a".to_vec(), vec![]), (3, b"b".to_vec(), vec![]));
        for rows in [vec![b.clone(), a.clone()], vec![a.clone(), a.clone()], vec![b.clone(), (2, vec![9], vec![])]] {
            decode(&encode(&applied(), &rows)).expect_err("out of order");
        }
        // The order holds over the border of two chunks too.
        let large = (3, b"c".to_vec(), vec![0; CHUNK_BYTES]);
        assert_eq!(encode(&applied(), &[large.clone(), a.clone()]).len(), 4);
        decode(&encode(&applied(), &[large, a])).expect_err("out of order");
        let (mut encoder, _) = ChunkEncoder::new(&applied());
        encoder.row(1, b"", &vec![0; MAX_ROW_BYTES]).expect("as large as can be");
        encoder.row(2, b"k", &vec![0; MAX_ROW_BYTES]).expect_err("too large");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn what_was_encoded_comes_out(
            rows in prop::collection::btree_map((any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)), prop::collection::vec(any::<u8>(), 0..200_000), 0..12)
        ) {
            let rows: Vec<OwnedRow> = rows.into_iter().map(|((table, key), value)| (table, key, value)).collect();
            let chunks = encode(&applied(), &rows);
            prop_assert!(chunks.iter().all(|chunk| chunk.len() <= MAX_CHUNK_BYTES));
            prop_assert_eq!(decode(&chunks), Ok((Some(applied()), rows)));
        }

        #[test]
        fn whatever_comes_is_an_error_and_no_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..100), number in 0_u32..3, kind in 0_u8..4
        ) {
            // With a checksum that is right, so that what is behind it is reached.
            let mut body = vec![kind];
            body.extend(bytes);
            let mut chunk = BytesMut::new();
            chunk.put_u32_le(body.len() as u32);
            chunk.put_u32_le(number);
            chunk.put_u64_le(checksum(number, &body));
            chunk.put_slice(&body);
            let mut decoder = ChunkDecoder { number, ..ChunkDecoder::default() };
            if let Ok(Decoded::Start(_)) = decoder.chunk(&chunk) {
                return Err(TestCaseError::fail("random bytes are no snapshot"));
            }
        }
    }
}
