//! What can be asked of the plane, and what it comes to.
//!
//! Owns: the commands' binary form, which is in the log for ever. A new command is added at the end, never in between; a field is never
//! added to one that exists. The golden file has one of each.

use serde::{Deserialize, Serialize};

use super::{
    Identity,
    changes::Bytes,
    clients::{ClientRecord, Home},
    fsids::FsidKey,
    locks::{FileKey, Held, LockRefused, Owner, Range, Share},
    nodes::{NodeDescription, NodeId, NodeState},
    tables::{ExportRecord, HandleKey},
};

/// A change of the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Sets the identity, if there is none yet.
    Initialise(Identity),
    /// The plane's time goes on; the leader says how far. Leases and reclaims that are over end.
    Tick {
        /// Milliseconds that some leader has led. Never goes back.
        now_ms: u64,
    },
    /// A node becomes known, or tells anew what it is.
    Join {
        /// Which.
        node: NodeId,
        /// What it tells.
        description: NodeDescription,
    },
    /// A node's process begins: clientids and stateids of its epoch differ from all before, on whatever node.
    StartEpoch {
        /// Which.
        node: NodeId,
    },
    /// A node begins to serve, or to drain. Only its latest process may say so.
    SetNodeState {
        /// Which.
        node: NodeId,
        /// Of its process.
        epoch: u32,
        /// What it is now.
        state: NodeState,
    },
    /// The leader has heard of these nodes, with the epochs of their processes, since its last command.
    RenewLeases {
        /// Which.
        nodes: Vec<(NodeId, u32)>,
        /// As in `Tick`.
        now_ms: u64,
    },
    /// A node is gone for good.
    Leave {
        /// Which.
        node: NodeId,
    },
    /// Serves a source under a name, or changes how.
    PutExport {
        /// The name, with its slash.
        name: String,
        /// What and how.
        record: ExportRecord,
    },
    /// Serves it no longer.
    RemoveExport {
        /// The name.
        name: String,
    },
    /// The index of a source's file system; assigned at first sight.
    AssignFsid(FsidKey),
    /// Source handles that do not fit into ours, under their keys.
    RegisterHandles(Vec<(HandleKey, Bytes)>),
    /// A client holds state: after a restart it may reclaim.
    RecordClient(ClientRecord),
    /// A client holds nothing any more; its locks and opens go.
    ForgetClient {
        /// Which.
        clientid: u64,
    },
    /// The node's grace period is over: clients of its earlier processes that did not come back may not reclaim.
    ForgetUnreclaimed {
        /// The process that ends the grace.
        home: Home,
    },
    /// A client's sessions live elsewhere from now on.
    MoveClient {
        /// Which.
        clientid: u64,
        /// Where the mover believes that they live.
        from: Home,
        /// Where they live now.
        to: Home,
    },
    /// Clients of a home that is gone may reclaim until then.
    OpenReclaim {
        /// The home.
        home: Home,
        /// Plane time.
        until_ms: u64,
    },
    /// A client has reclaimed what it wanted.
    ReclaimComplete {
        /// Which.
        clientid: u64,
    },
    /// Takes a byte range.
    Lock {
        /// Of which file.
        file: FileKey,
        /// Where, how, for whom.
        lock: Held,
        /// Whether the client will ask again.
        waits: bool,
    },
    /// Gives up a byte range.
    Unlock {
        /// Of which file.
        file: FileKey,
        /// Whose.
        owner: Owner,
        /// Where.
        range: Range,
    },
    /// Gives up all ranges of an owner.
    ReleaseOwner {
        /// Of which file.
        file: FileKey,
        /// Whose.
        owner: Owner,
    },
    /// Reserves an open, or changes what the owner's open reserves.
    Share {
        /// Of which file.
        file: FileKey,
        /// For whom, and what.
        share: Share,
    },
    /// Gives up an open.
    Unshare {
        /// Of which file.
        file: FileKey,
        /// Whose.
        owner: Owner,
    },
    /// Keeps a path in the cache.
    Pin {
        /// Of which export.
        export: String,
        /// Below its root.
        path: Bytes,
    },
    /// Keeps it no longer.
    Unpin {
        /// Of which export.
        export: String,
        /// Below its root.
        path: Bytes,
    },
    /// Keeps a secret.
    PutSecret {
        /// Its name.
        name: String,
        /// What it is.
        secret: Bytes,
    },
    /// Keeps it no longer.
    RemoveSecret {
        /// Its name.
        name: String,
    },
    /// Lets a new node in; the same key gets the same id.
    AdmitNode {
        /// The node's public key.
        key: Bytes,
    },
}

/// What a command came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// The epoch that begins.
    Epoch(u32),
    /// The file system's index.
    Fsid(u32),
    /// The client is recorded; an earlier incarnation of the same owner is forgotten.
    Replaced {
        /// Its clientid.
        clientid: u64,
    },
    /// Nothing is changed: there is no such thing, or it is not the caller's any more.
    Absent,
    /// The lock or open is not granted.
    NotGranted(LockRefused),
    /// Nothing is changed: it is more than the plane keeps.
    Refused(String),
    /// The node's id.
    Node(NodeId),
}

/// The first byte of a command in the log, and of a reply on the wire.
const VERSION: u8 = 1;

/// Why bytes are no command, or no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotEncoded {
    /// Written by another program.
    #[error("a command or reply of version {0}; this program reads {VERSION}: does a newer one lead the cluster?")]
    Version(u8),
    /// Its bytes make no sense.
    #[error("a command or reply does not decode: {0}")]
    Damaged(String),
}

impl Command {
    /// Its form in the log.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// What [`Command::encode`] made.
    ///
    /// # Errors
    /// When it was made by a program with other commands, or is damaged.
    pub fn decode(bytes: &[u8]) -> Result<Command, NotEncoded> {
        decode(bytes)
    }
}

impl Reply {
    /// Its form on the wire.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// What [`Reply::encode`] made.
    ///
    /// # Errors
    /// As [`Command::decode`].
    pub fn decode(bytes: &[u8]) -> Result<Reply, NotEncoded> {
        decode(bytes)
    }
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(value, vec![VERSION]).expect("our own types have a binary form, and memory grows")
}

fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, NotEncoded> {
    let (&version, value) = bytes.split_first().ok_or_else(|| NotEncoded::Damaged("it is empty".into()))?;
    if version != VERSION {
        return Err(NotEncoded::Version(version));
    }
    match postcard::take_from_bytes(value) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(NotEncoded::Damaged(format!("{} bytes are left over", rest.len()))),
        Err(error) => Err(NotEncoded::Damaged(error.to_string())),
    }
}
