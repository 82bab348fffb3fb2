//! A source that several nodes share: what an object's owner knows is asked of its owner, and nothing changes before all who believed
//! what was before have forgotten it.
//!
//! Owns: whom to ask, and what must be held while something changes. Never does: caching, answering other nodes.
//!
//! Rules: what the owner cannot be asked is asked of the source itself, and used once: since all changes are written through, the
//! source's own answer is never older than a change that was answered. A change is made by the node whose client wants it, with the
//! user's credentials, under a hold of everything it touches.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_meta::state::{FileKey, NodeId};

use super::{
    FileAttributes, NewObject, ObjectId, SeekWhat, SetAttributes, SourceError, SpaceAttributes, XattrSet,
    remote::{
        Changed, Committed, Data, DataRead, DirectoryChange, Health, Made, OnBehalf, OwnersWord, Page, PageEntry,
        Place, RemoteSource, Seen, SeenObject, Want, Word, Written,
    },
};
use crate::ring::{
    coherence::{Asking, Coherence, Route, Subject},
    holds::Hold,
    messages::{Answer, Found, Glance, Named, PLACES_MAX, Question, Sight},
};

type Result<T, E = SourceError> = std::result::Result<T, E>;

/// How often an owner that is just taking over is asked before the source is.
const TRIES: usize = 4;

/// A source as one node of several sees it.
pub struct SharedSource {
    direct: Arc<dyn RemoteSource>,
    coherence: Arc<Coherence>,
    export: String,
    /// What names keys: the export's own cache. Set once it is made.
    subject: std::sync::OnceLock<std::sync::Weak<dyn Subject>>,
}

impl std::fmt::Debug for SharedSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedSource")
            .field("export", &self.export)
            .field("direct", &self.direct)
            .finish_non_exhaustive()
    }
}

/// An owner's word, and the question that it answers.
#[derive(Debug)]
struct Told {
    content: u64,
    settled: bool,
    age: Duration,
    asking: Arc<Asking>,
    from: NodeId,
    incarnation: u64,
}

impl OwnersWord for Told {
    fn content(&self) -> u64 {
        self.content
    }
    fn is_settled(&self) -> bool {
        self.settled
    }
    fn age(&self) -> Duration {
        self.age
    }
    fn number(&self) -> u64 {
        self.asking.number
    }
    fn remembered(&self) {
        self.asking.granted(self.from, self.incarnation);
    }
}

impl SharedSource {
    /// A source of the export, which is asked itself by `direct`.
    pub fn new(direct: Arc<dyn RemoteSource>, coherence: Arc<Coherence>, export: &str) -> Arc<Self> {
        Arc::new(Self { direct, coherence, export: export.to_owned(), subject: std::sync::OnceLock::new() })
    }

    /// What is cached of the export, without which nothing can be asked.
    pub fn serve(&self, subject: &Arc<dyn Subject>) {
        self.coherence.register(&self.export, subject);
        // Once: an export has one cache.
        let _ = self.subject.set(Arc::downgrade(subject));
    }

    /// The source itself.
    pub fn direct(&self) -> &Arc<dyn RemoteSource> {
        &self.direct
    }

    /// The cluster's part.
    pub fn coherence(&self) -> &Arc<Coherence> {
        &self.coherence
    }

    fn key(&self, object: &ObjectId) -> Result<FileKey> {
        let subject = self.subject.get().and_then(std::sync::Weak::upgrade);
        subject.map(|subject| subject.key(object)).ok_or(SourceError::Unavailable)
    }

    /// Asks an owner about places that are its. `Err`: whether it is worth asking again soon; else the source is to be asked.
    async fn ask_owner(
        &self,
        by: &OnBehalf,
        node: NodeId,
        places: &[(usize, &Place)],
        want: Want,
    ) -> Result<Vec<(usize, Result<Seen>)>, bool> {
        let mut asked = Vec::with_capacity(places.len());
        for (at, place) in places {
            let (Place::Object(id) | Place::Name(id, _)) = place;
            let asking = self.key(id).ok().and_then(|key| self.coherence.ask(key)).ok_or(false)?;
            asked.push((*at, (*place).clone(), Arc::new(asking)));
        }
        let places = asked.iter().map(|(_, place, asking)| (place.clone(), asking.number)).collect();
        let question = Question::Look { user: by.user.clone(), places, want };
        match self.coherence.question(node, &self.export, question).await {
            Ok(Answer::Seen(seen)) if seen.len() == asked.len() => {
                let all = asked.into_iter().zip(seen);
                let told = |((at, place, asking), seen): ((usize, Place, Arc<Asking>), Result<Glance>)| {
                    (at, seen.map(|seen| told(node, &place, asking, seen)))
                };
                Ok(all.map(told).collect())
            }
            // It may be just taking over.
            Ok(_) => Err(true),
            // It is not there, or has let us wait long enough.
            Err(_) => Err(false),
        }
    }

