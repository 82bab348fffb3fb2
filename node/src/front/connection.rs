//! One connection: bytes in, calls run, bytes out.
//!
//! Owns: its socket and buffers. Never does: anything for another connection.
//! Invariants: at most [`CALLS_IN_FLIGHT_MAX`] calls run and about [`REPLY_BYTES_MAX`] bytes of replies wait; beyond
//! that nothing is read. A peer that stops in the middle of a record, or stops taking replies, is cut off.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Instant,
};

use bytes::{Buf, Bytes, BytesMut};
use forebay_proto::{
    limits::RECORD_MAX,
    rpc::{RecordReader, marker},
    xdr::Encoded,
};
use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::compound::{self, Outcome};
use crate::server::Server;

/// Calls of one connection that wait for something at once: a session's slots, so that calls that wait for a source that
/// does not answer leave room for others. Calls that need not wait are not counted.
const CALLS_IN_FLIGHT_MAX: usize = 128;
/// Each may come back with a megabyte, whether or not the peer takes replies: while more than this many wait on all
/// connections together, one connection may only have [`CALLS_IN_FLIGHT_CROWDED`].
const ALL_CALLS_IN_FLIGHT_MAX: usize = 2048;
/// See there.
const CALLS_IN_FLIGHT_CROWDED: usize = 16;
/// Replies that wait to be sent: two full READs ahead of the one being sent.
const REPLY_BYTES_MAX: usize = 3 << 20;
/// Replies that wait on all connections together; beyond it a connection may only have one at a time.
const ALL_REPLY_BYTES_MAX: usize = 512 << 20;
/// Records of calls under way on one connection: enough for WRITEs in every slot of a fast client.
const CALL_BYTES_MAX: usize = 16 << 20;
/// What is read at once when nothing larger is known to come.
const READ_BYTES: usize = 64 << 10;
/// Slices given to one `writev`.
const SLICES_MAX: usize = 64;
/// How often in a stall's time a connection looks whether its peer still moves.
const WATCHES: u32 = 4;
/// A record has this many stalls' time to arrive, however steadily it drips: a megabyte at 15 kbit/s.
const RECORD_STALLS: u32 = 10;

/// A call under way; when it is done, its outcome and the bytes its record took.
type Running<'a> = Pin<Box<dyn Future<Output = (Outcome, usize)> + Send + 'a>>;

/// Serves a connection until its peer goes, misbehaves, or `drain` is cancelled and all calls are answered.
pub async fn serve(server: Arc<Server>, stream: TcpStream, peer: std::net::SocketAddr, drain: CancellationToken) {
    server.metrics.connections.increment(1.0);
    let mut connection = Connection {
        server: &server,
        peer,
        stream,
        input: BytesMut::new(),
        records: RecordReader::new(RECORD_MAX),
        running: FuturesUnordered::new(),
        running_bytes: 0,
        output: Output::default(),
        moved: Instant::now(),
        record_began: Instant::now(),
        eof: false,
        told_version: false,
    };
    if let Err(error) = connection.run(&drain).await {
        tracing::debug!(%peer, %error, "connection closed");
        if error.kind() == io::ErrorKind::InvalidData {
            server.metrics.connections_refused.increment(1);
        }
    }
    let Connection { running, stream, .. } = connection;
    drop(stream);
    server.metrics.connections.decrement(1.0);
    // Calls that had begun are finished and their replies kept: the client will ask for them on another connection, and
    // an operation must not be done twice.
    running.for_each(|_| std::future::ready(())).await;
}

struct Connection<'a> {
    server: &'a Arc<Server>,
    peer: std::net::SocketAddr,
    stream: TcpStream,
    input: BytesMut,
    records: RecordReader,
    running: FuturesUnordered<Running<'a>>,
    running_bytes: usize,
    output: Output,
    moved: Instant,
    /// When the record that is arriving began to.
    record_began: Instant,
    eof: bool,
    told_version: bool,
}

