//! Data: out of RAM, out of NVMe, or fetched once for all who want it.

use std::{
    collections::HashMap,
    ops::Range,
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use bytes::{Bytes, BytesMut};
use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use parking_lot::Mutex;

use super::{
    CHUNK, CachedFile, CachedSource, Need, OnPartition,
    file::{Asked, Teller},
    for_client,
    policy::version_of,
};
use crate::{
    cache::{ChunkKey, Placement, Tier},
    source::{
        Credentials, FileAttributes, SourceError,
        remote::{Data, OnBehalf, Purpose},
    },
};

/// Chunks fetched ahead at once, over all files.
const AHEAD_MAX: u64 = 64;
/// And no more of the memory for data than this share, but a few in any case.
const AHEAD_SHARE: u64 = 32;
const AHEAD_MIN: u64 = 4;

/// Chunks that may be fetched or wait to be kept at once, with `ram` bytes of memory for data: where the disk is slower than
/// the source, readers wait for it, and memory does not fill with what waits.
pub(super) fn fetch_limit(ram: u64) -> usize {
    2 * ahead_limit(ram)
}

/// Chunks that may be on their way ahead of their readers, with `ram` bytes of memory for data.
pub(super) fn ahead_limit(ram: u64) -> usize {
    (ram / AHEAD_SHARE / CHUNK).clamp(AHEAD_MIN, AHEAD_MAX) as usize
}

/// A fetch under way.
type Fetch = Shared<BoxFuture<'static, Result<Bytes, SourceError>>>;

/// Fetches under way, by what they fetch. One that was begun before a change of ours is not shared after it.
pub(super) type Chunks = Mutex<HashMap<(ChunkKey, u64), Fetch>>;

/// Under which name a chunk is kept, and how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) key: ChunkKey,
    epoch: u64,
    /// Bytes it should have.
    pub(super) length: u64,
    /// Of the attributes that it belongs to.
    pub(super) version: u64,
}

impl Target {
    /// Where in the file it begins.
    pub(super) fn offset(&self) -> u64 {
        u64::from(self.key.index) * CHUNK
    }
}

/// What became of a chunk that was to be kept, with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WarmChunk {
    /// It was there.
    Present(u64),
    /// It came from the source.
    Fetched(u64),
}

impl CachedSource {
    /// Data, if it is in RAM and may be served without a question.
    pub fn read_now(self: &Arc<Self>, file: &Arc<CachedFile>, offset: u64, count: usize) -> Option<(Bytes, bool)> {
        let now = Instant::now();
        let (content, size) = {
            let state = file.state();
            if state.gone || state.changing > 0 || !self.holds(file, &state, Need::Window, now) {
                return None;
            }
            (state.content, state.attributes.size)
        };
        if offset >= size || count == 0 {
            return Some((Bytes::new(), offset >= size));
        }
        let end = size.min(offset + count as u64);
        let index = offset / CHUNK;
        if (end - 1) / CHUNK != index {
            return None;
        }
        let key = chunk_key(file, content, index)?;
        let chunk = self.cache.ram(&key)?;
        if chunk.len() as u64 != chunk_length(size, index) {
            return None;
        }
        self.note_read(None, file, offset, count as u64);
        self.count_ram(file, key.index, end - offset);
        let start = index * CHUNK;
        let range = (offset - start) as usize..(end - start) as usize;
        Some((chunk.slice(range), end == size))
    }

    /// Bytes were served out of RAM; the first time it may be that they had just come for this very reader.
    fn count_ram(&self, file: &CachedFile, index: u32, bytes: u64) {
        let is_first = file.state().take_unread(index);
        let counter = if is_first { &self.counters.source_bytes } else { &self.counters.ram_bytes };
        counter.increment(bytes);
    }

    /// Whether a chunk is in RAM or on NVMe.
    pub(super) fn has_chunk(&self, file: &CachedFile, content: u64, index: u64) -> bool {
        chunk_key(file, content, index).is_some_and(|key| self.cache.contains(&key).is_some())
    }

