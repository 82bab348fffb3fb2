//! Fetches files beforehand.
//!
//! Owns: what is fetched together, and how much at once. Never does: fetch what is there, give up because the source lets us
//! ask only slowly.
//!
//! Small files come many to a call with their attributes; large ones chunk by chunk, so that many calls are under way for
//! one file as for many. The source is asked as for a client: what is warmed is waited for, by an operator. Each listing
//! is asked for anew, so that what changed at the source is seen whatever the policy would believe.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::sync::Semaphore;

use super::{
    Target,
    queue::{Job, Large, Queue},
    tally::Tally,
    walk::{Found, Patience, Step, Walk},
};
use crate::source::{
    FileKind, SourceError,
    cached::{
        CHUNK, CachedFile, data::WarmChunk, file::Asked, for_client, manage::is_vanished, manage::reason,
        policy::is_settled, wall,
    },
    remote::{Place, Seen, SeenObject, Want},
};

/// Calls under way if nothing else is said.
pub const PARALLEL: usize = 16;
/// Calls under way at most.
pub const PARALLEL_MAX: usize = 256;
/// Calls that wait; while there are more no directory is read on.
const WAITING_MAX: usize = 256;
/// Files kept back until the source's clock has moved on.
const YOUNG_MAX: usize = 10_000;
/// The longest that it is waited for: where clocks differ more nothing is gained.
const YOUNG_WAIT: Duration = Duration::from_millis(2100);
/// A source that has not answered anything for this long is not asked on.
const GIVE_UP: Duration = Duration::from_secs(60);
/// Times that a file is begun anew because it changed.
const ATTEMPTS: u32 = 3;

/// How to warm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarmOptions {
    /// Calls under way at once.
    pub parallel: usize,
    /// Pin what is warmed.
    pub pin: bool,
}

/// What the jobs of one warming share.
struct Warmer<'a> {
    target: &'a Target,
    tally: &'a Tally,
    pin: bool,
    patience: Arc<Patience>,
    /// Chunks fetched or waiting for room in the cache.
    room: Arc<Semaphore>,
    gave_up: AtomicBool,
}

impl Target {
    /// Fetches what is meant and not here.
    pub async fn warm(&self, options: &WarmOptions, tally: &Tally) {
        let parallel = options.parallel.clamp(1, PARALLEL_MAX);
        let warmer = Warmer {
            target: self,
            tally,
            pin: options.pin,
            patience: Arc::new(Patience::new(GIVE_UP)),
            room: Arc::new(Semaphore::new(parallel)),
            gave_up: AtomicBool::new(false),
        };
        let mut walk = Walk::new(self, true, warmer.patience.clone());
        let (mut queue, mut work, mut walking) = (Queue::default(), FuturesUnordered::new(), true);
        loop {
            while work.len() < parallel
                && let Some(job) = queue.next()
            {
                work.push(warmer.run(job));
            }
            tokio::select! {
                Some(more) = work.next(), if !work.is_empty() => {
                    more.into_iter().for_each(|job| queue.ready.push_front(job));
                }
                step = walk.next(), if walking && queue.ready.len() < WAITING_MAX => match step {
                    Some(step) => warmer.sort(step, &mut queue),
                    None => {
                        walking = false;
                        queue.flush();
                    }
                },
                else => {
                    if queue.young.is_empty() {
                        break;
                    }
                    let young = std::mem::take(&mut queue.young);
                    tokio::time::sleep(YOUNG_WAIT).await;
                    young.into_iter().for_each(|found| queue.push(found));
                    queue.flush();
                }
            }
            if warmer.gave_up.load(Ordering::Relaxed) {
                let seconds = GIVE_UP.as_secs();
                let why = format!("the source has not answered for {seconds} s; the rest was not warmed");
                tally.fail(self.label.clone(), why);
                break;
            }
        }
    }
}

