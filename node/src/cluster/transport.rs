//! gRPC between nodes, over mutual TLS: Raft, and [`Control`]'s messages; and the door at which strangers ask to be let in.
//!
//! Owns: the listener, who is at the other end of each connection, channels to other nodes. Never does: decide who is let in, know what is
//! said. Invariants: nothing but the door answers a connection that has not proved to be a node of this cluster; a message is taken
//! only from the node that its connection's certificate names, and only by the node that it is meant for.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_meta::{
    raft::{
        Endpoint,
        transport::{Grpc, is_unconnected},
    },
    state::NodeId,
};
use futures_util::stream;
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, RwLock};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, ServerName},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, server};
use tokio_util::sync::CancellationToken;
use tonic::{
    Code, Request, Response, Status,
    service::interceptor::InterceptedService,
    transport::{Channel, Uri, server::Connected},
};

use super::control::{Answerer, CallError, Control, MESSAGE_MAX, Topic};
use crate::peer::{
    PeerIdentity, PeerMetrics, Refused,
    identity::{IdentityError, UNPROVED, unproved_client, unproved_server},
};

#[allow(missing_docs, clippy::all, reason = "generated from the schema, which has the comments")]
mod schema {
    tonic::include_proto!("forebay.control.v1");
}

use schema::{
    Envelope,
    control_client::ControlClient,
    control_server::{Control as Service, ControlServer},
};

/// A message and what frames it.
const FRAME_MAX: usize = MESSAGE_MAX + 1024;
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long TCP may take to connect.
const CONNECT: Duration = Duration::from_secs(1);
/// A connection on which nothing comes for this long is asked for a sign of life.
const PING: Duration = Duration::from_secs(1);
/// And given up after this.
const PING_MAX: Duration = Duration::from_secs(2);
/// A node that could not be connected to is not tried again for this long: who asks has other ways.
const DOWN: Duration = Duration::from_millis(300);
/// Handshakes at once.
const HANDSHAKES: usize = 256;
/// Connections that a server has not taken yet.
const WAITING: usize = 64;
/// Bytes that bind a proof to its connection.
pub const BINDING_BYTES: usize = 32;
/// What the binding is for (RFC 5705).
const BINDING_LABEL: &[u8] = b"EXPORTER-forebay-enter";

/// What a connection has proved.
#[derive(Clone, Debug)]
pub struct Proof {
    /// The certificates that the other end showed, which this cluster's authority made.
    chain: Option<Arc<Vec<CertificateDer<'static>>>>,
    /// Known to both ends of this connection and to nobody else.
    pub binding: [u8; BINDING_BYTES],
    /// Where it is.
    pub address: SocketAddr,
}

/// Who judges strangers.
#[async_trait]
pub trait Door: Send + Sync + 'static {
    /// Answers somebody who is no node, or has not said so.
    async fn knock(&self, proof: &Proof, message: Bytes) -> Result<Bytes, Refused>;
}

/// A connection of the server.
struct Secured {
    stream: server::TlsStream<TcpStream>,
    proof: Proof,
}

impl Connected for Secured {
    type ConnectInfo = Proof;
    fn connect_info(&self) -> Proof {
        self.proof.clone()
    }
}

