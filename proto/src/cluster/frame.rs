//! The stream between two peers over which chunks go: frames, what is in them, their bounds.
//!
//! Owns: the bytes. Never does: sockets, who may ask, which replies are awaited.
//!
//! A frame is a length (32 bits, big endian) and as many bytes of XDR, its *head*; after the head of [`Answer::Data`] come
//! the chunk's own bytes, as many as it says, with no padding. Whoever connects sends [`Greeting::Hello`] and is sent one;
//! then it sends [`Request`]s, of which up to [`IN_FLIGHT_MAX`] may await their reply, and is sent one [`Reply`] for each,
//! in any order.
//!
//! Invariants: a head that decodes proves its bounds; a stream that is out of bounds is an error that says so, and of no
//! more use; nothing is reserved because of a length that somebody sent.

use bytes::{Buf, BufMut, Bytes, BytesMut, buf::Limit};

use super::keys::{ClusterId, FileKey, NodeId, RingEpoch, Version};
use crate::xdr::{Reader, Writer, Xdr, XdrError, xdr_enum, xdr_struct, xdr_union};

/// The newest version of this protocol that we speak.
pub const NEWEST: u32 = 1;
/// The oldest that we speak: a cluster is upgraded node by node, so the one before must stay until all have the next.
pub const OLDEST: u32 = 1;
/// Bytes of a chunk that go in one reply: a whole chunk.
pub const PAYLOAD_MAX: u32 = 1 << 20;
/// Bytes of a head: the longest has 76, and versions to come may need more.
pub const HEAD_MAX: usize = 256;
/// Requests of one connection whose reply is not sent yet: 128 MiB on the way are more than any network needs.
pub const IN_FLIGHT_MAX: usize = 128;

/// What a stream of this protocol begins with, after the first length.
const MAGIC: [u8; 4] = *b"FbP\x01";

/// Why a stream is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A head longer than any, as when something else than a peer speaks.
    #[error("a head of {0} bytes where at most {HEAD_MAX} are allowed")]
    TooLong(u32),
    /// A head that is not what was expected.
    #[error("a head that is none: {0}")]
    Head(#[from] XdrError),
}

xdr_union! {
    /// The first frame in each direction.
    pub enum Greeting {
        /// Who speaks, and to whom.
        1 => Hello(Hello),
        /// Instead of an answer to it; the connection ends.
        2 => Refused(GreetingRefusal),
    }
}

xdr_struct! {
    /// Who speaks, and to whom.
    pub struct Hello {
        /// So that it is seen at once when something else speaks.
        magic: Magic,
        /// The oldest version that the sender speaks.
        oldest: u32,
        /// The newest; what is spoken is the smaller of both newest ones.
        newest: u32,
        /// The sender's cluster.
        cluster: ClusterId,
        /// The sender.
        from: NodeId,
        /// Whom it wants to speak to.
        to: NodeId,
        /// The sender's ring.
        epoch: RingEpoch,
    }
}

xdr_enum! {
    /// Why a greeting leads nowhere.
    pub enum GreetingRefusal {
        /// Another cluster's node.
        Cluster = 1,
        /// The sender is not the node it says, or this is not the node it wants.
        Node = 2,
        /// No version that both speak.
        Version = 3,
        /// Too many connections; try again later.
        Busy = 4,
    }
}

xdr_struct! {
    /// What one peer asks of another.
    pub struct Request {
        /// Names the request; not in use by another one that awaits its reply.
        id: u64,
        /// The ring by which the sender chose whom to ask.
        epoch: RingEpoch,
        /// What is asked.
        op: PeerOp,
    }
}

xdr_union! {
    /// What can be asked.
    pub enum PeerOp {
        /// Part of a chunk.
        1 => Fetch(Fetch),
        /// The request of the same id is not wanted any more. It gets its reply, and this gets none.
        2 => Cancel,
        /// A sign of life.
        3 => Ping,
    }
}

xdr_struct! {
    /// Part of a chunk.
    #[derive(Copy)]
    pub struct Fetch {
        /// The file.
        file: FileKey,
        /// The state of its content that is wanted, and no other.
        version: Version,
        /// Which chunk of the file, from 0.
        chunk: u32,
        /// Which of its bytes.
        range: ChunkRange,
        /// How urgent it is.
        priority: Priority,
    }
}

xdr_enum! {
    /// How urgent a chunk is; smaller numbers go first.
    #[derive(PartialOrd, Ord)]
    pub enum Priority {
        /// A reader waits for it.
        Reader = 0,
        /// A reader will probably want it.
        ReadAhead = 1,
        /// It moves house: hand-over, warm-up.
        Background = 2,
    }
}

xdr_struct! {
    /// What a request is answered with.
    pub struct Reply {
        /// The request's.
        id: u64,
        /// What came of it.
        answer: Answer,
    }
}

xdr_union! {
    /// What came of a request.
    pub enum Answer {
        /// The bytes, which follow the head.
        1 => Data(Data),
        /// Not here: ask the source, or the owner.
        2 => Miss,
        /// The sender's ring is an old one; this is the present one.
        3 => Stale(RingEpoch),
        /// Too much to do: ask somebody else, or later.
        4 => Busy,
        /// Never so.
        5 => Refused(Refusal),
        /// It was not wanted any more.
        6 => Cancelled,
        /// Alive; the ring here.
        7 => Pong(RingEpoch),
    }
}

xdr_struct! {
    /// The head of a chunk's bytes.
    #[derive(Copy)]
    pub struct Data {
        /// How many bytes follow.
        length: PayloadLength,
        /// The file ends with them.
        eof: bool,
    }
}

