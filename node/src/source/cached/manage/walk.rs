//! Walks a tree by its directories' listings.
//!
//! Owns: which directory is listed next. Never does: follow links, keep files.
//!
//! Breadth comes first as long as few directories wait. Once many do, the deepest are listed before any directory is read
//! on: so what waits is bounded by one page for each level, however wide and large directories are.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use parking_lot::Mutex;

use super::{CachedSource, Target};
use crate::source::{Credentials, FileAttributes, FileKind, ObjectId, SourceError, cached::directory::KeptPage};

/// Directories listed at once: enough to hide a source's round trip, few beside what clients ask.
const LISTINGS: usize = 8;
/// Directories that wait, from which on depth comes first. About 300 bytes each.
const WAITING_MAX: usize = 16_384;
/// Levels below the top. A path that a Linux client can name has fewer (PATH_MAX is 4,096 bytes).
const DEPTH_MAX: u32 = 2048;
/// Time between two questions of which the first was not answered.
const RETRY: Duration = Duration::from_secs(1);

/// A file or another object that was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub id: ObjectId,
    pub key: u128,
    pub attributes: FileAttributes,
    /// Below the top.
    pub path: Bytes,
}

/// What a walk came upon.
pub(super) enum Step {
    /// Some entries of a directory.
    Page {
        /// Its key; `None` if the top is a file.
        dir: Option<u128>,
        path: Bytes,
        entries: Vec<Found>,
        /// Nothing follows in this directory.
        complete: bool,
    },
    /// A directory, or an entry of one.
    Failed { path: Bytes, error: SourceError },
}

/// How long a source that does not answer is waited for.
#[derive(Debug)]
pub(super) struct Patience {
    limit: Duration,
    answered: Mutex<Instant>,
}

impl Patience {
    /// Gives up if nothing was answered for `limit`.
    pub fn new(limit: Duration) -> Self {
        Self { limit, answered: Mutex::new(Instant::now()) }
    }

    /// The source answered.
    pub fn answered(&self) {
        *self.answered.lock() = Instant::now();
    }

    /// Waits before the question is asked again; `false`: give up.
    pub async fn wait(&self) -> bool {
        if self.answered.lock().elapsed() >= self.limit {
            return false;
        }
        tokio::time::sleep(RETRY).await;
        true
    }
}

#[derive(Debug)]
struct Listing {
    dir: ObjectId,
    path: Bytes,
    depth: u32,
    cookie: u64,
}

/// Directories that wait to be listed.
#[derive(Debug, Default)]
struct Waiting(VecDeque<Listing>);

impl Waiting {
    fn take(&mut self) -> Option<Listing> {
        if self.0.len() < WAITING_MAX { self.0.pop_front() } else { self.0.pop_back() }
    }

    /// A page was read: the rest of its directory, and the directories in it.
    fn put(&mut self, rest: Option<Listing>, below: Vec<Listing>) {
        if let Some(rest) = rest {
            self.0.push_front(rest);
        }
        self.0.extend(below);
    }
}

/// A listing, and what came of it.
type Listed = (Listing, Result<Arc<KeptPage>, SourceError>);

/// A walk. Dropped, it ends.
pub(super) struct Walk {
    source: Arc<CachedSource>,
    user: Credentials,
    ask: bool,
    patience: Arc<Patience>,
    /// What was found without a listing.
    ready: VecDeque<Step>,
    waiting: Waiting,
    running: FuturesUnordered<BoxFuture<'static, Listed>>,
}

impl Walk {
    /// With `ask` the source is asked for every listing, else only for those the policy does not let us believe.
    pub fn new(target: &Target, ask: bool, patience: Arc<Patience>) -> Self {
        let (source, user) = (target.source.clone(), target.user.clone());
        let (mut ready, mut waiting) = (VecDeque::new(), Waiting::default());
        if target.top.kind() == FileKind::Directory {
            waiting.0.push_back(Listing { dir: *target.top.id(), path: Bytes::new(), depth: 0, cookie: 0 });
        } else {
            let attributes = target.top.state().attributes.clone();
            let path = target.name.clone();
            let found = Found { id: *target.top.id(), key: target.top.key(), attributes, path: path.clone() };
            ready.push_back(Step::Page { dir: None, path, entries: vec![found], complete: false });
        }
        Self { source, user, ask, patience, ready, waiting, running: FuturesUnordered::new() }
    }

