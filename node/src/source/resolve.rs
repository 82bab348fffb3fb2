//! From a source's name to a TCP connection: names, reserved ports, socket options.
//!
//! Owns: how a socket to a source is made. Never does: deciding when, or what is said on it.
//! Invariant: a name is asked for anew each time, since the address behind a source may move.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::timeout,
};

/// Ports that servers with `secure` in their exports ask for, as far as no well-known service uses them.
const RESERVED: std::ops::Range<u16> = 665..1024;
/// A resolver that says nothing must not hold up a reconnect for ever.
const RESOLVE_LIMIT: Duration = Duration::from_secs(5);
/// A connection to the same address and port may still linger; as many other ports are tried.
const PORT_TRIES: usize = 8;

/// The addresses of a host, those of `before` first if it is still among them.
pub(crate) async fn addresses(host: &str, port: u16, before: Option<SocketAddr>) -> io::Result<Vec<SocketAddr>> {
    let found = timeout(RESOLVE_LIMIT, tokio::net::lookup_host((host, port)))
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the resolver does not answer"))??;
    let mut addresses: Vec<SocketAddr> = found.collect();
    addresses.dedup();
    if let Some(place) = addresses.iter().position(|address| Some(*address) == before) {
        addresses.swap(0, place);
    }
    if addresses.is_empty() {
        Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
    } else {
        Ok(addresses)
    }
}

/// Connects; from a reserved port if `reserved` and the process may use one.
pub(crate) async fn connect(address: SocketAddr, reserved: bool, limit: Duration) -> io::Result<TcpStream> {
    let connecting = async {
        for _ in 0..PORT_TRIES {
            let Some(socket) = reserved.then(|| reserved_socket(address)).flatten() else { break };
            match socket.connect(address).await {
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {}
                other => return other,
            }
        }
        TcpStream::connect(address).await
    };
    let stream = timeout(limit, connecting)
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no answer to the connection"))??;
    stream.set_nodelay(true)?;
    let alive =
        TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5)).with_retries(3);
    // Without it a dead peer is found later, by a call that is not answered.
    let _ = SockRef::from(&stream).set_tcp_keepalive(&alive);
    Ok(stream)
}

/// A socket on a free reserved port; `None` if there is none or the process may not.
fn reserved_socket(address: SocketAddr) -> Option<TcpSocket> {
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let count = RESERVED.end - RESERVED.start;
    let start = (uuid::Uuid::new_v4().as_u128() % u128::from(count)) as u16;
    for step in 0..count {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.ok()?;
        let port = RESERVED.start + (start + step) % count;
        match socket.bind(SocketAddr::new(any, port)) {
            Ok(()) => return Some(socket),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(_) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_is_made_from_a_reserved_port_where_one_may() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let found = addresses("127.0.0.1", address.port(), None).await.unwrap();
        assert_eq!(found, [address]);
        let stream = connect(address, true, Duration::from_secs(5)).await.unwrap();
        let port = stream.local_addr().unwrap().port();
        // Root may, others need the capability: both must connect.
        let may = std::net::TcpListener::bind("127.0.0.1:664").is_ok();
        assert_eq!(RESERVED.contains(&port), may, "port {port}");
        let plain = connect(address, false, Duration::from_secs(5)).await.unwrap();
        assert!(!RESERVED.contains(&plain.local_addr().unwrap().port()));
    }
}
