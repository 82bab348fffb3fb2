//! A server in this process, on a directory that is gone after the test, and clients to ask it things.
//!
//! Leases, grace and the timer are the test's own: nothing here waits for wall-clock minutes.
#![allow(dead_code, reason = "each test file uses what it needs")]
#![allow(clippy::unwrap_used, reason = "in a test, failing where one stands is what is wanted")]

pub mod ops;
pub mod upstream;

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use self::upstream::Upstream;
use forebay_meta::{Plane, state::Identity};
use forebay_node::{
    admin::metrics::NfsMetrics,
    cache::{Cache, CacheOptions},
    client::{CallError, Connection, Session, SessionOptions},
    files::{Export, ExportOptions, Squash},
    front::listener,
    server::{Server, ServerOptions},
    source::{
        Source,
        cached::{CachedOptions, CachedSource, Consistency, Policy},
        counters::SourceCounters,
        local::{LocalOptions, LocalSource},
        nfs4::{Nfs4Options, Nfs4Source},
    },
};
use forebay_proto::{
    nfs4::{Op, OpReply, Status},
    rpc::{AuthSys, Credential},
    xdr::{List, Opaque},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Long enough that no test lets a lease run out unless it wants to.
const LEASE: Duration = Duration::from_secs(60);

/// The value of an operation that went well, out of a COMPOUND's results.
#[macro_export]
macro_rules! value {
    ($replies:expr, $kind:ident) => {{
        let replies = &$replies;
        let found = replies.iter().rev().find_map(|reply| match reply {
            forebay_proto::nfs4::OpReply::$kind(Ok(value)) => Some(value.clone()),
            _ => None,
        });
        found.unwrap_or_else(|| panic!("no good {} in {replies:?}", stringify!($kind)))
    }};
}

/// A server to be started, and started again.
pub struct Lab {
    home: Arc<tempfile::TempDir>,
    exports: Vec<(&'static str, ExportOptions)>,
    options: ServerOptions,
    local: LocalOptions,
    /// Serve through the cache, under this policy.
    cached: Option<CachedOptions>,
    /// Whether the source's handles are as long as handles may be.
    long_handles: bool,
}

/// A server that runs until it is stopped or dropped.
pub struct Running {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its inside.
    pub server: Arc<Server>,
    /// What stands behind it, one for each export, if it serves through the cache.
    pub upstreams: Vec<Arc<Upstream>>,
    drain: CancellationToken,
    task: JoinHandle<()>,
    _home: Arc<tempfile::TempDir>,
}

/// An export that trusts everybody, as most tests want it.
pub fn trusting() -> ExportOptions {
    ExportOptions { squash: Squash::None, sync: false, ..ExportOptions::default() }
}

impl Default for Lab {
    fn default() -> Self {
        Self::new(vec![("/data", trusting())])
    }
}

impl Lab {
    /// A directory for each export.
    pub fn new(exports: Vec<(&'static str, ExportOptions)>) -> Self {
        let home = Arc::new(tempfile::tempdir().unwrap());
        for (name, _) in &exports {
            std::fs::create_dir_all(home.path().join(&name[1..])).unwrap();
        }
        let options = ServerOptions { lease: LEASE, grace: LEASE, ..ServerOptions::default() };
        // The same rules are asked of a server that has everything from a source on the network.
        let through_cache = module_path!().starts_with("cached");
        let policy = Policy::preset(Consistency::Strict);
        let cached = through_cache.then(|| CachedOptions { policy, ..CachedOptions::default() });
        let long_handles = module_path!().starts_with("cached_protocol");
        Self { home, exports, options, local: LocalOptions::default(), cached, long_handles }
    }

    /// Another lease.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// Another grace period.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// Another patience with peers that leave something half done.
    pub fn stall(mut self, stall: Duration) -> Self {
        self.options.stall = stall;
        self
    }

    /// How many files the server may keep open although nobody has them open.
    pub fn open_files(mut self, most: usize) -> Self {
        self.local.max_open_files = Some(most);
        self
    }

    /// Through the cache.
    pub fn cached(mut self, options: CachedOptions) -> Self {
        self.cached = Some(options);
        self
    }

    /// A path in the directory behind the first export.
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(&self.exports[0].0[1..]).join(name)
    }

    /// The directory that all exports' directories are in.
    pub fn home(&self) -> &std::path::Path {
        self.home.path()
    }

    /// Starts the server on what it kept.
    pub async fn start(&self) -> Running {
        self.start_with(ram_cache()).await
    }

    /// Starts it with this cache.
    pub async fn start_with(&self, cache: Arc<Cache>) -> Running {
        let mut upstreams = Vec::new();
        let exports = self.exports.iter().map(|(name, options)| {
            let path = self.home.path().join(&name[1..]);
            let local = LocalSource::open(&path, self.local.clone()).unwrap();
            let url = format!("file://{}", path.display());
            let source = match self.cached {
                None => Source::Local(local),
                Some(options) => {
                    let upstream = Arc::new(Upstream::with_handles(local, self.long_handles));
                    upstreams.push(upstream.clone());
                    let seed = std::process::id().into();
                    Source::Cached(CachedSource::new((name, &url), upstream, cache.clone(), options, seed))
                }
            };
            Export { name: (*name).into(), url, options: options.clone(), source }
        });
        let exports: Vec<_> = exports.collect();
        self.serve(exports, upstreams).await
    }

    async fn serve(&self, exports: Vec<Export>, upstreams: Vec<Arc<Upstream>>) -> Running {
        let identity = || Identity { cluster: "test".into(), handle_key: *b"a fixed test key" };
        let plane = Plane::open(&self.home.path().join(".plane"), identity).await.unwrap();
        let metrics = Arc::new(NfsMetrics::new());
        let server = Arc::new(Server::start(exports, plane, self.options, metrics).await.unwrap());
        let socket = listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let (address, drain) = (socket.local_addr().unwrap(), CancellationToken::new());
        let task = tokio::spawn(listener::serve(server.clone(), socket, drain.clone()));
        Running { address, server, upstreams, drain, task, _home: self.home.clone() }
    }
}

impl Running {
    /// Stops the server; what it kept is there for the next one.
    pub async fn stop(self) {
        self.drain.cancel();
        self.task.await.unwrap();
        assert_eq!(Arc::strong_count(&self.server), 1, "nothing holds a drained server");
        self.server.plane.close().await;
    }

    /// A session of root.
    pub async fn client(&self, owner: &str) -> Session {
        self.client_as(owner, 0).await
    }

    /// A session of a user.
    pub async fn client_as(&self, owner: &str, uid: u32) -> Session {
        Session::open(&self.options(owner, uid)).await.unwrap()
    }

    /// What a session of a user is made with.
    pub fn options(&self, owner: &str, uid: u32) -> SessionOptions {
        SessionOptions::new(self.address, owner, uid, uid)
    }

    /// A bare connection of a user.
    pub async fn connection(&self, uid: u32) -> Connection {
        Connection::connect(self.address, credential(uid)).await.unwrap()
    }
}

/// A server that caches another server's `/data`, over NFS.
pub async fn cache_of(source: SocketAddr) -> Running {
    let lab = Lab::new(Vec::new());
    let counters = Arc::new(SourceCounters::new("test"));
    let options = Nfs4Options::new(source.ip().to_string(), source.port(), "/data", "forebay test");
    let remote = Nfs4Source::connect(options, counters);
    let cached = CachedSource::new(("/data", "nfs://source/data"), remote, ram_cache(), CachedOptions::default(), 1);
    let export = Export {
        name: "/data".into(),
        url: "nfs://source/data".into(),
        options: trusting(),
        source: Source::Cached(cached),
    };
    lab.serve(vec![export], Vec::new()).await
}

/// A cache in RAM alone.
pub fn ram_cache() -> Arc<Cache> {
    Cache::open(CacheOptions::ram(512 << 20)).unwrap()
}

/// AUTH_SYS of a user and the group of the same number.
pub fn credential(uid: u32) -> Credential {
    let machine_name = Opaque::new("test").unwrap();
    Credential::Sys(AuthSys { stamp: 0, machine_name, uid, gid: uid, groups: List::default() })
}

/// One COMPOUND's results, whatever they are; SEQUENCE must go well.
pub async fn run(session: &Session, ops: impl IntoIterator<Item = Op>) -> Vec<OpReply> {
    session.try_call(ops.into_iter().collect()).await.unwrap()
}

/// The status of a COMPOUND: its last result's, or SEQUENCE's.
pub async fn status(session: &Session, ops: impl IntoIterator<Item = Op>) -> Status {
    match session.try_call(ops.into_iter().collect()).await {
        Ok(replies) => replies.last().map_or(Status::Ok, OpReply::status),
        Err(CallError::Status { status, .. }) => status,
        Err(error) => panic!("{error}"),
    }
}

/// The results of a COMPOUND of which every operation must go well.
pub async fn done(session: &Session, ops: impl IntoIterator<Item = Op>) -> Vec<OpReply> {
    let replies = run(session, ops).await;
    assert_eq!(replies.last().map_or(Status::Ok, OpReply::status), Status::Ok, "{replies:?}");
    replies
}

/// From here on a panic in any thread fails the test that ends with [`no_panics`]: a server's task would hide it.
pub fn watch_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.lock().unwrap().push(panic.to_string());
        usual(panic);
    }));
}

/// Nothing has panicked since [`watch_panics`].
pub fn no_panics() {
    assert_eq!(*PANICS.lock().unwrap(), Vec::<String>::new());
}

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
