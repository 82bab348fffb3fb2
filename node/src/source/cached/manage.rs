//! What an operator does with a part of a tree: see how much of it is cached, let it go, pin it, fetch it beforehand.
//!
//! Owns: which files a path and a pattern mean, and what is done with each. Never does: follow a symbolic link, leave the
//! export, read data to find out whether it is there.
//!
//! Invariants:
//! * Memory is bounded however many files there are: they are dealt with page by page as directories are listed.
//! * Dropping a future ends the work; at most what is on its way to the source still comes.
//! * Files that vanish meanwhile are counted and no failure.

mod queue;
pub mod tally;
mod walk;
pub mod warm;

use std::{collections::HashSet, ffi::OsStr, os::unix::ffi::OsStrExt as _, sync::Arc, time::Duration};

use bytes::Bytes;
use globset::GlobMatcher;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use self::{
    tally::Tally,
    walk::{Found, Patience, Step, Walk},
};
use super::{
    CHUNK, CachedFile, CachedSource,
    policy::{is_settled, version_of},
    wall,
};
use crate::{
    cache::{ChunkKey, Tier},
    source::{Credentials, FileAttributes, FileKind, SourceError},
};

/// Why a path leads nowhere. `at` is the part of it below the export's root up to where it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum PathError {
    #[error("`..` in a path is not followed: name the place itself")]
    Dots,
    #[error("/{at} is a symbolic link, and links are not followed: name the place it points to")]
    Symlink { at: String },
    #[error("/{at}: {}", reason(*.error))]
    Source { at: String, error: SourceError },
}

/// A place in an export, and which files below it are meant.
#[derive(Clone, Debug)]
pub struct Target {
    /// The export's files.
    pub source: Arc<CachedSource>,
    /// On whose behalf the source is asked.
    pub user: Credentials,
    /// A directory or a file.
    pub top: Arc<CachedFile>,
    /// The directory a file was found in.
    pub above: Option<Arc<CachedFile>>,
    /// The last name of the path; empty at the export's root.
    pub name: Bytes,
    /// The path as it was given, to be shown.
    pub label: String,
    /// Matched against paths below `top` (of a file: its name).
    pub pattern: Option<GlobMatcher>,
}

/// How much of one file is cached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRow {
    /// As a client sees it.
    pub path: String,
    /// Bytes of data.
    pub size: u64,
    /// Of those, bytes in RAM.
    pub ram_bytes: u64,
    /// Of the others, bytes on NVMe.
    pub nvme_bytes: u64,
}

