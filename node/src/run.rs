//! Starts the parts of a node and stops them: one cancellation down, one join up.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use forebay_meta::{
    Command, Plane,
    state::{Home, Identity},
};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    admin::{self, AdminState, metrics::NfsMetrics},
    cluster::{
        life::{Being, Cluster},
        locks::SharedLocks,
    },
    config::{ClusterConfig, Config, ExportConfig, SourceConfig},
    files::Export,
    front::listener,
    server::{Server, ServerOptions},
    source::{
        Source,
        local::{LocalOptions, LocalSource},
        network::{Network, Others},
    },
};

/// How often leases and grace are looked at.
const TICK: Duration = Duration::from_secs(2);
/// How long a drain waits for what is not a call.
const TASKS_MAX: Duration = Duration::from_secs(1);
/// Ticks between sweeps of cached descriptors: each asks about every one of them.
const SWEEP_TICKS: u64 = 5;

/// A node that serves.
#[derive(Debug)]
pub struct Node {
    /// Where NFS is served.
    pub nfs: SocketAddr,
    /// Where health and metrics are served.
    pub admin: SocketAddr,
    /// The server, for those in the same process.
    pub server: Arc<Server>,
    /// Sources on the network, and the cache.
    pub network: Arc<Network>,
    /// What makes it one of several.
    pub cluster: Option<Arc<Cluster>>,
    drain: CancellationToken,
    stop: CancellationToken,
    tasks: TaskTracker,
    serving: Arc<AtomicBool>,
    nfs_task: tokio::task::JoinHandle<()>,
}

/// Opens the plane and the exports and begins to serve.
pub async fn start(config: Config, metrics: metrics_exporter_prometheus::PrometheusHandle) -> anyhow::Result<Node> {
    let Some(cluster) = config.cluster.clone() else {
        let plane = Plane::open(&config.data_dir, fresh_identity).await?;
        let started = start_on(plane.clone(), None, config, metrics).await;
        if started.is_err() {
            plane.close().await;
        }
        return started;
    };
    let cluster = enter(cluster, &config).await?;
    let started = match shared_exports(&cluster, config).await {
        Ok(config) => start_on(cluster.plane.clone(), Some(cluster.clone()), config, metrics).await,
        Err(error) => Err(error),
    };
    if started.is_err() {
        cluster.close().await;
        cluster.plane.close().await;
    }
    started
}

/// Becomes a member of the cluster, before anything is served.
async fn enter(cluster: ClusterConfig, config: &Config) -> anyhow::Result<Arc<Cluster>> {
    let cache_bytes = config.cache.store_bytes.unwrap_or(config.cache.ram).max(config.cache.ram);
    let being = Being { data_dir: config.data_dir.clone(), nfs: config.listen, cache_bytes, cluster };
    let identity =
        |cluster: uuid::Uuid| Identity { cluster: cluster.to_string(), handle_key: uuid::Uuid::new_v4().into_bytes() };
    Cluster::start(being, identity).await
}

/// What the cluster serves: what the plane says, or if it says nothing yet, what this node was told.
async fn shared_exports(cluster: &Cluster, config: Config) -> anyhow::Result<Config> {
    let read = || cluster.plane.read_linearizable(|state| state.exports.iter().next().is_none());
    if read().await.context("the plane does not tell what is served")? {
        for export in &config.exports {
            let command = Command::PutExport { name: export.name.clone(), record: export.to_record() };
            cluster.plane.propose(command).await?;
        }
    }
    let told: Vec<_> = cluster
        .plane
        .read(|state| state.exports.iter().map(|(name, record)| (name.to_owned(), record.clone())).collect());
    let exports = told.iter().map(|(name, record)| ExportConfig::of_record(name, record));
    let exports =
        exports.collect::<Result<Vec<_>, _>>().context("what the cluster serves this program does not know")?;
    anyhow::ensure!(
        !exports.is_empty(),
        "the cluster serves nothing yet: give an export, for example --export /data=nfs://filer/data"
    );
    for own in config.exports.iter().filter(|own| exports.iter().all(|export| export.to_record() != own.to_record())) {
        tracing::warn!(export = %own.name, "this export is not the cluster's, which decides what all nodes serve");
    }
    Ok(Config { exports, ..config })
}

