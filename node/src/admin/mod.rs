//! What operators see and do: health, metrics, status, what bounds the node, what is in the cache; on a port of their own.
//!
//! The port asks nobody who he is: it listens on loopback unless told otherwise, and whoever can reach it is trusted.
//!
//! Invariant: `/healthz` is 200 only while NFS is served; a balancer stops sending clients before the node goes.

pub mod cache;
pub mod cluster;
pub mod doctor;
pub mod metrics;

use std::{
    future::IntoFuture,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{Json, Router, extract::State, http::StatusCode, routing::get};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{cluster::life::Cluster, server::Server, source::network::Network};

/// What the pages show.
#[derive(Clone, Debug)]
pub struct AdminState {
    /// The server.
    pub server: Arc<Server>,
    /// Whether NFS is served.
    pub serving: Arc<AtomicBool>,
    /// Counters.
    pub metrics: PrometheusHandle,
    /// Sources on the network, and the cache.
    pub network: Arc<Network>,
    /// What makes the node one of several.
    pub cluster: Option<Arc<Cluster>>,
}

/// What `forebay status` shows.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Status {
    /// The program's version.
    pub version: String,
    /// The cluster's id.
    pub cluster: String,
    /// "serving" or "draining".
    pub state: String,
    /// Starts so far.
    pub epoch: u64,
    /// Seconds since this one.
    pub uptime_seconds: u64,
    /// Clients with a session.
    pub clients: usize,
    /// Sessions.
    pub sessions: usize,
    /// Opens.
    pub opens: usize,
    /// Byte-range locks.
    pub locks: usize,
    /// Seconds of grace left, and clients still expected.
    pub grace_seconds_left: u64,
    /// Clients still expected in grace.
    pub grace_clients_expected: usize,
    /// What is served.
    pub exports: Vec<ExportStatus>,
    /// The cluster, if the node is one of several.
    #[serde(default)]
    pub members: Option<cluster::Members>,
}

/// One export.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct ExportStatus {
    /// `/name`.
    pub name: String,
    /// Where its files are.
    pub source: String,
    /// "rw" or "ro".
    pub access: String,
}

/// Serves until `stop`.
pub async fn serve(listener: TcpListener, state: AdminState, stop: CancellationToken) {
    let router = Router::new()
        .route("/healthz", get(health))
        .route("/metrics", get(render))
        .route("/status", get(status))
        .route("/v1/doctor", get(doctor::answer))
        .with_state(state.clone())
        .merge(cache::routes(state, stop.clone()));
    let service = axum::serve(listener, router).with_graceful_shutdown({
        let stop = stop.clone();
        async move { stop.cancelled().await }
    });
    // A reader that never goes must not keep the node from going.
    let grace = async {
        stop.cancelled().await;
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    };
    tokio::select! {
        result = service.into_future() => if let Err(error) = result { tracing::error!(%error, "admin port"); },
        () = grace => {}
    }
}

async fn health(State(state): State<AdminState>) -> (StatusCode, &'static str) {
    if state.serving.load(Ordering::Acquire) {
        (StatusCode::OK, "serving\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    }
}

async fn render(State(state): State<AdminState>) -> String {
    let (opens, locks) = state.server.files.counts();
    let (clients, _) = state.server.clients.lock().counts();
    ::metrics::gauge!("forebay_nfs_opens").set(opens as f64);
    ::metrics::gauge!("forebay_nfs_locks").set(locks as f64);
    ::metrics::gauge!("forebay_nfs_clients").set(clients as f64);
    ::metrics::gauge!("forebay_nfs_sessions").set(state.server.sessions.len() as f64);
    ::metrics::gauge!("forebay_nfs_grace").set(f64::from(u8::from(state.server.in_grace())));
    let network = state.network.render();
    state.metrics.render() + &state.server.metrics.render() + &network
}

async fn status(State(state): State<AdminState>) -> Json<Status> {
    let server = &state.server;
    let (opens, locks) = server.files.counts();
    let (clients, _) = server.clients.lock().counts();
    let (grace_clients_expected, grace_ms) = server.grace_left();
    let export = |export: &Arc<crate::files::Export>| ExportStatus {
        name: export.name.clone(),
        source: export.url.clone(),
        access: if export.options.read_only { "ro" } else { "rw" }.into(),
    };
    Json(Status {
        version: env!("CARGO_PKG_VERSION").into(),
        cluster: server.identity.cluster.clone(),
        state: if state.serving.load(Ordering::Acquire) { "serving" } else { "draining" }.into(),
        epoch: server.epoch(),
        uptime_seconds: server.now().0 / 1000,
        clients,
        sessions: server.sessions.len(),
        opens,
        locks,
        grace_seconds_left: grace_ms.div_ceil(1000),
        grace_clients_expected,
        exports: server.namespace.exports().iter().map(export).collect(),
        members: state.cluster.as_deref().map(cluster::Members::of),
    })
}
