//! Nodes that live and die: each has a runtime of its own, and dies by losing it in whatever it was doing.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_meta::raft::{
    Group, NodeId, OpenError, Options, Peer, SnapshotAfter, StartError, Timing,
    in_process::{InProcess, Weather},
};
use parking_lot::RwLock;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::ledger::Ledger;

pub type Node = Group<Ledger>;

/// Short, so that a test sees many elections.
pub const TIMING: Timing = Timing {
    heartbeat: Duration::from_millis(100),
    election: Duration::from_millis(300),
    election_step: Duration::from_millis(60),
    snapshot_stall: Duration::from_secs(2),
};

pub struct Cluster {
    directory: TempDir,
    network: InProcess,
    snapshot_after: SnapshotAfter,
    patience: Duration,
    running: RwLock<HashMap<NodeId, (Runtime, Node)>>,
}

impl Cluster {
    pub fn new(weather: Arc<dyn Weather>, snapshot_after: SnapshotAfter, patience: Duration) -> Self {
        let network = InProcess::new(weather);
        let directory = tempfile::tempdir().unwrap();
        Self { directory, network, snapshot_after, patience, running: RwLock::default() }
    }

    /// `count` nodes from 1 on, of which the first `voters` vote, and a leader.
    pub fn begun(self, voters: u64, count: u64) -> Self {
        for id in 1..=count {
            self.start(id);
        }
        let members: BTreeMap<_, _> = (1..=voters).map(|id| (id, id.to_string())).collect();
        let first = self.node(1).unwrap();
        block_on(first.initialise(members)).unwrap();
        for id in voters + 1..=count {
            wait_for("a learner to be added", || {
                let leader = self.node(self.leader())?;
                block_on(leader.add_learner(Peer { id, address: id.to_string() })).ok()
            });
        }
        self
    }

    pub fn path(&self, id: NodeId) -> PathBuf {
        self.directory.path().join(id.to_string())
    }

    /// Begins a node, which then is no part of the cluster yet.
    pub async fn begin(&self, id: NodeId) -> Result<Node, StartError> {
        let options = Options {
            id,
            directory: self.path(id),
            timing: TIMING,
            snapshot_after: self.snapshot_after,
            patience: self.patience,
        };
        Node::start(options, self.network.from(id)).await
    }

    pub fn start(&self, id: NodeId) {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let node = loop {
            match runtime.block_on(self.begin(id)) {
                Ok(node) => break node,
                // Whoever was asking the dead node something still has its database open.
                Err(StartError::Open(OpenError::InUse(_))) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => panic!("node {id}: {error}"),
            }
        };
        self.network.connect(id, Arc::new(node.clone()));
        self.running.write().insert(id, (runtime, node));
    }

    /// The node is gone in the middle of what it did; what it had queued is not written.
    pub fn kill(&self, id: NodeId) {
        self.network.disconnect(id);
        let gone = self.running.write().remove(&id);
        if let Some((runtime, node)) = gone {
            runtime.shutdown_timeout(Duration::from_secs(10));
            drop(node);
        }
    }

    pub fn stop(&self, id: NodeId) {
        self.network.disconnect(id);
        let gone = self.running.write().remove(&id);
        if let Some((runtime, node)) = gone {
            runtime.block_on(node.shutdown());
            drop(node);
            runtime.shutdown_timeout(Duration::from_secs(10));
        }
    }

    pub fn node(&self, id: NodeId) -> Option<Node> {
        self.running.read().get(&id).map(|(_, node)| node.clone())
    }

    pub fn nodes(&self) -> Vec<(NodeId, Node)> {
        let mut nodes: Vec<_> = self.running.read().iter().map(|(&id, (_, node))| (id, node.clone())).collect();
        nodes.sort_by_key(|(id, _)| *id);
        nodes
    }

    /// Who leads, according to itself and with the highest term.
    pub fn leader_now(&self) -> Option<NodeId> {
        let statuses = self.nodes().into_iter().map(|(_, node)| node.status());
        statuses.filter(|status| status.leads).max_by_key(|status| status.term).map(|status| status.id)
    }

    pub fn leader(&self) -> NodeId {
        wait_for("a leader", || self.leader_now())
    }

    /// Waits until every running node has applied as much as the one that has applied most.
    pub fn settle(&self) {
        let statuses = || self.nodes().iter().map(|(_, node)| node.status()).collect::<Vec<_>>();
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let now = statuses();
            let applied = now.iter().map(|status| status.applied);
            let (least, most) = (applied.clone().min().flatten(), applied.max().flatten());
            let last = now.iter().map(|status| status.last).max().flatten();
            if least == most && most == last {
                return;
            }
            assert!(Instant::now() < until, "waited a minute for everybody to have everything: {now:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let ids: Vec<_> = self.running.read().keys().copied().collect();
        for id in ids {
            self.stop(id);
        }
    }
}

pub fn block_on<F: Future>(future: F) -> F::Output {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "waited a minute for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
