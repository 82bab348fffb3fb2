//! The wire over gRPC.
//!
//! Owns: frames, their bounds and deadlines, one channel for each address. Never does: TLS, names, listening: channels are made by who begins this, and
//! the service goes into that one's server. Invariants: a frame for another node is refused, for an address may have changed hands; what a peer
//! sends is an error at worst; only what certainly did not arrive is called [`WireError::NotSent`].

use std::{collections::HashMap, error::Error, io, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::mpsc, time};
use tonic::{Code, Request, Response, Status, Streaming, transport::Channel};

use super::{
    group::MAX_COMMAND_BYTES,
    network::{Answer, Endpoint, Message, Peer, Wire, WireError},
    snapshot::MAX_CHUNK_BYTES,
    snapshot_files::CHUNKS_AHEAD,
    types::{NodeId, Vote},
};

#[allow(missing_docs, clippy::all, reason = "generated from the schema, which has the comments")]
mod schema {
    tonic::include_proto!("forebay.raft.v1");
}

use schema::{
    Frame, SnapshotPart, raft_client::RaftClient, raft_server::Raft, raft_server::RaftServer, snapshot_part::Part,
};

/// The form of payloads. It changes when openraft's messages do.
const VERSION: u32 = 1;
/// The largest frame: one message's entries are a page of the log and one command more, and what frames them.
const MAX_FRAME_BYTES: usize = (MAX_COMMAND_BYTES + (2 << 20)) * 5 / 4;
/// The largest part of a snapshot.
const MAX_PART_BYTES: usize = MAX_CHUNK_BYTES + 64;

/// Makes the channel to an address; it may connect later. Here TLS comes in.
pub type Connect = Arc<dyn Fn(&Peer) -> Result<Channel, String> + Send + Sync>;

/// The gRPC service of a node, to be put into a server.
pub type Service = RaftServer<Server>;

/// The wire.
pub struct Grpc {
    connect: Connect,
    /// By node and address: an address may become another node's, to whom a channel says who is meant. As many as the group ever had members
    /// while this process ran.
    channels: Mutex<HashMap<(NodeId, String), Channel>>,
}

impl Grpc {
    /// A wire whose channels `connect` makes.
    pub fn new(connect: Connect) -> Arc<Self> {
        Arc::new(Self { connect, channels: Mutex::default() })
    }

    /// The service of node `id`.
    pub fn service(id: NodeId, endpoint: Arc<dyn Endpoint>) -> Service {
        RaftServer::new(Server { id, endpoint })
            .max_decoding_message_size(MAX_FRAME_BYTES.max(MAX_PART_BYTES))
            .max_encoding_message_size(MAX_FRAME_BYTES)
    }

    fn client(&self, peer: &Peer) -> Result<RaftClient<Channel>, WireError> {
        let mut channels = self.channels.lock();
        let key = (peer.id, peer.address.clone());
        let channel = match channels.get(&key) {
            Some(channel) => channel.clone(),
            None => {
                let channel = (self.connect)(peer).map_err(WireError::NotSent)?;
                channels.insert(key, channel.clone());
                channel
            }
        };
        let client = RaftClient::new(channel).max_decoding_message_size(MAX_FRAME_BYTES);
        Ok(client.max_encoding_message_size(MAX_FRAME_BYTES.max(MAX_PART_BYTES)))
    }
}

fn frame(node: NodeId, value: &impl Serialize) -> Result<Frame, String> {
    let payload = postcard::to_stdvec(value).map_err(|error| error.to_string())?;
    Ok(Frame { version: VERSION, node, payload: payload.into() })
}

fn read<T: DeserializeOwned>(frame: &Frame) -> Result<T, String> {
    if frame.version != VERSION {
        return Err(format!("version {} of a message; this program speaks {VERSION}", frame.version));
    }
    match postcard::take_from_bytes(&frame.payload) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err("bytes after the end of a message".into()),
        Err(error) => Err(format!("an unreadable message: {error}")),
    }
}