impl Warmer<'_> {
    /// Where each file of a step goes.
    fn sort(&self, step: Step, queue: &mut Queue) {
        let mut present = Vec::new();
        for found in self.target.meant(step, self.tally) {
            if self.target.top.kind() != FileKind::Directory {
                // Nobody listed it just now: it is asked about whatever is known.
                queue.ready.push_back(Job::Open(Box::new(found), 1));
            } else if self.target.source.is_present(&found) {
                self.done(&found, true);
                present.push(found);
            } else if !is_settled(&found.attributes, wall()) && queue.young.len() < YOUNG_MAX {
                queue.young.push(found);
            } else {
                queue.push(found);
            }
        }
        if self.pin && !present.is_empty() {
            queue.ready.push_back(Job::Pin(present));
        }
    }

    /// Does a job; what it leads to.
    async fn run(&self, job: Job) -> Vec<Job> {
        match job {
            Job::Batch(files) => self.batch(files).await,
            Job::Open(found, attempt) => self.open(*found, attempt).await.into_iter().collect(),
            Job::Chunk(large, index) => self.chunk(large, index).await.into_iter().collect(),
            Job::Pin(files) => {
                for found in &files {
                    self.pin(found).await;
                    self.pinned(found).await;
                }
                Vec::new()
            }
        }
    }

    /// A small file that is done with, or one of which all was here.
    fn done(&self, found: &Found, present: bool) {
        let bytes = found.attributes.size;
        self.tally.update(|totals| {
            totals.done_files += 1;
            totals.done_bytes += bytes;
            let (files, sum) = match present {
                true => (&mut totals.present_files, &mut totals.present_bytes),
                false => (&mut totals.fetched_files, &mut totals.fetched_bytes),
            };
            *files += 1;
            *sum += bytes;
        });
    }

    /// A file that came to nothing.
    fn failed(&self, found: &Found, error: SourceError) {
        self.tally.update(|totals| totals.done_files += 1);
        if is_vanished(error) {
            self.tally.update(|totals| totals.vanished += 1);
        } else {
            self.tally.fail(self.target.shown(&found.path), reason(error));
        }
    }

    /// The source did not answer: whether to ask again.
    async fn again(&self) -> bool {
        let again = self.patience.wait().await;
        if !again {
            self.gave_up.store(true, Ordering::Relaxed);
        }
        again
    }

    async fn batch(&self, files: Vec<Found>) -> Vec<Job> {
        let source = &self.target.source;
        let by = for_client(&self.target.user);
        let places: Vec<Place> = files.iter().map(|found| Place::Object(found.id)).collect();
        let largest = files.iter().map(|found| found.attributes.size).max().unwrap_or(0);
        let want = Want { access: true, read: u32::try_from(largest).unwrap_or(u32::MAX), open: false };
        for found in &files {
            self.pin(found).await;
        }
        let (seen, asked) = loop {
            let asked = source.asking();
            match source.remote.look_many(&by, &places, want).await {
                Ok(seen) => break (seen, asked),
                Err(SourceError::Unavailable) if self.again().await => {}
                Err(SourceError::Unavailable) => return Vec::new(),
                Err(error) => {
                    files.iter().for_each(|found| self.failed(found, error));
                    return Vec::new();
                }
            }
        };
        self.patience.answered();
        let mut open = Vec::new();
        for (found, seen) in files.into_iter().zip(seen) {
            self.tally.at(self.target.shown(&found.path));
            open.extend(self.take(found, seen, asked).await);
        }
        open
    }

    /// Keeps a small file that came; `Some` if it has to be fetched by itself.
    async fn take(&self, mut found: Found, seen: Result<Seen, SourceError>, asked: Asked) -> Option<Job> {
        let object = match seen.and_then(|seen| seen.object) {
            Ok(object) => object,
            Err(SourceError::Unavailable) => return Some(Job::Open(Box::new(found), 1)),
            Err(error) => {
                self.failed(&found, error);
                return None;
            }
        };
        let size = object.attributes.size;
        let whole = object.data.as_ref().is_some_and(|data| data.bytes.len() as u64 == size);
        if size > 0 && !whole {
            return Some(Job::Open(Box::new(found), 1));
        }
        self.keep(&object, asked).await;
        found.attributes.size = size;
        self.done(&found, size == 0);
        self.pinned(&found).await;
        None
    }

    /// Waits while the cache has no room for it.
    async fn keep(&self, object: &SeenObject, asked: Asked) -> Arc<CachedFile> {
        let file = self.target.source.admit_seen(&self.target.user, object, None, asked).await;
        // Whoever reads it first is served from the cache, as far as anybody counts.
        file.state().take_unread(0);
        file
    }

    /// Asks about a file that is fetched chunk by chunk.
    async fn open(&self, mut found: Found, attempt: u32) -> Option<Job> {
        let source = &self.target.source;
        self.pin(&found).await;
        let (object, asked) = loop {
            let asked = source.asking();
            let want = Want { access: true, read: 0, open: false };
            match source.look(&self.target.user, Place::Object(found.id), want).await {
                Ok(object) => break (object, asked),
                Err(SourceError::Unavailable) if self.again().await => {}
                Err(SourceError::Unavailable) => return None,
                Err(error) => {
                    self.failed(&found, error);
                    return None;
                }
            }
        };
        self.patience.answered();
        if object.attributes.kind != FileKind::Regular {
            self.failed(&found, SourceError::Stale);
            return None;
        }
        if attempt == 1 && !is_settled(&object.attributes, wall()) {
            // Kept now, it would be let go as soon as the source's clock has moved on.
            tokio::time::sleep(YOUNG_WAIT).await;
            return Some(Job::Open(Box::new(found), 2));
        }
        self.tally.at(self.target.shown(&found.path));
        let file = self.keep(&object, asked).await;
        let (content, size) = {
            let state = file.state();
            (state.content, state.attributes.size)
        };
        found.attributes.size = size;
        if size == 0 {
            self.done(&found, true);
            self.pinned(&found).await;
            return None;
        }
        let left = AtomicU64::new(size.div_ceil(CHUNK));
        let (fetched, failed) = (AtomicU64::new(0), AtomicBool::new(false));
        Some(Job::Chunk(Arc::new(Large { found, file, content, size, attempt, left, fetched, failed }), 0))
    }

    async fn chunk(&self, large: Arc<Large>, index: u64) -> Option<Job> {
        while !large.failed.load(Ordering::Relaxed) {
            // Never closed; an error would be nobody left to wait for.
            let held = self.room.clone().acquire_owned().await.ok()?;
            let (source, user) = (&self.target.source, &self.target.user);
            match source.warm_chunk(user, &large.file, index, held).await {
                Ok(chunk) => {
                    self.patience.answered();
                    self.count(&large, chunk);
                    break;
                }
                Err(SourceError::Unavailable) if self.again().await => {}
                Err(SourceError::Unavailable) => return None,
                Err(error) => {
                    if !large.failed.swap(true, Ordering::Relaxed) {
                        self.failed(&large.found, error);
                    }
                }
            }
        }
        if large.left.fetch_sub(1, Ordering::AcqRel) > 1 || large.failed.load(Ordering::Relaxed) {
            return None;
        }
        self.close(&large).await
    }

    fn count(&self, large: &Large, chunk: WarmChunk) {
        self.tally.update(|totals| match chunk {
            WarmChunk::Present(bytes) => {
                totals.done_bytes += bytes;
                totals.present_bytes += bytes;
            }
            WarmChunk::Fetched(bytes) => {
                totals.done_bytes += bytes;
                totals.fetched_bytes += bytes;
                large.fetched.fetch_add(bytes, Ordering::Relaxed);
            }
        });
    }

    /// The last chunk of a file is here. What was fetched before it changed is of no use.
    async fn close(&self, large: &Large) -> Option<Job> {
        let same = large.file.state().content == large.content;
        if !same && large.attempt < ATTEMPTS {
            return Some(Job::Open(Box::new(large.found.clone()), large.attempt + 1));
        }
        if !same {
            self.tally.update(|totals| totals.done_files += 1);
            let why = format!("it changed while it was fetched, {ATTEMPTS} times");
            self.tally.fail(self.target.shown(&large.found.path), why);
            return None;
        }
        let fetched = large.fetched.load(Ordering::Relaxed) > 0;
        self.tally.update(|totals| {
            totals.done_files += 1;
            *(if fetched { &mut totals.fetched_files } else { &mut totals.present_files }) += 1;
        });
        self.pinned(&large.found).await;
        None
    }

    /// Has what will come of a file pinned. Whether it was is seen in the end.
    async fn pin(&self, found: &Found) {
        if self.pin {
            let _ = self.target.source.cache.pin_file(found.key, true).await;
        }
    }

    /// Whether all of a file is pinned; one of which a part does not fit is not pinned at all.
    async fn pinned(&self, found: &Found) {
        if !self.pin {
            return;
        }
        match self.target.source.cache.pin_file(found.key, true).await {
            Ok(()) => self.tally.update(|totals| totals.pinned_files += 1),
            Err(error) => {
                let _ = self.target.source.cache.pin_file(found.key, false).await;
                self.tally.fail(self.target.shown(&found.path), error.to_string());
            }
        }
    }
}
