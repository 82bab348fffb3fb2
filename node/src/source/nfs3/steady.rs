//! Attributes from before an answer, in a protocol that sends them from after it.
//!
//! NFSv3's answers carry attributes that were taken after the data was read or the name was looked up. If they are the
//! ones that were known before the call was sent, nothing changed in between and they are those of the data. If not,
//! the call is made again, now with something known; and after a few times the older attributes are told, which say of
//! data at worst that it is older than it is.
//!
//! Owns: which attributes may be told, and whether to ask again; attributes that were told last of objects. Never does:
//! asking; answering for the source with what it remembers.
//! Invariants: what is told was told by the source in the same call or is what the source still says after it; a
//! judgement ends after [`TRIES`] answers with attributes.

use forebay_proto::nfs3::{Fattr, NfsTime};
use quick_cache::sync::Cache;

use crate::source::SourceHandle;

/// Answers with attributes after which the older ones are told.
const TRIES: u32 = 3;
/// Objects whose attributes are remembered: those in use; one that is forgotten costs a GETATTR.
const REMEMBERED: usize = 8192;

/// What tells one version of an object from another. Size and `mtime` help where the server's clock is coarse.
fn version(told: &Fattr) -> (NfsTime, NfsTime, u64) {
    (told.changed, told.modified, told.size)
}

/// Whether both are of one version of an object.
pub(super) fn same(one: &Fattr, other: &Fattr) -> bool {
    version(one) == version(other)
}

/// Attributes that the source told last.
#[derive(Debug)]
pub(super) struct Known(Cache<SourceHandle, Fattr>);

impl Default for Known {
    fn default() -> Self {
        Self(Cache::new(REMEMBERED))
    }
}

impl Known {
    /// The source has just told these.
    pub fn note(&self, handle: &SourceHandle, told: &Fattr) {
        self.0.insert(*handle, *told);
    }

    /// What it told last.
    pub fn of(&self, handle: &SourceHandle) -> Option<Fattr> {
        self.0.get(handle)
    }
}

/// One judgement.
#[derive(Debug)]
pub(super) struct Steady {
    before: Option<Fattr>,
    /// `before` was told in this call, not remembered from an earlier one.
    fresh: bool,
    tries: u32,
}

impl Steady {
    /// Begins with what is remembered, if anything.
    pub fn new(remembered: Option<Fattr>) -> Self {
        Self { before: remembered, fresh: false, tries: 0 }
    }

    /// What was known before the call that is to be made; `None` if it must be asked for, and given to [`Steady::told`].
    pub fn before(&self) -> Option<Fattr> {
        self.before
    }

    /// The source has told these, and the call is yet to be made.
    pub fn told(&mut self, told: Fattr) {
        (self.before, self.fresh) = (Some(told), true);
    }

    /// Judges an answer by the attributes that came with it, `steady` if all of them are [`same`] as those before: what
    /// may be told with it, or `None` if the call is to be made again.
    pub fn judge(&mut self, after: Option<Fattr>, steady: bool) -> Option<Fattr> {
        self.tries += 1;
        match after {
            Some(after) if steady => Some(after),
            Some(_) if self.fresh && self.tries >= TRIES => self.before,
            Some(after) => {
                self.told(after);
                None
            }
            None if self.fresh => self.before,
            None => {
                self.before = None;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_proto::nfs3::{DeviceNumbers, FileType};

    use super::*;

    fn at(second: u32) -> Fattr {
        let time = NfsTime { seconds: second, nanoseconds: 0 };
        Fattr {
            kind: FileType::Regular,
            mode: 0,
            links: 1,
            uid: 0,
            gid: 0,
            size: 0,
            used: 0,
            device: DeviceNumbers::default(),
            fsid: 1,
            fileid: 2,
            accessed: time,
            modified: time,
            changed: time,
        }
    }

    /// Answers, as a server whose object has these versions gives them, one after the other.
    fn run(remembered: Option<u32>, asked: u32, after: &[Option<u32>]) -> (u32, usize) {
        let mut steady = Steady::new(remembered.map(at));
        for (place, after) in after.iter().enumerate() {
            if steady.before().is_none() {
                steady.told(at(asked));
            }
            let after = after.map(at);
            let same = after.zip(steady.before()).is_some_and(|(after, before)| same(&after, &before));
            if let Some(told) = steady.judge(after, same) {
                return (told.changed.seconds, place + 1);
            }
        }
        panic!("no judgement after {after:?}");
    }

    #[test]
    fn what_did_not_change_is_told_at_once() {
        assert_eq!(run(Some(5), 0, &[Some(5)]), (5, 1));
        assert_eq!(run(None, 5, &[Some(5)]), (5, 1));
    }

    #[test]
    fn what_changed_is_asked_for_again_and_in_the_end_the_older_is_told() {
        assert_eq!(run(Some(1), 0, &[Some(5), Some(5)]), (5, 2));
        assert_eq!(run(None, 1, &[Some(2), Some(3), Some(4)]), (3, 3));
        assert_eq!(run(Some(0), 0, &[Some(2), Some(3), Some(4), Some(4)]), (3, 3));
    }

    #[test]
    fn what_is_only_remembered_is_never_told() {
        // No attributes come with the answer: those remembered may be of long ago.
        assert_eq!(run(Some(1), 7, &[None, None]), (7, 2));
        assert_eq!(run(None, 7, &[None]), (7, 1));
    }
}
