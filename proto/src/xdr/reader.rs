//! Reads XDR out of one record.

use bytes::Bytes;

/// Why bytes are not the XDR that was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XdrError {
    /// The record ends inside an item.
    #[error("record ends inside an item")]
    Truncated,
    /// A variable-length item is longer than its type allows.
    #[error("{length} elements or bytes where at most {max} are allowed")]
    TooLong {
        /// What the peer said.
        length: u32,
        /// What the type allows.
        max: usize,
    },
    /// A discriminant or boolean is none of the known values.
    #[error("{value} is not a value of {name}")]
    BadValue {
        /// The XDR type.
        name: &'static str,
        /// What the peer sent.
        value: u32,
    },
    /// Bytes are left after the last item.
    #[error("{0} bytes left over after the last item")]
    Trailing(usize),
}

/// A cursor over a record. Opaque items come out as slices that share the record's memory.
#[derive(Clone, Debug)]
pub struct Reader {
    bytes: Bytes,
    position: usize,
}

impl Reader {
    /// Starts at the first byte.
    pub fn new(bytes: Bytes) -> Self {
        Self { bytes, position: 0 }
    }

    /// Bytes not yet read.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Everything not yet read, without reading it.
    pub fn rest(&self) -> Bytes {
        self.bytes.slice(self.position..)
    }

    /// Fails if anything is left.
    pub fn finish(&self) -> Result<(), XdrError> {
        match self.remaining() {
            0 => Ok(()),
            left => Err(XdrError::Trailing(left)),
        }
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], XdrError> {
        let end = self.position.checked_add(N).ok_or(XdrError::Truncated)?;
        let slice = self.bytes.get(self.position..end).ok_or(XdrError::Truncated)?;
        let array = slice.try_into().map_err(|_| XdrError::Truncated)?;
        self.position = end;
        Ok(array)
    }

    /// A 32-bit unsigned integer.
    pub fn u32(&mut self) -> Result<u32, XdrError> {
        self.array().map(u32::from_be_bytes)
    }

    /// A 64-bit unsigned integer.
    pub fn u64(&mut self) -> Result<u64, XdrError> {
        self.array().map(u64::from_be_bytes)
    }

    /// A length that is at most `max`.
    pub fn length(&mut self, max: usize) -> Result<usize, XdrError> {
        let length = self.u32()?;
        match usize::try_from(length) {
            Ok(fits) if fits <= max => Ok(fits),
            _ => Err(XdrError::TooLong { length, max }),
        }
    }

    /// Variable-length opaque data of at most `max` bytes and its padding.
    ///
    /// Padding bytes are skipped whatever they hold: RFC 4506 wants zeros, and clients exist that send others.
    pub fn opaque(&mut self, max: usize) -> Result<Bytes, XdrError> {
        let length = self.length(max)?;
        let end = self.position.checked_add(length).ok_or(XdrError::Truncated)?;
        let padded = end.checked_next_multiple_of(4).ok_or(XdrError::Truncated)?;
        // The padding counts from the record's start, which is itself aligned: every item is a multiple of four.
        if padded > self.bytes.len() {
            return Err(XdrError::Truncated);
        }
        let data = self.bytes.slice(self.position..end);
        self.position = padded;
        Ok(data)
    }

    /// Variable-length opaque data as a borrowed slice: no reference count is touched.
    pub fn opaque_slice(&mut self, max: usize) -> Result<&[u8], XdrError> {
        let length = self.length(max)?;
        let start = self.position;
        let end = start.checked_add(length).ok_or(XdrError::Truncated)?;
        let padded = end.checked_next_multiple_of(4).ok_or(XdrError::Truncated)?;
        if padded > self.bytes.len() {
            return Err(XdrError::Truncated);
        }
        self.position = padded;
        Ok(&self.bytes[start..end])
    }
}
