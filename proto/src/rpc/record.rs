//! Record marking on a byte stream (RFC 5531 §11).

use bytes::{Buf, Bytes, BytesMut};

use crate::limits::FRAGMENTS_MAX;

const LAST_FRAGMENT: u32 = 1 << 31;

/// Why a stream cannot be cut into records any further: the connection is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record is longer than was agreed.
    #[error("record of at least {length} bytes where at most {max} are allowed")]
    TooLong {
        /// Bytes announced so far.
        length: u64,
        /// The limit.
        max: u32,
    },
    /// The record came in more pieces than anybody needs.
    #[error("record in more than {FRAGMENTS_MAX} fragments")]
    TooManyFragments,
}

/// The marker before a record sent as one fragment.
pub fn marker(length: usize) -> [u8; 4] {
    let length = u32::try_from(length).expect("records are bounded far below 2 GiB");
    (length | LAST_FRAGMENT).to_be_bytes()
}

/// Cuts a byte stream into records. A record in one fragment, the usual case, is not copied.
#[derive(Debug)]
pub struct RecordReader {
    max: u32,
    partial: BytesMut,
    fragments: u32,
}

impl RecordReader {
    /// A reader of records of at most `max` bytes.
    pub fn new(max: u32) -> Self {
        Self { max, partial: BytesMut::new(), fragments: 0 }
    }

    /// Takes the next whole record off the front of `input`, if it is there.
    pub fn next_record(&mut self, input: &mut BytesMut) -> Result<Option<Bytes>, RecordError> {
        while let Some((length, last)) = self.fragment(input)? {
            if input.len() - 4 < length {
                return Ok(None);
            }
            input.advance(4);
            let fragment = input.split_to(length);
            if last && self.fragments == 0 {
                return Ok(Some(fragment.freeze()));
            }
            self.partial.extend_from_slice(&fragment);
            self.fragments += 1;
            if last {
                self.fragments = 0;
                return Ok(Some(std::mem::take(&mut self.partial).freeze()));
            }
            if self.fragments >= FRAGMENTS_MAX {
                return Err(RecordError::TooManyFragments);
            }
        }
        Ok(None)
    }

    /// Whether fragments of a record have been taken and its last has not.
    pub fn in_record(&self) -> bool {
        self.fragments > 0
    }

    /// How many more bytes complete the fragment at the front of `input`; 4 or fewer if not even its marker is there.
    pub fn missing(&self, input: &BytesMut) -> usize {
        match input.first_chunk::<4>() {
            None => 4 - input.len(),
            Some(marker) => {
                let length = u32::from_be_bytes(*marker) & !LAST_FRAGMENT;
                (length.min(self.max) as usize + 4).saturating_sub(input.len())
            }
        }
    }

    fn fragment(&self, input: &BytesMut) -> Result<Option<(usize, bool)>, RecordError> {
        let Some(marker) = input.first_chunk::<4>() else { return Ok(None) };
        let marker = u32::from_be_bytes(*marker);
        let length = marker & !LAST_FRAGMENT;
        let total = self.partial.len() as u64 + u64::from(length);
        if total > u64::from(self.max) {
            return Err(RecordError::TooLong { length: total, max: self.max });
        }
        Ok(Some((length as usize, marker & LAST_FRAGMENT != 0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(fragments: &[(&[u8], bool)]) -> BytesMut {
        let mut out = BytesMut::new();
        for (body, last) in fragments {
            let flag = if *last { LAST_FRAGMENT } else { 0 };
            out.extend_from_slice(&(u32::try_from(body.len()).unwrap() | flag).to_be_bytes());
            out.extend_from_slice(body);
        }
        out
    }

    #[test]
    fn records_come_out_whole_however_the_stream_is_cut() {
        let whole =
            stream(&[(b"one", true), (b"tw", false), (b"", false), (b"o", true), (b"", true), (b"three", true)]);
        for step in 1..whole.len() {
            let (mut reader, mut input, mut records) = (RecordReader::new(64), BytesMut::new(), Vec::new());
            for piece in whole.chunks(step) {
                input.extend_from_slice(piece);
                while let Some(record) = reader.next_record(&mut input).unwrap() {
                    records.push(record);
                }
            }
            assert_eq!(records, [&b"one"[..], b"two", b"", b"three"], "step {step}");
        }
    }

    #[test]
    fn bounds_hold_over_fragments() {
        let mut reader = RecordReader::new(4);
        assert!(matches!(reader.next_record(&mut stream(&[(b"12345", true)])), Err(RecordError::TooLong { .. })));
        let mut reader = RecordReader::new(4);
        let result = reader.next_record(&mut stream(&[(b"123", false), (b"45", true)]));
        assert_eq!(result, Err(RecordError::TooLong { length: 5, max: 4 }));
        let mut reader = RecordReader::new(4);
        let drip: Vec<_> = (0..FRAGMENTS_MAX).map(|_| (&b""[..], false)).collect();
        assert_eq!(reader.next_record(&mut stream(&drip)), Err(RecordError::TooManyFragments));
    }

    #[test]
    fn missing_tells_what_completes_the_fragment() {
        let reader = RecordReader::new(64);
        let whole = stream(&[(b"12345678", true)]);
        assert_eq!(reader.missing(&BytesMut::new()), 4);
        assert_eq!(reader.missing(&BytesMut::from(&whole[..4])), 8);
        assert_eq!(reader.missing(&whole), 0);
    }
}
