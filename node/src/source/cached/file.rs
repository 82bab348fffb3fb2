//! What is known of one object of a source.
//!
//! Owns: attributes and since when they hold, the key its data is kept under, names in a directory, rights of users.
//! Never does: ask the source; whoever does tells here what came back. Time and randomness are arguments.
//!
//! Invariants:
//! * `content` names one state of the data (of a directory: of its names) and is never used for another. Whatever is
//!   kept under it may be served as long as it is the current one.
//! * An answer to a question that was asked before a change of ours ended never counts as newer than the change.
//! * While the source's clock may hide a change (`provisional`), nothing is kept under a name that outlives the
//!   process, and once the clock has moved on what was kept is let go.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use forebay_meta::state::FileKey;
use parking_lot::{Mutex, MutexGuard};

use super::{
    Flight,
    directory::KeptPage,
    policy::{Consistency, OPEN_SHARE, Policy, is_settled, version_of},
    readahead::Reads,
};
use crate::source::{AccessMask, Credentials, FileAttributes, FileKind, ObjectId, remote::Word};

/// Users whose rights are remembered for one object.
const RIGHTS_MAX: usize = 16;
/// Chunks of one file that came before they were read: more are counted as if they had been here.
const UNREAD_MAX: usize = 64;

/// An object of a source on the network.
#[derive(Debug)]
pub struct CachedFile {
    id: ObjectId,
    kind: FileKind,
    key: u128,
    is_root: bool,
    state: Mutex<State>,
}

/// What must be true of an answer's age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Within the window.
    Window,
    /// Fresh enough for an OPEN.
    Open,
}

/// Whose word an answer is; see [`Word`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teller {
    /// The source's.
    Source,
    /// The owner's, in a cluster.
    Owner {
        /// What data is kept under.
        content: u64,
        /// No later change can look the same.
        settled: bool,
        /// Of the question.
        number: u64,
    },
    /// Somebody's: nothing to remember.
    Hearsay,
}

/// When a question was asked, and who answered.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// When it was sent, at the latest.
    pub at: Instant,
    /// The same by the wall, in nanoseconds since 1970.
    pub wall: i128,
    /// How far this source's count of our changes was.
    pub epoch: u64,
    /// Who answered.
    pub teller: Teller,
}

impl Asked {
    /// The same question, answered by whoever this word is of. What an owner knows is as old as it says.
    pub fn told_by(self, word: &Word) -> Self {
        match word {
            Word::Source => self,
            Word::Hearsay => Self { teller: Teller::Hearsay, ..self },
            Word::Owner(word) => {
                let at = self.at.checked_sub(word.age()).unwrap_or(self.at);
                let (content, settled, number) = (word.content(), word.is_settled(), word.number());
                Self { at, teller: Teller::Owner { content, settled, number }, ..self }
            }
        }
    }

    /// Whether a later change may look the same, and what is kept under it, if those are known.
    fn names(&self, attributes: &FileAttributes, nonce: u64) -> (bool, u64) {
        match self.teller {
            Teller::Owner { content, settled, .. } => (settled, content),
            Teller::Source | Teller::Hearsay => {
                let settled = is_settled(attributes, self.wall);
                (settled, if settled { version_of(attributes) } else { nonce })
            }
        }
    }
}

/// What is known. Behind the object's lock.
#[derive(Debug)]
pub struct State {
    /// As last told.
    pub attributes: FileAttributes,
    /// When what told them was asked; `None`: ask again before you believe them.
    pub asked: Option<Instant>,
    /// How long they are believed.
    pub window: Duration,
    /// Since when that long.
    pub window_since: Instant,
    /// What data or names are kept under.
    pub content: u64,
    /// A later change may look the same.
    pub provisional: bool,
    /// Something was kept while `provisional`.
    pub learned: bool,
    /// The source's count of changes when one of this object began or ended last.
    pub epoch: u64,
    /// Our own changes under way.
    pub changing: u32,
    /// Of one of them it is not known what it did.
    pub blurred: bool,
    /// The number of the owner's word that told this; 0 if the source did.
    pub word: u64,
    /// The source says that it is no more.
    pub gone: bool,
    /// A question under way, and when it was asked.
    pub flight: Option<(Instant, Flight)>,
    /// How its data is read.
    pub reads: Reads,
    /// Chunks that came before anybody read them: whoever reads one first is served from the source.
    unread: Vec<u32>,
    /// The listing that told of it last, and its place there.
    pub listed: Option<(Weak<KeptPage>, u32)>,
    /// On whose behalf to read ahead.
    pub reads_as: Option<Credentials>,
    /// Where a symbolic link points.
    pub link: Option<Bytes>,
    /// The cookie verifier of the source's last page.
    pub verifier: u64,
    /// A user who found a name here without his rights having been asked: he may search.
    pub search_proven: Option<u64>,
    rights: Vec<(u64, AccessMask)>,
    names: Names,
}

