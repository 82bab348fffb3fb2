//! Data in a cluster: each chunk has an owner, which alone fetches it from the source; the others fetch it from there.
//!
//! Owns: whom to ask for a chunk, how long, and what is kept of it here. Never does: speak to peers (a [`ChunkPeers`] does), decide what is
//! current: what is wanted is named by its content, and a content never changes.
//!
//! Invariants: an owner that is there and quick is the only one that asks the source; one that is not is passed over.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_meta::state::{FileKey, NodeId};
use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use parking_lot::Mutex;

use super::{
    CHUNK, CachedFile, CachedSource,
    data::{Target, chunk_length},
    policy::version_of,
};
use crate::{
    cache::{ChunkKey, Placement},
    ring::{
        coherence::{Coherence, Route},
        messages::{Answer, Question},
    },
    source::{FileAttributes, ObjectId, SourceError, remote::OnBehalf, shared::SharedSource},
};

/// A peer is given this many times what nearly all its answers take, within these bounds, before the source is asked too: asking sooner would
/// fetch things twice whenever machines are busy.
const HEDGE_FACTOR: u32 = 4;
const HEDGE_MIN: Duration = Duration::from_millis(250);
const HEDGE_MAX: Duration = Duration::from_secs(2);
/// Chunks of which it is remembered that they were fetched from a peer.
const SEEN_SLOTS: usize = 32 << 10;

/// What a peer has of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FarChunk {
    /// All of it.
    Here(Bytes),
    /// Nothing.
    Miss,
    /// The peer does not answer.
    Gone,
}

/// How chunks of other nodes are fetched.
#[async_trait]
pub trait ChunkPeers: Send + Sync + 'static {
    /// A chunk of so many bytes, from a node.
    async fn fetch(&self, from: NodeId, epoch: u64, key: ChunkKey, length: u64, ahead: bool) -> FarChunk;

    /// What nearly all of a node's answers take, if enough is known.
    fn usual_time(&self, node: NodeId) -> Option<Duration>;
}

/// What a cached source of one of several nodes needs of the others.
#[derive(Clone)]
pub struct Sharing {
    /// The source, through its owners.
    pub source: Arc<SharedSource>,
    /// Their chunks.
    pub chunks: Arc<dyn ChunkPeers>,
    /// Fetches of chunks that are this node's, by what they fetch.
    pulls: Arc<Mutex<std::collections::HashMap<ChunkKey, Pull>>>,
    /// Chunks that came from peers: who comes again is worth a place on this node's own NVMe.
    seen: Arc<[AtomicU64]>,
}

type Pull = Shared<BoxFuture<'static, Result<Pulled, SourceError>>>;

/// A chunk as the source gave it.
#[derive(Clone, Debug)]
struct Pulled {
    bytes: Bytes,
    /// It is of the state that was wanted.
    matches: bool,
}

/// A chunk to be fetched by its owner.
#[derive(Clone, Debug)]
struct Wanted {
    id: ObjectId,
    key: ChunkKey,
    attributes: FileAttributes,
    settled: bool,
}

impl Wanted {
    /// Bytes it should have.
    fn length(&self) -> u64 {
        chunk_length(self.attributes.size, u64::from(self.key.index))
    }
}

impl Sharing {
    /// With others through `source` and `chunks`.
    pub fn new(source: Arc<SharedSource>, chunks: Arc<dyn ChunkPeers>) -> Self {
        let seen = (0..SEEN_SLOTS).map(|_| AtomicU64::new(0)).collect();
        Self { source, chunks, pulls: Arc::default(), seen }
    }

    /// Coherence.
    pub fn coherence(&self) -> &Arc<Coherence> {
        self.source.coherence()
    }

    fn hedge_after(&self, node: NodeId) -> Duration {
        let usual = self.chunks.usual_time(node).unwrap_or(HEDGE_MAX);
        usual.saturating_mul(HEDGE_FACTOR).clamp(HEDGE_MIN, HEDGE_MAX)
    }

