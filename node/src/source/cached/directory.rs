//! Listings: pages as the source gave them, kept as long as the directory's names and the entries' attributes hold.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{
    CachedFile, CachedSource, Need, Place, Want, change::HIDDEN, file::Asked, for_client, policy::version_of,
    walk::Walk,
};
use crate::{
    files::node::EntrySink,
    source::{
        Credentials, DirectoryEntry, EntryObject, FileAttributes, FileKind, ObjectId, SourceError,
        remote::{Page, PageEntry},
    },
};

/// What is asked of the source at once, at least: a client that asks for less gets it from there.
const PAGE_BYTES: usize = 256 << 10;

/// Pages by directory, content and cookie.
pub(super) type Pages = quick_cache::sync::Cache<(u128, u64, u64), Kept, Weight>;

/// Weighs pages by their entries.
#[derive(Clone, Debug)]
pub(super) struct Weight;

impl quick_cache::Weighter<(u128, u64, u64), Kept> for Weight {
    fn weight(&self, _key: &(u128, u64, u64), kept: &Kept) -> u64 {
        // Either keeps the page in memory: each counts what it may tell.
        64 + (kept.page.entries.len() - kept.from) as u64 * ENTRY_BYTES
    }
}

/// How objects are now, by their keys.
type News = std::collections::HashMap<u128, FileAttributes>;

/// Entries of a page about which owners are asked; of more the page is asked for anew.
const ASKED_SINGLY: usize = 64;
/// A page that is to be told once is no larger than the client's call, but for a few entries.
const FRESH_MIN: usize = 16 << 10;

/// Memory of one entry, about.
const ENTRY_BYTES: u64 = 512;

/// A page, or a place inside it.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) page: Arc<KeptPage>,
    pub(super) from: usize,
}

/// A page as the source gave it.
#[derive(Debug)]
pub struct KeptPage {
    asked: Instant,
    pub(super) entries: Vec<KeptEntry>,
    pub(super) eof: bool,
    /// The source's, to be sent with the last cookie.
    pub(super) verifier: u64,
    /// The source's last cookie, of a hidden name perhaps.
    pub(super) last: u64,
    /// How its files are opened.
    pub(super) walk: Mutex<Walk>,
}

#[derive(Debug)]
pub(super) struct KeptEntry {
    pub(super) cookie: u64,
    pub(super) name: Bytes,
    pub(super) object: Result<(ObjectId, u128, FileAttributes), SourceError>,
}

/// No pages, and `bytes` of memory for some.
pub(super) fn no_pages(bytes: u64) -> Pages {
    let entries = usize::try_from(bytes / ENTRY_BYTES).unwrap_or(usize::MAX);
    Pages::with_weighter(entries / 64, bytes, Weight)
}

impl CachedSource {
    /// Entries after `cookie` into `sink`, at most `max` and about `bytes`; `true` if the end was reached. Without
    /// `want_files` only names are told.
    pub async fn read_directory(
        self: &Arc<Self>,
        user: &Credentials,
        dir: &Arc<CachedFile>,
        cookie: u64,
        (max, bytes): (usize, usize),
        want_files: bool,
        sink: EntrySink<'_>,
    ) -> Result<bool, SourceError> {
        if dir.kind() != FileKind::Directory {
            return Err(SourceError::Errno(libc::ENOTDIR));
        }
        let may = self.access(user, dir).await?;
        if !may.read {
            return Err(SourceError::Errno(libc::EACCES));
        }
        // Who may not search is told names and no more, by the source itself; that is nothing to share with others.
        let shared = may.execute;
        self.refresh(user, dir, Need::Window).await?;
        let (mut cookie, mut taken) = (cookie, 0);
        loop {
            let known = if shared { self.page_now(dir, cookie) } else { None };
            let unknown = match &known {
                Some((kept, _)) if want_files => self.unknown(kept, max - taken),
                _ => Vec::new(),
            };
            // Of many entries it is cheaper to ask for the page anew than for each how it is now.
            let known = known.filter(|_| unknown.len() <= ASKED_SINGLY);
            let (kept, content, fresh) = match known {
                Some((kept, content)) => {
                    self.counters.page_hits.increment(1);
                    (kept, Some(content), false)
                }
                // One page from the source is enough for one call.
                None if taken > 0 => return Ok(false),
                None => self.page(user, dir, (cookie, bytes), shared, want_files).await?,
            };
            let news = if fresh { News::new() } else { self.news_of(user, &unknown).await };
            for (place, entry) in kept.page.entries.iter().enumerate().skip(kept.from) {
                if taken == max || sink(self.entry(entry, want_files, fresh, &news)).is_break() {
                    let from = Kept { page: kept.page.clone(), from: place };
                    if let Some(content) = content.filter(|_| shared) {
                        self.pages.insert((dir.key(), content, cookie), from);
                    }
                    return Ok(false);
                }
                taken += 1;
                cookie = entry.cookie;
            }
            if kept.page.eof {
                return Ok(true);
            }
            // Names at the end may be hidden.
            cookie = kept.page.last;
        }
    }