xdr_enum! {
    /// Why something is refused however often it is asked.
    pub enum Refusal {
        /// No such file system in this cluster.
        UnknownFile = 1,
        /// The chunk has no such bytes.
        OutOfRange = 2,
        /// The node cannot: its cache or its source failed.
        Failed = 3,
        /// The node is about to go.
        Draining = 4,
    }
}

/// The four bytes that tell this protocol from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Magic;

impl Xdr for Magic {
    fn encode(&self, writer: &mut Writer) {
        MAGIC.encode(writer);
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        match reader.array()? {
            MAGIC => Ok(Self),
            other => Err(XdrError::BadValue { name: "Magic", value: u32::from_be_bytes(other) }),
        }
    }
}

/// Bytes of a payload, at most [`PAYLOAD_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadLength(u32);

impl PayloadLength {
    /// `None` if it is more than [`PAYLOAD_MAX`].
    pub fn new(length: usize) -> Option<Self> {
        u32::try_from(length).ok().filter(|length| *length <= PAYLOAD_MAX).map(Self)
    }

    /// As a number.
    pub fn bytes(self) -> usize {
        self.0 as usize
    }
}

impl Xdr for PayloadLength {
    fn encode(&self, writer: &mut Writer) {
        writer.u32(self.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        let length = reader.u32()?;
        Self::new(length as usize).ok_or(XdrError::TooLong { length, max: PAYLOAD_MAX as usize })
    }
}

/// Bytes of a chunk: at least one, and none beyond [`PAYLOAD_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRange {
    offset: u32,
    length: u32,
}

impl ChunkRange {
    /// All of a chunk.
    pub const WHOLE: Self = Self { offset: 0, length: PAYLOAD_MAX };

    /// `None` if it is empty or ends beyond [`PAYLOAD_MAX`].
    pub fn new(offset: u32, length: u32) -> Option<Self> {
        let within = length > 0 && u64::from(offset) + u64::from(length) <= u64::from(PAYLOAD_MAX);
        within.then_some(Self { offset, length })
    }

    /// The first byte.
    pub fn offset(self) -> usize {
        self.offset as usize
    }

    /// How many at most; the file may end before.
    pub fn length(self) -> usize {
        self.length as usize
    }
}

impl Xdr for ChunkRange {
    fn encode(&self, writer: &mut Writer) {
        writer.u32(self.offset);
        writer.u32(self.length);
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        let (offset, length) = (reader.u32()?, reader.u32()?);
        Self::new(offset, length).ok_or(XdrError::BadValue { name: "ChunkRange", value: length })
    }
}

impl Hello {
    /// The version that two peers speak.
    ///
    /// # Errors
    /// [`GreetingRefusal::Version`]: there is none.
    pub fn version_with(&self, other: &Self) -> Result<u32, GreetingRefusal> {
        let newest = self.newest.min(other.newest);
        if newest < self.oldest.max(other.oldest) { Err(GreetingRefusal::Version) } else { Ok(newest) }
    }
}

/// A head with its length in front of it.
pub fn frame<T: Xdr>(head: &T) -> Bytes {
    let mut writer = Writer::with_capacity(128);
    let place = writer.mark();
    writer.u32(0);
    head.encode(&mut writer);
    let length = u32::try_from(writer.len() - 4).expect("heads are a few dozen bytes");
    debug_assert!(length as usize <= HEAD_MAX, "a head that no peer takes");
    writer.patch_u32(place, length);
    writer.finish().to_bytes()
}

/// Takes the next head off the front of `input`, if it is there.
///
/// # Errors
/// The stream is not one of such heads.
pub fn take_head<T: Xdr>(input: &mut BytesMut) -> Result<Option<T>, FrameError> {
    let Some(length) = input.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)) else { return Ok(None) };
    if length as usize > HEAD_MAX {
        return Err(FrameError::TooLong(length));
    }
    if input.len() < 4 + length as usize {
        return Ok(None);
    }
    input.advance(4);
    // A copy of a few bytes: sharing would keep the whole input's memory while the next bytes need room.
    let head = Bytes::copy_from_slice(&input.split_to(length as usize));
    Ok(Some(T::from_bytes(head)?))
}

/// A payload on its way in: kept in memory of its own, or skipped.
#[derive(Debug)]
pub struct Payload {
    kept: Option<BytesMut>,
    left: usize,
}

impl Payload {
    /// One that is wanted. Reserves its memory: call it only for what was asked for.
    pub fn keep(length: PayloadLength) -> Self {
        Self { kept: Some(BytesMut::with_capacity(length.bytes())), left: length.bytes() }
    }

    /// One that nobody wants any more.
    pub fn skip(length: PayloadLength) -> Self {
        Self { kept: None, left: length.bytes() }
    }

    /// Takes what has already come to the front of `input`; whether that was all.
    pub fn take(&mut self, input: &mut BytesMut) -> bool {
        let count = self.left.min(input.len());
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(&input[..count]);
        }
        input.advance(count);
        self.left -= count;
        self.left == 0
    }

    /// Where the next bytes of the stream belong, so that they need not be copied; `None` if they are skipped or complete.
    pub fn room(&mut self) -> Option<Limit<&mut BytesMut>> {
        let left = self.left;
        self.kept.as_mut().filter(|_| left > 0).map(|kept| kept.limit(left))
    }

    /// That `count` bytes were put into [`Payload::room`]; whether that was all.
    pub fn filled(&mut self, count: usize) -> bool {
        self.left = self.left.saturating_sub(count);
        self.left == 0
    }

    /// The bytes, if they were kept.
    pub fn into_bytes(self) -> Option<Bytes> {
        self.kept.map(BytesMut::freeze)
    }
}
