//! A node of the group: propose, read, and change who belongs to it, from any node.
//!
//! Owns: openraft's node, the way to the leader, when snapshots are made. Never does: sockets, judging commands. Invariants: a proposal whose fate is
//! unknown is not made again; one that certainly was not taken is, until the caller's patience ends; what is read linearizably is as of after the
//! call began. Reads never rely on a leader's lease: nodes have different election timeouts, so their leases differ too.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use openraft::{
    BasicNode, ChangeMembers, Raft, ReadPolicy, ServerState,
    async_runtime::watch::WatchReceiver,
    errors::{ChangeMembershipError, ClientWriteError, InitializeError, LinearizableReadError, RaftError},
    raft::linearizable_read::{Linearizer, ReadLogId},
};
use tokio::{
    sync::Semaphore,
    time::{self, Instant},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    core::{Core, Damaged},
    database::OpenError,
    log_store::{LogStore, LogWatch},
    log_writer::LogFigures,
    network::{Answer, Links, Message, Outcome, Peer, Request, Wire, WireError},
    options::{Options, config},
    state_machine::{Replica, StateMachine},
    types::{CommandBytes, LogIdOf, NodeId, Types},
};

/// The largest command: a directory of 10,000 entries is registered in one or two.
pub const MAX_COMMAND_BYTES: usize = 2 << 20;
/// Commands of this node that are on their way; who has another one waits.
const MAX_IN_FLIGHT_BYTES: usize = 64 << 20;
/// What a command counts at least: it costs more than its bytes.
const MIN_COMMAND_BYTES: usize = 1 << 10;
/// Before the leader is asked again that did not take a command, or that nobody knows: a twentieth of an election.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a node did not begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its directory.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// openraft refused, or what is on the disk contradicts itself.
    #[error("{0}")]
    Raft(String),
}

/// Why there is no reply to a proposal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// It is too large.
    #[error("the command has {0} bytes; {MAX_COMMAND_BYTES} are the most")]
    TooLarge(usize),
    /// It was not done: nobody led for as long as the caller had patience.
    #[error("not done: the group has no leader that this node reaches")]
    NoLeader,
    /// It may have been done, or be done yet.
    #[error("whether it is done is not known: {0}")]
    Unknown(String),
    /// It was not done, and trying again helps nothing.
    #[error("refused: {0}")]
    Refused(String),
    /// It was done, but this node does not understand the reply.
    #[error("the reply is unreadable: {0}")]
    Reply(#[from] Damaged),
}

/// Why nothing could be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Nobody led, or this node did not catch up, for as long as the caller had patience.
    #[error("the group has no leader that this node reaches, or this node is behind")]
    NotNow,
    /// This node has stopped.
    #[error("this node has stopped: {0}")]
    Stopped(String),
}

/// Why the members are as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Only the leader changes them. Who that may be.
    #[error("this node does not lead; {0:?} may")]
    NotLeader(Option<NodeId>),
    /// The group exists: it is initialised once, ever.
    #[error("the group is initialised already")]
    Initialised,
    /// Another change is under way, or the leader is new. Nothing was done; it can be tried again.
    #[error("not now: {0}")]
    NotNow(String),
    /// Something else.
    #[error("{0}")]
    Failed(String),
}

/// How a node sees the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// This node.
    pub id: NodeId,
    /// Whether it leads.
    pub leads: bool,
    /// Who leads.
    pub leader: Option<NodeId>,
    /// The term.
    pub term: u64,
    /// Voters, of both sets while they change.
    pub voters: BTreeSet<NodeId>,
    /// All members and their addresses.
    pub members: BTreeMap<NodeId, String>,
    /// The last entry of the log.
    pub last: Option<u64>,
    /// The last entry that was applied.
    pub applied: Option<u64>,
    /// The last entry of the snapshot.
    pub snapshot: Option<u64>,
    /// The last entry that the log does not have any more.
    pub purged: Option<u64>,
    /// On the leader: the last entry that each member has.
    pub matched: BTreeMap<NodeId, Option<u64>>,
    /// Why this node has stopped.
    pub stopped: Option<String>,
}

/// A node of the group. Clones are the same node.
pub struct Group<C: Core> {
    pub(super) inner: Arc<Inner<C>>,
}

impl<C: Core> Clone for Group<C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