    /// Whether a chunk has come from a peer before, not long ago.
    fn comes_again(&self, key: &ChunkKey) -> bool {
        let mut bytes = [0_u8; 28];
        bytes[..16].copy_from_slice(&key.file.to_be_bytes());
        bytes[16..24].copy_from_slice(&key.version.to_be_bytes());
        bytes[24..].copy_from_slice(&key.index.to_be_bytes());
        let hash = xxhash_rust::xxh3::xxh3_64(&bytes).max(1);
        let slot = &self.seen[(hash % SEEN_SLOTS as u64) as usize];
        slot.swap(hash, Ordering::Relaxed) == hash
    }
}

impl CachedSource {
    /// A chunk for a reader of this node, and what of it is to be kept.
    pub(super) async fn fetch_shared(
        self: &Arc<Self>,
        sharing: &Sharing,
        by: &OnBehalf,
        file: &CachedFile,
        target: Target,
    ) -> (Result<Bytes, SourceError>, Option<(ChunkKey, Bytes, Placement)>) {
        let (attributes, settled) = {
            let mut state = file.state();
            // Something will be kept under a name that is not for ever.
            state.learned |= state.provisional;
            (state.attributes.clone(), !state.provisional)
        };
        let wanted = Wanted { id: *file.id(), key: target.key, attributes, settled };
        if version_of(&wanted.attributes) != target.version {
            // It changed meanwhile: what is read now is nothing to keep.
            return (self.read_direct(by, file, target).await, None);
        }
        match sharing.coherence().data_route(file.cluster_key(), target.offset()) {
            Route::At(node) => {
                let far = self.fetch_far(sharing, by, &wanted, node);
                match far.await {
                    Some(bytes) => {
                        self.counters.peer_bytes.increment(bytes.len() as u64);
                        let durable = settled && sharing.comes_again(&target.key);
                        (Ok(bytes.clone()), Some((target.key, bytes, self.placement(durable))))
                    }
                    None => (self.read_direct(by, file, target).await, None),
                }
            }
            Route::Mine | Route::Nobody => match self.pull(sharing, by, wanted).await {
                Ok(pulled) => {
                    if !pulled.matches {
                        // The source has news: whoever comes next asks.
                        file.state().asked = None;
                    }
                    (Ok(pulled.bytes), None)
                }
                Err(error) => (Err(self.lost(file, error)), None),
            },
        }
    }

    /// A chunk from the source, which is not kept.
    async fn read_direct(&self, by: &OnBehalf, file: &CachedFile, target: Target) -> Result<Bytes, SourceError> {
        self.read_once(by, file, target.offset(), u32::try_from(target.length).unwrap_or(0)).await
    }

    /// A chunk that a peer has, all of it and soon; else it is as good as gone.
    async fn fetch_from(&self, sharing: &Sharing, node: NodeId, wanted: &Wanted, ahead: bool) -> FarChunk {
        let (length, epoch) = (wanted.length(), sharing.coherence().epoch());
        let fetched = sharing.chunks.fetch(node, epoch, wanted.key, length, ahead);
        match tokio::time::timeout(sharing.hedge_after(node), fetched).await {
            Ok(FarChunk::Here(bytes)) if bytes.len() as u64 != length => FarChunk::Gone,
            Ok(fetched) => fetched,
            Err(_) => {
                self.counters.hedged.increment(1);
                FarChunk::Gone
            }
        }
    }

    /// A chunk from the node that owns it, which fetches it if it must. `None`: ask the source.
    async fn fetch_far(
        self: &Arc<Self>,
        sharing: &Sharing,
        by: &OnBehalf,
        wanted: &Wanted,
        node: NodeId,
    ) -> Option<Bytes> {
        let ahead = by.purpose == crate::source::remote::Purpose::Ahead;
        match self.fetch_from(sharing, node, wanted, ahead).await {
            FarChunk::Here(bytes) => return Some(bytes),
            FarChunk::Gone => return None,
            FarChunk::Miss => {}
        }
        let question = Question::Pull {
            user: by.user.clone(),
            object: wanted.id,
            attributes: Box::new(wanted.attributes.clone()),
            content: wanted.key.version,
            settled: wanted.settled,
            index: wanted.key.index,
        };
        match sharing.coherence().question(node, self.name(), question).await {
            Ok(Answer::Pulled(true)) => match self.fetch_from(sharing, node, wanted, ahead).await {
                FarChunk::Here(bytes) => Some(bytes),
                FarChunk::Miss | FarChunk::Gone => None,
            },
            _ => None,
        }
    }

