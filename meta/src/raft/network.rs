//! What nodes of a group say to each other, and the two traits that carry it: [`Wire`] at who asks, [`Endpoint`] at who is asked.
//!
//! Owns: the messages, and openraft's network on any wire. Never does: sockets. Invariants: a Pre-Vote is asked of the peer, never presumed; an
//! error says whether the message may have arrived, because only what certainly has not may be said again.

use std::{io, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use openraft::{
    BasicNode, OptionalSend, RaftNetworkFactory, RaftNetworkV2,
    errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::RPCOption,
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderError, TransferLeaderRequest,
        TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, time};

use super::{
    snapshot_files::SnapshotFiles,
    types::{CommandBytes, LogIdOf, NodeId, ReplyBytes, Types, Vote},
};

type Snapshot = openraft::type_config::alias::SnapshotOf<Types, SnapshotFiles>;

/// A node to talk to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Who.
    pub id: NodeId,
    /// Where, in the wire's own terms.
    pub address: String,
}

/// What a node asks another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Message {
    /// Entries of the log, or a heartbeat.
    Append(AppendEntriesRequest<Types>),
    /// A vote.
    Vote(VoteRequest<Types>),
    /// Whether a vote would be given.
    PreVote(VoteRequest<Types>),
    /// To stand for election at once.
    Transfer {
        /// The leader that asks.
        from: Vote,
        /// Whom it asks.
        to: NodeId,
        /// What that node must have.
        last: Option<LogIdOf>,
    },
    /// Something for the leader.
    Forward(Request),
}

/// What a node that is not the leader asks the leader.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// To propose a command.
    Propose(CommandBytes),
    /// How far a state must be, to be read from as of now.
    ReadIndex,
}

/// The answer to a [`Message`], of the same name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Message::Append`].
    Append(AppendEntriesResponse<Types>),
    /// To [`Message::Vote`].
    Vote(VoteResponse<Types>),
    /// To [`Message::PreVote`].
    PreVote(VoteResponse<Types>),
    /// To [`Message::Transfer`].
    Transfer(Result<(), TransferLeaderError<Types>>),
    /// To [`Message::Forward`].
    Forward(Outcome),
}

/// What became of a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The command was applied.
    Reply(ReplyBytes),
    /// A state that is this far may be read from.
    ReadAt(LogIdOf),
    /// Nothing: this node does not lead, or not for certain. Who may.
    NotDone(Option<NodeId>),
    /// The command may be applied, or not, or still be.
    Unknown(String),
    /// Nothing, and trying again helps nothing.
    Refused(String),
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message certainly did not arrive.
    #[error("not sent: {0}")]
    NotSent(String),
    /// It may have arrived.
    #[error("no answer: {0}")]
    Lost(String),
}

/// Carries messages to other nodes.
#[async_trait]
pub trait Wire: Send + Sync + 'static {
    /// Asks `to`, and waits for the answer no longer than `within`.
    async fn call(&self, to: &Peer, message: Message, within: Duration) -> Result<Answer, WireError>;

    /// Sends the chunks of a snapshot under the leader's vote; the answer is the vote of who got it. An error among the chunks breaks the transfer
    /// off: the receiver must not take what came for all.
    async fn snapshot(
        &self,
        to: &Peer,
        vote: Vote,
        chunks: mpsc::Receiver<io::Result<Bytes>>,
        within: Duration,
    ) -> Result<Vote, WireError>;
}

/// Answers messages: what a wire's server calls.
#[async_trait]
pub trait Endpoint: Send + Sync + 'static {
    /// Answers. An error: this node has stopped.
    async fn answer(&self, message: Message) -> Result<Answer, String>;

    /// Takes the chunks of a snapshot in, and answers with this node's vote.
    async fn take_snapshot(&self, vote: Vote, chunks: mpsc::Receiver<Bytes>) -> Result<Vote, String>;
}

/// openraft's network on a wire.
#[derive(Clone)]
pub(super) struct Links {
    pub(super) wire: Arc<dyn Wire>,
    /// A snapshot of which no chunk goes over for this long is broken off.
    pub(super) stall: Duration,
}

/// A [`Wire`] to one node.
pub(super) struct Link {
    wire: Arc<dyn Wire>,
    peer: Peer,
    stall: Duration,
}

impl RaftNetworkFactory<Types> for Links {
    type Network = Link;

    async fn new_client(&mut self, target: NodeId, node: &BasicNode) -> Link {
        let peer = Peer { id: target, address: node.addr.clone() };
        Link { wire: self.wire.clone(), peer, stall: self.stall }
    }
}

impl Link {
    async fn call(&self, message: Message, option: &RPCOption) -> Result<Answer, RPCError<Types>> {
        self.wire.call(&self.peer, message, option.hard_ttl()).await.map_err(|error| match error {
            WireError::NotSent(why) => RPCError::Unreachable(Unreachable::from_string(why)),
            WireError::Lost(why) => RPCError::Network(NetworkError::from_string(why)),
        })
    }
}

/// The peer answered something else than was asked.
fn astray() -> RPCError<Types> {
    RPCError::Network(NetworkError::from_string("the answer is to another question"))
}

/// Hands chunks over as they are taken. Returns when none is for as long as `stall`, or there is no answer to the last for so long.
async fn feed(mut chunks: mpsc::Receiver<io::Result<Bytes>>, sender: mpsc::Sender<io::Result<Bytes>>, stall: Duration) {
    while let Some(chunk) = chunks.recv().await {
        match time::timeout(stall, sender.send(chunk)).await {
            Ok(Ok(())) => {}
            // Nobody takes any more: the wire has failed, and will say so.
            Ok(Err(_)) => break,
            Err(_) => return,
        }
    }
    drop(sender);
    time::sleep(stall).await;
}

impl RaftNetworkV2<Types> for Link {
    type SnapshotData = SnapshotFiles;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        match self.call(Message::Append(rpc), &option).await? {
            Answer::Append(response) => Ok(response),
            _ => Err(astray()),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.call(Message::Vote(rpc), &option).await? {
            Answer::Vote(response) => Ok(response),
            _ => Err(astray()),
        }
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.call(Message::PreVote(rpc), &option).await? {
            Answer::PreVote(response) => Ok(response),
            _ => Err(astray()),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let (sender, chunks) = mpsc::channel(1);
        let sending = self.wire.snapshot(&self.peer, vote, chunks, option.hard_ttl());
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            () = feed(snapshot.snapshot.chunks(), sender, self.stall) => {
                let why = format!("no chunk of a snapshot went over to node {} for {:?}", self.peer.id, self.stall);
                Err(StreamingError::Unreachable(Unreachable::from_string(why)))
            }
            sent = sending => match sent {
                Ok(vote) => Ok(SnapshotResponse::new(vote)),
                Err(error) => Err(StreamingError::Unreachable(Unreachable::from_string(error))),
            },
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let (from, to, last) = (*request.from_leader(), *request.to_node_id(), request.last_log_id().copied());
        match self.call(Message::Transfer { from, to, last }, &option).await? {
            Answer::Transfer(response) => Ok(response),
            _ => Err(astray()),
        }
    }
}