    /// The page after `cookie` for whoever walks the tree on the operator's behalf: without `ask` from what is known, if
    /// that holds.
    pub(super) async fn page_to_walk(
        self: &Arc<Self>,
        user: &Credentials,
        dir: &Arc<CachedFile>,
        cookie: u64,
        ask: bool,
    ) -> Result<Arc<KeptPage>, SourceError> {
        // A place inside a page is another page's beginning only to those who read in smaller steps.
        let known = self.page_now(dir, cookie).filter(|(kept, _)| !ask && kept.from == 0);
        match known {
            Some((kept, _)) => Ok(kept.page),
            None => {
                let shared = self.access(user, dir).await?.execute;
                Ok(self.page(user, dir, (cookie, PAGE_BYTES), shared, false).await?.0.page)
            }
        }
    }

    /// How objects are now, as their owners say.
    async fn news_of(self: &Arc<Self>, user: &Credentials, places: &[Place]) -> News {
        let mut news = News::new();
        if places.is_empty() {
            return news;
        }
        let asked = self.asking();
        let Ok(all) = self.remote.look_many(&for_client(user), places, Want::default()).await else { return news };
        for object in all.into_iter().filter_map(|seen| seen.and_then(|seen| seen.object).ok()) {
            let file = self.admit(&object.id, &object.attributes, asked, &object.word);
            news.insert(file.key(), object.attributes);
        }
        news
    }

    /// In a cluster: those of a page's first `most` entries of which it is not known how they are now.
    fn unknown(&self, kept: &Kept, most: usize) -> Vec<Place> {
        if self.shared.is_none() {
            return Vec::new();
        }
        let now = Instant::now();
        let unknown = |entry: &KeptEntry| {
            let (id, key, _) = entry.object.as_ref().ok()?;
            let holds = self.table.peek(key).is_some_and(|file| {
                let state = file.state();
                self.holds(&file, &state, Need::Window, now)
            });
            (!holds).then_some(*id)
        };
        let entries = kept.page.entries[kept.from..].iter().take(most);
        entries.filter_map(unknown).map(Place::Object).collect()
    }

    /// Lets go of the listings of these directories.
    pub(super) fn forget_pages(&self, dirs: &std::collections::HashSet<u128>) {
        self.pages.retain(|(dir, _, _), _| !dirs.contains(dir));
    }

    /// A page that may be told without a question, and the content it is kept under: names and attributes in it still hold.
    pub(super) fn page_now(&self, dir: &CachedFile, cookie: u64) -> Option<(Kept, u64)> {
        let now = Instant::now();
        let content = {
            let state = dir.state();
            if state.changing > 0 || !self.holds(dir, &state, Need::Window, now) {
                return None;
            }
            state.content
        };
        let kept = self.pages.get(&(dir.key(), content, cookie))?;
        if self.shared.is_some() {
            // What is said of entries is asked of their owners, if it is wanted.
            return Some((kept, content));
        }
        let young = now.saturating_duration_since(kept.page.asked) < self.policy().acregmin;
        let holds = |entry: &KeptEntry| match &entry.object {
            Err(_) => young,
            Ok((_, key, _)) => match self.table.peek(key) {
                Some(file) => {
                    let state = file.state();
                    // After a change of ours what the page says of it is older than that.
                    let is_known = !state.gone && state.asked.is_some();
                    is_known && (young || state.is_fresh(self.policy(), Need::Window, now))
                }
                None => young,
            },
        };
        kept.page.entries[kept.from..].iter().all(holds).then_some((kept, content))
    }

