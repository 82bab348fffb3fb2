//! A file server behind the cache.
//!
//! Owns: what is known of the source's objects and for how long it is believed; which data is fetched, kept, served.
//! Never does: speak the source's protocol ([`RemoteSource`] does), keep bytes ([`Cache`] does), judge opens and locks.
//!
//! Invariants:
//! * Nothing older than the export's policy states is told, unless the source cannot be reached and `serve_stale`
//!   allows it.
//! * After a change through us was answered, no later answer shows the state before it.
//! * The same thing is not asked twice at once: revalidations, opens of a name and fetches of a chunk are shared.
//! * No lock is held while the source is asked.

mod answering;
mod attributes;
mod change;
mod counters;
mod data;
mod directory;
mod far;
mod file;
pub mod manage;
mod names;
mod policy;
mod readahead;
#[cfg(test)]
mod tests;
mod walk;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use forebay_meta::state::FileKey;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

pub use self::{
    answering::Chunks as SharedChunks,
    change::{HIDDEN, Hidden, WriteDone},
    far::{ChunkPeers, FarChunk, Sharing},
    file::CachedFile,
    policy::{Consistency, LookupCache, OnPartition, Policy},
};
use self::{
    counters::CachedCounters,
    data::Chunks,
    directory::Pages,
    file::{Asked, Kept, Names, Need, digest},
};
use super::{
    AccessMask, Credentials, FileAttributes, ObjectId, SOURCE_HANDLE_MAX, SourceError, SourceFsid, SourceHandle,
    SpaceAttributes,
    remote::{OnBehalf, Place, Purpose, RemoteSource, SeenObject, Want, Word},
};
use crate::cache::Cache;

/// A question under way that several may wait for.
type Flight = Shared<BoxFuture<'static, Result<FileAttributes, SourceError>>>;

/// A chunk of a file: what is fetched and kept as one.
pub const CHUNK: u64 = 1 << 20;

/// Memory that one object's record takes, about: handle, attributes, names of a directory.
const RECORD_BYTES: u64 = 1024;

/// Memory that a remembered name takes, about.
const NAME_BYTES: u64 = 128;

/// How an export uses its cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CachedOptions {
    /// What may be believed.
    pub policy: Policy,
    /// Bytes read ahead of a stream at most.
    pub readahead: u64,
    /// Memory for what is known of objects, without their data.
    pub metadata_bytes: u64,
    /// How long data is kept on NVMe and in RAM after it was fetched; `None`: until the room is needed.
    pub ttl: Option<std::time::Duration>,
}

impl Default for CachedOptions {
    fn default() -> Self {
        let policy = Policy::preset(Consistency::default());
        Self { policy, readahead: 8 << 20, metadata_bytes: 128 << 20, ttl: None }
    }
}

/// A file server behind the cache. Share it by [`Arc`].
pub struct CachedSource {
    remote: Arc<dyn RemoteSource>,
    cache: Arc<Cache>,
    options: CachedOptions,
    counters: CachedCounters,
    name: String,
    /// What the cache accounts this export's data to.
    export: u64,
    /// What keys of this source's objects begin with.
    seed: u64,
    table: Table,
    root: RwLock<Option<Arc<CachedFile>>>,
    chunks: Chunks,
    pages: Pages,
    opening: Mutex<std::collections::HashMap<(u128, Bytes), Flight>>,
    /// Files on their way that nobody has opened yet.
    coming: walk::Coming,
    ahead: Arc<Semaphore>,
    fetches: Semaphore,
    nonce: AtomicU64,
    /// Counts beginnings and ends of our own changes.
    changes: AtomicU64,
    /// Questions begun before this count of our changes tell nothing of objects that were not known.
    floor: AtomicU64,
    /// Names that may still be remembered, over all directories.
    names_left: Arc<AtomicI64>,
    /// The other nodes that cache the same source, if there are any.
    shared: Option<Sharing>,
}

type Table =
    quick_cache::sync::Cache<u128, Arc<CachedFile>, quick_cache::UnitWeighter, quick_cache::DefaultHashBuilder, InUse>;

