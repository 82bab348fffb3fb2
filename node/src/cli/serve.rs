//! `forebay serve`.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use tokio::signal::unix::{SignalKind, signal};

use crate::{
    config::{
        ClusterFlags, Config, DEFAULT_ADMIN, DEFAULT_CONTROL, DEFAULT_DATA_DIR, DEFAULT_LISTEN, DEFAULT_PEER,
        FileConfig, Overrides,
    },
    run, source,
};

const EXAMPLES: &str = "\
Examples:
  forebay serve --export /tools=nfs://filer/vol/tools --ram-cache 16GiB --cache /var/cache/forebay
  forebay serve --export /scratch=nfs3://filer/scratch,policy=scratch --export /home=nfs://filer/home,policy=strict
  forebay serve --export /data=file:///srv/data,ro,10.0.0.0/8
  forebay serve --config /etc/forebay.toml --lease-seconds 30

  Three nodes that begin a cluster, the same on each:
  forebay serve --cluster farm --join n1:2051,n2:2051,n3:2051 --bootstrap-expect 3 --token-file /etc/forebay.token --export /tools=nfs://filer/vol/tools
  One more, later:
  forebay serve --cluster farm --join n1:2051 --token-file /etc/forebay.token

Sources: nfs://host[:port]/path (NFSv4.2, else 4.1) and nfs3://host[:port]/path are cached; file:///path is a directory of this machine.

Options of every export: rw (default), ro, sync (default), async (names and attributes may be lost by a power cut), root_squash (default), no_root_squash, all_squash, anonuid=N, anongid=N, and any number of client networks as 10.0.0.0/8 (default: every client). A comma in a path is written %2C.

Options of cached exports: policy=scratch|close-to-open|strict, acregmin= acregmax= acdirmin= acdirmax= actimeo=TIME, lookupcache=all|positive|none, serve_stale=TIME, on_partition=serve|refuse, readahead=SIZE, quota=SIZE, ttl=TIME, metadata=SIZE, connections=1..16, slots=1..128, mountport=N, timeout=TIME, budget=none|bursting:SIZE|elastic|provisioned:SIZE, budget_balance=SIZE. Sizes as 512MiB, times as 500ms, 30, 5m, 2h.

