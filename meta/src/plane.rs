//! The plane as a node sees it: propose, read, look up a row.
//!
//! Owns: this node's member of the group that keeps the plane. Never does: judging what it is asked. Invariant: when [`Plane::propose`]
//! returns, the fact is on the disks of a majority of the voters.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::{
    raft::{
        self, Answer, ChangeError, Group, Message, Options, Peer, ProposeError, SnapshotAfter, StartError, Timing,
        Vote, Wire, WireError,
    },
    state::{Command, Identity, NodeId, Reply, State, Table},
};

/// The directory of the plane in a node's data directory.
const DIRECTORY: &str = "plane";
/// What development versions before the plane was replicated kept.
const JOURNAL: &str = "meta.journal";
/// A node on its own is its cluster's first.
const ALONE: NodeId = NodeId(1);
/// For how long a command is tried: shorter than a client waits before it asks again.
const PATIENCE: Duration = Duration::from_secs(8);

/// For how long another process may still have the directory.
const OVERLAP: Duration = Duration::from_secs(3);

/// For how long a disk that does not answer may keep a process from ending.
const CLOSING: Duration = Duration::from_secs(5);

/// Why the plane does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The group's log or state.
    #[error("{0}")]
    Start(#[from] StartError),
    /// The system refused.
    #[error("{path}: {error}")]
    Io {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A former development version's.
    #[error(
        "{0} was kept by a development version whose form is not read any more. Move it away to begin anew \
         (clients then lose their handles and must mount again)"
    )]
    Former(PathBuf),
    /// A group of one could not begin.
    #[error("the plane does not begin: {0}")]
    Begin(String),
}

/// Why a command was not carried out, or not known to be.
#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    /// The group.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

/// The plane. Clones are the same one.
#[derive(Clone)]
pub struct Plane {
    group: Group<State>,
}

impl std::fmt::Debug for Plane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plane").finish_non_exhaustive()
    }
}

