//! A source behind NFSv4.1 or 4.2: `nfs://host[:port]/path`.
//!
//! Owns: one session with the source over several connections, and what RFC 8881 asks of a client. Never does: caching
//! of data or attributes; deciding who may.
//! Invariants: it exists whether the source can be reached or not; each call is made with its user's credentials, those
//! of session and lease always with the same; what changes something is run once as far as the protocol can tell.

mod attend;
mod attributes;
mod callback;
mod connect;
mod data;
mod engine;
mod errors;
mod identity;
mod look;
mod look_many;
mod names;
mod opens;
pub(crate) mod paths;
mod readdir;
mod remote;
mod session;
mod slots;
mod verdict;
mod wire;
mod write;
mod xattr;

use std::{collections::HashSet, sync::Arc, time::Duration};

use forebay_proto::{
    limits::{IO_MAX, OPERATIONS_MAX},
    nfs4::{
        Op, Verifier,
        ops::{destroy_clientid::DestroyClientidArgs, destroy_session::DestroySessionArgs},
    },
};
use parking_lot::Mutex;
use tokio::{sync::mpsc, time::timeout};

use self::engine::Engine;
use super::{SourceError, SourceFsid, counters::SourceCounters, remote::Health, rpc::link};

/// Calls of the server that wait to be answered.
const CALLBACKS: usize = 64;
/// How long going away may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);

/// How a source is reached.
#[derive(Clone, Debug)]
pub struct Nfs4Options {
    /// Name or address.
    pub host: String,
    /// 2049 as a rule.
    pub port: u16,
    /// The directory to stand for the source's root, `/` first.
    pub path: String,
    /// TCP connections, 1 to 16.
    pub connections: usize,
    /// Slots to ask for, at most 128.
    pub slots: u32,
    /// Operations in one COMPOUND to ask for, at most 256.
    pub operations: u32,
    /// Largest READ and WRITE to ask for, at most 1 MiB.
    pub io_max: u32,
    /// Minor versions in the order they are tried.
    pub minor_versions: Vec<u32>,
    /// `co_ownerid`: one string, one client, for ever.
    pub owner: String,
    /// `co_verifier`: another value is another start of the same client.
    pub verifier: Verifier,
    /// How long a call that only asks may take, and how long a connection may be silent.
    pub call_timeout: Duration,
    /// Read and write without an open where the source allows it. Where it does not, files are opened all the same.
    pub anonymous: bool,
    /// Connect from a port below 1024 if the process may.
    pub reserved_port: bool,
    /// What AUTH_SYS tells of this machine.
    pub machine_name: String,
}

impl Nfs4Options {
    /// Four connections, 128 slots, minor version 2 or else 1, ten seconds.
    pub fn new(host: impl Into<String>, port: u16, path: impl Into<String>, owner: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            port,
            path: path.into(),
            connections: 4,
            slots: 128,
            operations: OPERATIONS_MAX,
            io_max: IO_MAX,
            minor_versions: vec![2, 1],
            owner: owner.into(),
            verifier: uuid::Uuid::new_v4().as_u64_pair().0.to_be_bytes(),
            call_timeout: Duration::from_secs(10),
            anonymous: true,
            reserved_port: true,
            machine_name: "forebay".into(),
        }
    }
}

/// The parts of a path, without empty ones.
pub(crate) fn components(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty()).collect()
}

/// A source behind NFSv4.1 or 4.2.
#[derive(Debug)]
pub struct Nfs4Source {
    engine: Arc<Engine>,
    unsupported: Unsupported,
    tasks: Mutex<Vec<tokio::task::JoinHandle<()>>>,
}

/// What the source has said it does not have, for each of its file systems.
#[derive(Debug, Default)]
struct Unsupported(Mutex<HashSet<(SourceFsid, Optional)>>);

/// File systems remembered: sources with more are asked again now and then.
const UNSUPPORTED_MAX: usize = 1024;

/// What a source may be without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Optional {
    Seek,
    Allocate,
    Deallocate,
    Xattr,
}

impl Unsupported {
    fn has(&self, fsid: SourceFsid, what: Optional) -> bool {
        self.0.lock().contains(&(fsid, what))
    }

    fn insert(&self, fsid: SourceFsid, what: Optional) {
        let mut all = self.0.lock();
        if all.len() >= UNSUPPORTED_MAX {
            all.clear();
        }
        all.insert((fsid, what));
    }
}

impl Nfs4Source {
    /// Begins to connect, in the background and for ever. Must be called in a tokio runtime.
    pub fn connect(options: Nfs4Options, counters: Arc<SourceCounters>) -> Arc<Self> {
        let (callbacks, called) = mpsc::channel(CALLBACKS);
        let engine = Engine::new(options, counters, callbacks);
        let tasks =
            vec![tokio::spawn(connect::keep(engine.clone())), tokio::spawn(callback::serve(engine.clone(), called))];
        Arc::new(Self { engine, unsupported: Unsupported::default(), tasks: Mutex::new(tasks) })
    }

    /// Counters of this source.
    pub fn counters(&self) -> &Arc<SourceCounters> {
        &self.engine.counters
    }

    /// Something that only asks, given up in time.
    pub(crate) async fn within_deadline<T>(
        &self,
        work: impl Future<Output = Result<T, SourceError>>,
    ) -> Result<T, SourceError> {
        self.engine.asking(work).await
    }

    /// Whether it answers.
    fn is_healthy(&self) -> Health {
        if self.engine.is_down() { Health::Down } else { Health::Up }
    }

    /// Gives back what the server keeps for us, and stops.
    async fn go_away(&self) {
        let session = self.engine.session.borrow().clone();
        let leaving = async {
            let Some(session) = session else { return };
            self.engine.opens.close_all(&self.engine).await;
            let destroy = Op::DestroySession(DestroySessionArgs { session: session.id });
            connect::last_word(&self.engine, &session, destroy).await;
            let destroy = Op::DestroyClientid(DestroyClientidArgs { clientid: session.clientid });
            connect::last_word(&self.engine, &session, destroy).await;
        };
        // A source that is down must not hold up who leaves; its lease ends by itself.
        let _ = timeout(CLOSE_LIMIT, leaving).await;
        self.stop();
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            let _ = timeout(CLOSE_LIMIT, task).await;
        }
    }

    fn stop(&self) {
        self.engine.end();
        let session = self.engine.session.borrow().clone();
        if let Some(session) = session {
            self.engine.lost(&session);
        }
    }
}

impl Drop for Nfs4Source {
    fn drop(&mut self) {
        self.stop();
    }
}