/// Whether a call failed because there was no connection: then it certainly did not arrive.
pub fn is_unconnected(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// What a failed call tells about whether it arrived.
fn wire_error(status: &Status) -> WireError {
    let why = format!("{:?}: {}", status.code(), status.message());
    if is_unconnected(status) {
        return WireError::NotSent(why);
    }
    match status.code() {
        // The server's word that it did nothing.
        Code::FailedPrecondition => WireError::NotSent(why),
        _ => WireError::Lost(why),
    }
}

fn late(_: time::error::Elapsed) -> WireError {
    WireError::Lost("it took too long".into())
}

#[async_trait]
impl Wire for Grpc {
    async fn call(&self, to: &Peer, message: Message, within: Duration) -> Result<Answer, WireError> {
        let mut client = self.client(to)?;
        let mut request = Request::new(frame(to.id, &message).map_err(WireError::NotSent)?);
        request.set_timeout(within);
        let answer = time::timeout(within, client.call(request)).await.map_err(late)?;
        let answer = answer.map_err(|status| wire_error(&status))?.into_inner();
        read(&answer).map_err(WireError::Lost)
    }

    async fn snapshot(
        &self,
        to: &Peer,
        vote: Vote,
        chunks: mpsc::Receiver<io::Result<Bytes>>,
        within: Duration,
    ) -> Result<Vote, WireError> {
        let mut client = self.client(to)?;
        let begin = SnapshotPart { part: Some(Part::Begin(frame(to.id, &vote).map_err(WireError::NotSent)?)) };
        let mut request = Request::new(parts(begin, chunks));
        request.set_timeout(within);
        let answer = time::timeout(within, client.snapshot(request)).await.map_err(late)?;
        let answer = answer.map_err(|status| wire_error(&status))?.into_inner();
        read(&answer).map_err(WireError::Lost)
    }
}

/// The parts of a snapshot. It ends where an error is: without its last chunk the receiver does not take it.
fn parts(
    begin: SnapshotPart,
    chunks: mpsc::Receiver<io::Result<Bytes>>,
) -> impl Stream<Item = SnapshotPart> + Send + 'static {
    let rest = futures_util::stream::unfold(chunks, async |mut chunks| match chunks.recv().await {
        Some(Ok(chunk)) => Some((SnapshotPart { part: Some(Part::Chunk(chunk)) }, chunks)),
        Some(Err(error)) => {
            tracing::error!(%error, "a snapshot cannot be read");
            None
        }
        None => None,
    });
    futures_util::stream::iter([begin]).chain(rest)
}

/// Answers what comes over gRPC.
pub struct Server {
    id: NodeId,
    endpoint: Arc<dyn Endpoint>,
}

impl Server {
    fn check(&self, frame: &Frame) -> Result<(), Status> {
        match frame.node == self.id {
            true => Ok(()),
            false => Err(Status::failed_precondition(format!("node {} is meant; this is {}", frame.node, self.id))),
        }
    }

    fn answer(&self, value: &impl Serialize) -> Result<Response<Frame>, Status> {
        frame(self.id, value).map(Response::new).map_err(Status::internal)
    }
}

#[async_trait]
impl Raft for Server {
    async fn call(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        let frame = request.into_inner();
        self.check(&frame)?;
        let message = read(&frame).map_err(Status::failed_precondition)?;
        let answer = self.endpoint.answer(message).await.map_err(Status::unavailable)?;
        self.answer(&answer)
    }

    async fn snapshot(&self, request: Request<Streaming<SnapshotPart>>) -> Result<Response<Frame>, Status> {
        let mut parts = request.into_inner();
        let Some(SnapshotPart { part: Some(Part::Begin(begin)) }) = parts.message().await? else {
            return Err(Status::invalid_argument("a snapshot begins with a vote"));
        };
        self.check(&begin)?;
        let vote: Vote = read(&begin).map_err(Status::failed_precondition)?;
        let (sender, chunks) = mpsc::channel(CHUNKS_AHEAD);
        let receiving = async move {
            // Whatever ends it early ends the chunks early, which is noticed where they are read.
            while let Ok(Some(SnapshotPart { part: Some(Part::Chunk(chunk)) })) = parts.message().await {
                if sender.send(chunk).await.is_err() {
                    break;
                }
            }
        };
        let ((), taken) = tokio::join!(receiving, self.endpoint.take_snapshot(vote, chunks));
        self.answer(&taken.map_err(Status::aborted)?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_comes_is_an_error_or_a_message_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let frame = Frame { version: VERSION, node: 1, payload: bytes.into() };
            // Either is right; what is tested is that it returns.
            let _ = read::<Message>(&frame);
            let _ = read::<Answer>(&frame);
            let newer = Frame { version: VERSION + 1, ..frame };
            prop_assert!(read::<Message>(&newer).is_err());
        }
    }

    #[test]
    fn a_message_with_something_after_it_is_refused() {
        let message = Message::Forward(super::super::network::Request::ReadIndex);
        let mut whole = frame(1, &message).expect("it has a form");
        assert!(read::<Message>(&whole).is_ok());
        whole.payload = [&whole.payload[..], b"x"].concat().into();
        assert!(read::<Message>(&whole).is_err());
    }
}
