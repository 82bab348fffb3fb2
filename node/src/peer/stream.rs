//! Bytes between two peers: TCP, with TLS or without, what was read and what is to be sent.
//!
//! Owns: a socket and its two buffers. Never does: know what the bytes mean.
//! Invariants: a chunk that is sent goes out from the memory it is in; one that is received is read into the memory it
//! stays in. TLS copies on its way, in pieces of its own.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    io::{self, IoSlice},
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use forebay_proto::cluster::frame::Payload;
use rustls::pki_types::CertificateDer;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::TlsStream;

/// What is read at once when no payload is expected: heads are a few dozen bytes, and what of a payload comes along has to be
/// copied once more.
const HEADS_BYTES: usize = 8 << 10;
/// Slices given to one `writev`.
const SLICES_MAX: usize = 64;
/// What TLS reads from the socket at once; by itself it would read 4 KiB at a time.
const TLS_READ_BYTES: usize = 128 << 10;
/// What TLS takes to encrypt before it has to be sent.
const TLS_WRITE_BYTES: usize = 256 << 10;
/// How long a peer is waited for that was told that there is nothing more for it.
const FINISH: Duration = Duration::from_secs(1);
/// A peer whose machine is gone is noticed by the kernel too, where nobody asks it anything.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// A connection's bytes.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<BufReader<TcpStream>>>),
}

impl Stream {
    pub(super) fn buffered(stream: TcpStream) -> BufReader<TcpStream> {
        BufReader::with_capacity(TLS_READ_BYTES, stream)
    }

    pub(super) fn tls(mut stream: TlsStream<BufReader<TcpStream>>) -> Self {
        match &mut stream {
            TlsStream::Client(stream) => stream.get_mut().1.set_buffer_limit(Some(TLS_WRITE_BYTES)),
            TlsStream::Server(stream) => stream.get_mut().1.set_buffer_limit(Some(TLS_WRITE_BYTES)),
        }
        Self::Tls(Box::new(stream))
    }

    /// What the peer proved itself with.
    pub(super) fn certificates(&self) -> Option<&[CertificateDer<'static>]> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => stream.get_ref().1.peer_certificates(),
        }
    }
}

/// Sets what every connection between peers wants.
pub(super) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 5);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// What a [`Wire`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Some of what was to be sent is.
    Sent,
    /// So many bytes came: into the payload if there was one to be read into, else into `input`.
    Received { bytes: usize, payload: bool },
    /// The peer sends no more.
    End,
}

/// A connection with what was read and what is to be sent.
pub(super) struct Wire {
    stream: Stream,
    /// What was read and not yet taken.
    pub(super) input: BytesMut,
    output: VecDeque<Bytes>,
    output_bytes: usize,
    /// TLS has something that the socket did not take yet.
    unflushed: bool,
}

impl Wire {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, input: BytesMut::new(), output: VecDeque::new(), output_bytes: 0, unflushed: false }
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Something more to be sent, after all before it.
    pub(super) fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.output_bytes += bytes.len();
            self.output.push_back(bytes);
        }
    }

    /// Bytes that are to be sent.
    pub(super) fn output_bytes(&self) -> usize {
        self.output_bytes
    }

    /// Pieces that are to be sent.
    pub(super) fn output_frames(&self) -> usize {
        self.output.len()
    }

    /// Whether everything is with the kernel.
    pub(super) fn is_sent(&self) -> bool {
        self.output.is_empty() && !self.unflushed
    }

    /// Waits until something was sent or, if `receive`, came. Where what comes belongs is `payload`, while that is not
    /// complete. Nothing is lost if it is not waited for to the end.
    pub(super) async fn step(&mut self, receive: bool, mut payload: Option<&mut Payload>) -> io::Result<Step> {
        poll_fn(|context| {
            if let Poll::Ready(sent) = self.poll_send(context) {
                return Poll::Ready(sent.map(|()| Step::Sent));
            }
            if !receive {
                return Poll::Pending;
            }
            self.poll_receive(context, payload.as_deref_mut()).map(|result| {
                result.map(|(bytes, payload)| if bytes == 0 { Step::End } else { Step::Received { bytes, payload } })
            })
        })
        .await
    }

    /// Sends what there is until nothing more is taken. Ready if anything was.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut any = false;
        while !self.output.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let pairs = slices.iter_mut().zip(&self.output);
            let used = pairs.map(|(slot, bytes)| *slot = IoSlice::new(bytes)).count();
            match pin!(self.stream.write_vectored(&slices[..used])).poll(context) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => {
                    self.sent(count);
                    (any, self.unflushed) = (true, matches!(self.stream, Stream::Tls(_)));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => break,
            }
        }
        if self.output.is_empty() && self.unflushed {
            match pin!(self.stream.flush()).poll(context) {
                Poll::Ready(Ok(())) => (any, self.unflushed) = (true, false),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        if any { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn sent(&mut self, mut count: usize) {
        self.output_bytes -= count;
        while let Some(first) = self.output.front_mut() {
            if count < first.len() {
                first.advance(count);
                return;
            }
            count -= first.len();
            self.output.pop_front();
        }
    }

    /// One read; the bytes, and whether they went to the payload.
    fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        payload: Option<&mut Payload>,
    ) -> Poll<io::Result<(usize, bool)>> {
        if self.input.is_empty()
            && let Some(mut room) = payload.and_then(Payload::room)
        {
            return pin!(self.stream.read_buf(&mut room)).poll(context).map(|read| read.map(|count| (count, true)));
        }
        self.input.reserve(HEADS_BYTES);
        let mut room = bytes::BufMut::limit(&mut self.input, HEADS_BYTES);
        pin!(self.stream.read_buf(&mut room)).poll(context).map(|read| read.map(|count| (count, false)))
    }

    /// Sends everything, for a connection that ends.
    pub(super) async fn send_all(&mut self) -> io::Result<()> {
        while !self.is_sent() {
            self.step(false, None).await?;
        }
        Ok(())
    }

    /// Ends in a way that loses nothing of what was sent: a socket closed with bytes in it that nobody has read resets the
    /// connection, and the peer may not have taken all of ours by then.
    pub(super) async fn finish(&mut self) {
        let ending = async {
            if self.stream.shutdown().await.is_err() {
                return;
            }
            while matches!(self.step(true, None).await, Ok(Step::Received { .. } | Step::Sent)) {
                self.input.clear();
            }
        };
        // If it takes longer than this it has had its time.
        let _ = tokio::time::timeout(FINISH, ending).await;
    }
}
