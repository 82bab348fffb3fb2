//! A source behind NFSv3: `nfs3://host[:port]/path` (RFC 1813).
//!
//! Owns: connections, MOUNT, and what RFC 1813 leaves to a client: transaction ids, sending again, judging what became of
//! a call whose reply was lost. Never does: caching of data or attributes for others; deciding who may; locks.
//! Invariants: it exists whether the source can be reached or not; each call is made with its user's credentials; the
//! change attribute of an object is its `ctime` in nanoseconds, since that is what NFSv3 tells both before and after a
//! change.

mod attributes;
mod connect;
mod engine;
mod errors;
mod look;
mod names;
mod read;
mod readdir;
mod remote;
mod remove;
mod steady;
mod write;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::timeout;

use self::engine::Engine;
use super::counters::SourceCounters;

/// How long going away may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);

/// How a source is reached.
#[derive(Clone, Debug)]
pub struct Nfs3Options {
    /// Name or address.
    pub host: String,
    /// NFS. `None`: the port mapper's word, or else 2049.
    pub port: Option<u16>,
    /// MOUNT. `None`: the port mapper's word, or else the NFS port itself, or else 20048.
    pub mount_port: Option<u16>,
    /// The directory to stand for the source's root, `/` first, as the server's exports name it.
    pub path: String,
    /// TCP connections, 1 to 16.
    pub connections: usize,
    /// Calls under way at once, 1 to 1024.
    pub slots: usize,
    /// How long a call that only asks may take, and how long a connection may be silent.
    pub call_timeout: Duration,
    /// Connect from a port below 1024 if the process may.
    pub reserved_port: bool,
    /// What AUTH_SYS tells of this machine.
    pub machine_name: String,
}

impl Nfs3Options {
    /// Four connections, 128 calls at once, ten seconds, ports as found.
    pub fn new(host: impl Into<String>, path: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            port: None,
            mount_port: None,
            path: path.into(),
            connections: 4,
            slots: 128,
            call_timeout: Duration::from_secs(10),
            reserved_port: true,
            machine_name: "forebay".into(),
        }
    }
}

/// A source behind NFSv3.
#[derive(Debug)]
pub struct Nfs3Source {
    engine: Arc<Engine>,
    tasks: Mutex<Vec<tokio::task::JoinHandle<()>>>,
}

impl Nfs3Source {
    /// Begins to connect, in the background and for ever. Must be called in a tokio runtime.
    pub fn connect(options: Nfs3Options, counters: Arc<SourceCounters>) -> Arc<Self> {
        let engine = Engine::new(options, counters);
        let tasks = connect::start(&engine);
        Arc::new(Self { engine, tasks: Mutex::new(tasks) })
    }

    /// Counters of this source.
    pub fn counters(&self) -> &Arc<SourceCounters> {
        &self.engine.counters
    }

    /// Tells the server that we go, and stops.
    async fn go_away(&self) {
        // A source that is down must not hold up who leaves; what MOUNT remembers is of no consequence.
        let _ = timeout(CLOSE_LIMIT, connect::unmount(&self.engine)).await;
        self.engine.end();
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            let _ = timeout(CLOSE_LIMIT, task).await;
        }
    }
}

impl Drop for Nfs3Source {
    fn drop(&mut self) {
        self.engine.end();
    }
}