/// What an errno or its like means to an operator.
pub fn reason(error: SourceError) -> String {
    match error {
        SourceError::Errno(libc::EACCES | libc::EPERM) => {
            "the source refuses it (warming is done as root, or as nobody where the export squashes root)".into()
        }
        SourceError::Errno(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
        other => other.to_string(),
    }
}

/// The object is no more, or the name stands for nothing.
fn is_vanished(error: SourceError) -> bool {
    matches!(error, SourceError::Stale | SourceError::BadHandle | SourceError::Errno(libc::ENOENT))
}

impl CachedSource {
    /// What is at a path below the root, and the directory it is in. Names are asked for as far as the policy wants it;
    /// symbolic links are not followed.
    ///
    /// # Errors
    /// There is nothing, or it cannot be reached.
    pub async fn resolve_path(
        self: &Arc<Self>,
        user: &Credentials,
        path: &[u8],
    ) -> Result<(Arc<CachedFile>, Option<Arc<CachedFile>>), PathError> {
        let mut at = String::new();
        let root = match self.root_now() {
            Some(root) => Ok(root),
            None => self.root(user).await,
        };
        let mut here = root.map_err(|error| PathError::Source { at: at.clone(), error })?;
        let mut above = None;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
            if name == b".." {
                return Err(PathError::Dots);
            }
            if here.kind() == FileKind::Symlink {
                return Err(PathError::Symlink { at });
            }
            at = [at.as_str(), &String::from_utf8_lossy(name)].join(if at.is_empty() { "" } else { "/" });
            let found = match self.lookup_now(user, &here, name) {
                Some(found) => found,
                None => self.lookup(user, &here, name).await,
            };
            let found = found.map_err(|error| PathError::Source { at: at.clone(), error })?;
            above = Some(std::mem::replace(&mut here, found));
        }
        match here.kind() {
            FileKind::Symlink => Err(PathError::Symlink { at }),
            _ => Ok((here, above)),
        }
    }

    /// What a file's data is kept under, and its size; `None` if nothing can be there.
    fn content_of(&self, found: &Found) -> Option<(u64, u64)> {
        match self.table.peek(&found.key) {
            Some(file) => {
                let state = file.state();
                (!state.gone).then_some((state.content, state.attributes.size))
            }
            None => {
                let settled = is_settled(&found.attributes, wall());
                settled.then(|| (version_of(&found.attributes), found.attributes.size))
            }
        }
    }

    /// Whether all of a file is in the cache. Reads nothing.
    fn is_present(&self, found: &Found) -> bool {
        let size = found.attributes.size;
        let Some((content, known)) = self.content_of(found) else { return false };
        let has = |index: u64| {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            self.cache.contains(&ChunkKey { file: found.key, version: content, index }).is_some()
        };
        let last = size.div_ceil(CHUNK).saturating_sub(1);
        if size == 0 || known != size || !has(0) || !has(last) {
            return size == 0;
        }
        // Walking the list of a file's chunks is for files that have one.
        last <= 1
            || self.cache.file_presence(found.key, content).map(|chunk| u64::from(chunk.length)).sum::<u64>() == size
    }

    /// Bytes of a file in RAM, and of the others on NVMe.
    fn presence(&self, found: &Found) -> (u64, u64) {
        let Some((content, size)) = self.content_of(found) else { return (0, 0) };
        let mut bytes = (0, 0);
        if size <= CHUNK {
            match self.cache.contains(&ChunkKey { file: found.key, version: content, index: 0 }) {
                Some(Tier::Ram) => bytes.0 = size,
                Some(Tier::Nvme) => bytes.1 = size,
                None => {}
            }
            return bytes;
        }
        for chunk in self.cache.file_presence(found.key, content) {
            let place = if chunk.tier == Tier::Ram { &mut bytes.0 } else { &mut bytes.1 };
            *place += u64::from(chunk.length);
        }
        bytes
    }

    /// Lets go of what is known of an object. One that somebody works on stays the only one of its kind.
    fn forget_object(&self, key: u128) {
        if self.table.remove_if(&key, |file| Arc::strong_count(file) == 1).is_none()
            && let Some(file) = self.table.peek(&key)
        {
            file.state().forget();
        }
    }
}

impl Target {
    /// Whether a file is meant.
    fn is_meant(&self, found: &Found) -> bool {
        let path = OsStr::from_bytes(&found.path);
        found.attributes.kind == FileKind::Regular && self.pattern.as_ref().is_none_or(|glob| glob.is_match(path))
    }

    /// A path as a client sees it.
    fn shown(&self, below: &[u8]) -> String {
        let label = self.label.trim_end_matches('/');
        if self.top.kind() != FileKind::Directory || below.is_empty() {
            return if label.is_empty() { "/".into() } else { label.into() };
        }
        format!("{label}/{}", String::from_utf8_lossy(below))
    }

    /// Counts what a step of a walk came upon; the files that are meant.
    fn meant(&self, step: Step, tally: &Tally) -> Vec<Found> {
        match step {
            Step::Failed { path, error } if is_vanished(error) => {
                tracing::debug!(path = %self.shown(&path), "vanished while the tree was walked");
                tally.update(|totals| totals.vanished += 1);
                Vec::new()
            }
            Step::Failed { path, error } => {
                tally.fail(self.shown(&path), reason(error));
                Vec::new()
            }
            Step::Page { path, entries, complete, .. } => {
                tally.at(self.shown(&path));
                let (files, others): (Vec<_>, Vec<_>) = entries.into_iter().partition(|found| self.is_meant(found));
                let others = others.iter().filter(|found| !is_tree(&found.attributes)).count() as u64;
                tally.update(|totals| {
                    totals.directories += u64::from(complete);
                    totals.others += others;
                    totals.files += files.len() as u64;
                    totals.bytes += files.iter().map(|found| found.attributes.size).sum::<u64>();
                });
                files
            }
        }
    }