    /// As [`RemoteSource::look`] of one place, from its owner; `None`: ask the source.
    async fn look_at_owner(&self, by: &OnBehalf, place: &Place, want: Want) -> Option<Result<Seen>> {
        let (Place::Object(id) | Place::Name(id, _)) = place;
        let key = self.key(id).ok()?;
        for _ in 0..TRIES {
            let Route::At(node) = self.coherence.route(key) else { return None };
            match self.ask_owner(by, node, &[(0, place)], want).await {
                Ok(mut seen) => return seen.pop().map(|(_, seen)| seen),
                Err(true) => self.coherence.wait_a_little().await,
                Err(false) => return None,
            }
        }
        None
    }

    /// Everything that a change touches is held; `own`: what the caller's cache knows that it changes.
    async fn hold(&self, object: &ObjectId, names: Vec<Bytes>, own: bool) -> Result<Hold> {
        self.coherence.hold(&self.export, (object, self.key(object)?), names, own).await
    }

    /// What a name stands for, held too: as the directory's owner knows it, or as the source says.
    async fn hold_named(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        known: Option<Named>,
    ) -> Result<Option<Hold>> {
        let object = match known {
            Some(Named::Object(known)) => Some(known),
            Some(Named::Missing) => None,
            Some(Named::Unknown) | None => {
                let place = Place::Name(*dir, Bytes::copy_from_slice(name));
                // Of what is not there, or cannot be told, the change itself meets the error.
                self.direct.look(by, &place, Want::default()).await?.object.ok().map(|seen| seen.id)
            }
        };
        match object {
            Some(object) => self.hold(&object, Vec::new(), false).await.map(Some),
            None => Ok(None),
        }
    }

    /// A change of one object.
    async fn change<T>(
        &self,
        object: &ObjectId,
        change: impl Future<Output = Result<T>> + Send,
        after: impl FnOnce(&T) -> Option<FileAttributes>,
    ) -> Result<T> {
        let hold = self.hold(object, Vec::new(), true).await?;
        let done = change.await;
        let attributes = done.as_ref().ok().and_then(after);
        Coherence::let_go(hold, attributes.as_ref()).await;
        done
    }

    /// A change of a name in a directory that makes something.
    async fn change_name<T>(
        &self,
        dir: &ObjectId,
        name: &[u8],
        change: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let hold = self.hold(dir, vec![Bytes::copy_from_slice(name)], true).await?;
        let done = change.await;
        Coherence::let_go(hold, None).await;
        done
    }
}

async fn let_go_of_all(holds: impl IntoIterator<Item = Hold>) {
    futures_util::future::join_all(holds.into_iter().map(|hold| Coherence::let_go(hold, None))).await;
}

/// What an owner's answer comes to here.
fn told(node: NodeId, place: &Place, asking: Arc<Asking>, seen: Glance) -> Seen {
    let Glance { directory, object } = seen;
    let (of_directory, of_object) = match place {
        Place::Object(_) => (None, Some(asking)),
        Place::Name(..) => (Some(asking), None),
    };
    let directory_word = directory.as_ref().map(|sight| word(node, sight, of_directory)).unwrap_or_default();
    let object = object.map(|found| seen_object(node, found, of_object));
    Seen { directory: directory.map(|sight| sight.attributes), directory_word, object }
}

fn seen_object(node: NodeId, found: Found, asking: Option<Arc<Asking>>) -> SeenObject {
    let Found { id, sight, hearsay, access, data } = found;
    let word = if hearsay { Word::Hearsay } else { word(node, &sight, asking) };
    let size = sight.attributes.size;
    let data = data.map(|bytes| Data { eof: bytes.len() as u64 >= size, bytes });
    SeenObject { id, attributes: sight.attributes, access, data, word }
}

fn word(from: NodeId, sight: &Sight, asking: Option<Arc<Asking>>) -> Word {
    match (sight.incarnation, asking) {
        (Some(incarnation), Some(asking)) => {
            let age = Duration::from_millis(u64::from(sight.age_ms));
            let (content, settled) = (sight.content, sight.settled);
            Word::Owner(Arc::new(Told { content, settled, age, asking, from, incarnation }))
        }
        // The source's, by way of the owner, and since the question was asked.
        _ => Word::Source,
    }
}

#[async_trait]
impl RemoteSource for SharedSource {
    fn health(&self) -> Health {
        self.direct.health()
    }

