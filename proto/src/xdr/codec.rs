//! The codec trait and the items every protocol uses.

use bytes::Bytes;

use super::{Reader, Writer, XdrError};

/// A type with an XDR form.
pub trait Xdr: Sized {
    /// Appends the XDR form.
    fn encode(&self, writer: &mut Writer);
    /// Reads the XDR form.
    fn decode(reader: &mut Reader) -> Result<Self, XdrError>;

    /// The XDR form alone, contiguous.
    fn to_bytes(&self) -> Bytes {
        let mut writer = Writer::new();
        self.encode(&mut writer);
        writer.finish().to_bytes()
    }

    /// Reads the XDR form from all of `bytes`; anything left over is an error.
    fn from_bytes(bytes: Bytes) -> Result<Self, XdrError> {
        let mut reader = Reader::new(bytes);
        let value = Self::decode(&mut reader)?;
        reader.finish()?;
        Ok(value)
    }
}

impl Xdr for () {
    fn encode(&self, _: &mut Writer) {}
    fn decode(_: &mut Reader) -> Result<Self, XdrError> {
        Ok(())
    }
}

impl Xdr for u32 {
    fn encode(&self, writer: &mut Writer) {
        writer.u32(*self);
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        reader.u32()
    }
}

impl Xdr for u64 {
    fn encode(&self, writer: &mut Writer) {
        writer.u64(*self);
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        reader.u64()
    }
}

impl Xdr for i64 {
    fn encode(&self, writer: &mut Writer) {
        writer.u64(self.cast_unsigned());
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        reader.u64().map(u64::cast_signed)
    }
}

impl Xdr for bool {
    fn encode(&self, writer: &mut Writer) {
        writer.u32(u32::from(*self));
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        match reader.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(XdrError::BadValue { name: "bool", value }),
        }
    }
}

/// Fixed-length opaque data; only multiples of four occur in our protocols.
impl<const N: usize> Xdr for [u8; N] {
    fn encode(&self, writer: &mut Writer) {
        const { assert!(N.is_multiple_of(4)) };
        writer.raw(self);
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        const { assert!(N.is_multiple_of(4)) };
        reader.array()
    }
}

impl<A: Xdr, B: Xdr> Xdr for (A, B) {
    fn encode(&self, writer: &mut Writer) {
        self.0.encode(writer);
        self.1.encode(writer);
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        Ok((A::decode(reader)?, B::decode(reader)?))
    }
}

/// XDR's `*` (optional data) and a union over a boolean have the same form.
impl<T: Xdr> Xdr for Option<T> {
    fn encode(&self, writer: &mut Writer) {
        self.is_some().encode(writer);
        if let Some(value) = self {
            value.encode(writer);
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        Ok(if bool::decode(reader)? { Some(T::decode(reader)?) } else { None })
    }
}

/// Variable-length opaque data or a string, at most `MAX` bytes. Shares the memory of the record it came in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Opaque<const MAX: usize>(Bytes);

impl<const MAX: usize> Opaque<MAX> {
    /// `None` if longer than `MAX`.
    pub fn new(bytes: impl Into<Bytes>) -> Option<Self> {
        let bytes = bytes.into();
        (bytes.len() <= MAX).then_some(Self(bytes))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The bytes, given away.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl<const MAX: usize> std::ops::Deref for Opaque<MAX> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<const MAX: usize> Xdr for Opaque<MAX> {
    fn encode(&self, writer: &mut Writer) {
        writer.payload(&self.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        reader.opaque(MAX).map(Self)
    }
}

/// A counted list of at most `MAX` elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MAX: usize> List<T, MAX> {
    /// `None` if longer than `MAX`.
    pub fn new(elements: Vec<T>) -> Option<Self> {
        (elements.len() <= MAX).then_some(Self(elements))
    }

    /// The elements, given away.
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }
}

impl<T, const MAX: usize> std::ops::Deref for List<T, MAX> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Xdr, const MAX: usize> Xdr for List<T, MAX> {
    fn encode(&self, writer: &mut Writer) {
        writer.u32(u32::try_from(self.0.len()).expect("a list's bound is below 4 Gi elements"));
        self.0.iter().for_each(|element| element.encode(writer));
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        let length = reader.length(MAX)?;
        // No element is shorter than four bytes, so a lying count cannot make us reserve more than was sent.
        let mut elements = Vec::with_capacity(length.min(reader.remaining() / 4));
        for _ in 0..length {
            elements.push(T::decode(reader)?);
        }
        Ok(Self(elements))
    }
}
