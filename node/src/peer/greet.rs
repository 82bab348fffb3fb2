//! The beginning of a connection: TLS, then who is there.
//!
//! Owns: the handshake at either end and why it fails. Never does: retry.
//! Invariant: when it succeeds, cluster, node and version are settled, and the other end has proved them.

use std::{io, time::Duration};

use forebay_proto::cluster::{
    NodeId, RingEpoch,
    frame::{FrameError, Greeting, GreetingRefusal, Hello, Magic, NEWEST, OLDEST, frame, take_head},
};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use super::{
    identity::{PeerIdentity, Protection},
    metrics::Refused,
    stream::{Step, Stream, Wire, tune},
};

/// How long a handshake may take: two round trips and two signatures, on a machine that is busy.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long TCP may take to connect. A node in the same network answers within milliseconds or not at all.
pub(super) const CONNECT: Duration = Duration::from_secs(2);

/// Why a connection came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum GreetError {
    #[error("{0}")]
    Io(io::Error),
    #[error("no answer in time")]
    Silent,
    #[error("TLS: {0}")]
    Tls(io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("closed before it began")]
    Closed,
    #[error("the other end is of another cluster")]
    OtherCluster,
    #[error("the other end is not node {}", .0.0)]
    OtherNode(NodeId),
    #[error("no version of the protocol that both ends speak")]
    NoVersion,
    #[error("refused by the other end: {0:?}")]
    Refused(GreetingRefusal),
}

impl GreetError {
    /// What it counts as; `None` for what networks and restarts do.
    pub(super) fn refusal(&self) -> Option<Refused> {
        match self {
            Self::Io(_) | Self::Closed | Self::Refused(_) => None,
            Self::Silent => Some(Refused::Stalled),
            Self::Tls(error) if names_another(error) => Some(Refused::Node),
            // A peer that goes away while TLS begins is no forger.
            Self::Tls(error) => (error.kind() == io::ErrorKind::InvalidData).then_some(Refused::Certificate),
            Self::Frame(_) => Some(Refused::Protocol),
            Self::OtherCluster => Some(Refused::Cluster),
            Self::OtherNode(_) => Some(Refused::Node),
            Self::NoVersion => Some(Refused::Version),
        }
    }

    fn told(&self) -> Option<GreetingRefusal> {
        match self {
            Self::OtherCluster => Some(GreetingRefusal::Cluster),
            Self::OtherNode(_) => Some(GreetingRefusal::Node),
            Self::NoVersion => Some(GreetingRefusal::Version),
            _ => None,
        }
    }
}

/// A connection that stands, and who is at its other end.
pub(super) struct Greeted {
    pub(super) wire: Wire,
    pub(super) hello: Hello,
}

/// Connects to `node` at `stream`'s other end.
pub(super) async fn connect(
    identity: &PeerIdentity,
    node: NodeId,
    epoch: RingEpoch,
    stream: TcpStream,
) -> Result<Greeted, GreetError> {
    tune(&stream).map_err(GreetError::Io)?;
    let greeted = async {
        let stream = match &identity.protection {
            Protection::None => Stream::Plain(stream),
            Protection::Mutual { client, .. } => {
                let connecting = TlsConnector::from(client.clone());
                let tls = connecting.connect(identity.name_of(node), Stream::buffered(stream)).await;
                Stream::tls(TlsStream::Client(tls.map_err(GreetError::Tls)?))
            }
        };
        let mut wire = Wire::new(stream);
        let mine = hello(identity, node, epoch);
        wire.push(frame(&Greeting::Hello(mine.clone())));
        let theirs = greeting(&mut wire).await?;
        judge(identity, &mine, &theirs, &wire)?;
        if theirs.from != node {
            return Err(GreetError::OtherNode(node));
        }
        Ok(Greeted { wire, hello: theirs })
    };
    timeout(HANDSHAKE, greeted).await.unwrap_or(Err(GreetError::Silent))
}

/// Answers whoever connected.
pub(super) async fn accept(
    identity: &PeerIdentity,
    epoch: RingEpoch,
    stream: TcpStream,
) -> Result<Greeted, GreetError> {
    tune(&stream).map_err(GreetError::Io)?;
    let greeted = async {
        let stream = match &identity.protection {
            Protection::None => Stream::Plain(stream),
            Protection::Mutual { server, .. } => {
                let tls = TlsAcceptor::from(server.clone()).accept(Stream::buffered(stream)).await;
                Stream::tls(TlsStream::Server(tls.map_err(GreetError::Tls)?))
            }
        };
        let mut wire = Wire::new(stream);
        let theirs = greeting(&mut wire).await?;
        let mine = hello(identity, theirs.from, epoch);
        if let Err(error) = judge(identity, &mine, &theirs, &wire) {
            if let Some(refusal) = error.told() {
                wire.push(frame(&Greeting::Refused(refusal)));
                wire.send_all().await.map_err(GreetError::Io)?;
            }
            return Err(error);
        }
        wire.push(frame(&Greeting::Hello(mine)));
        wire.send_all().await.map_err(GreetError::Io)?;
        Ok(Greeted { wire, hello: theirs })
    };
    timeout(HANDSHAKE, greeted).await.unwrap_or(Err(GreetError::Silent))
}

fn hello(identity: &PeerIdentity, to: NodeId, epoch: RingEpoch) -> Hello {
    let PeerIdentity { cluster, node: from, .. } = *identity;
    Hello { magic: Magic, oldest: OLDEST, newest: NEWEST, cluster, from, to, epoch }
}

/// What the other end says first.
async fn greeting(wire: &mut Wire) -> Result<Hello, GreetError> {
    loop {
        match take_head(&mut wire.input)? {
            Some(Greeting::Hello(hello)) => return Ok(hello),
            Some(Greeting::Refused(refusal)) => return Err(GreetError::Refused(refusal)),
            None => {}
        }
        if wire.step(true, None).await.map_err(broken)? == Step::End {
            return Err(GreetError::Closed);
        }
    }
}

/// With TLS 1.3 a client learns only when it reads that its certificate was not taken.
fn broken(error: io::Error) -> GreetError {
    if error.kind() == io::ErrorKind::InvalidData { GreetError::Tls(error) } else { GreetError::Io(error) }
}

/// Whether the other end has a certificate of this cluster, but not of the node that is wanted.
fn names_another(error: &io::Error) -> bool {
    use rustls::{CertificateError, Error};
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    matches!(
        inner,
        Some(Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        ))
    )
}

fn judge(identity: &PeerIdentity, mine: &Hello, theirs: &Hello, wire: &Wire) -> Result<(), GreetError> {
    if theirs.cluster != identity.cluster {
        return Err(GreetError::OtherCluster);
    }
    if theirs.to != identity.node {
        return Err(GreetError::OtherNode(theirs.to));
    }
    if !identity.believes(wire.stream().certificates(), theirs.from) {
        return Err(GreetError::OtherNode(theirs.from));
    }
    mine.version_with(theirs).map(|_| ()).map_err(|_| GreetError::NoVersion)
}