    /// A page from the source, whose objects become known, and the content it belongs to if that is the present one; whether what it says of
    /// objects is news. `fresh`: it must be.
    pub(super) async fn page(
        &self,
        user: &Credentials,
        dir: &Arc<CachedFile>,
        (cookie, bytes): (u64, usize),
        shared: bool,
        fresh: bool,
    ) -> Result<(Kept, Option<u64>, bool), SourceError> {
        self.counters.page_misses.increment(1);
        let verifier = if cookie == 0 { 0 } else { dir.state().verifier };
        let asked = self.asking();
        // The owner may have a page, but what that says of other nodes' files is old.
        let direct = self.shared.as_ref().filter(|_| fresh).map(|shared| shared.source.direct());
        let (remote, bytes) = match direct {
            Some(direct) => (direct, bytes.max(FRESH_MIN)),
            None => (&self.remote, bytes.max(PAGE_BYTES)),
        };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let page = remote.read_directory(&for_client(user), dir.id(), cookie, verifier, bytes).await;
        let page = page.map_err(|error| self.lost(dir, error))?;
        // A source that does not get on would be asked for ever.
        if !page.eof && page.entries.last().is_none_or(|last| last.cookie == cookie) {
            return Err(SourceError::Errno(libc::EIO));
        }
        let current = {
            let mut state = dir.state();
            state.verifier = page.verifier;
            // What the owner let this node believe says more than the source's word, if it is the same.
            let is_known = direct.is_some()
                && state.word != 0
                && self.may_tell(dir, &state)
                && version_of(&state.attributes) == version_of(&page.directory);
            let current = is_known || self.observe(&mut state, &page.directory, asked, &page.directory_word);
            state.learned = true;
            current.then_some(state.content)
        };
        let fresh = page.fresh;
        let page = Arc::new(self.keep_page(dir, page, asked, current));
        self.note_places(&page);
        let kept = Kept { page, from: 0 };
        if let Some(content) = current.filter(|_| shared) {
            self.pages.insert((dir.key(), content, cookie), kept.clone());
        }
        Ok((kept, current, fresh))
    }

    fn keep_page(&self, dir: &CachedFile, page: Page, asked: Asked, current: Option<u64>) -> KeptPage {
        let verifier = page.verifier;
        let last = page.entries.last().map_or(0, |entry| entry.cookie);
        let visible = page.entries.into_iter().filter(|entry| !entry.name.starts_with(HIDDEN));
        let keep = |entry: PageEntry| {
            let object = entry.object.map(|seen| {
                self.note_entry(dir, &entry.name, &seen, asked, current);
                (seen.id, self.key_of(&seen.id), seen.attributes)
            });
            KeptEntry { cookie: entry.cookie, name: entry.name, object }
        };
        let entries = visible.map(keep).collect();
        KeptPage { asked: asked.at, entries, eof: page.eof, verifier, last, walk: Mutex::default() }
    }

    /// Each file learns where it stands, so that its opening tells of its neighbours'.
    fn note_places(&self, page: &Arc<KeptPage>) {
        for (place, entry) in (0..).zip(&page.entries) {
            if let Ok((_, key, attributes)) = &entry.object
                && attributes.kind == FileKind::Regular
                && let Some(file) = self.table.peek(key)
            {
                file.state().listed = Some((Arc::downgrade(page), place));
            }
        }
    }

    /// An entry with what is known of its object now.
    fn entry(
        &self,
        entry: &KeptEntry,
        want_files: bool,
        fresh: bool,
        news: &News,
    ) -> DirectoryEntry<crate::source::File> {
        let object = entry.object.as_ref().map_err(|error| *error).and_then(|(id, key, told)| {
            let known = self.table.peek(key).and_then(|file| {
                let state = file.state();
                let holds = self.shared.is_none() || self.may_tell(&file, &state);
                (state.asked.is_some() && !state.gone && holds).then(|| state.attributes.clone())
            });
            match known.or_else(|| news.get(key).cloned()) {
                Some(known) => Ok((*id, known)),
                None if fresh || self.shared.is_none() || !want_files => Ok((*id, told.clone())),
                // Its owner did not say how it is now: the client asks about this one by itself.
                None => Err(SourceError::Unavailable),
            }
        });
        let (fileid, kind) = match &entry.object {
            Ok((_, _, attributes)) => (attributes.mounted_on_fileid, Some(attributes.kind)),
            Err(_) => (0, None),
        };
        let file = want_files.then(|| object.map(|(id, attributes)| EntryObject::Told { id, attributes }));
        DirectoryEntry { cookie: entry.cookie, name: entry.name.clone(), fileid, kind, file }
    }
}
