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
