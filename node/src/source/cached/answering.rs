//! What other nodes are told of this node's files.
//!
//! Owns: answers to their questions, out of what is known here or what the source says now. Never does: decide who may believe them (the ring
//! does).
//!
//! Invariant: what may be believed is what this node itself would tell at the very moment when it is granted, under the object's lock.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Instant,
};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_meta::state::{FileKey, NodeId};
use forebay_proto::cluster::{RingEpoch, frame::Fetch};
use futures_util::{FutureExt, future::BoxFuture};
use parking_lot::RwLock;

use super::{CachedFile, CachedSource, Kept, Need, Place, Want, for_client};
use crate::{
    cache::{Cache, ChunkKey},
    peer::{Caller, ChunkProvider, Provided},
    ring::{
        Grant,
        coherence::Subject,
        messages::{Answer, Found, Glance, Listed, ListedEntry, Named, Question, Sight},
    },
    source::{Credentials, FileKind, ObjectId, SourceError},
};

/// Bytes of small files that come along in one answer.
const DATA_MAX: usize = 2 << 20;
/// Bytes of entries in one, as the source counts them.
const LISTED_MAX: u32 = 512 << 10;

/// Who asks, and by which ring.
#[derive(Clone, Copy, Debug)]
struct Asker {
    node: NodeId,
    epoch: u64,
}

fn need_of(want: Want) -> Need {
    if want.open { Need::Open } else { Need::Window }
}

impl CachedSource {
    /// The export's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What this node knows of an object, with leave to believe it if that can be given now.
    fn sight(&self, asker: Asker, number: u64, file: &CachedFile, need: Need) -> Option<(Sight, u64)> {
        let coherence = self.shared.as_ref()?.coherence();
        let now = Instant::now();
        let mut state = file.state();
        if state.gone || !self.holds(file, &state, need, now) {
            return None;
        }
        let incarnation = match coherence.grant(asker.node, asker.epoch, file.cluster_key(), number) {
            Grant::Believe { incarnation } => Some(incarnation),
            Grant::Once => None,
            Grant::Refused(_) => return None,
        };
        if state.provisional {
            // Somebody will keep something under this name.
            state.learned = true;
        }
        let age = state.asked.map_or(0, |asked| now.saturating_duration_since(asked).as_millis());
        let sight = Sight {
            attributes: state.attributes.clone(),
            content: state.content,
            settled: !state.provisional,
            age_ms: u32::try_from(age).unwrap_or(u32::MAX),
            incarnation,
        };
        Some((sight, state.content))
    }

    /// As the source says now, to be used once.
    async fn sight_once(&self, user: &Credentials, id: &ObjectId, want: Want) -> Result<Found, SourceError> {
        let want = Want { read: 0, open: true, ..want };
        let seen = self.remote.look(&for_client(user), &Place::Object(*id), want).await?.object?;
        Ok(Found { id: *id, sight: Sight::once(seen.attributes), hearsay: false, access: seen.access, data: None })
    }

    /// An object by its handle.
    async fn look_for(
        self: &Arc<Self>,
        asker: Asker,
        user: &Credentials,
        (id, number): (ObjectId, u64),
        want: Want,
    ) -> Result<Found, SourceError> {
        let need = need_of(want);
        let file = self.object(user, &id).await?;
        if want.open && want.access {
            self.refresh_to_open(user, &file).await?;
        } else {
            self.refresh(user, &file, need).await?;
        }
        let access = if want.access { Some(self.access(user, &file).await?) } else { None };
        let Some((sight, content)) = self.sight(asker, number, &file, need) else {
            return self.sight_once(user, &id, want).await;
        };
        let size = sight.attributes.size;
        let is_wanted = file.kind() == FileKind::Regular && size > 0 && size <= u64::from(want.read);
        let data = if is_wanted { self.whole_in_ram(&file, content, 0, size) } else { None };
        Ok(Found { id, sight, hearsay: false, access, data })
    }