/// Objects that somebody is working on must stay the only ones of their kind.
#[derive(Clone, Debug)]
struct InUse;

impl quick_cache::Lifecycle<u128, Arc<CachedFile>> for InUse {
    type RequestState = ();

    fn is_pinned(&self, _key: &u128, file: &Arc<CachedFile>) -> bool {
        Arc::strong_count(file) > 1
    }

    fn begin_request(&self) {}

    fn on_evict(&self, _state: &mut (), _key: u128, _file: Arc<CachedFile>) {}
}

/// The stable number that a cache accounts an export's data to.
pub fn export_number(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

impl CachedSource {
    /// `name`: the export's; `url`: the source's, which keys of its data begin with. `seed` makes names of contents that
    /// were never used before.
    pub fn new(
        (name, url): (&str, &str),
        remote: Arc<dyn RemoteSource>,
        cache: Arc<Cache>,
        options: CachedOptions,
        seed: u64,
    ) -> Arc<Self> {
        Self::build((name, url), remote, cache, options, seed, None)
    }

    /// As [`CachedSource::new`], for one of several nodes.
    pub fn shared(
        (name, url): (&str, &str),
        sharing: Sharing,
        cache: Arc<Cache>,
        options: CachedOptions,
        seed: u64,
    ) -> Arc<Self> {
        let (remote, source) = (sharing.source.clone(), sharing.source.clone());
        let cached = Self::build((name, url), remote, cache, options, seed, Some(sharing));
        let subject: Arc<dyn crate::ring::coherence::Subject> = cached.clone();
        source.serve(&subject);
        cached
    }

    fn build(
        (name, url): (&str, &str),
        remote: Arc<dyn RemoteSource>,
        cache: Arc<Cache>,
        options: CachedOptions,
        seed: u64,
        shared: Option<Sharing>,
    ) -> Arc<Self> {
        let objects = usize::try_from(options.metadata_bytes / RECORD_BYTES).unwrap_or(usize::MAX).max(1024);
        let table = quick_cache::sync::Cache::with(
            objects,
            objects as u64,
            quick_cache::UnitWeighter,
            quick_cache::DefaultHashBuilder::default(),
            InUse,
        );
        Arc::new(Self {
            remote,
            counters: CachedCounters::new(name),
            name: name.to_owned(),
            export: export_number(name),
            seed: xxh3_64(url.as_bytes()),
            table,
            root: RwLock::new(None),
            chunks: Chunks::default(),
            pages: directory::no_pages(options.metadata_bytes / 4),
            opening: Mutex::default(),
            coming: Mutex::default(),
            ahead: Arc::new(Semaphore::new(data::ahead_limit(cache.stats().ram.capacity))),
            fetches: Semaphore::new(data::fetch_limit(cache.stats().ram.capacity)),
            nonce: AtomicU64::new(seed),
            changes: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            shared,
            cache,
            names_left: Arc::new(AtomicI64::new((options.metadata_bytes / 4 / NAME_BYTES).cast_signed())),
            options,
        })
    }

    /// The source itself.
    pub fn remote(&self) -> &Arc<dyn RemoteSource> {
        &self.remote
    }

    /// What keeps its data.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// What it may believe.
    pub fn policy(&self) -> &Policy {
        &self.options.policy
    }

    /// A name for a content that has none of its own yet. Random enough not to meet another.
    fn fresh(&self) -> u64 {
        let number = self.nonce.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        xxh3_64(&number.to_be_bytes())
    }

    fn key_of(&self, id: &ObjectId) -> u128 {
        let mut bytes = [0_u8; 8 + SOURCE_HANDLE_MAX];
        let handle = id.handle.as_bytes();
        bytes[..8].copy_from_slice(&id.fsid.0.to_be_bytes());
        bytes[8..8 + handle.len()].copy_from_slice(handle);
        // As many bits as the cluster's names of files have.
        FileKey::of_digest(xxh3_128_with_seed(&bytes[..8 + handle.len()], self.seed)).to_u128()
    }

    /// Whether what is known of an object may be told for an operation that begins now.
    fn holds(&self, file: &CachedFile, state: &file::State, need: Need, now: Instant) -> bool {
        state.is_fresh(self.policy(), need, now) && self.may_tell(file, state)
    }

    /// Whether no other node can have changed it. A node on its own has nobody to ask.
    fn may_tell(&self, file: &CachedFile, state: &file::State) -> bool {
        let Some(shared) = &self.shared else { return true };
        let Some(asked) = state.asked.filter(|_| state.changing == 0) else { return false };
        shared.coherence().holds(file.cluster_key(), state.word, asked)
    }

    /// Whether it may be told although the source cannot be asked. In a cluster another node might be able to, and change it: unless the export
    /// says that reads are to go on whatever happens, it must be known that none has.
    fn may_serve_stale(&self, file: &CachedFile, state: &file::State) -> bool {
        let policy = self.policy();
        state.is_servable(policy, Instant::now())
            && (policy.on_partition == OnPartition::Serve || self.may_tell(file, state))
    }

    /// Attributes came, with this word on them; see [`file::State::observe`].
    fn observe(&self, state: &mut file::State, attributes: &FileAttributes, asked: Asked, word: &Word) -> bool {
        let is_news = state.observe(attributes, asked.told_by(word), self.fresh(), self.policy());
        if let (true, Word::Owner(word)) = (is_news, word) {
            word.remembered();
        }
        is_news
    }

    /// The moment before a question.
    fn asking(&self) -> Asked {
        let epoch = self.changes.load(Ordering::Acquire);
        Asked { epoch, at: Instant::now(), wall: wall(), teller: file::Teller::Source }
    }

    /// A number for the beginning or the end of a change.
    fn next_change(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Makes an object known, or what is known of it newer.
    fn admit(&self, id: &ObjectId, attributes: &FileAttributes, asked: Asked, word: &Word) -> Arc<CachedFile> {
        let key = self.key_of(id);
        if let Some(file) = self.table.get(&key) {
            if file.kind() == attributes.kind {
                self.observe(&mut file.state(), attributes, asked, word);
                return file;
            }
            // A source that gives an old handle to another object.
            file.state().gone = true;
            self.table.remove(&key);
        }
        let is_root = self.root.read().as_ref().is_some_and(|root| root.id() == id);
        let told = asked.told_by(word);
        let new = || {
            let file = self.new_file((*id, key, is_root), attributes.clone(), told);
            if asked.epoch < self.floor.load(Ordering::Acquire) {
                // It may have been changed since the question was asked, by somebody who did not find it here.
                file.state().asked = None;
            }
            Ok::<_, std::convert::Infallible>(Arc::new(file))
        };
        let Ok(file) = self.table.get_or_insert_with(&key, new);
        if let Word::Owner(word) = word {
            word.remembered();
        }
        file
    }

    fn new_file(&self, who: (ObjectId, u128, bool), attributes: FileAttributes, asked: Asked) -> CachedFile {
        let names = Names::new(self.names_left.clone());
        CachedFile::new(who, attributes, asked, names, self.fresh(), self.policy())
    }

    /// As [`CachedSource::admit`], with what came along: rights and small data.
    async fn admit_seen(
        &self,
        user: &Credentials,
        seen: &SeenObject,
        known: Option<&Arc<CachedFile>>,
        asked: Asked,
    ) -> Arc<CachedFile> {
        let known = known.filter(|file| *file.id() == seen.id && file.kind() == seen.attributes.kind);
        let file = match known {
            Some(file) => {
                self.observe(&mut file.state(), &seen.attributes, asked, &seen.word);
                file.clone()
            }
            None => self.admit(&seen.id, &seen.attributes, asked, &seen.word),
        };
        let asked = asked.told_by(&seen.word);
        if let Some(mask) = seen.access {
            let mut state = file.state();
            let is_news = state.changing == 0 && state.epoch <= asked.epoch;
            if is_news && state.attributes.change == seen.attributes.change {
                state.set_rights(digest(user), mask);
            }
        }
        if let Some(data) = &seen.data {
            self.keep_small(&file, &seen.attributes, data, asked).await;
        }
        file
    }

    /// The root, if it is known.
    pub fn root_now(&self) -> Option<Arc<CachedFile>> {
        self.root.read().clone().filter(|root| !root.state().gone)
    }

    /// The root.
    pub async fn root(&self, user: &Credentials) -> Result<Arc<CachedFile>, SourceError> {
        let asked = self.asking();
        let seen = self.remote.root(&for_client(user)).await?;
        let key = self.key_of(&seen.id);
        let root = self.new_file((seen.id, key, true), seen.attributes, asked);
        let mut known = self.root.write();
        // Somebody else may have been faster.
        if let Some(root) = known.as_ref().filter(|root| *root.id() == seen.id && !root.state().gone) {
            return Ok(root.clone());
        }
        let root = Arc::new(root);
        self.table.insert(key, root.clone());
        *known = Some(root.clone());
        Ok(root)
    }

    /// An object by its handle, if it is known.
    pub fn resolve_now(&self, fsid: SourceFsid, handle: &SourceHandle) -> Option<Arc<CachedFile>> {
        let key = self.key_of(&ObjectId { fsid, handle: *handle });
        self.table.get(&key).filter(|file| !file.state().gone)
    }

    /// An object by its handle, asked about only if it is not known.
    async fn object(&self, user: &Credentials, id: &ObjectId) -> Result<Arc<CachedFile>, SourceError> {
        match self.resolve_now(id.fsid, &id.handle) {
            Some(file) => Ok(file),
            None => self.resolve(user, id.fsid, &id.handle).await,
        }
    }

    /// An object by its handle.
    pub async fn resolve(
        &self,
        user: &Credentials,
        fsid: SourceFsid,
        handle: &SourceHandle,
    ) -> Result<Arc<CachedFile>, SourceError> {
        if self.root_now().is_none() {
            // Whether it is the root must be known before it is climbed from.
            self.root(user).await?;
        }
        let id = ObjectId { fsid, handle: *handle };
        let asked = self.asking();
        let seen = self.look(user, Place::Object(id), Want::default()).await?;
        Ok(self.admit(&id, &seen.attributes, asked, &seen.word))
    }

    /// Asks about one place; what is not there is an error.
    async fn look(&self, user: &Credentials, place: Place, want: Want) -> Result<SeenObject, SourceError> {
        self.remote.look(&for_client(user), &place, want).await?.object
    }

    /// Space of the object's file system.
    pub async fn space(&self, user: &Credentials, file: &CachedFile) -> Result<SpaceAttributes, SourceError> {
        self.remote.space(&for_client(user), file.id()).await
    }

    /// The directory above; `None` at the export's root.
    pub async fn parent(&self, user: &Credentials, dir: &CachedFile) -> Result<Option<Arc<CachedFile>>, SourceError> {
        if dir.is_root() {
            return Ok(None);
        }
        let asked = self.asking();
        let seen = self.remote.parent(&for_client(user), dir.id()).await?;
        Ok(Some(self.admit(&seen.id, &seen.attributes, asked, &seen.word)))
    }

    /// Lets go of all that is known, but not of data: the next questions go to the source.
    pub fn forget_all(&self) {
        self.table.clear();
        self.pages.clear();
        if let Some(root) = self.root_now() {
            root.state().asked = None;
            self.table.insert(root.key(), root.clone());
        }
    }
}

impl fmt::Debug for CachedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedSource").field("remote", &self.remote).finish_non_exhaustive()
    }
}

fn for_client(user: &Credentials) -> OnBehalf {
    OnBehalf { user: user.clone(), purpose: Purpose::Client }
}

/// Now, in nanoseconds since 1970.
fn wall() -> i128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos().try_into().unwrap_or(i128::MAX)
}