pub(super) struct Inner<C: Core> {
    pub(super) raft: Raft<Types, StateMachine<C>>,
    pub(super) replica: Replica<C>,
    wire: Arc<dyn Wire>,
    id: NodeId,
    patience: Duration,
    in_flight: Semaphore,
    log: LogWatch,
    _housekeeping: DropGuard,
}

impl<C: Core> Group<C> {
    /// Opens or begins this node's log and state, and takes part from now on.
    pub async fn start(options: Options, wire: Arc<dyn Wire>) -> Result<Self, StartError> {
        let config = config(&options).map_err(StartError::Raft)?;
        let Options { id, directory, patience, snapshot_after, timing } = options;
        let open = move || {
            let state = StateMachine::<C>::open(&directory, snapshot_after)?;
            let replica = state.replica();
            let log = LogStore::open(&directory.join("log"), id, Arc::new(move || replica.sync()))?;
            Ok::<_, OpenError>((state, log))
        };
        let opened = tokio::task::spawn_blocking(open).await;
        let (state, log) = opened.map_err(|error| StartError::Raft(error.to_string()))??;
        let (replica, watch) = (state.replica(), log.watch());
        let raft =
            Raft::new(id, Arc::new(config), Links { wire: wire.clone(), stall: timing.snapshot_stall }, log, state)
                .await;
        let raft = raft.map_err(|error| StartError::Raft(error.to_string()))?;
        let stop = CancellationToken::new();
        tokio::spawn(make_snapshots(raft.clone(), replica.clone(), stop.clone()));
        let in_flight = Semaphore::new(MAX_IN_FLIGHT_BYTES);
        let _housekeeping = stop.drop_guard();
        let inner = Inner { raft, replica, wire, id, patience, in_flight, log: watch, _housekeeping };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Begins the group: once in the life of a cluster, on one node. Others are invited by [`Self::add_learner`], or named here and started empty.
    pub async fn initialise(&self, members: BTreeMap<NodeId, String>) -> Result<(), ChangeError> {
        let members: BTreeMap<_, _> = members.into_iter().map(|(id, addr)| (id, BasicNode { addr })).collect();
        self.inner.raft.initialize(members).await.map_err(|error| match error {
            RaftError::APIError(InitializeError::NotAllowed(_)) => ChangeError::Initialised,
            other => ChangeError::Failed(other.to_string()),
        })
    }

    /// Has the command applied by all, and tells what it came to. From any node.
    pub async fn propose(&self, command: &C::Command) -> Result<C::Reply, ProposeError> {
        let bytes = Bytes::from(C::encode_command(command));
        if bytes.len() > MAX_COMMAND_BYTES {
            return Err(ProposeError::TooLarge(bytes.len()));
        }
        let weight = bytes.len().max(MIN_COMMAND_BYTES) as u32;
        let deadline = Instant::now() + self.inner.patience;
        let permit = time::timeout_at(deadline, self.inner.in_flight.acquire_many(weight)).await;
        let _permit = permit.map_err(|_| ProposeError::NoLeader)?.expect("the semaphore is never closed");
        let request = Request::Propose(CommandBytes(bytes));
        loop {
            match self.inner.ask_leader(&request, deadline).await {
                Outcome::Reply(reply) => return Ok(C::decode_reply(&reply.0)?),
                Outcome::Unknown(why) => return Err(ProposeError::Unknown(why)),
                Outcome::Refused(why) => return Err(ProposeError::Refused(why)),
                Outcome::NotDone(_) if Instant::now() + PAUSE < deadline => self.inner.pause().await,
                Outcome::NotDone(_) => return Err(ProposeError::NoLeader),
                Outcome::ReadAt(_) => return Err(ProposeError::Unknown("the answer is to another question".into())),
            }
        }
    }

    /// Looks at facts that are at least as new as everything that was acknowledged anywhere before this call. Asks a majority.
    pub async fn read_linearizable<R>(&self, look: impl FnOnce(&Replica<C>) -> R) -> Result<R, ReadError> {
        let deadline = Instant::now() + self.inner.patience;
        loop {
            match self.inner.ask_leader(&Request::ReadIndex, deadline).await {
                Outcome::ReadAt(at) => {
                    self.inner.catch_up(at, deadline).await?;
                    return Ok(look(&self.inner.replica));
                }
                Outcome::Refused(why) => return Err(ReadError::Stopped(why)),
                // A question has no fate: it can be asked again.
                _ if Instant::now() + PAUSE < deadline => self.inner.pause().await,
                _ => return Err(ReadError::NotNow),
            }
        }
    }

    /// Looks at the resident facts as this node has them: maybe old, never ones that were not.
    pub fn read_local<R>(&self, look: impl FnOnce(&C) -> R) -> R {
        self.inner.replica.read(look)
    }

    /// A row as this node has it.
    pub fn row_local(&self, table: u8, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.inner.replica.row(table, key)
    }

    /// This node's state.
    pub fn replica(&self) -> &Replica<C> {
        &self.inner.replica
    }

    /// On the leader: a node gets everything and votes for nothing. Returns when it is a member, not when it has caught up.
    pub async fn add_learner(&self, peer: Peer) -> Result<(), ChangeError> {
        let added = self.inner.raft.add_learner(peer.id, BasicNode { addr: peer.address }, false).await;
        added.map(drop).map_err(change_error)
    }

    /// On the leader: these are the voters from now on. Others stay as learners if `keep_others`, else they are members no more.
    pub async fn change_voters(&self, voters: BTreeSet<NodeId>, keep_others: bool) -> Result<(), ChangeError> {
        self.inner.raft.change_membership(voters, keep_others).await.map(drop).map_err(change_error)
    }

    /// On the leader: these, who do not vote, are members no more.
    pub async fn remove_learners(&self, learners: BTreeSet<NodeId>) -> Result<(), ChangeError> {
        let change = ChangeMembers::RemoveNodes(learners);
        self.inner.raft.change_membership(change, false).await.map(drop).map_err(change_error)
    }

    /// On the leader: another member is to lead.
    pub async fn transfer_leadership(&self, to: NodeId) -> Result<(), ChangeError> {
        self.inner.raft.trigger().transfer_leader(to).await.map_err(|error| ChangeError::Failed(error.to_string()))
    }

    /// Makes a snapshot now.
    pub async fn snapshot_now(&self) -> Result<(), ChangeError> {
        self.inner.raft.trigger().snapshot().await.map_err(|error| ChangeError::Failed(error.to_string()))
    }

    /// How this node sees the group.
    pub fn status(&self) -> Status {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        let index = |id: &Option<LogIdOf>| id.map(|id| id.index);
        let matched = metrics.replication.iter().flatten().map(|(&id, at)| (id, index(at)));
        Status {
            id: self.inner.id,
            leads: metrics.state == ServerState::Leader,
            leader: metrics.current_leader,
            term: metrics.current_term,
            voters: membership.voter_ids().collect(),
            members: membership.nodes().map(|(&id, node)| (id, node.addr.clone())).collect(),
            last: metrics.last_log_index,
            applied: index(&metrics.last_applied),
            snapshot: index(&metrics.snapshot),
            purged: index(&metrics.purged),
            matched: matched.collect(),
            stopped: metrics.running_state.as_ref().err().map(ToString::to_string),
        }
    }

    /// Waits until this node has stopped, and tells why: a damaged or full disk, a command that it does not know, or [`Self::shutdown`].
    pub async fn stopped(&self) -> String {
        let mut metrics = self.inner.raft.metrics();
        loop {
            let running = metrics.borrow_watched().running_state.clone();
            match running {
                Err(why) => return why.to_string(),
                Ok(()) if metrics.changed().await.is_err() => return "its task has ended".into(),
                Ok(()) => {}
            }
        }
    }

    /// What the log's thread has done.
    pub fn log_figures(&self) -> Arc<LogFigures> {
        self.inner.log.figures()
    }

    /// Takes part no more, and returns when the log is closed: a process must not end before.
    pub async fn shutdown(&self) {
        if let Err(error) = self.inner.raft.shutdown().await {
            tracing::error!(%error, "the Raft node ended badly");
        }
        self.inner.log.closed().await;
    }
}

async fn make_snapshots<C: Core>(raft: Raft<Types, StateMachine<C>>, replica: Replica<C>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = replica.snapshot_due() => {}
        }
        if raft.trigger().snapshot().await.is_err() {
            // The node has stopped, and has said why.
            return;
        }
    }
}