    /// Fetches a chunk that is this node's, once for all who want it: from whoever owned it before, else from the source.
    async fn pull(self: &Arc<Self>, sharing: &Sharing, by: &OnBehalf, wanted: Wanted) -> Result<Pulled, SourceError> {
        let pull = {
            let mut pulls = sharing.pulls.lock();
            match pulls.get(&wanted.key) {
                Some(pull) => pull.clone(),
                None => {
                    let (sender, receiver) = tokio::sync::oneshot::channel();
                    let (source, sharing, by) = (self.clone(), sharing.clone(), by.clone());
                    let key = wanted.key;
                    tokio::spawn(async move {
                        let (pulled, kept) = source.pull_now(&sharing, &by, &wanted).await;
                        let _ = sender.send(pulled);
                        // Who comes before it is kept still joins this fetch.
                        if let Some((bytes, durable)) = kept {
                            source.keep(wanted.key, bytes, source.placement(durable)).await;
                        }
                        sharing.pulls.lock().remove(&wanted.key);
                    });
                    let pull = receiver.map(|read| read.unwrap_or(Err(SourceError::Unavailable))).boxed().shared();
                    pulls.insert(key, pull.clone());
                    pull
                }
            }
        };
        pull.await
    }

    async fn pull_now(
        self: &Arc<Self>,
        sharing: &Sharing,
        by: &OnBehalf,
        wanted: &Wanted,
    ) -> (Result<Pulled, SourceError>, Option<(Bytes, bool)>) {
        // It may have come while nobody held the map.
        if let Some((bytes, _)) = self.cache.get(&wanted.key).await {
            return (Ok(Pulled { bytes, matches: true }), None);
        }
        let offset = u64::from(wanted.key.index) * CHUNK;
        let key = FileKey::of_digest(wanted.key.file);
        let former = sharing.coherence().former_data_owner(key, offset).filter(|_| wanted.settled);
        if let Some(node) = former
            && let FarChunk::Here(bytes) = self.fetch_from(sharing, node, wanted, false).await
        {
            self.counters.peer_bytes.increment(bytes.len() as u64);
            return (Ok(Pulled { bytes: bytes.clone(), matches: true }), Some((bytes, true)));
        }
        let length = wanted.length();
        let count = u32::try_from(length).unwrap_or(0);
        let read = match self.remote.read(by, &wanted.id, offset, count).await {
            Ok(read) => read,
            Err(error) => return (Err(error), None),
        };
        let bytes = read.data.bytes;
        self.counters.source_bytes.increment(bytes.len() as u64);
        let matches = version_of(&read.attributes) == version_of(&wanted.attributes) && bytes.len() as u64 == length;
        let kept = (matches && length > 0).then(|| (bytes.clone(), wanted.settled));
        (Ok(Pulled { bytes, matches }), kept)
    }

    /// Another node's reader wants a chunk that is this node's.
    pub(super) async fn pull_for(
        self: &Arc<Self>,
        by: &OnBehalf,
        id: ObjectId,
        (attributes, content, settled, index): (FileAttributes, u64, bool, u32),
    ) -> Answer {
        let Some(sharing) = &self.shared else { return Answer::Failed(SourceError::BadHandle) };
        let key = ChunkKey { file: self.key_of(&id), version: content, index };
        match self.pull(sharing, by, Wanted { id, key, attributes, settled }).await {
            Ok(pulled) => Answer::Pulled(pulled.matches),
            Err(error) => Answer::Failed(error),
        }
    }

    /// A chunk that is on its way into the cache.
    pub(super) fn pulling(&self, key: &ChunkKey) -> Option<BoxFuture<'static, Option<Bytes>>> {
        let pull = self.shared.as_ref()?.pulls.lock().get(key).cloned()?;
        Some(async move { pull.await.ok().filter(|pulled| pulled.matches).map(|pulled| pulled.bytes) }.boxed())
    }
}
