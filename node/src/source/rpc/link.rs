//! One TCP connection to a source: calls out, replies in, calls back in.
//!
//! Owns: record marking, transaction ids, the two tasks that read and write. Never does: slots, retries, meaning.
//! Invariants: a record is written whole or the connection is closed; a reply of some size owns its buffer, no longer
//! than the record; when the connection ends, whoever waits is told at once.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use forebay_proto::{rpc::marker, xdr::Encoded};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

/// Longest record taken: a full READ and its frame, with room for servers that send more.
const REPLY_MAX: usize = 8 << 20;
/// Fragments of one record: some servers send a few, none sends many.
const FRAGMENTS_MAX: u32 = 64;
/// Records that wait to be written: more than a session has slots.
const QUEUE: usize = 160;
/// Small replies are read several at a time.
const BUFFER: usize = 16 << 10;
/// Pieces up to this size go out together.
const GATHER: usize = 16 << 10;

/// A call that the server makes, and where its answer goes.
#[derive(Debug)]
pub(in crate::source) struct Callback {
    /// The whole record.
    pub record: Bytes,
    /// The connection it came on.
    pub link: Arc<Link>,
}

/// Who waits for a reply.
#[derive(Debug)]
struct Waiting {
    reply: oneshot::Sender<Bytes>,
    weight: usize,
}

/// The connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::source) struct Closed;

/// A connection. Calls may be made from many tasks at once.
#[derive(Debug)]
pub(in crate::source) struct Link {
    /// The other end.
    pub peer: SocketAddr,
    /// Cancelled when the connection is of no more use.
    pub closed: CancellationToken,
    queue: mpsc::Sender<Encoded>,
    waiting: Mutex<Option<HashMap<u32, Waiting>>>,
    next_xid: AtomicU32,
    load: AtomicUsize,
    started: Instant,
    heard_ms: AtomicU64,
    answered: AtomicBool,
}

impl Link {
    /// Starts the tasks of a connection.
    pub fn start(stream: TcpStream, callbacks: mpsc::Sender<Callback>) -> io::Result<Arc<Self>> {
        let peer = stream.peer_addr()?;
        let (reader, writer) = stream.into_split();
        let (queue, queued) = mpsc::channel(QUEUE);
        let link = Arc::new(Self {
            peer,
            closed: CancellationToken::new(),
            queue,
            waiting: Mutex::new(Some(HashMap::new())),
            next_xid: AtomicU32::new(uuid::Uuid::new_v4().as_u128() as u32),
            load: AtomicUsize::new(0),
            started: Instant::now(),
            heard_ms: AtomicU64::new(0),
            answered: AtomicBool::new(false),
        });
        tokio::spawn(write_all(queued, writer, link.closed.clone()));
        tokio::spawn(read_all(link.clone(), reader, callbacks));
        Ok(link)
    }

    /// Sends what `build` makes with a fresh transaction id; `weight` is what it and its reply take on the wire.
    /// Given up before it returns, nothing was sent.
    pub async fn send(
        &self,
        weight: usize,
        build: impl FnOnce(u32) -> Encoded,
    ) -> Result<oneshot::Receiver<Bytes>, Closed> {
        self.send_as(self.next_xid.fetch_add(1, Ordering::Relaxed), weight, build).await
    }

    /// As [`Link::send`] with a transaction id that the caller has chosen, other than those of all other calls under way
    /// here.
    pub async fn send_as(
        &self,
        xid: u32,
        weight: usize,
        build: impl FnOnce(u32) -> Encoded,
    ) -> Result<oneshot::Receiver<Bytes>, Closed> {
        let place = tokio::select! {
            place = self.queue.reserve() => place.map_err(|_| Closed)?,
            () = self.closed.cancelled() => return Err(Closed),
        };
        let (reply, receiver) = oneshot::channel();
        match self.waiting.lock().as_mut() {
            Some(waiting) => {
                if waiting.is_empty() {
                    // Silence counts from when something was asked.
                    self.hear();
                }
                // One that is sent again on the same connection: only the last one is waited for.
                if let Some(before) = waiting.insert(xid, Waiting { reply, weight }) {
                    self.load.fetch_sub(before.weight, Ordering::Relaxed);
                }
            }
            None => return Err(Closed),
        }
        self.load.fetch_add(weight, Ordering::Relaxed);
        place.send(build(xid));
        Ok(receiver)
    }