    fn has_xattrs(&self) -> bool {
        self.direct.has_xattrs()
    }

    async fn root(&self, by: &OnBehalf) -> Result<SeenObject> {
        self.direct.root(by).await
    }

    async fn look(&self, by: &OnBehalf, place: &Place, want: Want) -> Result<Seen> {
        match self.look_at_owner(by, place, want).await {
            Some(seen) => seen,
            None => self.direct.look(by, place, want).await,
        }
    }

    async fn look_many(&self, by: &OnBehalf, places: &[Place], want: Want) -> Result<Vec<Result<Seen>>> {
        let mut by_owner: std::collections::BTreeMap<Option<NodeId>, Vec<(usize, &Place)>> =
            std::collections::BTreeMap::new();
        for (at, place) in places.iter().enumerate() {
            let (Place::Object(id) | Place::Name(id, _)) = place;
            let owner = match self.coherence.route(self.key(id)?) {
                Route::At(node) => Some(node),
                Route::Mine | Route::Nobody => None,
            };
            by_owner.entry(owner).or_default().push((at, place));
        }
        let mut answers: Vec<Option<Result<Seen>>> = places.iter().map(|_| None).collect();
        let mut direct = by_owner.remove(&None).unwrap_or_default();
        let asked = by_owner.iter().flat_map(|(node, places)| {
            places.chunks(PLACES_MAX).map(move |places| (node.expect("those without are gone"), places))
        });
        let asked = asked.map(|(node, part)| async move { (part, self.ask_owner(by, node, part, want).await) });
        for (part, seen) in futures_util::future::join_all(asked).await {
            match seen {
                Ok(seen) => seen.into_iter().for_each(|(at, seen)| answers[at] = Some(seen)),
                Err(_) => direct.extend(part),
            }
        }
        if !direct.is_empty() {
            let places: Vec<Place> = direct.iter().map(|(_, place)| (*place).clone()).collect();
            let seen = self.direct.look_many(by, &places, want).await?;
            direct.iter().zip(seen).for_each(|((at, _), seen)| answers[*at] = Some(seen));
        }
        Ok(answers.into_iter().map(|answer| answer.unwrap_or(Err(SourceError::Unavailable))).collect())
    }

    async fn parent(&self, by: &OnBehalf, dir: &ObjectId) -> Result<SeenObject> {
        self.direct.parent(by, dir).await
    }

    async fn read(&self, by: &OnBehalf, file: &ObjectId, offset: u64, count: u32) -> Result<DataRead> {
        self.direct.read(by, file, offset, count).await
    }

    async fn write(&self, by: &OnBehalf, file: &ObjectId, offset: u64, data: Bytes, stable: bool) -> Result<Written> {
        let change = self.direct.write(by, file, offset, data, stable);
        self.change(file, change, |done| Some(done.changed.attributes.clone())).await
    }

    async fn commit(&self, by: &OnBehalf, file: &ObjectId) -> Result<Committed> {
        self.direct.commit(by, file).await
    }

    async fn set_attributes(&self, by: &OnBehalf, file: &ObjectId, set: &SetAttributes) -> Result<Changed> {
        self.change(file, self.direct.set_attributes(by, file, set), |done| Some(done.attributes.clone())).await
    }

    async fn create(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        exclusive: bool,
        set: &SetAttributes,
    ) -> Result<Made> {
        self.change_name(dir, name, self.direct.create(by, dir, name, exclusive, set)).await
    }

    async fn make(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        object: &NewObject,
        set: &SetAttributes,
    ) -> Result<Made> {
        self.change_name(dir, name, self.direct.make(by, dir, name, object, set)).await
    }

    async fn link(&self, by: &OnBehalf, file: &ObjectId, dir: &ObjectId, name: &[u8]) -> Result<DirectoryChange> {
        let of_dir = self.hold(dir, vec![Bytes::copy_from_slice(name)], true).await?;
        let of_file = self.hold(file, Vec::new(), true).await?;
        let done = self.direct.link(by, file, dir, name).await;
        let_go_of_all([of_dir, of_file]).await;
        done
    }

    async fn remove(&self, by: &OnBehalf, dir: &ObjectId, name: &[u8]) -> Result<DirectoryChange> {
        let of_dir = self.hold(dir, vec![Bytes::copy_from_slice(name)], true).await?;
        let of_file = self.hold_named(by, dir, name, of_dir.names.first().copied()).await?;
        let done = self.direct.remove(by, dir, name).await;
        let_go_of_all([Some(of_dir), of_file].into_iter().flatten()).await;
        done
    }

