//! Byte-range locks and share reservations of the whole cluster.
//!
//! Owns: asking the plane, and other nodes, before this node's own tables take a lock or an open that excludes others. Never does: keep
//! stateids (the node's tables do). A node on its own has no such thing: its own tables know all.
//!
//! Why nobody gets past: ranges are the plane's, so there is one order of all locks. Opens that deny nothing are not told to the plane; each
//! is judged, under its table's lock, by the denials in this node's replica. An open that denies something is in the plane first; then
//! every other node is asked whether it has an open that is denied, and looks into its table only when its replica has the denial: what it
//! opened before it finds, and what it opens afterwards meets the denial.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_meta::{
    Command, Plane, Reply,
    state::{self, FileKey, LockRefused, NodeId, NodeState, Owner, Share},
};
use forebay_proto::nfs4::{ClientId, Status};
use serde::{Deserialize, Serialize};

use super::{
    control::{Answerer, Control, MESSAGE_MAX, Topic},
    form::{decode, encode},
    life::Cluster,
};
use crate::{
    server::Server,
    state::{
        FileKey as TableKey,
        files::ShareBits,
        locks::{Held, LockOwner, Range},
    },
};

/// How long another node may take: it may have to catch up with the plane.
const ASK: Duration = Duration::from_secs(3);
/// What nodes ask each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Question {
    /// Whether this client's lease is over; if so it is freed.
    Expire { clientid: u64 },
    /// Whether somebody else has the file open in a way that this denies.
    Opens { file: u128, clientid: u64, owner: Vec<u8>, access: u8, deny: u8 },
}

/// Why there is no lock, or no open.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// Somebody's lock.
    Held(Held),
    /// Somebody's open.
    Shared(ClientId),
    /// Ask again.
    Status(Status),
}

/// The cluster's locks as one of its nodes uses them.
pub struct SharedLocks {
    plane: Plane,
    me: NodeId,
    control: Arc<dyn Control>,
}

impl std::fmt::Debug for SharedLocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedLocks").field("me", &self.me).finish_non_exhaustive()
    }
}

/// What the plane calls a file: the same on every node, since file systems' indices are the plane's.
fn key(file: TableKey) -> FileKey {
    FileKey::of_digest(file.0)
}

fn owner(owner: &LockOwner) -> Owner {
    Owner { clientid: owner.client.0, name: state::Bytes(owner.owner.to_vec()) }
}

fn lock(of: &LockOwner, range: Range, exclusive: bool) -> state::Held {
    state::Held { range: state::Range { first: range.first, last: range.last }, exclusive, owner: owner(of) }
}

fn held(held: &state::Held) -> Held {
    let owner = LockOwner { client: ClientId(held.owner.clientid), owner: Bytes::from(held.owner.name.0.clone()) };
    let range = Range { first: held.range.first, last: held.range.last };
    Held { range, write: held.exclusive, owner: Arc::new(owner) }
}

impl SharedLocks {
    /// Of this node; from now on it answers others about its opens and clients.
    pub fn begin(cluster: &Cluster, server: &Arc<Server>) -> Arc<Self> {
        let locks = Self { plane: cluster.plane.clone(), me: cluster.me, control: cluster.control.clone() };
        let answers = Answers { plane: cluster.plane.clone(), server: Arc::downgrade(server) };
        cluster.register(Topic::State, Arc::new(answers));
        Arc::new(locks)
    }

    async fn propose(&self, command: Command) -> Result<Reply, Refusal> {
        // All of these may be said twice: who asks again after DELAY does no harm.
        self.plane.propose(command).await.map_err(|error| {
            tracing::warn!(%error, "the plane does not answer; the client is told to ask again");
            Refusal::Status(Status::Delay)
        })
    }

    /// Takes a range.
    ///
    /// # Errors
    /// Somebody else has it, or the plane does not answer.
    pub async fn lock(
        &self,
        file: TableKey,
        of: &LockOwner,
        (range, write, waits): (Range, bool, bool),
    ) -> Result<(), Refusal> {
        let command = Command::Lock { file: key(file), lock: lock(of, range, write), waits };
        match self.propose(command).await? {
            Reply::Done => Ok(()),
            Reply::NotGranted(LockRefused::Held(by)) => Err(Refusal::Held(held(&by))),
            Reply::NotGranted(LockRefused::Shared(by)) => Err(Refusal::Shared(ClientId(by.owner.clientid))),
            Reply::NotGranted(LockRefused::Limit) => Err(Refusal::Status(Status::Resource)),
            // The plane does not know the client: it has just been forgotten.
            _ => Err(Refusal::Status(Status::BadStateid)),
        }
    }

    /// Gives a range up.
    ///
    /// # Errors
    /// The plane does not answer.
    pub async fn unlock(&self, file: TableKey, of: &LockOwner, range: Range) -> Result<(), Status> {
        let range = state::Range { first: range.first, last: range.last };
        self.release(Command::Unlock { file: key(file), owner: owner(of), range }).await
    }

    /// Gives all of an owner's ranges up.
    ///
    /// # Errors
    /// The plane does not answer.
    pub async fn release_owner(&self, file: TableKey, of: &LockOwner) -> Result<(), Status> {
        self.release(Command::ReleaseOwner { file: key(file), owner: owner(of) }).await
    }

