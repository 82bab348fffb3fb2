//! A wire between nodes of one process, for tests and measurements.
//!
//! Owns: who is connected. Invariant: what a [`Weather`] takes away on the way there never arrives; what it takes away on the way back did.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::RwLock;
use tokio::{sync::mpsc, time};

use super::{
    network::{Answer, Endpoint, Message, Peer, Wire, WireError},
    types::{NodeId, Vote},
};

/// What happens to messages on their way.
pub trait Weather: Send + Sync + 'static {
    /// Of one message or answer from a node to another: how long it takes; `None`: it is lost.
    fn passage(&self, from: NodeId, to: NodeId) -> Option<Duration>;
}

/// Nothing happens to them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fair;

impl Weather for Fair {
    fn passage(&self, _from: NodeId, _to: NodeId) -> Option<Duration> {
        Some(Duration::ZERO)
    }
}

/// Connects nodes of one process. Clones are the same network.
#[derive(Clone)]
pub struct InProcess(Arc<Inner>);

struct Inner {
    endpoints: RwLock<HashMap<NodeId, Arc<dyn Endpoint>>>,
    weather: Arc<dyn Weather>,
}

/// The network, from one node.
pub struct From {
    network: InProcess,
    id: NodeId,
}

impl InProcess {
    /// Without nodes.
    pub fn new(weather: Arc<dyn Weather>) -> Self {
        Self(Arc::new(Inner { endpoints: RwLock::default(), weather }))
    }

    /// The wire of node `id`.
    pub fn from(&self, id: NodeId) -> Arc<dyn Wire> {
        Arc::new(From { network: self.clone(), id })
    }

    /// Node `id` is there from now on.
    pub fn connect(&self, id: NodeId, endpoint: Arc<dyn Endpoint>) {
        self.0.endpoints.write().insert(id, endpoint);
    }

    /// It is not there any more.
    pub fn disconnect(&self, id: NodeId) {
        self.0.endpoints.write().remove(&id);
    }
}

impl From {
    /// A message's way there; whom it reaches.
    async fn there(&self, to: NodeId) -> Result<Arc<dyn Endpoint>, WireError> {
        self.pass(self.id, to).await?;
        let endpoint = self.network.0.endpoints.read().get(&to).cloned();
        endpoint.ok_or_else(|| WireError::NotSent(format!("node {to} is not there")))
    }

    async fn pass(&self, from: NodeId, to: NodeId) -> Result<(), WireError> {
        match self.network.0.weather.passage(from, to) {
            Some(Duration::ZERO) => Ok(()),
            Some(takes) => {
                time::sleep(takes).await;
                Ok(())
            }
            // Nobody is told of a loss: whoever waits does so until its own time is over.
            None => std::future::pending().await,
        }
    }
}

fn too_late(_: time::error::Elapsed) -> WireError {
    WireError::Lost("it took too long".into())
}

#[async_trait]
impl Wire for From {
    async fn call(&self, to: &Peer, message: Message, within: Duration) -> Result<Answer, WireError> {
        let exchange = async {
            let endpoint = self.there(to.id).await?;
            let answer = endpoint.answer(message).await.map_err(WireError::Lost)?;
            self.pass(to.id, self.id).await?;
            Ok(answer)
        };
        time::timeout(within, exchange).await.map_err(too_late)?
    }

    async fn snapshot(
        &self,
        to: &Peer,
        vote: Vote,
        mut chunks: mpsc::Receiver<io::Result<Bytes>>,
        within: Duration,
    ) -> Result<Vote, WireError> {
        let exchange = async {
            let endpoint = self.there(to.id).await?;
            let (sender, receiver) = mpsc::channel(1);
            let sending = async {
                while let Some(Ok(chunk)) = chunks.recv().await {
                    self.pass(self.id, to.id).await?;
                    if sender.send(chunk).await.is_err() {
                        break;
                    }
                }
                drop(sender);
                Ok::<_, WireError>(())
            };
            let taking = async { endpoint.take_snapshot(vote, receiver).await.map_err(WireError::Lost) };
            let (_, vote) = tokio::try_join!(sending, taking)?;
            self.pass(to.id, self.id).await?;
            Ok(vote)
        };
        time::timeout(within, exchange).await.map_err(too_late)?
    }
}
