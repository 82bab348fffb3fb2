//! What the cache promises, asked of a cached source over a directory that counts what it is asked and may be changed
//! behind the cache's back.
#![allow(clippy::unwrap_used, reason = "in a test, failing where one stands is what is wanted")]
#![allow(missing_docs, reason = "names say it")]

#[path = "../common/mod.rs"]
#[macro_use]
#[allow(unused_macros, unused_imports, reason = "each test file uses what it needs")]
mod common;

mod changes;
mod concurrent;
mod data;
mod listings;
mod lookups;
mod races;
mod sick;
mod windows;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_node::source::{
    Credentials, SourceError,
    cached::{CachedFile, CachedOptions, CachedSource, Consistency, Policy},
    local::{LocalOptions, LocalSource},
};

use common::upstream::Upstream;

/// A cached source over a directory.
pub struct Bench {
    pub home: tempfile::TempDir,
    pub upstream: Arc<Upstream>,
    pub cached: Arc<CachedSource>,
    pub root: Arc<CachedFile>,
}

/// Root, whom nothing is forbidden.
pub fn superuser() -> Credentials {
    user(0)
}

/// A user and the group of the same number.
pub fn user(uid: u32) -> Credentials {
    Credentials { uid, gid: uid, groups: Arc::from([]) }
}

impl Bench {
    pub async fn new(consistency: Consistency) -> Self {
        Self::with(CachedOptions { policy: Policy::preset(consistency), ..CachedOptions::default() }).await
    }

    pub async fn with(options: CachedOptions) -> Self {
        let home = tempfile::tempdir().unwrap();
        let local = LocalSource::open(home.path(), LocalOptions::default()).unwrap();
        let upstream = Upstream::new(local);
        let cached = CachedSource::new(("/x", "test://x"), upstream.clone(), common::ram_cache(), options, 1);
        let root = cached.root(&superuser()).await.unwrap();
        upstream.take_calls();
        Self { home, upstream, cached, root }
    }

    /// A file behind the cache, old enough for its time stamps to tell every later change.
    pub fn put(&self, name: &str, data: impl AsRef<[u8]>) {
        let path = self.home.path().join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).unwrap();
        }
        std::fs::write(path, data).unwrap();
    }

    /// Lets time stamps become old enough.
    pub async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(2100)).await;
    }

    /// LOOKUP.
    pub async fn lookup(&self, name: &str) -> Result<Arc<CachedFile>, SourceError> {
        let who = superuser();
        match self.cached.lookup_now(&who, &self.root, name.as_bytes()) {
            Some(found) => found,
            None => self.cached.lookup(&who, &self.root, name.as_bytes()).await,
        }
    }

    /// OPEN by name, as far as the cache is concerned.
    pub async fn open(&self, name: &str) -> Result<Arc<CachedFile>, SourceError> {
        self.open_as(&superuser(), name).await
    }

    pub async fn open_as(&self, who: &Credentials, name: &str) -> Result<Arc<CachedFile>, SourceError> {
        let (file, _) = self.cached.lookup_to_open(who, &self.root, name.as_bytes()).await?;
        self.cached.access(who, &file).await?;
        Ok(file)
    }

    pub async fn read(&self, file: &Arc<CachedFile>, offset: u64, count: usize) -> Bytes {
        match self.cached.read_now(file, offset, count) {
            Some((bytes, _)) => bytes,
            None => self.cached.read(&superuser(), file, offset, count).await.unwrap().0,
        }
    }

    /// OPEN and READ of all of it.
    pub async fn cat(&self, name: &str) -> Bytes {
        let file = self.open(name).await.unwrap();
        let mut all = Vec::new();
        loop {
            let part = self.read(&file, all.len() as u64, 1 << 20).await;
            if part.is_empty() {
                return all.into();
            }
            all.extend_from_slice(&part);
        }
    }

    pub async fn write(&self, file: &Arc<CachedFile>, offset: u64, data: &[u8]) {
        let data = Bytes::copy_from_slice(data);
        let done = self.cached.write(&superuser(), file, offset, data.clone(), false).await.unwrap();
        assert_eq!(done.count as usize, data.len());
    }

    pub async fn size(&self, file: &Arc<CachedFile>) -> u64 {
        self.cached.attributes(&superuser(), file).await.unwrap().size
    }

    pub fn calls(&self) -> u64 {
        self.upstream.calls()
    }
}