    /// Data. Fewer bytes than asked for only at the end of the file.
    pub async fn read(
        self: &Arc<Self>,
        user: &Credentials,
        file: &Arc<CachedFile>,
        offset: u64,
        count: usize,
    ) -> Result<(Bytes, bool), SourceError> {
        let size = self.refresh(user, file, Need::Window).await?.size;
        let content = self.content_now(file);
        if offset >= size || count == 0 {
            return Ok((Bytes::new(), offset >= size));
        }
        self.note_read(Some(user), file, offset, count as u64);
        let end = size.min(offset + count as u64);
        let indices = offset / CHUNK..(end - 1) / CHUNK + 1;
        let mut parts = Vec::with_capacity(2);
        for index in indices {
            let start = index * CHUNK;
            let wanted = offset.max(start) - start..end.min(start + CHUNK) - start;
            let part = self.part(user, file, (index, content), wanted.clone()).await?;
            let is_short = (part.len() as u64) < wanted.end - wanted.start;
            parts.push(part);
            if is_short {
                break;
            }
        }
        let bytes = join(parts);
        // The file may have become shorter or longer meanwhile.
        let size = file.state().attributes.size;
        let eof = offset + bytes.len() as u64 >= size;
        if bytes.is_empty() && !eof {
            return Err(SourceError::Unavailable);
        }
        Ok((bytes, eof))
    }

    /// What a file's data is kept under, if that may be told; in a cluster not while another node may be changing it.
    fn content_now(&self, file: &CachedFile) -> Option<u64> {
        let state = file.state();
        let is_cut_off = self.policy().on_partition == OnPartition::Serve && self.may_serve_stale(file, &state);
        (is_cut_off || self.may_tell(file, &state)).then_some(state.content)
    }

    /// Part of a chunk.
    async fn part(
        self: &Arc<Self>,
        user: &Credentials,
        file: &Arc<CachedFile>,
        (index, content): (u64, Option<u64>),
        wanted: Range<u64>,
    ) -> Result<Bytes, SourceError> {
        let is_right = |target: &Target| self.shared.is_none() || content == Some(target.key.version);
        let Some(target) = self.target(file, index).filter(is_right) else {
            // It is being changed: what is read now is nothing to keep.
            return self.read_alone(user, file, index, wanted).await;
        };
        if let Some((chunk, tier)) = self.cache.get(&target.key).await
            && chunk.len() as u64 == target.length
        {
            let part = slice(&chunk, &wanted);
            match tier {
                Tier::Ram => self.count_ram(file, target.key.index, part.len() as u64),
                Tier::Nvme => self.counters.nvme_bytes.increment(part.len() as u64),
            }
            return Ok(part);
        }
        let (fetch, joined) = self.fetch(for_client(user), file, target, None);
        let chunk = match fetch.await {
            // It was another's: refused ahead of need, or not allowed to him.
            Err(error) if joined && error != SourceError::Stale => {
                return self.read_alone(user, file, index, wanted).await;
            }
            fetched => fetched?,
        };
        let part = slice(&chunk, &wanted);
        // It may have been begun ahead of its reader, who is here now.
        file.state().take_unread(target.key.index);
        if self.shared.is_none() {
            // In a cluster it is counted where it comes from.
            self.counters.source_bytes.increment(part.len() as u64);
        }
        Ok(part)
    }

    /// Part of a chunk from the source, for this user alone, and not kept.
    async fn read_alone(
        &self,
        user: &Credentials,
        file: &CachedFile,
        index: u64,
        wanted: Range<u64>,
    ) -> Result<Bytes, SourceError> {
        let count = u32::try_from(wanted.end - wanted.start).unwrap_or(u32::MAX);
        self.read_once(&for_client(user), file, index * CHUNK + wanted.start, count).await
    }

    /// Data from the source, which is not kept.
    pub(super) async fn read_once(
        &self,
        by: &OnBehalf,
        file: &CachedFile,
        offset: u64,
        count: u32,
    ) -> Result<Bytes, SourceError> {
        let read = self.remote.read(by, file.id(), offset, count).await.map_err(|error| self.lost(file, error))?;
        self.counters.source_bytes.increment(read.data.bytes.len() as u64);
        Ok(read.data.bytes)
    }

    /// What a chunk is kept as now; `None` while the file is being changed by us.
    fn target(&self, file: &CachedFile, index: u64) -> Option<Target> {
        let state = file.state();
        if state.changing > 0 {
            return None;
        }
        let key = chunk_key(file, state.content, index)?;
        let (length, version) = (chunk_length(state.attributes.size, index), version_of(&state.attributes));
        Some(Target { key, epoch: state.epoch, length, version })
    }