/// Names in a directory, and what they stand for; bounded over all directories of a source.
#[derive(Debug)]
pub struct Names {
    known: HashMap<Bytes, Option<u128>>,
    left: Arc<AtomicI64>,
}

impl Names {
    /// None yet. `left`: how many more may be remembered by all who share it.
    pub fn new(left: Arc<AtomicI64>) -> Self {
        Self { known: HashMap::new(), left }
    }

    /// Whether it is remembered.
    fn set(&mut self, name: &[u8], stands_for: Option<u128>) -> bool {
        if let Some(known) = self.known.get_mut(name) {
            *known = stands_for;
            return true;
        }
        if self.left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            self.left.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.known.insert(Bytes::copy_from_slice(name), stands_for);
        true
    }

    fn remove(&mut self, name: &[u8]) {
        if self.known.remove(name).is_some() {
            self.left.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn clear(&mut self) {
        self.left.fetch_add(self.known.len() as i64, Ordering::Relaxed);
        self.known = HashMap::new();
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.clear();
    }
}

impl CachedFile {
    /// An object as it was told.
    pub fn new(
        (id, key, is_root): (ObjectId, u128, bool),
        attributes: FileAttributes,
        asked: Asked,
        names: Names,
        nonce: u64,
        policy: &Policy,
    ) -> Self {
        let kind = attributes.kind;
        let (settled, content) = asked.names(&attributes, nonce);
        let word = if let Teller::Owner { number, .. } = asked.teller { number } else { 0 };
        let state = State {
            content,
            provisional: !settled,
            learned: false,
            attributes,
            word,
            asked: (asked.teller != Teller::Hearsay).then_some(asked.at),
            window: policy.first_window(kind),
            window_since: asked.at,
            epoch: 0,
            changing: 0,
            blurred: false,
            gone: false,
            flight: None,
            reads: Reads::default(),
            unread: Vec::new(),
            listed: None,
            reads_as: None,
            link: None,
            verifier: 0,
            search_proven: None,
            rights: Vec::new(),
            names,
        };
        Self { id, kind, key, is_root, state: Mutex::new(state) }
    }

    /// What names it.
    pub fn id(&self) -> &ObjectId {
        &self.id
    }

    /// What kind of object it is.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// What the cache knows it by: the same after a restart and on every node.
    pub fn key(&self) -> u128 {
        self.key
    }

    /// The same as the cluster names it.
    pub fn cluster_key(&self) -> FileKey {
        FileKey::of_digest(self.key)
    }

    /// It is the export's root.
    pub fn is_root(&self) -> bool {
        self.is_root
    }

    /// What is known.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Whether the attributes may be told for an operation that begins now.
    pub fn is_fresh(&self, policy: &Policy, need: Need, now: Instant) -> bool {
        self.asked.is_some_and(|asked| self.would_be_fresh(asked, policy, need, now))
    }

    /// Whether they might if they had been asked for at `asked`.
    pub fn would_be_fresh(&self, asked: Instant, policy: &Policy, need: Need, now: Instant) -> bool {
        let age = now.saturating_duration_since(asked);
        match (policy.consistency, need) {
            (Consistency::Strict, _) => asked >= now,
            (Consistency::CloseToOpen, Need::Open) => age < OPEN_SHARE,
            _ => age < self.window,
        }
    }

    /// Whether they may still be told although the source cannot be asked.
    pub fn is_servable(&self, policy: &Policy, now: Instant) -> bool {
        let window = if policy.consistency == Consistency::Strict { Duration::ZERO } else { self.window };
        let allowed = window.saturating_add(policy.serve_stale);
        self.asked.is_some_and(|asked| now.saturating_duration_since(asked) < allowed)
    }

    /// Attributes came. `false` if they may be older than a change of ours: then they are nothing to remember.
    pub fn observe(&mut self, attributes: &FileAttributes, asked: Asked, nonce: u64, policy: &Policy) -> bool {
        if self.changing > 0 || self.epoch > asked.epoch || asked.teller == Teller::Hearsay {
            return false;
        }
        if let Teller::Owner { content, settled, number } = asked.teller {
            return self.observe_word(attributes, asked, (content, settled, number), policy);
        }
        let settled = is_settled(attributes, asked.wall);
        let version = version_of(attributes);
        if self.asked.is_some_and(|known| known > asked.at) {
            return version == version_of(&self.attributes) && (self.provisional || settled);
        }
        self.gone = false;
        if version == version_of(&self.attributes) {
            // It grows once it is over, however often it was asked meanwhile.
            if asked.at.saturating_duration_since(self.window_since) >= self.window {
                self.window = policy.next_window(attributes.kind, self.window);
                self.window_since = asked.at;
            }
            let who = |told: &FileAttributes| (told.mode, told.uid, told.gid);
            if who(attributes) != who(&self.attributes) || (self.provisional && settled) {
                self.forget_rights();
            }
            if self.provisional && settled {
                if self.learned {
                    self.forget_content();
                }
                (self.content, self.provisional, self.learned) = (version, false, false);
            }
        } else {
            self.window = policy.first_window(attributes.kind);
            self.window_since = asked.at;
            self.forget_content();
            self.forget_rights();
            self.content = if settled { version } else { nonce };
            (self.provisional, self.learned) = (!settled, false);
        }
        self.attributes = attributes.clone();
        self.asked = Some(asked.at);
        self.word = 0;
        true
    }

    /// An owner's word came. Of two the one to the later question holds, whatever this node knew by itself.
    fn observe_word(
        &mut self,
        attributes: &FileAttributes,
        asked: Asked,
        (content, settled, number): (u64, bool, u64),
        policy: &Policy,
    ) -> bool {
        if self.word > number {
            return content == self.content;
        }
        self.gone = false;
        let who = |told: &FileAttributes| (told.mode, told.uid, told.gid);
        if who(attributes) != who(&self.attributes) {
            self.forget_rights();
        }
        if content == self.content {
            if asked.at.saturating_duration_since(self.window_since) >= self.window {
                self.window = policy.next_window(attributes.kind, self.window);
                self.window_since = asked.at;
            }
        } else {
            self.window = policy.first_window(attributes.kind);
            self.window_since = asked.at;
            self.forget_content();
            self.forget_rights();
        }
        (self.content, self.provisional, self.learned) = (content, !settled, false);
        self.attributes = attributes.clone();
        (self.asked, self.word) = (Some(asked.at), number);
        true
    }

    fn forget_rights(&mut self) {
        self.rights.clear();
        self.search_proven = None;
    }

    fn forget_content(&mut self) {
        self.names.clear();
    }

    /// Lets go of what is known: whoever comes next asks. What names its data stays, since data is let go by name.
    pub fn forget(&mut self) {
        self.forget_content();
        self.forget_rights();
        (self.asked, self.link) = (None, None);
        self.unread.clear();
    }

    /// A change of ours begins, with this number of its own.
    pub fn begin_change(&mut self, ticket: u64) {
        self.changing += 1;
        self.epoch = ticket;
        self.flight = None;
    }

    /// Whether the change begun with `ticket` is the only thing that happened to the object since it was last asked:
    /// nobody of us changed it meanwhile, and the source says that nobody else had before.
    pub fn is_ours_alone(&self, ticket: u64, before: Option<u64>) -> bool {
        self.changing == 1 && self.epoch == ticket && self.asked.is_some() && before == Some(self.attributes.change)
    }

    /// A change of ours ended with these attributes (`None`: its outcome is not known). `kept`: what is kept under the
    /// new `content` (or, if `None`, the old one) is what the object now holds. `is_alone`: no other change of ours ran
    /// at the same time.
    pub fn end_change(
        &mut self,
        after: Option<&FileAttributes>,
        (began, epoch): (Instant, u64),
        (kept, is_alone): (Option<Kept>, bool),
        nonce: u64,
        policy: &Policy,
    ) {
        self.changing = self.changing.saturating_sub(1);
        self.epoch = epoch;
        self.flight = None;
        self.word = 0;
        match kept {
            Some(Kept::Same) => {}
            Some(Kept::Under(content)) => self.content = content,
            None => {
                self.forget_content();
                self.forget_rights();
                self.content = nonce;
            }
        }
        // The source's clock may hide a change by others in the very tick of ours.
        (self.provisional, self.learned) = (true, kept.is_some());
        (self.window, self.window_since) = (policy.first_window(self.attributes.kind), began);
        match after {
            Some(after) => {
                let same_rights = (after.mode, after.uid, after.gid)
                    == (self.attributes.mode, self.attributes.uid, self.attributes.gid);
                if !same_rights {
                    self.forget_rights();
                }
                // Replies of changes that ran together come in any order.
                if is_alone || is_newer(after, &self.attributes) {
                    self.attributes = after.clone();
                }
                self.asked = Some(self.asked.map_or(began, |asked| asked.max(began)));
            }
            None => self.blurred = true,
        }
        if self.blurred {
            // What those that ran beside it told may be older than what it did.
            self.asked = None;
            self.blurred = self.changing > 0;
        }
    }

    /// What the user with this digest may do, if it was asked and holds.
    pub fn rights(&self, user: u64) -> Option<AccessMask> {
        self.rights.iter().find(|(known, _)| *known == user).map(|(_, mask)| *mask)
    }

    /// The source said what a user may do.
    pub fn set_rights(&mut self, user: u64, mask: AccessMask) {
        self.rights.retain(|(known, _)| *known != user);
        if self.rights.len() == RIGHTS_MAX {
            self.rights.remove(0);
        }
        self.rights.push((user, mask));
    }

    /// A chunk came before anybody read it.
    pub fn set_unread(&mut self, index: u32) {
        if self.unread.len() == UNREAD_MAX {
            self.unread.remove(0);
        }
        self.unread.push(index);
    }

    /// Whether this is the first read of a chunk that came before; only once.
    pub fn take_unread(&mut self, index: u32) -> bool {
        let place = self.unread.iter().position(|known| *known == index);
        place.map(|place| self.unread.swap_remove(place)).is_some()
    }

    /// What a name in this directory stands for: `None` if it is not known, `Some(None)` if it is not there.
    pub fn name(&self, name: &[u8]) -> Option<Option<u128>> {
        self.names.known.get(name).copied()
    }

    /// A name and what it stands for.
    pub fn set_name(&mut self, name: &[u8], stands_for: Option<u128>) {
        self.learned |= self.names.set(name, stands_for);
    }

    /// A name about which nothing is known any more.
    pub fn forget_name(&mut self, name: &[u8]) {
        self.names.remove(name);
    }
}

/// What remains of the content after a change of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// All of it: the change was of attributes, or the names were set right.
    Same,
    /// What was put under this new name.
    Under(u64),
}

/// Whether `a` was told after `b` by a source whose clock does not go back.
fn is_newer(a: &FileAttributes, b: &FileAttributes) -> bool {
    (a.changed, a.change, a.size) >= (b.changed, b.change, b.size)
}

/// A digest of a user: two users with one digest would share rights, so it is a good one.
pub fn digest(user: &Credentials) -> u64 {
    let mut hasher = xxhash_rust::xxh3::Xxh3Default::new();
    let ids = [user.uid, user.gid].into_iter().chain(user.groups.iter().copied());
    ids.for_each(|id| hasher.update(&id.to_be_bytes()));
    hasher.digest()
}