impl AsyncRead for Secured {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

type Incoming = mpsc::Sender<io::Result<Secured>>;

/// What the listener hands its connections to.
struct Behind {
    tls: Arc<ServerConfig>,
    connections: Incoming,
}

/// This node's end of everything that is said to it.
pub struct Listening {
    address: SocketAddr,
    behind: Arc<RwLock<Behind>>,
    answerers: Arc<Answerers>,
    metrics: Arc<PeerMetrics>,
    door: Arc<dyn Door>,
    tasks: Mutex<JoinSet<()>>,
    stop: CancellationToken,
}

/// Who answers what.
#[derive(Default)]
struct Answerers(RwLock<HashMap<u32, Arc<dyn Answerer>>>);

impl Listening {
    /// Listens; only strangers are answered until there is an identity.
    ///
    /// # Errors
    /// There is no randomness.
    pub fn begin(
        listener: TcpListener,
        door: Arc<dyn Door>,
        metrics: Arc<PeerMetrics>,
    ) -> Result<Arc<Self>, IdentityError> {
        let address = listener.local_addr().expect("a listener has an address");
        let (connections, incoming) = mpsc::channel(WAITING);
        let behind = Arc::new(RwLock::new(Behind { tls: unproved_server()?, connections }));
        let listening = Self {
            address,
            behind: behind.clone(),
            answerers: Arc::default(),
            metrics: metrics.clone(),
            door,
            tasks: Mutex::default(),
            stop: CancellationToken::new(),
        };
        let service = listening.service(None);
        listening.serve(tonic::transport::Server::builder().add_service(service), incoming);
        let stop = listening.stop.clone();
        listening.tasks.lock().spawn(accept(listener, behind, metrics, stop));
        Ok(Arc::new(listening))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on this is a node: connections that come are judged by its identity, and Raft is answered too.
    ///
    /// # Errors
    /// The identity proves nothing.
    pub fn become_node(&self, identity: &PeerIdentity, raft: Arc<dyn Endpoint>) -> Result<(), IdentityError> {
        let (_, tls) = identity.control()?;
        let (connections, incoming) = mpsc::channel(WAITING);
        let raft = InterceptedService::new(Grpc::service(identity.node.0, raft), must_be_node);
        let service = self.service(Some(identity.clone()));
        self.serve(tonic::transport::Server::builder().add_service(service).add_service(raft), incoming);
        *self.behind.write() = Behind { tls, connections };
        Ok(())
    }

    /// Who answers messages on a topic from now on.
    pub fn register(&self, topic: Topic, answerer: Arc<dyn Answerer>) {
        self.answerers.0.write().insert(topic as u32, answerer);
    }

    /// Ends all connections.
    pub async fn close(&self) {
        self.stop.cancel();
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        while let Some(done) = tasks.join_next().await {
            if let Err(error) = done {
                tracing::error!(%error, "a task of the control listener failed: this is a bug");
            }
        }
    }

    fn service(&self, identity: Option<PeerIdentity>) -> ControlServer<Serving> {
        let serving = Serving {
            identity,
            answerers: self.answerers.clone(),
            door: self.door.clone(),
            metrics: self.metrics.clone(),
        };
        ControlServer::new(serving).max_decoding_message_size(FRAME_MAX).max_encoding_message_size(FRAME_MAX)
    }

    fn serve(&self, router: tonic::transport::server::Router, incoming: mpsc::Receiver<io::Result<Secured>>) {
        let incoming = stream::unfold(incoming, async |mut incoming| Some((incoming.recv().await?, incoming)));
        let stop = self.stop.clone();
        self.tasks.lock().spawn(async move {
            let serving = router.serve_with_incoming(incoming);
            tokio::select! {
                served = serving => if let Err(error) = served {
                    tracing::warn!(%error, "a control server ended");
                },
                () = stop.cancelled() => {}
            }
        });
    }
}

/// Raft is for nodes.
fn must_be_node(request: Request<()>) -> Result<Request<()>, Status> {
    let is_node = request.extensions().get::<Proof>().is_some_and(|proof| proof.chain.is_some());
    if is_node { Ok(request) } else { Err(Status::permission_denied("not a node of this cluster")) }
}

async fn accept(
    listener: TcpListener,
    behind: Arc<RwLock<Behind>>,
    metrics: Arc<PeerMetrics>,
    stop: CancellationToken,
) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept nodes");
                time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(permit) = handshakes.clone().try_acquire_owned() else {
            metrics.refuse(Refused::Busy);
            continue;
        };
        let (tls, connections) = {
            let behind = behind.read();
            (behind.tls.clone(), behind.connections.clone())
        };
        let metrics = metrics.clone();
        tokio::spawn(async move {
            match time::timeout(HANDSHAKE, secure(stream, address, tls)).await {
                // A server that has ended takes no more.
                Ok(Ok(secured)) => drop(connections.send(Ok(secured)).await),
                Ok(Err(error)) => {
                    // That the other end does not like us is its affair: it looks for whoever had this address before.
                    let is_ours = !error.to_string().contains("received fatal alert");
                    if error.kind() == io::ErrorKind::InvalidData && is_ours {
                        metrics.refuse(Refused::Certificate);
                        tracing::warn!(%address, %error, "refused: not a node of this cluster");
                    }
                }
                Err(_) => metrics.refuse(Refused::Stalled),
            }
            drop(permit);
        });
    }
}

async fn secure(stream: TcpStream, address: SocketAddr, tls: Arc<ServerConfig>) -> io::Result<Secured> {
    stream.set_nodelay(true)?;
    let stream = TlsAcceptor::from(tls).accept(stream).await?;
    let connection = stream.get_ref().1;
    let chain = connection.peer_certificates().map(|chain| chain.iter().cloned().map(CertificateDer::into_owned));
    let chain = chain.map(|chain| Arc::new(chain.collect::<Vec<_>>()));
    let binding = connection
        .export_keying_material([0; BINDING_BYTES], BINDING_LABEL, None)
        .map_err(|error| io::Error::other(error.to_string()))?;
    Ok(Secured { proof: Proof { chain, binding, address }, stream })
}