    /// What comes next; `None` at the end. May be dropped and called again.
    pub async fn next(&mut self) -> Option<Step> {
        loop {
            if let Some(step) = self.ready.pop_front() {
                return Some(step);
            }
            while self.running.len() < LISTINGS
                && let Some(listing) = self.waiting.take()
            {
                let (source, user) = (self.source.clone(), self.user.clone());
                self.running.push(list(source, user, self.ask, self.patience.clone(), listing).boxed());
            }
            let (listing, page) = self.running.next().await?;
            match page {
                Ok(page) => self.sort(listing, &page),
                Err(error) => self.ready.push_back(Step::Failed { path: listing.path, error }),
            }
        }
    }

    fn sort(&mut self, mut listing: Listing, page: &KeptPage) {
        listing.cookie = page.last;
        let dir = Some(self.source.key_of(&listing.dir));
        let mut entries = Vec::with_capacity(page.entries.len());
        let mut below = Vec::new();
        for entry in &page.entries {
            let path = join(&listing.path, &entry.name);
            match &entry.object {
                Err(error) => self.ready.push_back(Step::Failed { path, error: *error }),
                Ok((id, _, attributes)) if attributes.kind == FileKind::Directory => {
                    if listing.depth == DEPTH_MAX {
                        self.ready.push_back(Step::Failed { path, error: SourceError::Errno(libc::ENAMETOOLONG) });
                    } else {
                        below.push(Listing { dir: *id, path, depth: listing.depth + 1, cookie: 0 });
                    }
                }
                Ok((id, key, attributes)) => {
                    entries.push(Found { id: *id, key: *key, attributes: attributes.clone(), path });
                }
            }
        }
        self.ready.push_back(Step::Page { dir, path: listing.path.clone(), entries, complete: page.eof });
        self.waiting.put((!page.eof).then_some(listing), below);
    }
}

/// One page, asked for again as long as patience lasts.
async fn list(
    source: Arc<CachedSource>,
    user: Credentials,
    ask: bool,
    patience: Arc<Patience>,
    listing: Listing,
) -> Listed {
    loop {
        let id = &listing.dir;
        let dir = match source.resolve_now(id.fsid, &id.handle) {
            Some(dir) => Ok(dir),
            None => source.resolve(&user, id.fsid, &id.handle).await,
        };
        let page = match dir {
            Ok(dir) => source.page_to_walk(&user, &dir, listing.cookie, ask).await,
            Err(error) => Err(error),
        };
        match page {
            Err(SourceError::Unavailable) if patience.wait().await => {}
            page => {
                if page.is_ok() {
                    patience.answered();
                }
                return (listing, page);
            }
        }
    }
}

fn join(path: &[u8], name: &[u8]) -> Bytes {
    let mut joined = BytesMut::with_capacity(path.len() + 1 + name.len());
    if !path.is_empty() {
        joined.put_slice(path);
        joined.put_u8(b'/');
    }
    joined.put_slice(name);
    joined.freeze()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::source::{SourceFsid, SourceHandle};

    const PAGE: u64 = 1000;

    /// Lists a tree whose directories on level n have `fanout[n]` directories; how many were listed to their end, and how
    /// many waited at most.
    fn walk(fanout: &[u64]) -> (u64, usize) {
        let dir = ObjectId { fsid: SourceFsid(1), handle: SourceHandle::new(b"d").unwrap() };
        let mut waiting = Waiting::default();
        waiting.put(None, vec![Listing { dir, path: Bytes::new(), depth: 0, cookie: 0 }]);
        let (mut listed, mut most) = (0, 0);
        while let Some(mut listing) = waiting.take() {
            let all = fanout.get(listing.depth as usize).copied().unwrap_or(0);
            let end = all.min(listing.cookie + PAGE);
            let below =
                (listing.cookie..end).map(|_| Listing { cookie: 0, depth: listing.depth + 1, ..listing_of(&listing) });
            let below = below.collect();
            listing.cookie = end;
            listed += u64::from(end == all);
            waiting.put((end < all).then_some(listing), below);
            most = most.max(waiting.0.len());
        }
        (listed, most)
    }

    fn listing_of(listing: &Listing) -> Listing {
        Listing { dir: listing.dir, path: Bytes::new(), depth: listing.depth, cookie: listing.cookie }
    }

    #[test]
    fn what_waits_is_bounded_in_wide_and_in_deep_trees_and_each_directory_is_listed_once() {
        for (fanout, all) in [
            (vec![1_000_000], 1_000_001),
            (vec![3000, 300, 1], 1 + 3000 + 2 * 900_000),
            (vec![1; 2000], 2001),
            (vec![2; 19], (1 << 20) - 1),
        ] {
            let (listed, most) = walk(&fanout);
            assert_eq!(listed, all, "{} levels", fanout.len());
            let bound = WAITING_MAX + (fanout.len() + 1) * PAGE as usize;
            assert!(most <= bound, "{most} waited, {} levels", fanout.len());
        }
    }
}