    async fn rename(
        &self,
        by: &OnBehalf,
        (from, old): (&ObjectId, &[u8]),
        (to, new): (&ObjectId, &[u8]),
    ) -> Result<(DirectoryChange, DirectoryChange)> {
        let (old_name, new_name) = (Bytes::copy_from_slice(old), Bytes::copy_from_slice(new));
        let mut holds = Vec::with_capacity(4);
        let (known_old, known_new);
        if from == to {
            let names = if old == new { vec![old_name] } else { vec![old_name, new_name] };
            let hold = self.hold(from, names, true).await?;
            (known_old, known_new) = (hold.names.first().copied(), hold.names.last().copied());
            holds.push(hold);
        } else {
            // In one order everywhere: two renames must not wait for each other.
            let (first, second) = ((from, old_name, true), (to, new_name, false));
            let in_order = self.key(from)? < self.key(to)?;
            let (first, second) = if in_order { (first, second) } else { (second, first) };
            let mut known = [None, None];
            for (dir, name, is_old) in [first, second] {
                let hold = self.hold(dir, vec![name], true).await?;
                known[usize::from(!is_old)] = hold.names.first().copied();
                holds.push(hold);
            }
            [known_old, known_new] = known;
        }
        holds.extend(self.hold_named(by, from, old, known_old).await?);
        holds.extend(self.hold_named(by, to, new, known_new).await?);
        let done = self.direct.rename(by, (from, old), (to, new)).await;
        let_go_of_all(holds).await;
        done
    }

    async fn read_link(&self, by: &OnBehalf, link: &ObjectId) -> Result<Bytes> {
        self.direct.read_link(by, link).await
    }

    async fn read_directory(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        cookie: u64,
        verifier: u64,
        bytes: u32,
    ) -> Result<Page> {
        let key = self.key(dir)?;
        let asking = match self.coherence.route(key) {
            Route::At(node) => self.coherence.ask(key).map(|asking| (node, asking)),
            Route::Mine | Route::Nobody => None,
        };
        if let Some((node, asking)) = asking {
            let user = by.user.clone();
            let question = Question::List { user, dir: (*dir, asking.number), cookie, verifier, bytes };
            match self.coherence.question(node, &self.export, question).await {
                Ok(Answer::Page(listed)) => {
                    let directory_word = word(node, &listed.directory, Some(Arc::new(asking)));
                    let entries = listed.entries.into_iter().map(|entry| {
                        let word = if listed.fresh { Word::Source } else { Word::Hearsay };
                        let seen = |(id, attributes)| SeenObject { id, attributes, access: None, data: None, word };
                        PageEntry { cookie: entry.cookie, name: entry.name, object: entry.object.map(seen) }
                    });
                    return Ok(Page {
                        directory: listed.directory.attributes,
                        verifier: listed.verifier,
                        entries: entries.collect(),
                        eof: listed.eof,
                        directory_word,
                        fresh: listed.fresh,
                    });
                }
                Ok(Answer::Failed(error)) if error != SourceError::Unavailable => return Err(error),
                _ => {}
            }
        }
        self.direct.read_directory(by, dir, cookie, verifier, bytes).await
    }

    async fn space(&self, by: &OnBehalf, object: &ObjectId) -> Result<SpaceAttributes> {
        self.direct.space(by, object).await
    }

    async fn seek(&self, by: &OnBehalf, file: &ObjectId, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        self.direct.seek(by, file, offset, what).await
    }

    async fn allocate(&self, by: &OnBehalf, file: &ObjectId, offset: u64, length: u64, punch: bool) -> Result<Changed> {
        let change = self.direct.allocate(by, file, offset, length, punch);
        self.change(file, change, |done| Some(done.attributes.clone())).await
    }

    async fn xattr_get(&self, by: &OnBehalf, file: &ObjectId, name: &[u8]) -> Result<Bytes> {
        self.direct.xattr_get(by, file, name).await
    }

    async fn xattr_list(&self, by: &OnBehalf, file: &ObjectId) -> Result<Vec<Bytes>> {
        self.direct.xattr_list(by, file).await
    }

    async fn xattr_set(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        name: &[u8],
        value: &Bytes,
        how: XattrSet,
    ) -> Result<Changed> {
        let change = self.direct.xattr_set(by, file, name, value, how);
        self.change(file, change, |done| Some(done.attributes.clone())).await
    }

    async fn xattr_remove(&self, by: &OnBehalf, file: &ObjectId, name: &[u8]) -> Result<Changed> {
        let change = self.direct.xattr_remove(by, file, name);
        self.change(file, change, |done| Some(done.attributes.clone())).await
    }

    async fn close(&self) {
        self.direct.close().await;
    }
}