    /// A name in one of this node's directories. Of its object only what it is called is told: its own owner knows how it is.
    async fn look_up_for(
        self: &Arc<Self>,
        asker: Asker,
        user: &Credentials,
        (dir, name, number): (ObjectId, &Bytes, u64),
        want: Want,
    ) -> Result<Glance, SourceError> {
        let need = need_of(want);
        let dir = self.object(user, &dir).await?;
        if want.open {
            self.refresh(user, &dir, Need::Open).await?;
        }
        let found = self.lookup(user, &dir, name).await;
        let key = match &found {
            Ok(file) => Some(file.key()),
            Err(SourceError::Errno(libc::ENOENT)) => None,
            Err(error) => return Err(*error),
        };
        // The directory may be believed only if it is known to say just this.
        let sight = self.sight(asker, number, &dir, need).filter(|(_, content)| {
            let state = dir.state();
            state.content == *content && state.name(name) == Some(key)
        });
        let directory = sight.map_or_else(|| Sight::once(dir.state().attributes.clone()), |(sight, _)| sight);
        let object = found.map(|file| {
            let sight = Sight::once(file.state().attributes.clone());
            Found { id: *file.id(), sight, hearsay: true, access: None, data: None }
        });
        Ok(Glance { directory: Some(directory), object })
    }

    async fn look_at_spots(
        self: &Arc<Self>,
        asker: Asker,
        user: &Credentials,
        places: Vec<(Place, u64)>,
        want: Want,
    ) -> Answer {
        self.refresh_many(user, &places, want).await;
        let all = places.into_iter().map(|(spot, number)| async move {
            match spot {
                Place::Object(id) => {
                    let object = self.look_for(asker, user, (id, number), want).await;
                    Ok(Glance { directory: None, object })
                }
                Place::Name(dir, name) => self.look_up_for(asker, user, (dir, &name, number), want).await,
            }
        });
        let mut seen = futures_util::future::join_all(all).await;
        // What would make the message too long is fetched as chunks.
        let mut left = DATA_MAX;
        for found in seen.iter_mut().flatten().filter_map(|glance| glance.object.as_mut().ok()) {
            let length = found.data.as_ref().map_or(0, Bytes::len);
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => found.data = None,
            }
        }
        Answer::Seen(seen)
    }

    /// Many objects are asked of the source in few round trips, before each is answered by itself.
    async fn refresh_many(self: &Arc<Self>, user: &Credentials, places: &[(Place, u64)], want: Want) {
        if places.len() < 2 {
            return;
        }
        let need = need_of(want);
        let now = Instant::now();
        let unknown = places.iter().filter_map(|(spot, _)| match spot {
            Place::Object(id) => {
                let known = self.resolve_now(id.fsid, &id.handle);
                let holds = known.is_some_and(|file| self.holds(&file, &file.state(), need, now));
                (!holds).then_some(Place::Object(*id))
            }
            Place::Name(..) => None,
        });
        let unknown: Vec<Place> = unknown.collect();
        let asked = self.asking();
        let Ok(all) = self.remote.look_many(&for_client(user), &unknown, want).await else { return };
        for object in all.into_iter().filter_map(|seen| seen.and_then(|seen| seen.object).ok()) {
            self.admit_seen(user, &object, None, asked).await;
        }
    }

    /// Entries of one of this node's directories.
    async fn list_for(
        self: &Arc<Self>,
        asker: Asker,
        user: &Credentials,
        (dir, number): (ObjectId, u64),
        (mut cookie, verifier, bytes): (u64, u64, u32),
    ) -> Result<Listed, SourceError> {
        let dir = self.object(user, &dir).await?;
        let may = self.access(user, &dir).await?;
        if !may.read {
            return Err(SourceError::Errno(libc::EACCES));
        }
        if cookie != 0 && dir.state().verifier == 0 {
            dir.state().verifier = verifier;
        }
        self.refresh(user, &dir, Need::Window).await?;
        loop {
            let known = if may.execute { self.page_now(&dir, cookie) } else { None };
            let (kept, content, fresh) = match known {
                Some((kept, content)) => (kept, Some(content), false),
                None => self.page(user, &dir, (cookie, bytes as usize), may.execute, false).await?,
            };
            let page = &kept.page;
            if page.entries.len() == kept.from && !page.eof {
                // Names that clients do not see.
                cookie = page.last;
                continue;
            }
            let sight = self.sight(asker, number, &dir, Need::Window).filter(|(_, now)| Some(*now) == content);
            let entries = page.entries[kept.from..].iter().map(|entry| ListedEntry {
                cookie: entry.cookie,
                name: entry.name.clone(),
                object: entry.object.as_ref().map(|(id, _, told)| (*id, told.clone())).map_err(|error| *error),
            });
            return Ok(Listed {
                directory: sight.map_or_else(|| Sight::once(dir.state().attributes.clone()), |(sight, _)| sight),
                verifier: page.verifier,
                entries: entries.collect(),
                eof: page.eof,
                fresh,
            });
        }
    }
}

#[async_trait]
impl Subject for CachedSource {
    fn key(&self, object: &ObjectId) -> FileKey {
        FileKey::of_digest(self.key_of(object))
    }