/// The service of one identity, or of none.
struct Serving {
    identity: Option<PeerIdentity>,
    answerers: Arc<Answerers>,
    door: Arc<dyn Door>,
    metrics: Arc<PeerMetrics>,
}

impl Serving {
    fn refuse<T>(&self, why: Refused, text: &str) -> Result<T, Status> {
        self.metrics.refuse(why);
        Err(Status::permission_denied(text))
    }
}

#[async_trait]
impl Service for Serving {
    async fn call(&self, request: Request<Envelope>) -> Result<Response<Envelope>, Status> {
        let proof = request.extensions().get::<Proof>().cloned();
        let envelope = request.into_inner();
        let Some(identity) = &self.identity else {
            return Err(Status::failed_precondition("this node belongs to no cluster yet"));
        };
        let from = NodeId(envelope.from);
        let chain = proof.and_then(|proof| proof.chain);
        if !chain.is_some_and(|chain| identity.is_proved(&chain, from)) {
            return self.refuse(Refused::Node, "the certificate is not the sender's");
        }
        if envelope.to != identity.node.0 {
            // The server's word that it did nothing.
            return Err(Status::failed_precondition(format!("this is node {}", identity.node.0)));
        }
        let answerer = self.answerers.0.read().get(&envelope.topic).cloned();
        let answerer = answerer.ok_or_else(|| Status::failed_precondition("nobody answers on this topic yet"))?;
        match answerer.answer(from, envelope.payload).await {
            Some(payload) => {
                let (from, to) = (identity.node.0, envelope.from);
                Ok(Response::new(Envelope { from, to, topic: envelope.topic, payload }))
            }
            None => self.refuse(Refused::Protocol, "the message is none"),
        }
    }

    async fn enter(&self, request: Request<Envelope>) -> Result<Response<Envelope>, Status> {
        let Some(proof) = request.extensions().get::<Proof>().cloned() else {
            return self.refuse(Refused::Protocol, "a connection without a proof");
        };
        let envelope = request.into_inner();
        match self.door.knock(&proof, envelope.payload).await {
            Ok(payload) => Ok(Response::new(Envelope { from: 0, to: 0, topic: envelope.topic, payload })),
            Err(why) => {
                tracing::warn!(address = %proof.address, reason = why.name(), "somebody who wants to be let in is refused");
                self.refuse(why, "refused: is the token the cluster's?")
            }
        }
    }
}

/// Where a node is.
pub type Find = Arc<dyn Fn(NodeId) -> Option<SocketAddr> + Send + Sync>;

/// This node's channels to others.
pub struct Calling {
    identity: PeerIdentity,
    tls: Arc<rustls::ClientConfig>,
    find: Find,
    channels: Mutex<HashMap<NodeId, (SocketAddr, Channel)>>,
    /// Nodes that could not be connected to, and when that was found.
    down: Mutex<HashMap<NodeId, Instant>>,
}

impl Calling {
    /// None yet. `find` says where nodes are.
    ///
    /// # Errors
    /// The identity proves nothing.
    pub fn new(identity: PeerIdentity, find: Find) -> Result<Arc<Self>, IdentityError> {
        let (tls, _) = identity.control()?;
        Ok(Arc::new(Self { identity, tls, find, channels: Mutex::default(), down: Mutex::default() }))
    }

    /// A channel to a node at an address, which connects when it is used.
    pub fn channel(&self, node: NodeId, address: SocketAddr) -> Channel {
        let connector = TlsConnector::from(self.tls.clone());
        let name = self.identity.server_name(node);
        let connect = tower::service_fn(move |_: Uri| {
            let (connector, name) = (connector.clone(), name.clone());
            async move { dial(address, connector, name, None).await.map(TokioIo::new) }
        });
        endpoint().connect_with_connector_lazy(connect)
    }

    fn to(&self, node: NodeId) -> Result<Channel, CallError> {
        let is_down = self.down.lock().get(&node).is_some_and(|since| since.elapsed() < DOWN);
        if is_down {
            return Err(CallError::NotSent(format!("node {} was not there a moment ago", node.0)));
        }
        let address = (self.find)(node).ok_or_else(|| CallError::NotSent(format!("node {} is unknown", node.0)))?;
        let mut channels = self.channels.lock();
        match channels.get(&node) {
            Some((known, channel)) if *known == address => Ok(channel.clone()),
            _ => {
                let channel = self.channel(node, address);
                channels.insert(node, (address, channel.clone()));
                Ok(channel)
            }
        }
    }
}