    /// Fetches a chunk, or waits for somebody who does (then `true`). It goes on whoever stops waiting. `held` is given back once the
    /// chunk is kept.
    fn fetch(
        self: &Arc<Self>,
        by: OnBehalf,
        file: &Arc<CachedFile>,
        target: Target,
        held: Option<tokio::sync::OwnedSemaphorePermit>,
    ) -> (Fetch, bool) {
        let mut chunks = self.chunks.lock();
        if let Some(fetch) = chunks.get(&(target.key, target.epoch)) {
            return (fetch.clone(), true);
        }
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let (source, file) = (self.clone(), file.clone());
        tokio::spawn(async move {
            let _permit = source.fetches.acquire().await;
            let (read, kept) = match &source.shared {
                None => source.fetch_now(&by, &file, target).await,
                Some(sharing) => source.fetch_shared(sharing, &by, &file, target).await,
            };
            // Readers first; then it waits for room in the cache, and with it whoever comes when all permits are out.
            let _ = sender.send(read);
            if let Some((key, bytes, placement)) = kept {
                source.keep(key, bytes, placement).await;
            }
            source.chunks.lock().remove(&(target.key, target.epoch));
            drop(held);
        });
        let fetch = receiver.map(|read| read.unwrap_or(Err(SourceError::Unavailable))).boxed().shared();
        chunks.insert((target.key, target.epoch), fetch.clone());
        (fetch, false)
    }

    /// The fetch itself, and what of it is to be kept.
    async fn fetch_now(
        &self,
        by: &OnBehalf,
        file: &CachedFile,
        target: Target,
    ) -> (Result<Bytes, SourceError>, Option<(ChunkKey, Bytes, Placement)>) {
        let asked = self.asking();
        let count = u32::try_from(target.length).unwrap_or(0);
        let read = match self.remote.read(by, file.id(), target.offset(), count).await {
            Ok(read) => read,
            Err(error) => return (Err(self.lost(file, error)), None),
        };
        let bytes = read.data.bytes;
        let kept = self.keep_under(file, &read.attributes, asked, u64::from(target.key.index), bytes.len() as u64);
        if kept.is_some() && by.purpose == Purpose::Ahead {
            file.state().set_unread(target.key.index);
        }
        (Ok(bytes.clone()), kept.map(|(key, placement)| (key, bytes, placement)))
    }

    /// Sees to it that a chunk is kept, though nobody reads it now. `held` is given back once the cache has taken it.
    /// `Unavailable` also while the file is being changed through us.
    pub(super) async fn warm_chunk(
        self: &Arc<Self>,
        user: &Credentials,
        file: &Arc<CachedFile>,
        index: u64,
        held: tokio::sync::OwnedSemaphorePermit,
    ) -> Result<WarmChunk, SourceError> {
        let target = self.target(file, index).ok_or(SourceError::Unavailable)?;
        if self.cache.contains(&target.key).is_some() {
            return Ok(WarmChunk::Present(target.length));
        }
        let bytes = self.fetch(for_client(user), file, target, Some(held)).0.await?;
        Ok(WarmChunk::Fetched(bytes.len() as u64))
    }

    /// Under which name data that came with `attributes` is kept, if it is the object's and all of its chunk.
    fn keep_under(
        &self,
        file: &CachedFile,
        attributes: &FileAttributes,
        asked: Asked,
        index: u64,
        length: u64,
    ) -> Option<(ChunkKey, Placement)> {
        let mut state = file.state();
        // What an owner told has been taken note of already.
        let is_told = matches!(asked.teller, Teller::Owner { content, .. } if content == state.content);
        let current = is_told || state.observe(attributes, asked, self.fresh(), self.policy());
        let same = version_of(attributes) == version_of(&state.attributes);
        if !current || !same || length != chunk_length(attributes.size, index) || length == 0 {
            return None;
        }
        state.learned = true;
        let key = chunk_key(file, state.content, index)?;
        // Another node's file is on that node's NVMe.
        Some((key, self.placement(!state.provisional && !is_told)))
    }

    pub(super) async fn keep(&self, key: ChunkKey, bytes: Bytes, placement: Placement) {
        // That it could not be pinned is told to whoever pins.
        let _ = self.cache.insert(key, bytes, placement).await;
    }