    async fn release(&self, command: Command) -> Result<(), Status> {
        match self.propose(command).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Status::Delay),
        }
    }

    /// What is in the way of a range, as of now.
    ///
    /// # Errors
    /// The plane does not answer.
    pub async fn test(
        &self,
        file: TableKey,
        of: &LockOwner,
        range: Range,
        write: bool,
    ) -> Result<Option<Held>, Status> {
        let wanted = lock(of, range, write);
        let look = |state: &forebay_meta::State| {
            let locks = state.locks.file(key(file))?;
            locks.conflict(&wanted).map(held)
        };
        self.plane.read_linearizable(look).await.map_err(|_| Status::Delay)
    }

    /// Somebody whose denial, in this node's replica, forbids an open of this owner. Called under the table's lock.
    pub fn denies(&self, file: TableKey, client: ClientId, name: &[u8], access: ShareBits) -> Option<ClientId> {
        let share = share(client, name, access, 0);
        self.plane.read(|state| {
            let locks = state.locks.file(key(file))?;
            locks.share_conflict(&share).map(|by| ClientId(by.owner.clientid))
        })
    }

    /// An open that denies something: it is told to the plane, and nobody has an open that it denies.
    ///
    /// # Errors
    /// Somebody has, or not all can be asked.
    pub async fn reserve(
        &self,
        file: TableKey,
        (client, name): (ClientId, &[u8]),
        (access, deny): (ShareBits, ShareBits),
    ) -> Result<(), Refusal> {
        let wanted = share(client, name, access, deny);
        match self.propose(Command::Share { file: key(file), share: wanted.clone() }).await? {
            Reply::Done => {}
            Reply::NotGranted(LockRefused::Shared(by)) => return Err(Refusal::Shared(ClientId(by.owner.clientid))),
            Reply::NotGranted(_) => return Err(Refusal::Status(Status::Resource)),
            _ => return Err(Refusal::Status(Status::BadStateid)),
        }
        let asked = self.ask_all(file, &wanted).await;
        if asked.is_err() {
            // It is not open yet. If the plane does not hear it now, closing or expiry of the client will tell.
            let _ = self.unreserve(file, client, name).await;
        }
        asked
    }

    /// Gives up what an open denied.
    ///
    /// # Errors
    /// The plane does not answer.
    pub async fn unreserve(&self, file: TableKey, client: ClientId, name: &[u8]) -> Result<(), Status> {
        let owner = Owner { clientid: client.0, name: state::Bytes(name.to_vec()) };
        self.release(Command::Unshare { file: key(file), owner }).await
    }

    async fn ask_all(&self, file: TableKey, wanted: &Share) -> Result<(), Refusal> {
        let question = Question::Opens {
            file: file.0,
            clientid: wanted.owner.clientid,
            owner: wanted.owner.name.0.clone(),
            access: wanted.access,
            deny: wanted.deny,
        };
        let others: Vec<NodeId> = self.plane.read(|state| {
            let there = |(id, node): &(NodeId, &state::NodeRecord)| *id != self.me && node.state != NodeState::Lost;
            state.nodes.iter().filter(there).map(|(id, _)| id).collect()
        });
        let asked = others.into_iter().map(|node| self.ask(node, &question));
        for answer in futures_util::future::join_all(asked).await {
            match answer {
                // Nobody there.
                Some(0) => {}
                Some(holder) => return Err(Refusal::Shared(ClientId(holder))),
                None => return Err(Refusal::Status(Status::Delay)),
            }
        }
        Ok(())
    }

    /// Whether a client of whichever node was past its lease, and is freed now.
    pub async fn expire(&self, server: &Server, holder: ClientId) -> bool {
        let home = self.plane.read(|state| state.clients.client(holder.0).map(|record| record.home.node));
        match home {
            Some(home) if home == self.me => server.expire_if_over(holder).await,
            Some(home) => self.ask(home, &Question::Expire { clientid: holder.0 }).await == Some(1),
            // It went meanwhile.
            None => true,
        }
    }

    async fn ask(&self, node: NodeId, question: &Question) -> Option<u64> {
        let answer = self.control.call(node, Topic::State, encode(question), ASK).await.ok()?;
        answer[..].try_into().ok().map(u64::from_be_bytes)
    }
}

fn share(client: ClientId, name: &[u8], access: ShareBits, deny: ShareBits) -> Share {
    let bits = |bits: ShareBits| u8::try_from(bits & 3).expect("two bits");
    let owner = Owner { clientid: client.0, name: state::Bytes(name.to_vec()) };
    Share { owner, access: bits(access), deny: bits(deny) }
}

/// Answers other nodes.
struct Answers {
    plane: Plane,
    server: Weak<Server>,
}

#[async_trait]
impl Answerer for Answers {
    async fn answer(&self, _from: NodeId, message: Bytes) -> Option<Bytes> {
        let question: Question = decode(&message, MESSAGE_MAX)?;
        let server = self.server.upgrade()?;
        let answer: u64 = match question {
            Question::Expire { clientid } => u64::from(server.expire_if_over(ClientId(clientid)).await),
            Question::Opens { file, clientid, owner, access, deny } => {
                // The denial that this is about was acknowledged before it was asked: now this replica has it.
                self.plane.read_linearizable(|_| ()).await.ok()?;
                let mine = (ClientId(clientid), &owner[..]);
                let (access, deny) = (access.into(), deny.into());
                let file = TableKey(file);
                let holder = server.files.of(file).opened_against(file, mine, access, deny);
                match holder {
                    // Its lease may be over.
                    Some(holder) if server.expire_if_over(holder).await => 0,
                    Some(holder) => holder.0,
                    None => 0,
                }
            }
        };
        Some(Bytes::copy_from_slice(&answer.to_be_bytes()))
    }
}