    /// Sends an answer to a callback; it is lost if too much waits to be sent, and the server asks again.
    pub fn answer(&self, record: Encoded) {
        let _ = self.queue.try_send(record);
    }

    /// Bytes of calls and replies under way.
    pub fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// How long the server has said nothing although it was asked.
    pub fn silent_for(&self) -> Duration {
        if self.waiting.lock().as_ref().is_none_or(HashMap::is_empty) {
            return Duration::ZERO;
        }
        let heard = Duration::from_millis(self.heard_ms.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(heard)
    }

    /// Whether anything ever came over it.
    pub fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    fn hear(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard_ms.store(now, Ordering::Relaxed);
    }

    fn deliver(self: &Arc<Self>, record: Bytes, callbacks: &mpsc::Sender<Callback>) {
        let word =
            |place: usize| record.get(place..place + 4).and_then(|word| word.try_into().ok()).map(u32::from_be_bytes);
        match (word(0), word(4)) {
            (Some(xid), Some(1)) => {
                let waiting = self.waiting.lock().as_mut().and_then(|waiting| waiting.remove(&xid));
                if let Some(waiting) = waiting {
                    self.load.fetch_sub(waiting.weight, Ordering::Relaxed);
                    let _ = waiting.reply.send(record);
                }
            }
            (Some(_), Some(0)) => {
                // One that finds no room is asked again by a server that gets no answer.
                let _ = callbacks.try_send(Callback { record, link: self.clone() });
            }
            _ => self.closed.cancel(),
        }
    }
}

async fn write_all(mut queued: mpsc::Receiver<Encoded>, mut writer: OwnedWriteHalf, closed: CancellationToken) {
    let writing = async {
        let mut records = Vec::new();
        let mut small = BytesMut::new();
        while queued.recv_many(&mut records, 32).await > 0 {
            for record in records.drain(..) {
                small.extend_from_slice(&marker(record.len()));
                for segment in record.segments() {
                    if segment.len() <= GATHER {
                        small.extend_from_slice(segment);
                        continue;
                    }
                    writer.write_all(&small).await?;
                    small.clear();
                    writer.write_all(segment).await?;
                }
            }
            writer.write_all(&small).await?;
            small.clear();
        }
        io::Result::Ok(())
    };
    tokio::select! {
        _ = writing => {}
        () = closed.cancelled() => {}
    }
    closed.cancel();
}

async fn read_all(link: Arc<Link>, reader: OwnedReadHalf, callbacks: mpsc::Sender<Callback>) {
    let mut records = Records { reader, buffer: BytesMut::with_capacity(BUFFER), link: link.clone() };
    let reading = async {
        while let Ok(record) = records.next().await {
            link.deliver(record, &callbacks);
        }
    };
    tokio::select! {
        () = reading => {}
        () = link.closed.cancelled() => {}
    }
    link.closed.cancel();
    link.waiting.lock().take();
}

/// Cuts the stream into records.
struct Records {
    reader: OwnedReadHalf,
    buffer: BytesMut,
    link: Arc<Link>,
}

impl Records {
    async fn next(&mut self) -> io::Result<Bytes> {
        let mut body = BytesMut::new();
        for _ in 0..FRAGMENTS_MAX {
            let (length, last) = self.marker().await?;
            if body.len() + length > REPLY_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the record is too long"));
            }
            // Exactly as long as the record: slices of it are kept for long.
            body.reserve(length);
            let end = body.len() + length;
            let here = length.min(self.buffer.len());
            body.extend_from_slice(&self.buffer[..here]);
            self.buffer.advance(here);
            while body.len() < end {
                let missing = end - body.len();
                let read = self.reader.read_buf(&mut (&mut body).limit(missing)).await?;
                self.heard(read)?;
            }
            if last {
                return Ok(body.freeze());
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "the record has too many fragments"))
    }

    async fn marker(&mut self) -> io::Result<(usize, bool)> {
        loop {
            if let Some(marker) = self.buffer.first_chunk::<4>() {
                let marker = u32::from_be_bytes(*marker);
                self.buffer.advance(4);
                return Ok(((marker & !(1 << 31)) as usize, marker >> 31 == 1));
            }
            self.buffer.reserve(BUFFER);
            let read = self.reader.read_buf(&mut (&mut self.buffer).limit(BUFFER)).await?;
            self.heard(read)?;
        }
    }

    fn heard(&self, read: usize) -> io::Result<()> {
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.link.answered.store(true, Ordering::Relaxed);
        self.link.hear();
        Ok(())
    }
}