async fn start_on(
    plane: Plane,
    cluster: Option<Arc<Cluster>>,
    config: Config,
    metrics: metrics_exporter_prometheus::PrometheusHandle,
) -> anyhow::Result<Node> {
    let identity = plane.read(|state| state.identity.clone()).context("the data directory has no identity")?;
    let others =
        cluster.as_ref().map(|cluster| Others { coherence: cluster.coherence.clone(), chunks: cluster.peers.clone() });
    let network = Arc::new(Network::open(&config.exports, &config.cache, &identity, others.as_ref()).await?);
    let open = |export| open_export(export, &network);
    let exports = config.exports.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
    let options =
        ServerOptions { lease: config.lease, grace: config.grace, slots: config.slots, ..ServerOptions::default() };
    let counted = Arc::new(NfsMetrics::new());
    let server = match &cluster {
        None => Server::start(exports, plane, options, counted).await?,
        Some(cluster) => {
            let home = Home { node: cluster.me, epoch: cluster.epoch };
            Server::start_at(exports, plane, options, counted, home)?
        }
    };
    let server = Arc::new(server);
    if let Some(cluster) = &cluster {
        server.share_locks(SharedLocks::begin(cluster, &server));
    }
    let nfs = listener::bind(config.listen).with_context(|| format!("cannot serve NFS on {}", config.listen))?;
    let admin =
        TcpListener::bind(config.admin).await.with_context(|| format!("cannot serve admin on {}", config.admin))?;
    let (nfs_address, admin_address) = (nfs.local_addr()?, admin.local_addr()?);

    let (drain, stop, tasks) = (CancellationToken::new(), CancellationToken::new(), TaskTracker::new());
    let serving = Arc::new(AtomicBool::new(true));
    let state = AdminState {
        server: server.clone(),
        serving: serving.clone(),
        metrics: metrics.clone(),
        network: network.clone(),
        cluster: cluster.clone(),
    };
    if let Some(cluster) = &cluster {
        if let Some(chunks) = network.chunks() {
            cluster.give_chunks(chunks);
        }
        cluster.serve();
    }
    tasks.spawn(admin::serve(admin, state, stop.clone()));
    tasks.spawn(tick(server.clone(), metrics, stop.clone()));
    let nfs_task = tokio::spawn(listener::serve(server.clone(), nfs, drain.clone()));
    for export in &config.exports {
        let access = if export.options.read_only { "ro" } else { "rw" };
        tracing::info!(name = %export.name, source = %export.url, access, "export");
    }
    tracing::info!(nfs = %nfs_address, admin = %admin_address, "serving NFSv4.1 and NFSv4.2");
    Ok(Node { nfs: nfs_address, admin: admin_address, server, network, cluster, drain, stop, tasks, serving, nfs_task })
}

impl Node {
    /// Stops accepting, finishes what is in flight, then stops everything else.
    pub async fn drain(self) {
        self.serving.store(false, Ordering::Release);
        self.drain.cancel();
        if let Err(error) = self.nfs_task.await {
            tracing::error!(%error, "the listener failed");
        }
        if let Some(cluster) = &self.cluster {
            cluster.leave().await;
        }
        self.stop.cancel();
        self.tasks.close();
        // A sweep that waits for a dead disk must not keep the node from going.
        if tokio::time::timeout(TASKS_MAX, self.tasks.wait()).await.is_err() {
            tracing::warn!("something still waits for a disk");
        }
        if let Some(cluster) = &self.cluster {
            cluster.close().await;
        }
        self.network.close().await;
        self.server.plane.close().await;
        tracing::info!("drained");
    }

    /// Closes the plane: a process must not end while its disk is being written.
    pub async fn close_plane(&self) {
        self.server.plane.close().await;
    }

    /// Ends when the listener or the plane does, which they should not; says why.
    pub async fn failed(&mut self) -> String {
        tokio::select! {
            _ = &mut self.nfs_task => "the listener ended".into(),
            why = self.server.plane.stopped() => format!("the plane has stopped: {why}"),
        }
    }
}

fn open_export(config: &crate::config::ExportConfig, network: &Network) -> anyhow::Result<Export> {
    let source = match &config.source {
        SourceConfig::Local(path) => {
            let source = LocalSource::open(path, LocalOptions::default());
            Source::Local(source.with_context(|| format!("export {} cannot be served", config.name))?)
        }
        SourceConfig::Nfs4(_) | SourceConfig::Nfs3(_) => {
            let source = network.source(&config.name).context("every export on the network has a source")?;
            Source::Cached(source.cached.clone())
        }
    };
    Ok(Export { name: config.name.clone(), url: config.url.clone(), options: config.options.clone(), source })
}

fn fresh_identity() -> Identity {
    let cluster = uuid::Uuid::new_v4().to_string();
    Identity { cluster, handle_key: uuid::Uuid::new_v4().into_bytes() }
}

async fn tick(server: Arc<Server>, metrics: metrics_exporter_prometheus::PrometheusHandle, stop: CancellationToken) {
    let mut interval = tokio::time::interval(TICK);
    for number in 1.. {
        tokio::select! {
            _ = interval.tick() => {}
            () = stop.cancelled() => return,
        }
        tokio::select! {
            () = server.tick() => {}
            () = stop.cancelled() => return,
        }
        if number % SWEEP_TICKS == 0 {
            let server = server.clone();
            // Letting go of files may wait for a disk.
            if tokio::task::spawn_blocking(move || server.sweep()).await.is_err() {
                tracing::error!("the timer's work failed: this is a bug");
            }
        }
        metrics.run_upkeep();
    }
}
