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
use forebay_meta::{Plane, state::Identity};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    admin::{self, AdminState, metrics::NfsMetrics},
    config::{Config, SourceConfig},
    files::Export,
    front::listener,
    server::{Server, ServerOptions},
    source::{
        Source,
        local::{LocalOptions, LocalSource},
        network::Network,
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
    drain: CancellationToken,
    stop: CancellationToken,
    tasks: TaskTracker,
    serving: Arc<AtomicBool>,
    nfs_task: tokio::task::JoinHandle<()>,
}

/// Opens the plane and the exports and begins to serve.
pub async fn start(config: Config, metrics: metrics_exporter_prometheus::PrometheusHandle) -> anyhow::Result<Node> {
    let plane = Plane::open(&config.data_dir, fresh_identity).await?;
    let started = start_on(plane.clone(), config, metrics).await;
    if started.is_err() {
        plane.close().await;
    }
    started
}

async fn start_on(
    plane: Plane,
    config: Config,
    metrics: metrics_exporter_prometheus::PrometheusHandle,
) -> anyhow::Result<Node> {
    let identity = plane.read(|state| state.identity.clone()).context("the data directory has no identity")?;
    let network = Arc::new(Network::open(&config.exports, &config.cache, &identity, None).await?);
    let open = |export| open_export(export, &network);
    let exports = config.exports.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
    let options =
        ServerOptions { lease: config.lease, grace: config.grace, slots: config.slots, ..ServerOptions::default() };
    let server = Arc::new(Server::start(exports, plane, options, Arc::new(NfsMetrics::new())).await?);
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
    };
    tasks.spawn(admin::serve(admin, state, stop.clone()));
    tasks.spawn(tick(server.clone(), metrics, stop.clone()));
    let nfs_task = tokio::spawn(listener::serve(server.clone(), nfs, drain.clone()));
    for export in &config.exports {
        let access = if export.options.read_only { "ro" } else { "rw" };
        tracing::info!(name = %export.name, source = %export.url, access, "export");
    }
    tracing::info!(nfs = %nfs_address, admin = %admin_address, "serving NFSv4.1 and NFSv4.2");
    Ok(Node { nfs: nfs_address, admin: admin_address, server, network, drain, stop, tasks, serving, nfs_task })
}

impl Node {
    /// Stops accepting, finishes what is in flight, then stops everything else.
    pub async fn drain(self) {
        self.serving.store(false, Ordering::Release);
        self.drain.cancel();
        if let Err(error) = self.nfs_task.await {
            tracing::error!(%error, "the listener failed");
        }
        self.stop.cancel();
        self.tasks.close();
        // A sweep that waits for a dead disk must not keep the node from going.
        if tokio::time::timeout(TASKS_MAX, self.tasks.wait()).await.is_err() {
            tracing::warn!("something still waits for a disk");
        }
        self.network.close().await;
        self.server.plane.close().await;
        tracing::info!("drained");
    }

    /// Closes the plane: a process must not end while its disk is being written.
    pub async fn close_plane(&self) {
        self.server.plane.close().await;
    }

    /// Ends when the listener does, which it should not.
    pub async fn failed(&mut self) {
        let _ = (&mut self.nfs_task).await;
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