impl Connection<'_> {
    async fn run(&mut self, drain: &CancellationToken) -> io::Result<()> {
        let every = self.server.stall() / WATCHES;
        let mut watch = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
        let mut draining = false;
        loop {
            // Sending makes room for calls that are here already: no event of the socket would tell of them.
            loop {
                let waiting = self.calls().await?;
                self.send()?;
                if !waiting || !self.has_room() {
                    break;
                }
            }
            let idle = self.running.is_empty() && self.output.is_empty();
            if idle && (draining || self.eof) {
                return Ok(());
            }
            let may_read = !draining && !self.eof && self.has_room();
            tokio::select! {
                Some((outcome, bytes)) = self.running.next(), if !self.running.is_empty() => {
                    self.running_bytes -= bytes;
                    self.take(outcome)?;
                }
                ready = self.stream.readable(), if may_read => { ready?; self.receive()?; }
                ready = self.stream.writable(), if !self.output.is_empty() => ready?,
                () = drain.cancelled(), if !draining => draining = true,
                _ = watch.tick() => self.watch()?,
            }
        }
    }

    /// Whether the beginning of a record is here and its end is not.
    fn half_read(&self) -> bool {
        !self.input.is_empty() || self.records.in_record()
    }

    fn has_room(&self) -> bool {
        let crowded = ALL_REPLY_BYTES.load(Ordering::Relaxed) > ALL_REPLY_BYTES_MAX;
        let bytes_max = if crowded { 1 } else { REPLY_BYTES_MAX };
        let many = ALL_CALLS.load(Ordering::Relaxed) > ALL_CALLS_IN_FLIGHT_MAX;
        let calls_max = if many { CALLS_IN_FLIGHT_CROWDED } else { CALLS_IN_FLIGHT_MAX };
        let calls = self.running.len() < calls_max && self.running_bytes < CALL_BYTES_MAX;
        calls && self.output.bytes < bytes_max
    }

    /// Reads what is there, once: a fast sender must not keep us from answering.
    fn receive(&mut self) -> io::Result<()> {
        if !self.half_read() {
            self.record_began = Instant::now();
        }
        self.input.reserve(self.records.missing(&self.input).max(READ_BYTES));
        match self.stream.try_read_buf(&mut self.input) {
            Ok(0) => self.eof = true,
            Ok(count) => {
                self.server.metrics.received_bytes.increment(count as u64);
                self.moved = Instant::now();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Runs the calls that are there; whether some may be left for want of room. One that needs not wait is answered
    /// on the spot, without a task of its own.
    async fn calls(&mut self) -> io::Result<bool> {
        let mut arrived = None;
        while self.has_room() {
            let Some(record) = self.records.next_record(&mut self.input).map_err(invalid)? else { return Ok(false) };
            let arrived = *arrived.get_or_insert_with(Instant::now);
            self.record_began = arrived;
            self.server.metrics.queued(arrived.elapsed());
            let server = self.server;
            let (peer, bytes) = (self.peer.ip(), record.len());
            let mut call: Running<'_> = Box::pin(async move { (compound::answer(server, peer, record).await, bytes) });
            match poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await {
                Poll::Ready((outcome, _)) => self.take(outcome)?,
                Poll::Pending => {
                    self.running_bytes += bytes;
                    let waits = Waits::begin();
                    self.running.push(Box::pin(async move {
                        let done = call.await;
                        drop(waits);
                        done
                    }));
                }
            }
        }
        Ok(true)
    }

    fn take(&mut self, outcome: Outcome) -> io::Result<()> {
        match outcome {
            Outcome::Reply(reply) => self.output.push(reply),
            Outcome::WrongVersion(reply, version) => {
                self.server.metrics.wrong_version.increment(1);
                if !std::mem::replace(&mut self.told_version, true) {
                    let (peer, version) = (self.peer, version_name(version));
                    tracing::warn!(%peer, %version, "client refused: mount with vers=4.1 or 4.2");
                }
                self.output.push(reply);
            }
            Outcome::Close => return Err(invalid("not an RPC call")),
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let used = self.output.slices(&mut slices);
            match self.stream.try_write_vectored(&slices[..used]) {
                Ok(count) => {
                    self.server.metrics.sent_bytes.increment(count as u64);
                    self.output.sent(count);
                    self.moved = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn watch(&mut self) -> io::Result<()> {
        let stall = self.server.stall();
        let half_read = self.half_read();
        let half_done = half_read || !self.output.is_empty();
        if half_done && self.running.is_empty() && self.moved.elapsed() > stall {
            return Err(invalid("peer stopped in the middle of a record"));
        }
        if half_read && self.has_room() && self.record_began.elapsed() > stall * RECORD_STALLS {
            return Err(invalid("peer takes too long over a record"));
        }
        // Hundreds of clients with sixteen connections each are mostly silent: they need no buffer then.
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
        Ok(())
    }
}

fn version_name(version: u32) -> String {
    match version {
        0 => "NFSv4.0".into(),
        2 | 3 => format!("NFSv{version}"),
        other => format!("version {other}"),
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Calls that wait on all connections.
static ALL_CALLS: AtomicUsize = AtomicUsize::new(0);

/// One call that waits.
struct Waits;

impl Waits {
    fn begin() -> Self {
        ALL_CALLS.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        ALL_CALLS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bytes in the outputs of all connections.
static ALL_REPLY_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Replies on their way out.
#[derive(Debug, Default)]
struct Output {
    slices: VecDeque<Bytes>,
    bytes: usize,
}

impl Output {
    fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    fn push(&mut self, reply: Encoded) {
        self.bytes += reply.len() + 4;
        ALL_REPLY_BYTES.fetch_add(reply.len() + 4, Ordering::Relaxed);
        self.slices.push_back(Bytes::copy_from_slice(&marker(reply.len())));
        self.slices.extend(reply.into_segments().into_iter().filter(|segment| !segment.is_empty()));
    }

    fn slices<'a>(&'a self, into: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        let pairs = into.iter_mut().zip(&self.slices);
        pairs.map(|(slot, slice)| *slot = IoSlice::new(slice)).count()
    }

    fn sent(&mut self, mut count: usize) {
        self.bytes -= count;
        ALL_REPLY_BYTES.fetch_sub(count, Ordering::Relaxed);
        while count > 0 {
            let Some(first) = self.slices.front_mut() else { return };
            if count < first.len() {
                first.advance(count);
                return;
            }
            count -= first.len();
            self.slices.pop_front();
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        ALL_REPLY_BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::xdr::Writer;

    #[test]
    fn output_goes_out_in_order_however_it_is_cut() {
        for step in 1..40 {
            let mut output = Output::default();
            let mut expected = Vec::new();
            for length in [0_u8, 1, 7, 30] {
                let mut writer = Writer::new();
                writer.raw(&vec![length; usize::from(length)]);
                let reply = writer.finish();
                expected.extend_from_slice(&marker(reply.len()));
                expected.extend_from_slice(&reply.to_bytes());
                output.push(reply);
            }
            assert_eq!(output.bytes, expected.len());
            let mut sent = Vec::new();
            while !output.is_empty() {
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let used = output.slices(&mut slices);
                let all: Vec<u8> = slices[..used].iter().flat_map(|slice| slice.to_vec()).take(step).collect();
                output.sent(all.len());
                sent.extend(all);
            }
            assert_eq!((sent, output.bytes), (expected, 0), "step {step}");
        }
    }
}
