//! One connection: calls out, replies in, matched by transaction id.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use bytes::{Bytes, BytesMut};
use forebay_proto::{
    nfs4::{CompoundHeader, Op, OpReply, PROC_COMPOUND, PROC_NULL, PROGRAM, ReplyHeader as CompoundReply, VERSION},
    rpc::{self, AcceptStatus, CallHeader, Credential, RecordReader, Reply, marker},
    xdr::{Encoded, Opaque, Reader, Writer, Xdr, XdrError},
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, tcp::OwnedReadHalf},
    sync::oneshot,
    task::AbortHandle,
};

/// Longest reply record taken: a full READ and its frame, with room for servers that send more.
const REPLY_MAX: u32 = 8 << 20;

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The connection failed or was closed.
    #[error("connection: {0}")]
    Io(#[from] io::Error),
    /// The server did not run the call.
    #[error("the server refused the call: {0:?}")]
    Refused(rpc::ReplyHeader),
    /// The reply is not what its operations should give.
    #[error("reply: {0}")]
    Reply(#[from] XdrError),
    /// An operation failed.
    #[error("{operation}: NFS4ERR_{}", status.name())]
    Status {
        /// The RFC's name of the operation.
        operation: &'static str,
        /// Its status.
        status: forebay_proto::nfs4::Status,
    },
}

type Waiting = Arc<Mutex<Option<HashMap<u32, oneshot::Sender<Bytes>>>>>;

/// A connection. Calls may be made from many tasks at once.
#[derive(Debug)]
pub struct Connection {
    writer: tokio::sync::Mutex<tokio::net::tcp::OwnedWriteHalf>,
    waiting: Waiting,
    xid: AtomicU32,
    credential: Credential,
    reader: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Connection {
    /// Connects; every call carries `credential`.
    pub async fn connect(address: SocketAddr, credential: Credential) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let task = tokio::spawn(read_replies(reader, waiting.clone()));
        Ok(Self {
            writer: tokio::sync::Mutex::new(writer),
            waiting,
            xid: AtomicU32::new(1),
            credential,
            reader: task.abort_handle(),
        })
    }

    /// Sends a record as it is and returns the reply record, matched by the record's first four bytes.
    pub async fn raw(&self, record: Encoded) -> Result<Bytes, CallError> {
        let first = record.segments().first().and_then(|segment| segment.first_chunk::<4>());
        let xid = first.map_or(0, |xid| u32::from_be_bytes(*xid));
        let (sender, receiver) = oneshot::channel();
        match self.waiting.lock().as_mut() {
            Some(waiting) => waiting.insert(xid, sender),
            None => return Err(closed().into()),
        };
        {
            let mut writer = self.writer.lock().await;
            let mut bytes = BytesMut::with_capacity(record.len().min(64 << 10) + 4);
            bytes.extend_from_slice(&marker(record.len()));
            for segment in record.segments() {
                // Small pieces go out together, a payload by itself without a copy.
                if segment.len() > 16 << 10 {
                    writer.write_all(&bytes).await?;
                    bytes.clear();
                    writer.write_all(segment).await?;
                } else {
                    bytes.extend_from_slice(segment);
                }
            }
            writer.write_all(&bytes).await?;
        }
        receiver.await.map_err(|_| closed().into())
    }

    /// A fresh transaction id.
    pub fn next_xid(&self) -> u32 {
        self.xid.fetch_add(1, Ordering::Relaxed)
    }

    /// The credential of every call.
    pub fn credential(&self) -> &Credential {
        &self.credential
    }

    /// NULL.
    pub async fn null(&self) -> Result<(), CallError> {
        let xid = self.next_xid();
        let mut writer = Writer::new();
        call_header(xid, PROC_NULL, &self.credential).encode(&mut writer);
        accepted(self.raw(writer.finish()).await?).map(drop)
    }

    /// One COMPOUND: its status and the results of the operations that ran.
    pub async fn compound(
        &self,
        minor_version: u32,
        ops: &[Op],
    ) -> Result<(forebay_proto::nfs4::Status, Vec<OpReply>), CallError> {
        let record = compound_record(self.next_xid(), &self.credential, minor_version, ops);
        let mut results = accepted(self.raw(record).await?)?;
        let (header, replies) = CompoundReply::decode_all(&mut results)?;
        results.finish()?;
        Ok((header.status, replies))
    }
}

/// A COMPOUND as a record.
pub fn compound_record(xid: u32, credential: &Credential, minor_version: u32, ops: &[Op]) -> Encoded {
    let mut writer = Writer::new();
    call_header(xid, PROC_COMPOUND, credential).encode(&mut writer);
    let operations = u32::try_from(ops.len()).expect("a COMPOUND has few operations");
    CompoundHeader { tag: Opaque::default(), minor_version, operations }.encode(&mut writer);
    ops.iter().for_each(|op| op.encode(&mut writer));
    writer.finish()
}

fn call_header(xid: u32, procedure: u32, credential: &Credential) -> CallHeader {
    CallHeader { xid, program: PROGRAM, version: VERSION, procedure, credential: credential.clone() }
}

fn accepted(record: Bytes) -> Result<Reader, CallError> {
    let reply = Reply::decode(Reader::new(record))?;
    match reply.header {
        rpc::ReplyHeader::Accepted(AcceptStatus::Success) => Ok(reply.results),
        refused => Err(CallError::Refused(refused)),
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "closed by the server")
}

async fn read_replies(mut reader: OwnedReadHalf, waiting: Waiting) {
    let mut records = RecordReader::new(REPLY_MAX);
    let mut input = BytesMut::new();
    loop {
        match records.next_record(&mut input) {
            Ok(Some(record)) => deliver(&waiting, record),
            Ok(None) => {
                input.reserve(records.missing(&input).max(16 << 10));
                if !matches!(reader.read_buf(&mut input).await, Ok(1..)) {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    // Whoever waits is told, and whoever comes later too.
    waiting.lock().take();
}

fn deliver(waiting: &Waiting, record: Bytes) {
    let Some(xid) = record.first_chunk::<4>().map(|xid| u32::from_be_bytes(*xid)) else { return };
    let sender = waiting.lock().as_mut().and_then(|waiting| waiting.remove(&xid));
    // A reply nobody waits for: its call was given up.
    if let Some(sender) = sender {
        let _ = sender.send(record);
    }
}
