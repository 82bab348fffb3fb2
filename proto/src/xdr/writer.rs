//! Writes XDR; large payloads are set between the written bytes, not copied into them.

use bytes::{BufMut, Bytes, BytesMut};

/// Payloads up to this size are copied: an `iovec` of their own would cost more.
const COPY_MAX: usize = 1024;

/// An encoder. Small items go to one buffer; payloads are remembered with their place in it.
#[derive(Debug, Default)]
pub struct Writer {
    buffer: BytesMut,
    payloads: Vec<(usize, Bytes)>,
    payload_bytes: usize,
}

/// A place to come back to with [`Writer::truncate`].
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    buffer: usize,
    payloads: usize,
    payload_bytes: usize,
}

/// What a [`Writer`] wrote: slices to be sent one after the other.
#[derive(Clone, Debug, Default)]
pub struct Encoded {
    segments: Vec<Bytes>,
    length: usize,
}

impl Encoded {
    /// The slices in order.
    pub fn segments(&self) -> &[Bytes] {
        &self.segments
    }

    /// The slices in order, given away.
    pub fn into_segments(self) -> Vec<Bytes> {
        self.segments
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The same with its first bytes replaced, as many as `prefix` has. Copies the first slice only.
    pub fn with_prefix(&self, prefix: &[u8]) -> Self {
        let mut segments = self.segments.clone();
        if let Some(first) = segments.first_mut() {
            let mut copy = BytesMut::from(&first[..]);
            let length = prefix.len().min(copy.len());
            copy[..length].copy_from_slice(&prefix[..length]);
            *first = copy.freeze();
        }
        Self { segments, length: self.length }
    }

    /// One contiguous copy.
    pub fn to_bytes(&self) -> Bytes {
        match self.segments.as_slice() {
            [one] => one.clone(),
            many => many.concat().into(),
        }
    }
}

impl Writer {
    /// An empty writer with room for a typical reply.
    pub fn new() -> Self {
        Self::with_capacity(512)
    }

    /// An empty writer with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { buffer: BytesMut::with_capacity(capacity), payloads: Vec::new(), payload_bytes: 0 }
    }

    /// Bytes written so far, payloads included.
    pub fn len(&self) -> usize {
        self.buffer.len() + self.payload_bytes
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first `N` bytes written, zeros where there are fewer.
    pub fn prefix<const N: usize>(&self) -> [u8; N] {
        let mut prefix = [0; N];
        let length = N.min(self.buffer.len());
        prefix[..length].copy_from_slice(&self.buffer[..length]);
        prefix
    }

    /// A 32-bit unsigned integer.
    pub fn u32(&mut self, value: u32) {
        self.buffer.put_u32(value);
    }

    /// A 64-bit unsigned integer.
    pub fn u64(&mut self, value: u64) {
        self.buffer.put_u64(value);
    }

    /// Bytes as they are; the caller keeps the alignment.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.buffer.put_slice(bytes);
    }

    /// Variable-length opaque data: length, bytes, padding. Copies.
    pub fn opaque(&mut self, bytes: &[u8]) {
        self.u32(wire_length(bytes.len()));
        self.raw(bytes);
        self.pad(bytes.len());
    }

    /// Variable-length opaque data that is large: kept aside, never copied.
    pub fn payload(&mut self, bytes: &Bytes) {
        if bytes.len() <= COPY_MAX {
            return self.opaque(bytes);
        }
        self.u32(wire_length(bytes.len()));
        self.payloads.push((self.buffer.len(), bytes.clone()));
        self.payload_bytes += bytes.len();
        self.pad(bytes.len());
    }

    fn pad(&mut self, length: usize) {
        const ZEROS: [u8; 4] = [0; 4];
        self.buffer.put_slice(&ZEROS[..length.wrapping_neg() & 3]);
    }

    /// Remembers this place.
    pub fn mark(&self) -> Mark {
        Mark { buffer: self.buffer.len(), payloads: self.payloads.len(), payload_bytes: self.payload_bytes }
    }

    /// Forgets everything written since `mark`.
    pub fn truncate(&mut self, mark: Mark) {
        self.buffer.truncate(mark.buffer);
        self.payloads.truncate(mark.payloads);
        self.payload_bytes = mark.payload_bytes;
    }

    /// Overwrites the 32-bit integer written right after `mark`.
    pub fn patch_u32(&mut self, mark: Mark, value: u32) {
        if let Some(place) = self.buffer.get_mut(mark.buffer..mark.buffer + 4) {
            place.copy_from_slice(&value.to_be_bytes());
        }
    }

    /// The slices to send.
    pub fn finish(mut self) -> Encoded {
        let length = self.len();
        if self.payloads.is_empty() {
            return Encoded { segments: vec![self.buffer.freeze()], length };
        }
        let mut segments = Vec::with_capacity(self.payloads.len() * 2 + 1);
        let mut taken = 0;
        for (place, payload) in self.payloads {
            segments.push(self.buffer.split_to(place - taken).freeze());
            segments.push(payload);
            taken = place;
        }
        if !self.buffer.is_empty() {
            segments.push(self.buffer.freeze());
        }
        Encoded { segments, length }
    }
}

/// Lengths we write come from our own limits, far below 4 GiB.
fn wire_length(length: usize) -> u32 {
    u32::try_from(length).expect("items are bounded far below 4 GiB before they are encoded")
}
