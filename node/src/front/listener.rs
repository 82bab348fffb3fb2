//! Accepts connections, and on drain waits for what they still have to answer.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::connection;
use crate::server::Server;

/// Connections at most; each silent one costs a few hundred bytes and a descriptor.
const CONNECTIONS_MAX: usize = 16_384;
/// Calls in flight get this long to finish when the node drains, so that it exits within ten seconds.
const DRAIN: Duration = Duration::from_secs(8);
/// A balancer forgets silent flows after 350 s; a dead client is noticed after about two minutes.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// Sent bytes that nobody acknowledges for this long mean that the client is gone.
const USER_TIMEOUT: Duration = Duration::from_secs(120);

/// Binds `address`. A restarted node gets its port back at once; `[::]` serves both families, or IPv4 alone on a
/// machine without IPv6.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let any_v6 = address.is_ipv6() && address.ip().is_unspecified();
    match bind_one(address) {
        Err(error) if any_v6 && error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            bind_one(SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, address.port())))
        }
        result => result,
    }
}

fn bind_one(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    TcpListener::from_std(socket.into())
}

/// Serves connections until `drain` is cancelled, then until their calls are answered, at most [`DRAIN`].
pub async fn serve(server: Arc<Server>, listener: TcpListener, drain: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, peer)) => {
                    server.metrics.connections_accepted.increment(1);
                    if let Err(error) = tune(&stream) {
                        tracing::debug!(%peer, %error, "socket options");
                    }
                    connections.spawn(connection::serve(server.clone(), stream, peer, drain.clone()));
                }
                Err(error) => {
                    // Out of descriptors or memory: it may pass, and spinning would not help.
                    tracing::warn!(%error, "cannot accept");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(done) = connections.join_next(), if !connections.is_empty() => log_panic(done),
            () = drain.cancelled() => break,
        }
    }
    drop(listener);
    let open = connections.len();
    tracing::info!(connections = open, "draining");
    let all = async {
        while let Some(done) = connections.join_next().await {
            log_panic(done);
        }
    };
    if tokio::time::timeout(DRAIN, all).await.is_err() {
        tracing::warn!(connections = connections.len(), "calls still running at the deadline are cut off");
        connections.shutdown().await;
    }
}

fn log_panic(done: Result<(), tokio::task::JoinError>) {
    if let Err(error) = done {
        tracing::error!(%error, "a connection's task failed: this is a bug");
    }
}

fn tune(stream: &tokio::net::TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(Duration::from_secs(15)))?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))
}