On a client:
  mount -t nfs -o vers=4.2,hard SERVER:/data /mnt";

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Serve NFS on this address.
    #[arg(long, value_name = "ADDR:PORT", help = format!("Serve NFS on this address [default: {DEFAULT_LISTEN}]"))]
    listen: Option<SocketAddr>,
    /// Serve a source under a name; repeatable.
    #[arg(long, value_name = "/NAME=URL[,OPTION…]")]
    export: Vec<String>,
    /// Keep what must outlive a restart here.
    #[arg(long, value_name = "DIR", help = format!("Keep what must outlive a restart here [default: {DEFAULT_DATA_DIR}]"))]
    data_dir: Option<PathBuf>,
    /// Serve /healthz, /metrics and /status on this address.
    #[arg(long, value_name = "ADDR:PORT", help = format!("Serve /healthz, /metrics and /status here [default: {DEFAULT_ADMIN}]"))]
    admin: Option<SocketAddr>,
    /// Read settings and exports from this file; flags win over it.
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// How long a silent client keeps what it holds [default: 60].
    #[arg(long, value_name = "N")]
    lease_seconds: Option<u32>,
    /// How long clients may reclaim after a restart [default: the lease].
    #[arg(long, value_name = "N")]
    grace_seconds: Option<u32>,
    /// Memory for cached data, as 8GiB [default: a quarter of the machine's].
    #[arg(long, value_name = "SIZE")]
    ram_cache: Option<String>,
    /// Keep cached data in this directory or on this block device, across restarts [default: in memory alone].
    #[arg(long, value_name = "DIR|DEVICE")]
    cache: Option<PathBuf>,
    /// How much of it may be used [default: nine tenths of what is free].
    #[arg(long, value_name = "SIZE")]
    cache_size: Option<String>,
    /// Be a node of this cluster.
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    cluster: Option<String>,
    /// Other nodes' control addresses, or a name that stands for all of them.
    #[arg(long, value_name = "HOST:PORT,…", value_delimiter = ',', help_heading = "Cluster")]
    join: Vec<String>,
    /// Begin the cluster once so many nodes have started and agree.
    #[arg(long, value_name = "N", help_heading = "Cluster")]
    bootstrap_expect: Option<u32>,
    /// The cluster's token, which lets nodes in [default: FOREBAY_JOIN_TOKEN in the environment].
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    token_file: Option<PathBuf>,
    /// Listen for other nodes here.
    #[arg(long, value_name = "ADDR:PORT", help_heading = "Cluster", help = format!("Listen for other nodes here [default: {DEFAULT_CONTROL}]"))]
    control: Option<SocketAddr>,
    /// Listen for other nodes' fetches here.
    #[arg(long, value_name = "ADDR:PORT", help_heading = "Cluster", help = format!("Listen for other nodes' fetches here [default: {DEFAULT_PEER}]"))]
    peer: Option<SocketAddr>,
    /// Others reach this node under this address [default: the one listened on, or that which leads to the seeds].
    #[arg(long, value_name = "ADDR", help_heading = "Cluster")]
    advertise: Option<IpAddr>,
    /// The availability zone: voters are spread over zones.
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    zone: Option<String>,
    /// Whether this node may vote; say no on machines that are taken away at short notice [default: true].
    #[arg(long, value_name = "BOOL", help_heading = "Cluster")]
    vote: Option<bool>,
    /// How many nodes vote at most: 1, 3, 5 or 7 [default: 3].
    #[arg(long, value_name = "N", help_heading = "Cluster")]
    voters: Option<u32>,
}

/// Serves until SIGTERM or SIGINT.
pub fn run(arguments: Arguments) -> anyhow::Result<()> {
    super::log("info");
    let file = arguments.config.as_deref().map(FileConfig::read).transpose()?.unwrap_or_default();
    let flags = Overrides {
        listen: arguments.listen,
        admin: arguments.admin,
        data_dir: arguments.data_dir,
        lease_seconds: arguments.lease_seconds,
        grace_seconds: arguments.grace_seconds,
        ram_cache: arguments.ram_cache,
        cache: arguments.cache,
        cache_size: arguments.cache_size,
        exports: arguments.export,
        cluster: ClusterFlags {
            cluster: arguments.cluster,
            join: arguments.join,
            bootstrap_expect: arguments.bootstrap_expect,
            token_file: arguments.token_file,
            control: arguments.control,
            peer: arguments.peer,
            advertise: arguments.advertise,
            zone: arguments.zone,
            vote: arguments.vote,
            voters: arguments.voters,
        },
    };
    let config = Config::resolve(file, flags)?;
    raise_descriptors();
    // Before any thread: quotas and reserved blocks must bind us as they bind the callers we act for.
    if let Err(error) = source::local::drop_resource_capability() {
        tracing::warn!(%error, "CAP_SYS_RESOURCE stays: disk quotas may not bind clients");
    }
    let metrics = metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder()?;
    let runtime = super::runtime()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        // Getting into a cluster may take as long as it likes; who has had enough of waiting may go.
        let mut node = tokio::select! {
            started = run::start(config, metrics) => started?,
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        };
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM"),
            _ = interrupt.recv() => tracing::info!("SIGINT"),
            why = node.failed() => {
                node.close_plane().await;
                anyhow::bail!("{why}");
            }
        }
        node.drain().await;
        Ok(())
    })?;
    // A call on a dead disk cannot be cancelled; its thread must not hold up the exit.
    runtime.shutdown_timeout(std::time::Duration::from_millis(500));
    Ok(())
}

/// Every open file and connection is a descriptor; the default of 1,024 is for interactive programs.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}
