//! Keeps a source connected: ports, MOUNT, connections (RFC 1813 §5, RFC 1833 §3).
//!
//! Owns: the background tasks that run for as long as the source is wanted. Never does: calls of users.
//! Invariants: the name is resolved anew at each connection; MNT is asked again only when the root's handle turned stale
//! or MNT was refused.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use forebay_proto::nfs3::{
    self, FsInfo, Null, PathConf, Procedure, Status, call_record,
    mount::{self, DirPath, Mnt, Umnt},
    portmap::{self, GetPort, Mapping},
};
use forebay_proto::{limits::IO_MAX, xdr::Opaque};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    engine::{DecodeError, Engine, Facts, Request, Root, decode},
    errors::source_error,
    look::filehandle,
};
use crate::source::{
    SourceError, SourceHandle,
    counters::Kind,
    resolve,
    rpc::{
        link::Link,
        pause::{PAUSE_MAX, PAUSE_MIN, jittered},
    },
};

/// NFS where nobody says otherwise.
const NFS_PORT: u16 = 2049;
/// MOUNT where nobody says otherwise: what Linux uses.
const MOUNT_PORT: u16 = 20_048;
/// How long one address may take to accept.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long the port mapper may take: it is often behind a filter that swallows what comes.
const PORTMAP_LIMIT: Duration = Duration::from_secs(2);
/// A source that is down is asked this often whether it still is.
const PROBE: Duration = Duration::from_millis(500);
/// AUTH_NONE and AUTH_SYS among the flavours that MNT tells.
const FLAVORS: [u32; 2] = [0, 1];

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the connection was closed")]
    Closed,
    #[error("no answer")]
    Silent,
    #[error("{0}")]
    Reply(#[from] DecodeError),
    #[error("MNT: MNT3ERR_{}", .0.name())]
    Refused(Status),
    #[error("the path is longer than MOUNT takes")]
    Path,
    #[error("FSINFO: {0}")]
    Source(#[from] SourceError),
}

/// Starts the tasks.
pub(super) fn start(engine: &Arc<Engine>) -> Vec<JoinHandle<()>> {
    let links = (0..engine.options.connections).map(|place| tokio::spawn(keep_link(engine.clone(), place)));
    let mut tasks: Vec<_> = links.collect();
    tasks.push(tokio::spawn(keep_mounted(engine.clone())));
    tasks.push(tokio::spawn(probe(engine.clone())));
    tasks
}

/// Sleeps, unless all is over.
async fn rest(engine: &Engine, pause: Duration) {
    tokio::select! {
        () = sleep(pause) => {}
        () = engine.closed.cancelled() => {}
    }
}

/// Keeps one of the connections standing.
async fn keep_link(engine: Arc<Engine>, place: usize) {
    let mut pause = PAUSE_MIN;
    while !engine.closed.is_cancelled() {
        let dialled = tokio::select! {
            dialled = dial_nfs(&engine) => dialled,
            () = engine.closed.cancelled() => return,
        };
        let mut useful = false;
        match dialled {
            Ok(link) => {
                engine.install(place, &link);
                engine.counters.connected();
                let begun = Instant::now();
                link.closed.cancelled().await;
                engine.counters.disconnected();
                useful = link.has_answered() || begun.elapsed() > PAUSE_MAX;
            }
            Err(error) => tracing::debug!(%error, place, "no connection to the source"),
        }
        if useful {
            pause = PAUSE_MIN;
            continue;
        }
        // It was not to be had, or taken and closed without a word.
        if !engine.links().iter().any(|link| link.has_answered()) {
            engine.set_down(true);
        }
        rest(&engine, jittered(pause)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

async fn dial_nfs(engine: &Engine) -> Result<Arc<Link>, ConnectError> {
    let port = match engine.options.port {
        Some(port) => port,
        None => port_of(engine, nfs3::PROGRAM, nfs3::VERSION).await.unwrap_or(NFS_PORT),
    };
    dial(engine, port, engine.options.reserved_port, CONNECT_LIMIT).await
}

/// A connection to the first address that takes one.
async fn dial(engine: &Engine, port: u16, reserved: bool, limit: Duration) -> Result<Arc<Link>, ConnectError> {
    let before = engine.links().first().map(|link| SocketAddr::new(link.peer.ip(), port));
    let mut failed = None;
    for address in resolve::addresses(&engine.options.host, port, before).await? {
        match resolve::connect(address, reserved, limit).await {
            Ok(stream) => return Ok(engine.link_over(stream)?),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| io::ErrorKind::NotFound.into()).into())
}

/// One call on a connection of its own.
async fn once<P: Procedure>(
    engine: &Engine,
    port: u16,
    limit: Duration,
    arguments: &P::Arguments,
) -> Result<P::Reply, ConnectError> {
    let reserved = engine.options.reserved_port && P::PROGRAM != portmap::PROGRAM;
    let link = dial(engine, port, reserved, limit).await?;
    let credential = Request::machine(engine).credential;
    let asking = async {
        let build = |xid| call_record::<P>(xid, &credential, arguments);
        let reply = link.send(0, build).await.map_err(|_| ConnectError::Closed)?;
        engine.counters.sent(Kind::Session, Duration::ZERO);
        reply.await.map_err(|_| ConnectError::Closed)
    };
    let record = timeout(limit, asking).await.unwrap_or(Err(ConnectError::Silent));
    link.closed.cancel();
    Ok(decode::<P>(record?)?)
}

/// What the port mapper says, if it says anything.
async fn port_of(engine: &Engine, program: u32, version: u32) -> Option<u16> {
    let mapping = Mapping { program, version, protocol: portmap::TCP, port: 0 };
    match once::<GetPort>(engine, portmap::PORT, PORTMAP_LIMIT, &mapping).await {
        Ok(port) => u16::try_from(port).ok().filter(|port| *port != 0),
        Err(error) => {
            tracing::debug!(%error, program, "the port mapper does not tell");
            None
        }
    }
}

/// Where MOUNT may answer, the likeliest first.
async fn mount_ports(engine: &Engine) -> Vec<u16> {
    if let Some(port) = engine.options.mount_port {
        return vec![port];
    }
    let known = u16::try_from(engine.mount_port.load(Ordering::Relaxed)).ok().filter(|port| *port != 0);
    let mut ports: Vec<_> = known.into_iter().collect();
    ports.extend(port_of(engine, mount::PROGRAM, mount::VERSION).await);
    ports.extend([engine.options.port.unwrap_or(NFS_PORT), MOUNT_PORT]);
    let mut seen = Vec::new();
    ports.retain(|port| {
        !seen.contains(port) && {
            seen.push(*port);
            true
        }
    });
    ports
}

fn path(engine: &Engine) -> Result<DirPath, ConnectError> {
    let path = engine.options.path.trim_end_matches('/');
    let path = if path.is_empty() { "/" } else { path };
    Opaque::new(path.to_owned()).ok_or(ConnectError::Path)
}

/// Mounts, and mounts again when the root turned stale.
async fn keep_mounted(engine: Arc<Engine>) {
    let (mut pause, mut told, mut number) = (PAUSE_MIN, String::new(), 0);
    let mut watching = engine.root.subscribe();
    while !engine.closed.is_cancelled() {
        number += 1;
        let mounted = tokio::select! {
            mounted = mount(&engine, number) => mounted,
            () = engine.closed.cancelled() => return,
        };
        let error = match mounted {
            Ok(root) => {
                (pause, told) = (PAUSE_MIN, String::new());
                tracing::info!(
                    source = %engine.options.host, path = %engine.options.path, facts = ?root.facts, "the source is mounted"
                );
                engine.root.send_replace(Some(Ok(root)));
                engine.set_down(false);
                tokio::select! {
                    _ = watching.wait_for(Option::is_none) => {}
                    () = engine.closed.cancelled() => {}
                }
                continue;
            }
            Err(error) => error,
        };
        match error {
            // It answers: whoever asks for the root is told why there is none.
            ConnectError::Refused(status) => {
                engine.root.send_replace(Some(Err(source_error(status))));
                engine.set_down(false);
            }
            _ if engine.links().is_empty() => engine.set_down(true),
            _ => {}
        }
        let error = error.to_string();
        // Once for each new reason, not each try.
        if error != told {
            tracing::warn!(source = %engine.options.host, path = %engine.options.path, %error, "not mounted; trying again");
            told = error;
        }
        rest(&engine, jittered(pause)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// From the path to the root's handle and what the server takes.
async fn mount(engine: &Engine, number: u64) -> Result<Root, ConnectError> {
    let path = path(engine)?;
    let mut failed = ConnectError::Closed;
    for port in mount_ports(engine).await {
        let told = once::<Mnt>(engine, port, CONNECT_LIMIT.min(engine.options.call_timeout), &path).await;
        let mounted = match told {
            Ok(Ok(mounted)) => mounted,
            Ok(Err(refused)) => {
                failed = ConnectError::Refused(refused.status);
                continue;
            }
            Err(error) => {
                tracing::debug!(%error, port, "no MOUNT there");
                // A refusal says more than that there is nobody elsewhere.
                if !matches!(failed, ConnectError::Refused(_)) {
                    failed = error;
                }
                continue;
            }
        };
        if !mounted.flavors.is_empty() && !mounted.flavors.iter().any(|flavor| FLAVORS.contains(flavor)) {
            tracing::warn!(flavors = ?&mounted.flavors[..], "the source does not offer AUTH_SYS for this export");
        }
        engine.mount_port.store(port.into(), Ordering::Relaxed);
        let handle = SourceHandle::new(&mounted.root).ok_or(ConnectError::Refused(Status::BadHandle))?;
        let facts = timeout(engine.options.call_timeout, facts(engine, &handle)).await;
        let facts = facts.map_err(|_| ConnectError::Silent)??;
        return Ok(Root { handle, number, facts });
    }
    Err(failed)
}

async fn facts(engine: &Engine, root: &SourceHandle) -> Result<Facts, SourceError> {
    let request = Request::machine(engine);
    let root = filehandle(root)?;
    let (info, names) =
        futures_util::future::join(engine.call::<FsInfo>(&request, &root), engine.call::<PathConf>(&request, &root))
            .await;
    let mut facts = Facts::default();
    // A server that does not tell takes what any takes.
    if let Ok(info) = info?.reply {
        let size = |most: u32| most.clamp(512, IO_MAX);
        (facts.read_max, facts.write_max) = (size(info.read_max), size(info.write_max));
    }
    match names.map(|names| names.reply) {
        Ok(Ok(names)) => facts.name_max = names.name_max,
        Ok(Err(_)) => {}
        Err(error) => tracing::debug!(%error, "the source does not tell how long names may be"),
    }
    Ok(facts)
}

/// UMNT, if there was a MNT.
pub(super) async fn unmount(engine: &Engine) {
    let port = u16::try_from(engine.mount_port.load(Ordering::Relaxed)).unwrap_or(0);
    let (Ok(path), true) = (path(engine), port != 0 && !engine.is_down()) else { return };
    if let Err(error) = once::<Umnt>(engine, port, CONNECT_LIMIT, &path).await {
        tracing::debug!(%error, "when leaving the source");
    }
}

/// Asks a source that is down whether it is up again.
async fn probe(engine: Arc<Engine>) {
    while !engine.closed.is_cancelled() {
        rest(&engine, PROBE).await;
        if engine.is_down() && !engine.links().is_empty() {
            let request = Request::machine(&engine);
            // Its reply says all there is to say.
            let _ = timeout(engine.options.call_timeout, engine.call::<Null>(&request, &())).await;
        }
    }
}