impl Plane {
    /// Opens or begins the plane of a node on its own, in its data directory. `identity` makes one at the very first start.
    ///
    /// # Errors
    /// When the directory cannot be written, is another process's, or is damaged.
    pub async fn open(directory: &Path, identity: impl FnOnce() -> Identity) -> Result<Plane, OpenError> {
        let journal = directory.join(JOURNAL);
        if journal.exists() {
            return Err(OpenError::Former(journal));
        }
        let directory = directory.join(DIRECTORY);
        private_directory(&directory).map_err(|error| OpenError::Io { path: directory.clone(), error })?;
        let options = Options {
            id: ALONE.0,
            directory,
            timing: alone(),
            snapshot_after: SnapshotAfter::default(),
            patience: PATIENCE,
        };
        let group = begin(&options, Arc::new(Nobody)).await?;
        match group.initialise(BTreeMap::from([(ALONE.0, String::new())])).await {
            Ok(()) | Err(ChangeError::Initialised) => {}
            Err(error) => {
                group.shutdown().await;
                return Err(OpenError::Begin(error.to_string()));
            }
        }
        let plane = Plane { group };
        // The first command comes after all that are in the log: afterwards the state is whole.
        let began = match plane.group.read_linearizable(|replica| replica.read(|state| state.identity.is_some())).await
        {
            Ok(true) => Ok(()),
            Ok(false) => {
                plane.propose(Command::Initialise(identity())).await.map(drop).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        match began {
            Ok(()) => Ok(plane),
            Err(error) => {
                plane.close().await;
                Err(OpenError::Begin(error))
            }
        }
    }

    /// Takes part in a group of several, as node `id`, with whatever is in the data directory. A node that was never a member waits to be made one.
    ///
    /// # Errors
    /// As [`Plane::open`].
    pub async fn member(directory: &Path, id: NodeId, wire: Arc<dyn Wire>) -> Result<Plane, OpenError> {
        let directory = directory.join(DIRECTORY);
        private_directory(&directory).map_err(|error| OpenError::Io { path: directory.clone(), error })?;
        let options = Options {
            id: id.0,
            directory,
            timing: Timing::default(),
            snapshot_after: SnapshotAfter::default(),
            patience: PATIENCE,
        };
        Ok(Plane { group: begin(&options, wire).await? })
    }

    /// Whether a node has kept a plane of its own in this data directory.
    pub fn is_there(directory: &Path) -> bool {
        directory.join(DIRECTORY).exists()
    }

    /// Begins a cluster: once in its life, on one node. Does nothing if it has begun.
    ///
    /// # Errors
    /// The first commands are not carried out.
    pub async fn found(&self, id: NodeId, address: String, first: Vec<Command>) -> Result<(), OpenError> {
        match self.group.initialise(BTreeMap::from([(id.0, address)])).await {
            Ok(()) | Err(ChangeError::Initialised) => {}
            Err(error) => return Err(OpenError::Begin(error.to_string())),
        }
        for command in first {
            self.propose(command).await.map_err(|error| OpenError::Begin(error.to_string()))?;
        }
        Ok(())
    }

    /// Waits until this node's member has stopped, and tells why: a damaged or full disk, a command that it does not know.
    pub async fn stopped(&self) -> String {
        self.group.stopped().await
    }

    /// This node's member of the group.
    pub fn group(&self) -> &Group<State> {
        &self.group
    }

    /// Looks at a state that has everything that was acknowledged anywhere before this call.
    ///
    /// # Errors
    /// Nobody leads, or this node is behind.
    pub async fn read_linearizable<R>(&self, look: impl FnOnce(&State) -> R) -> Result<R, raft::ReadError> {
        self.group.read_linearizable(|replica| replica.read(look)).await
    }

    /// Has a command carried out, and says what it came to.
    ///
    /// # Errors
    /// When it was not, or it is unknown whether it was.
    pub async fn propose(&self, command: Command) -> Result<Reply, PlaneError> {
        Ok(self.group.propose(&command).await?)
    }

    /// Looks at the state as this node knows it.
    pub fn read<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        self.group.read_local(look)
    }

    /// A row of a table that is not in the state, as this node knows it: a handle.
    ///
    /// # Errors
    /// When the disk does not tell whether there is one.
    pub fn row(&self, table: Table, key: &[u8]) -> std::io::Result<Option<Vec<u8>>> {
        self.group.row_local(table as u8, key)
    }

    /// Takes part no more, and returns when everything is on disk. A process must not end before.
    pub async fn close(&self) {
        if tokio::time::timeout(CLOSING, self.group.shutdown()).await.is_err() {
            tracing::error!("the plane's disk does not answer; what was acknowledged is on it");
        }
    }
}

/// Starts the group. A process that is just ending may have the directory a moment longer.
async fn begin(options: &Options, wire: Arc<dyn Wire>) -> Result<Group<State>, OpenError> {
    let deadline = tokio::time::Instant::now() + OVERLAP;
    loop {
        match Group::start(options.clone(), wire.clone()).await {
            Err(StartError::Open(raft::OpenError::InUse(_))) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            started => return Ok(started?),
        }
    }
}

/// The key in it makes handles: nobody else may read it.
fn private_directory(directory: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Who has nobody to agree with need not wait for anybody.
fn alone() -> Timing {
    Timing {
        heartbeat: Duration::from_millis(60),
        election: Duration::from_millis(130),
        election_step: Duration::from_millis(5),
        ..Timing::default()
    }
}

/// The wire of a node on its own.
struct Nobody;

#[async_trait]
impl Wire for Nobody {
    async fn call(&self, to: &Peer, _message: Message, _within: Duration) -> Result<Answer, WireError> {
        Err(WireError::NotSent(format!("this node is on its own, and knows no node {}", to.id)))
    }

    async fn snapshot(
        &self,
        to: &Peer,
        _vote: Vote,
        _chunks: mpsc::Receiver<std::io::Result<Bytes>>,
        _within: Duration,
    ) -> Result<Vote, WireError> {
        Err(WireError::NotSent(format!("this node is on its own, and knows no node {}", to.id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Bytes, FsidKey};

    async fn open(directory: &Path) -> Plane {
        Plane::open(directory, || Identity { cluster: "cluster".into(), handle_key: [3; 16] }).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn everything_proposed_is_there_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let plane = open(directory.path()).await;
        for fsid in 0..100 {
            let reply = plane.propose(Command::AssignFsid(FsidKey::new("s", fsid))).await.unwrap();
            assert_eq!(reply, Reply::Fsid(fsid as u32 + 1));
        }
        plane.propose(Command::RegisterHandles(vec![([7; 16], Bytes(vec![1; 128]))])).await.unwrap();
        plane.propose(Command::StartEpoch { node: NodeId(1) }).await.unwrap();
        let before = plane.read(State::clone);
        assert_eq!((before.epoch, before.fsids.len()), (1, 100));
        plane.close().await;
        drop(plane);
        for _ in 0..2 {
            let plane = open(directory.path()).await;
            assert_eq!(plane.read(State::clone), before);
            assert_eq!(plane.row(Table::Handles, &[7; 16]).unwrap(), Some(vec![1; 128]));
            assert_eq!(plane.row(Table::Handles, &[8; 16]).unwrap(), None);
            plane.close().await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_directory_is_one_process_s_and_a_former_one_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let plane = open(directory.path()).await;
        let identity = || Identity { cluster: "other".into(), handle_key: [4; 16] };
        let error = Plane::open(directory.path(), identity).await.expect_err("it is in use");
        assert!(error.to_string().contains("in use"), "{error}");
        plane.close().await;
        let former = tempfile::tempdir().unwrap();
        std::fs::write(former.path().join(JOURNAL), "").unwrap();
        assert!(matches!(Plane::open(former.path(), identity).await, Err(OpenError::Former(_))));
    }
}
