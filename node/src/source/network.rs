//! The sources of a node that are reached over a network, and the cache they share.
//!
//! Owns: putting source, budget and cache together, and taking them apart. Never does: what they do.

use std::{collections::HashMap, sync::Arc, time::Duration};

use forebay_meta::state::Identity;

use super::{
    budget::Budget,
    cached::{CachedOptions, CachedSource, ChunkPeers, SharedChunks, Sharing, export_number},
    counters::SourceCounters,
    metered::MeteredSource,
    nfs3::{Nfs3Options, Nfs3Source},
    nfs4::{Nfs4Options, Nfs4Source},
    remote::RemoteSource,
    shared::SharedSource,
};
use crate::{
    cache::{Cache, CacheOptions, OpenError, QUEUE_BYTES, StoreOptions},
    config::{CacheConfig, ExportConfig, NetworkOptions, Server, SourceConfig},
    ring::coherence::Coherence,
};

/// The usual port of NFS.
const NFS_PORT: u16 = 2049;
/// Memory for what is known of an export's files, unless it says how much.
const METADATA_MIN: u64 = 4 << 20;
const METADATA_MAX: u64 = 256 << 20;
/// Bytes that wait to be written to the store, at least so many may.
const QUEUE_MIN: u64 = 8 << 20;
/// How long a source may take to say good-bye.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// One source.
#[derive(Debug)]
pub struct NetworkSource {
    /// The export's name.
    pub export: String,
    /// As configured.
    pub url: String,
    /// How its budget stands.
    pub metered: Arc<MeteredSource>,
    /// What it was asked.
    pub counters: Arc<SourceCounters>,
    /// What stands in front of it.
    pub cached: Arc<CachedSource>,
}

/// What the sources of one of several nodes need of the others.
#[derive(Clone)]
pub struct Others {
    /// Who owns what, and who believes what.
    pub coherence: Arc<Coherence>,
    /// Their chunks.
    pub chunks: Arc<dyn ChunkPeers>,
}

/// All of them.
#[derive(Debug)]
pub struct Network {
    cache: Option<Arc<Cache>>,
    sources: Vec<NetworkSource>,
}

impl Network {
    /// Opens the cache, if there are exports that need one, and begins to connect. A store that cannot be used is no
    /// reason not to serve: then data is kept in memory, and the log says so.
    ///
    /// # Errors
    /// The store must not be touched: it is another program's or another version's.
    pub async fn open(
        exports: &[ExportConfig],
        config: &CacheConfig,
        identity: &Identity,
        others: Option<&Others>,
    ) -> Result<Self, OpenError> {
        let far: Vec<&ExportConfig> =
            exports.iter().filter(|export| !matches!(export.source, SourceConfig::Local(_))).collect();
        if far.is_empty() {
            return Ok(Self { cache: None, sources: Vec::new() });
        }
        // Attributes and names are in the memory that was given too; at least half of it is for data.
        let share = (config.ram / 8 / far.len() as u64).clamp(METADATA_MIN, METADATA_MAX);
        let metadata = |export: &ExportConfig| export.network.metadata.unwrap_or(share);
        let for_metadata: u64 = far.iter().map(|export| metadata(export)).sum();
        let ram = config.ram.saturating_sub(for_metadata).max(config.ram / 2);
        let cache = open_cache(&far, &CacheConfig { ram, ..config.clone() }).await?;
        let sources =
            far.into_iter().map(|export| open_source(export, metadata(export), &cache, (identity, others))).collect();
        Ok(Self { cache: Some(cache), sources })
    }

    /// The chunks that other nodes are given.
    pub fn chunks(&self) -> Option<Arc<SharedChunks>> {
        let chunks = Arc::new(SharedChunks::new(self.cache.clone()?));
        self.sources.iter().for_each(|source| chunks.add(&source.cached));
        Some(chunks)
    }

    /// The cached source of an export.
    pub fn source(&self, export: &str) -> Option<&NetworkSource> {
        self.sources.iter().find(|source| source.export == export)
    }

    /// All sources.
    pub fn sources(&self) -> &[NetworkSource] {
        &self.sources
    }

    /// The cache, if there is one.
    pub fn cache(&self) -> Option<&Arc<Cache>> {
        self.cache.as_ref()
    }

    /// Brings gauges up to date; what counters have to say in Prometheus' text format.
    pub fn render(&self) -> String {
        if let Some(cache) = &self.cache {
            cache.stats();
        }
        self.sources.iter().for_each(|source| source.metered.publish());
        SourceCounters::render(self.sources.iter().map(|source| &*source.counters))
    }