    fn change_begins(&self, object: &ObjectId) -> Option<u64> {
        let file = self.table.get(&self.key_of(object))?;
        let mut state = file.state();
        let ticket = self.next_change();
        state.begin_change(ticket);
        Some(ticket)
    }

    fn change_ends(&self, object: &ObjectId, began: Option<u64>, after: Option<&crate::source::FileAttributes>) {
        let epoch = self.next_change();
        let Some(file) = self.table.get(&self.key_of(object)) else {
            // Questions under way may make it known yet, as it was.
            self.floor.fetch_max(epoch, std::sync::atomic::Ordering::AcqRel);
            return;
        };
        let mut state = file.state();
        if began.is_none() {
            let ticket = self.next_change();
            state.begin_change(ticket);
        }
        let (nonce, policy) = (self.fresh(), self.policy());
        let after = after.filter(|after| after.kind == file.kind() && began.is_some());
        state.end_change(after, (Instant::now(), epoch), (None::<Kept>, false), nonce, policy);
    }

    fn names(&self, dir: &ObjectId, names: &[Bytes]) -> Vec<Named> {
        let dir = self.table.get(&self.key_of(dir));
        let known = |name: &Bytes| match dir.as_ref().and_then(|dir| dir.state().name(name)) {
            None => Named::Unknown,
            Some(None) => Named::Missing,
            Some(Some(key)) => match self.table.get(&key).filter(|file| !file.state().gone) {
                Some(file) => Named::Object(*file.id()),
                None => Named::Unknown,
            },
        };
        names.iter().map(known).collect()
    }

    async fn answer(self: Arc<Self>, from: NodeId, epoch: u64, question: Question) -> Answer {
        let asker = Asker { node: from, epoch };
        match question {
            Question::Look { user, places, want } => self.look_at_spots(asker, &user, places, want).await,
            Question::List { user, dir, cookie, verifier, bytes } => {
                match self.list_for(asker, &user, dir, (cookie, verifier, bytes.min(LISTED_MAX))).await {
                    Ok(listed) => Answer::Page(Box::new(listed)),
                    Err(error) => Answer::Failed(error),
                }
            }
            Question::Pull { user, object, attributes, content, settled, index } => {
                let by = for_client(&user);
                self.pull_for(&by, object, (*attributes, content, settled, index)).await
            }
            Question::Hold { .. } | Question::LetGo { .. } => Answer::Failed(SourceError::BadHandle),
        }
    }
}

/// The chunks that other nodes are given.
pub struct Chunks {
    cache: Arc<Cache>,
    sources: RwLock<HashMap<u64, Weak<CachedSource>>>,
}

impl Chunks {
    /// Those of a cache.
    pub fn new(cache: Arc<Cache>) -> Self {
        Self { cache, sources: RwLock::default() }
    }

    /// Chunks that are on their way into the cache for this source are given too.
    pub fn add(&self, source: &Arc<CachedSource>) {
        self.sources.write().insert(source.export, Arc::downgrade(source));
    }

    fn pulling(&self, key: &ChunkKey) -> Option<BoxFuture<'static, Option<Bytes>>> {
        let sources = self.sources.read();
        sources.values().filter_map(Weak::upgrade).find_map(|source| source.pulling(key))
    }
}

impl ChunkProvider for Chunks {
    fn epoch(&self) -> RingEpoch {
        // Contents have names that never change: whoever asks by an older ring may be told all the same.
        RingEpoch(0)
    }

    fn fetch(&self, _caller: Caller, fetch: Fetch) -> BoxFuture<'_, Provided> {
        let Some(version) = fetch.version.content() else {
            return std::future::ready(Provided::Miss).boxed();
        };
        let key = ChunkKey { file: fetch.file.to_u128(), version, index: fetch.chunk };
        let part = move |bytes: Bytes| {
            let end = (fetch.range.offset() + fetch.range.length()).min(bytes.len());
            let begin = fetch.range.offset().min(end);
            let eof = end == bytes.len() && end < fetch.range.offset() + fetch.range.length();
            Provided::Data { bytes: bytes.slice(begin..end), eof }
        };
        if let Some(bytes) = self.cache.ram(&key) {
            return std::future::ready(part(bytes)).boxed();
        }
        async move {
            if let Some((bytes, _)) = self.cache.get(&key).await {
                return part(bytes);
            }
            match self.pulling(&key) {
                Some(pulling) => pulling.await.map_or(Provided::Miss, part),
                None => Provided::Miss,
            }
        }
        .boxed()
    }
}