    fn walk(&self) -> Walk {
        Walk::new(self, false, Arc::new(Patience::new(Duration::ZERO)))
    }

    /// Sums up how much is cached; a row for each file into `rows`, if anybody wants them. The source is asked for what the
    /// policy does not let us believe.
    pub async fn check(&self, tally: &Tally, rows: Option<&mpsc::Sender<FileRow>>) {
        let mut walk = self.walk();
        while let Some(step) = walk.next().await {
            for found in self.meant(step, tally) {
                let (ram_bytes, nvme_bytes) = self.source.presence(&found);
                tally.update(|totals| {
                    totals.done_files += 1;
                    totals.done_bytes += found.attributes.size;
                    totals.ram_bytes += ram_bytes;
                    totals.nvme_bytes += nvme_bytes;
                });
                if let Some(rows) = rows {
                    let path = self.shown(&found.path);
                    let row = FileRow { path, size: found.attributes.size, ram_bytes, nvme_bytes };
                    if rows.send(row).await.is_err() {
                        return;
                    }
                }
            }
            // A tree that is known is walked without waiting for anything.
            tokio::task::yield_now().await;
        }
    }

    /// Lets go of the data, and of what is known of names, attributes and listings. Pinned files are not pinned any more.
    pub async fn evict(&self, tally: &Tally) {
        let (mut walk, mut dirs) = (self.walk(), HashSet::new());
        while let Some(step) = walk.next().await {
            let whole = match &step {
                Step::Page { dir: Some(dir), complete: true, .. } => Some(*dir),
                _ => None,
            };
            for found in self.meant(step, tally) {
                let removed = self.source.cache.remove_file(found.key).await;
                self.source.forget_object(found.key);
                tally.update(|totals| {
                    totals.done_files += 1;
                    totals.done_bytes += found.attributes.size;
                    totals.removed_chunks += removed.chunks;
                    totals.removed_bytes += removed.bytes;
                });
            }
            if let Some(dir) = whole {
                self.source.forget_object(dir);
                dirs.insert(dir);
            }
            if dirs.len() >= FORGOTTEN_AT_ONCE {
                self.source.forget_pages(&std::mem::take(&mut dirs));
            }
            tokio::task::yield_now().await;
        }
        if let Some(above) = self.above.as_ref().filter(|_| self.top.kind() != FileKind::Directory) {
            above.state().forget_name(&self.name);
            dirs.insert(above.key());
        }
        self.source.forget_pages(&dirs);
        // Otherwise a restart might bring some of it back.
        if let Err(error) = self.source.cache.flush().await {
            tally.fail(self.label.clone(), format!("removed, but a restart may bring data back: {error}"));
        }
    }

    /// Pins the files' data, what is here and what will come, or unpins it. Fetches nothing.
    pub async fn pin(&self, pinned: bool, tally: &Tally) {
        let mut walk = self.walk();
        while let Some(step) = walk.next().await {
            for found in self.meant(step, tally) {
                match self.source.cache.pin_file(found.key, pinned).await {
                    Ok(()) => tally.update(|totals| totals.pinned_files += 1),
                    Err(error) => tally.fail(self.shown(&found.path), error.to_string()),
                }
                tally.update(|totals| {
                    totals.done_files += 1;
                    totals.done_bytes += found.attributes.size;
                });
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Directories whose listings are let go by one pass over all listings.
const FORGOTTEN_AT_ONCE: usize = 10_000;

fn is_tree(attributes: &FileAttributes) -> bool {
    matches!(attributes.kind, FileKind::Directory | FileKind::Regular)
}