fn endpoint() -> tonic::transport::Endpoint {
    // The name is the connector's affair.
    Channel::from_static("http://node.forebay.internal")
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PING_MAX)
        .keep_alive_while_idle(true)
        .connect_timeout(CONNECT + HANDSHAKE)
}

async fn dial(
    address: SocketAddr,
    connector: TlsConnector,
    name: ServerName<'static>,
    binding: Option<Arc<OnceLock<[u8; BINDING_BYTES]>>>,
) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
    let stream = time::timeout(CONNECT, TcpStream::connect(address)).await.map_err(late)??;
    stream.set_nodelay(true)?;
    let stream = time::timeout(HANDSHAKE, connector.connect(name, stream)).await.map_err(late)??;
    if let Some(binding) = binding {
        let bytes = stream.get_ref().1.export_keying_material([0; BINDING_BYTES], BINDING_LABEL, None);
        let bytes = bytes.map_err(|error| io::Error::other(error.to_string()))?;
        // One connection is made for one conversation.
        let _ = binding.set(bytes);
    }
    Ok(stream)
}

#[async_trait]
impl Control for Calling {
    async fn call(&self, to: NodeId, topic: Topic, message: Bytes, within: Duration) -> Result<Bytes, CallError> {
        let client = ControlClient::new(self.to(to)?);
        let mut client = client.max_decoding_message_size(FRAME_MAX).max_encoding_message_size(FRAME_MAX);
        let envelope = Envelope { from: self.identity.node.0, to: to.0, topic: topic as u32, payload: message };
        let answer = time::timeout(within, client.call(envelope)).await;
        let answer = answer.map_err(|_| CallError::Unknown("no answer in time".into()))?;
        match answer {
            Ok(answer) => {
                self.down.lock().remove(&to);
                Ok(answer.into_inner().payload)
            }
            Err(status) => {
                let error = call_error(&status);
                if matches!(error, CallError::NotSent(_)) && status.code() == Code::Unavailable {
                    self.down.lock().insert(to, Instant::now());
                }
                Err(error)
            }
        }
    }
}

/// What a failed call tells about whether it arrived.
fn call_error(status: &Status) -> CallError {
    let why = format!("{:?}: {}", status.code(), status.message());
    if is_unconnected(status) {
        return CallError::NotSent(why);
    }
    match status.code() {
        Code::FailedPrecondition | Code::PermissionDenied => CallError::NotSent(why),
        _ => CallError::Unknown(why),
    }
}

/// A conversation with whoever is at an address, who may be of any cluster or of none.
pub struct Knocking {
    client: ControlClient<Channel>,
    /// Known to both ends of this connection and to nobody else.
    pub binding: [u8; BINDING_BYTES],
}

impl Knocking {
    /// Connects.
    ///
    /// # Errors
    /// Nobody is there, or nobody who speaks TLS.
    pub async fn at(address: SocketAddr) -> Result<Self, String> {
        let connector = TlsConnector::from(unproved_client().map_err(|error| error.to_string())?);
        let binding = Arc::new(OnceLock::new());
        let name = ServerName::try_from(UNPROVED).expect("a name of letters and dots");
        let seen = binding.clone();
        let connect = tower::service_fn(move |_: Uri| {
            let (connector, name, seen) = (connector.clone(), name.clone(), seen.clone());
            // Another connection would have another binding.
            let is_first = seen.get().is_none();
            async move {
                if !is_first {
                    return Err(io::Error::other("the connection was lost"));
                }
                dial(address, connector, name, Some(seen)).await.map(TokioIo::new)
            }
        });
        let channel = endpoint().connect_with_connector(connect).await.map_err(|error| error.to_string())?;
        let binding = *binding.get().ok_or("the connection has no binding")?;
        let client = ControlClient::new(channel).max_decoding_message_size(FRAME_MAX);
        Ok(Self { client, binding })
    }

    /// Asks to be let in, or about the cluster.
    ///
    /// # Errors
    /// It is refused, or there is no answer in time.
    pub async fn ask(&mut self, message: Bytes, within: Duration) -> Result<Bytes, String> {
        let envelope = Envelope { from: 0, to: 0, topic: 0, payload: message };
        let answer = time::timeout(within, self.client.enter(envelope)).await;
        let answer = answer.map_err(|_| "no answer in time".to_owned())?;
        answer.map(|answer| answer.into_inner().payload).map_err(|status| status.message().to_owned())
    }
}
