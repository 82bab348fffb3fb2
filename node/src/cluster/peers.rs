//! The other nodes' chunks, over their streams.
//!
//! Owns: one [`Peer`] for each node of the view, for as long as it is there under its address. Never does: decide whom to ask.

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use forebay_meta::state::NodeId;
use forebay_proto::cluster::{
    FileKey, RingEpoch, Version,
    frame::{ChunkRange, Fetch, Priority},
};
use parking_lot::RwLock;

use super::View;
use crate::{
    cache::ChunkKey,
    peer::{Fetched, Peer, PeerIdentity, PeerMetrics, PeerOptions},
    source::cached::{ChunkPeers, FarChunk},
};

/// A chunk takes no longer than this, or its peer counts as gone.
const FETCH_MAX: Duration = Duration::from_secs(10);

/// Streams to all other nodes.
pub struct Peers {
    identity: PeerIdentity,
    metrics: Arc<PeerMetrics>,
    peers: RwLock<HashMap<NodeId, Arc<Peer>>>,
}

impl Peers {
    /// None yet.
    pub fn new(identity: PeerIdentity, metrics: Arc<PeerMetrics>) -> Arc<Self> {
        Arc::new(Self { identity, metrics, peers: RwLock::default() })
    }

    /// The nodes are these now. Needs a runtime around it.
    pub fn follow(&self, view: &View) {
        let address = |node: &NodeId| view.nodes.get(node)?.description.peer.parse::<SocketAddr>().ok();
        let mut peers = self.peers.write();
        peers.retain(|node, peer| address(node) == Some(peer.address()));
        for node in view.nodes.keys().filter(|node| **node != view.me) {
            let Some(address) = address(node).filter(|_| !peers.contains_key(node)) else { continue };
            let (identity, metrics) = (self.identity.clone(), self.metrics.clone());
            let peer = Peer::new(identity, *node, address, PeerOptions::default(), metrics);
            peers.insert(*node, Arc::new(peer));
        }
    }

    /// Ends all streams.
    pub async fn close(&self) {
        let peers: Vec<_> = self.peers.write().drain().map(|(_, peer)| peer).collect();
        for peer in peers {
            peer.close().await;
        }
    }

    fn peer(&self, node: NodeId) -> Option<Arc<Peer>> {
        self.peers.read().get(&node).cloned()
    }
}

#[async_trait]
impl ChunkPeers for Peers {
    async fn fetch(&self, from: NodeId, epoch: u64, key: ChunkKey, length: u64, ahead: bool) -> FarChunk {
        let range = u32::try_from(length).ok().and_then(|length| ChunkRange::new(0, length));
        let (Some(peer), Some(file), Some(range)) = (self.peer(from), FileKey::from_u128(key.file), range) else {
            return FarChunk::Gone;
        };
        let fetch = Fetch {
            file,
            version: Version::from_content(key.version),
            chunk: key.index,
            range,
            priority: if ahead { Priority::ReadAhead } else { Priority::Reader },
        };
        match peer.fetch(RingEpoch(epoch), fetch, FETCH_MAX).await {
            Ok(Fetched::Data { bytes, .. }) => FarChunk::Here(bytes),
            Ok(Fetched::Miss) => FarChunk::Miss,
            Ok(Fetched::Stale(_) | Fetched::Busy | Fetched::Refused(_)) | Err(_) => FarChunk::Gone,
        }
    }

    fn usual_time(&self, node: NodeId) -> Option<Duration> {
        self.peer(node)?.hedge_after()
    }
}