    pub(super) fn placement(&self, durable: bool) -> Placement {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let expires = self.options.ttl.map(|ttl| now + ttl.as_secs());
        Placement { export: self.export, durable, pinned: false, expires }
    }

    /// Keeps data that came along with attributes.
    pub(super) async fn keep_small(&self, file: &CachedFile, attributes: &FileAttributes, data: &Data, asked: Asked) {
        let length = data.bytes.len() as u64;
        if length != attributes.size || length > CHUNK {
            return;
        }
        if let Some((key, placement)) = self.keep_under(file, attributes, asked, 0, length) {
            file.state().set_unread(0);
            self.keep(key, data.bytes.clone(), placement).await;
        }
    }

    /// Puts data in RAM under a content of its own, which a change of ours made.
    pub(super) async fn keep_private(&self, file: &CachedFile, content: u64, index: u64, bytes: Bytes) {
        if let Some(key) = chunk_key(file, content, index) {
            self.keep(key, bytes, self.placement(false)).await;
        }
    }

    /// A chunk in RAM, if it is there and whole.
    pub(super) fn whole_in_ram(&self, file: &CachedFile, content: u64, index: u64, size: u64) -> Option<Bytes> {
        let chunk = self.cache.ram(&chunk_key(file, content, index)?)?;
        (chunk.len() as u64 == chunk_length(size, index)).then_some(chunk)
    }

    /// Fetches chunks that nobody has asked for yet, unless enough is under way.
    fn fetch_ahead(self: &Arc<Self>, file: &Arc<CachedFile>, indices: Vec<u64>) {
        // The last reader's rights are good enough: he could have asked for it himself.
        let user = file.state().reads_as.clone();
        let Some(user) = user else { return };
        for index in indices {
            let Some(target) = self.target(file, index) else { return };
            match self.cache.contains(&target.key) {
                Some(Tier::Ram) => continue,
                Some(Tier::Nvme) => {
                    let Ok(permit) = self.ahead.clone().try_acquire_owned() else { return };
                    let source = self.clone();
                    tokio::spawn(async move {
                        // Bringing it to RAM is all that is wanted.
                        let _ = source.cache.get(&target.key).await;
                        drop(permit);
                    });
                    continue;
                }
                None => {}
            }
            let Ok(permit) = self.ahead.clone().try_acquire_owned() else {
                self.counters.ahead_dropped.increment(1);
                return;
            };
            self.counters.ahead_chunks.increment(1);
            let by = OnBehalf { user: user.clone(), purpose: Purpose::Ahead };
            drop(self.fetch(by, file, target, Some(permit)));
        }
    }

    /// A reader comes by: where he is, and on whose behalf to read ahead of him.
    fn note_read(self: &Arc<Self>, user: Option<&Credentials>, file: &Arc<CachedFile>, offset: u64, count: u64) {
        let ahead = {
            let mut state = file.state();
            if state.attributes.size <= CHUNK {
                return;
            }
            if user.is_some() && state.reads_as.as_ref() != user {
                state.reads_as = user.cloned();
            }
            let (size, limit) = (state.attributes.size, self.options.readahead / CHUNK);
            state.reads.on_read(offset, count, size, CHUNK, limit)
        };
        if !ahead.is_empty() {
            self.fetch_ahead(file, ahead);
        }
    }
}

/// `None` for what no file has: an index of 2³² chunks.
pub(super) fn chunk_key(file: &CachedFile, content: u64, index: u64) -> Option<ChunkKey> {
    Some(ChunkKey { file: file.key(), version: content, index: u32::try_from(index).ok()? })
}

/// Bytes of a chunk of a file of `size` bytes.
pub(super) fn chunk_length(size: u64, index: u64) -> u64 {
    size.saturating_sub(index * CHUNK).min(CHUNK)
}

fn slice(chunk: &Bytes, wanted: &Range<u64>) -> Bytes {
    let end = (wanted.end as usize).min(chunk.len());
    let start = (wanted.start as usize).min(end);
    chunk.slice(start..end)
}

fn join(mut parts: Vec<Bytes>) -> Bytes {
    if parts.len() == 1 {
        return parts.remove(0);
    }
    let mut all = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
    parts.iter().for_each(|part| all.extend_from_slice(part));
    all.freeze()
}