fn change_error(error: RaftError<Types, ClientWriteError<Types>>) -> ChangeError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(to)) => ChangeError::NotLeader(to.leader_id),
        RaftError::APIError(ClientWriteError::ChangeMembershipError(
            error @ (ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_)),
        )) => ChangeError::NotNow(error.to_string()),
        other => ChangeError::Failed(other.to_string()),
    }
}

impl<C: Core> Inner<C> {
    /// Asks who leads, this node or another, once.
    async fn ask_leader(&self, request: &Request, deadline: Instant) -> Outcome {
        let (leader, stopped) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let address = |id| metrics.membership_config.membership().get_node(&id).map(|node| node.addr.clone());
            let leader = metrics.current_leader.and_then(|id| Some(Peer { id, address: address(id)? }));
            (leader, metrics.running_state.as_ref().err().map(ToString::to_string))
        };
        let within = deadline.saturating_duration_since(Instant::now());
        match (stopped, leader) {
            (Some(why), _) => Outcome::Refused(why),
            (None, None) => Outcome::NotDone(None),
            (None, Some(peer)) if peer.id == self.id => self.do_here(request.clone(), within).await,
            (None, Some(peer)) => match self.wire.call(&peer, Message::Forward(request.clone()), within).await {
                Ok(Answer::Forward(outcome)) => outcome,
                Ok(_) => Outcome::Unknown("the answer is to another question".into()),
                Err(WireError::NotSent(_)) => Outcome::NotDone(None),
                Err(WireError::Lost(why)) => Outcome::Unknown(why),
            },
        }
    }

    /// Does it, if this node leads.
    pub(super) async fn do_here(&self, request: Request, within: Duration) -> Outcome {
        match request {
            Request::Propose(command) => match acceptable::<C>(&command) {
                Ok(()) => self.write(command, within).await,
                Err(why) => Outcome::Refused(why),
            },
            Request::ReadIndex => {
                let linearizer = self.raft.get_read_linearizer(ReadPolicy::ReadIndex);
                match time::timeout(within, linearizer).await {
                    Ok(Ok(linearizer)) => Outcome::ReadAt(*linearizer.read_log_id().log_id()),
                    Ok(Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(to)))) => {
                        Outcome::NotDone(to.leader_id)
                    }
                    Ok(Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_)))) | Err(_) => {
                        Outcome::NotDone(None)
                    }
                    Ok(Err(RaftError::Fatal(error))) => Outcome::Refused(error.to_string()),
                }
            }
        }
    }

    async fn write(&self, command: CommandBytes, within: Duration) -> Outcome {
        match time::timeout(within, self.raft.client_write(command)).await {
            Ok(Ok(response)) => Outcome::Reply(response.data),
            Ok(Err(error)) => write_outcome(error),
            Err(_) => Outcome::Unknown("it took too long".into()),
        }
    }

    /// Waits until this node's state is as far as `at`.
    async fn catch_up(&self, at: LogIdOf, deadline: Instant) -> Result<(), ReadError> {
        let within = deadline.saturating_duration_since(Instant::now());
        let linearizer = Linearizer::<Types>::new(self.id, ReadLogId::from_log_id(at), self.replica.applied().last);
        match linearizer.try_await_ready(&self.raft, Some(within)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(ReadError::NotNow),
            Err(error) => Err(ReadError::Stopped(error.to_string())),
        }
    }

    /// Waits a little, or until something about the leader changes.
    async fn pause(&self) {
        let mut metrics = self.raft.server_metrics();
        // Neither outcome tells anything: the leader is asked again either way.
        let _ = time::timeout(PAUSE, metrics.changed()).await;
    }
}

/// Whether this node knows the command. Once it is in the log, a node that does not has to stop.
fn acceptable<C: Core>(command: &CommandBytes) -> Result<(), String> {
    if command.0.len() > MAX_COMMAND_BYTES {
        return Err(format!("the command has {} bytes", command.0.len()));
    }
    C::decode_command(&command.0).map(drop).map_err(|error| format!("the leader does not know the command: {error}"))
}

fn write_outcome(error: RaftError<Types, ClientWriteError<Types>>) -> Outcome {
    match error {
        // Not appended: this node does not lead, or has not heard from a majority since it was elected.
        RaftError::APIError(ClientWriteError::ForwardToLeader(to)) => Outcome::NotDone(to.leader_id),
        RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) => {
            Outcome::Unknown("another leader came, and may have the entry or not".into())
        }
        RaftError::APIError(other) => Outcome::Refused(other.to_string()),
        RaftError::Fatal(fatal) => Outcome::Unknown(fatal.to_string()),
    }
}