    /// Says good-bye to the sources and puts what is queued on disk.
    pub async fn close(&self) {
        let leaving = self.sources.iter().map(|source| source.metered.close());
        if tokio::time::timeout(CLOSE_MAX, futures_util::future::join_all(leaving)).await.is_err() {
            tracing::warn!("a source did not answer the good-bye; what it keeps for us ends with our lease");
        }
        if let Some(cache) = &self.cache {
            cache.close().await;
        }
    }
}

async fn open_cache(exports: &[&ExportConfig], config: &CacheConfig) -> Result<Arc<Cache>, OpenError> {
    let quotas: HashMap<u64, u64> =
        exports.iter().filter_map(|export| Some((export_number(&export.name), export.network.quota?))).collect();
    let store = config.store.clone().map(|path| StoreOptions { bytes: config.store_bytes, ..StoreOptions::at(path) });
    // What waits to be written, and what is on its way from the sources, is memory too.
    let queue_bytes = (config.ram / 32).clamp(QUEUE_MIN, QUEUE_BYTES);
    let ram = config.ram.saturating_sub(queue_bytes + config.ram / 10);
    let options = CacheOptions { store, quotas, queue_bytes, ..CacheOptions::ram(ram) };
    // Reading what the store has takes a while if it is large.
    let opening = tokio::task::spawn_blocking(move || {
        if let Some(store) = &options.store {
            // Only the last part: a path that is missing further up is a disk that is not mounted.
            let _ = std::fs::create_dir(&store.path);
        }
        match Cache::open(options.clone()) {
            Err(error @ (OpenError::Missing { .. } | OpenError::NoSpace { .. } | OpenError::Io { .. })) => {
                tracing::error!(%error, "data is cached in memory only until the next start");
                metrics::gauge!("forebay_cache_store_degraded").set(1.0);
                Cache::open(CacheOptions { store: None, ..options })
            }
            opened => opened,
        }
    });
    opening.await.expect("opening a cache does not panic")
}

fn open_source(
    export: &ExportConfig,
    metadata_bytes: u64,
    cache: &Arc<Cache>,
    (identity, others): (&Identity, Option<&Others>),
) -> NetworkSource {
    let options = &export.network;
    let counters = Arc::new(SourceCounters::new(export.url.clone()));
    let remote: Arc<dyn RemoteSource> = match &export.source {
        SourceConfig::Nfs4(server) => {
            Nfs4Source::connect(nfs4_options(export, server, options, identity), counters.clone())
        }
        SourceConfig::Nfs3(server) => Nfs3Source::connect(nfs3_options(server, options), counters.clone()),
        SourceConfig::Local(_) => unreachable!("only sources on the network are opened here"),
    };
    let budget = Budget::new(options.budget, options.budget_balance, 0.0);
    let metered = MeteredSource::new(remote, budget, &export.url);
    let cached = CachedOptions { metadata_bytes, ..options.cached };
    let seed = uuid::Uuid::new_v4().as_u64_pair().0;
    let name = (export.name.as_str(), export.url.as_str());
    let cached = match others {
        None => CachedSource::new(name, metered.clone(), cache.clone(), cached, seed),
        Some(others) => {
            let source = SharedSource::new(metered.clone(), others.coherence.clone(), &export.name);
            let sharing = Sharing::new(source, others.chunks.clone());
            CachedSource::shared(name, sharing, cache.clone(), cached, seed)
        }
    };
    NetworkSource { export: export.name.clone(), url: export.url.clone(), metered, counters, cached }
}

fn nfs4_options(export: &ExportConfig, server: &Server, options: &NetworkOptions, identity: &Identity) -> Nfs4Options {
    let owner = format!("forebay {} {} {}", identity.cluster, export.name, export.url);
    Nfs4Options {
        connections: options.connections as usize,
        slots: options.slots,
        call_timeout: options.timeout,
        ..Nfs4Options::new(server.host.clone(), server.port.unwrap_or(NFS_PORT), server.path.clone(), owner)
    }
}

fn nfs3_options(server: &Server, options: &NetworkOptions) -> Nfs3Options {
    Nfs3Options {
        port: server.port,
        mount_port: options.mount_port,
        connections: options.connections as usize,
        slots: options.slots as usize,
        call_timeout: options.timeout,
        ..Nfs3Options::new(server.host.clone(), server.path.clone())
    }
}
