//! How long what is known of a source may be believed.
//!
//! Owns: presets, knobs, the adaptive window. Never does: look at a clock, ask a source.

use std::time::Duration;

use crate::source::{FileAttributes, FileKind, Time};

/// What a preset promises about changes made at the source behind our back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Consistency {
    /// They are seen within the window.
    Scratch,
    /// They are seen at OPEN, else within the window.
    #[default]
    CloseToOpen,
    /// They are seen at once: the source is asked each time.
    Strict,
}

/// Which answers to LOOKUP are believed (the `lookupcache` option of Linux' NFS client).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupCache {
    /// Names that are there and names that are not.
    All,
    /// Names that are there; that a name is missing is asked each time.
    Positive,
    /// None.
    None,
}

/// What a node of a cluster does that can ask neither the others nor the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnPartition {
    /// It lets its clients wait: others may have changed what it knows.
    #[default]
    Refuse,
    /// It tells what it knows, for as long as `serve_stale` allows.
    Serve,
}

/// What an export lets us believe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The promise.
    pub consistency: Consistency,
    /// Window of a file that has just changed.
    pub acregmin: Duration,
    /// Window of a file that has not changed for long.
    pub acregmax: Duration,
    /// Window of a directory that has just changed.
    pub acdirmin: Duration,
    /// Window of a directory that has not changed for long.
    pub acdirmax: Duration,
    /// Which names are believed.
    pub lookupcache: LookupCache,
    /// How long beyond its window something is believed while the source cannot be reached.
    pub serve_stale: Duration,
    /// Whether that holds for a node that is cut off from its cluster.
    pub on_partition: OnPartition,
}

/// In `close-to-open`, OPENs within this time share one question.
pub const OPEN_SHARE: Duration = Duration::from_secs(1);

/// Clocks of source and node may differ by this much before two changes in one tick of the source's clock can be taken
/// for one.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

impl Policy {
    /// A preset: `scratch`, `close-to-open` or `strict`.
    pub fn preset(consistency: Consistency) -> Self {
        let seconds = Duration::from_secs;
        let ((acregmin, acregmax), (acdirmin, acdirmax), lookupcache, serve_stale) = match consistency {
            Consistency::Scratch => ((60, 3600), (60, 3600), LookupCache::All, 3600),
            Consistency::CloseToOpen => ((3, 60), (30, 60), LookupCache::Positive, 60),
            Consistency::Strict => ((0, 0), (0, 0), LookupCache::None, 0),
        };
        Self {
            consistency,
            acregmin: seconds(acregmin),
            acregmax: seconds(acregmax),
            acdirmin: seconds(acdirmin),
            acdirmax: seconds(acdirmax),
            lookupcache,
            serve_stale: seconds(serve_stale),
            on_partition: OnPartition::default(),
        }
    }

    /// The window of what has just been seen to change.
    pub fn first_window(&self, kind: FileKind) -> Duration {
        if kind == FileKind::Directory { self.acdirmin } else { self.acregmin }
    }

    /// The window of what has been seen not to have changed.
    pub fn next_window(&self, kind: FileKind, window: Duration) -> Duration {
        let (least, most) = match kind {
            FileKind::Directory => (self.acdirmin, self.acdirmax),
            _ => (self.acregmin, self.acregmax),
        };
        window.saturating_mul(2).clamp(least, most.max(least))
    }
}

/// What data must have been read under to be the same data.
pub fn version_of(attributes: &FileAttributes) -> u64 {
    let mut bytes = [0_u8; 8 * 4];
    let modified = attributes.modified;
    let parts = if attributes.kind == FileKind::Directory {
        [attributes.change, 0, 0, 0]
    } else {
        let seconds = modified.seconds.cast_unsigned();
        [attributes.change, attributes.size, seconds, u64::from(modified.nanoseconds)]
    };
    for (place, part) in bytes.chunks_exact_mut(8).zip(parts) {
        place.copy_from_slice(&part.to_be_bytes());
    }
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

/// Whether a further change would surely look different: file servers stamp changes with clocks that tick every few
/// milliseconds, so of an object that changed just now nobody can tell whether it is about to change unseen.
/// `now`: nanoseconds since 1970, by our clock.
pub fn is_settled(attributes: &FileAttributes, now: i128) -> bool {
    // A file may be given any time of modification; that of its last change nobody can set.
    nanoseconds(attributes.changed) + SETTLED_AFTER.as_nanos().cast_signed() <= now
}

fn nanoseconds(time: Time) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_doubles_while_nothing_changes_and_falls_back_when_something_does() {
        let policy = Policy::preset(Consistency::CloseToOpen);
        let mut window = policy.first_window(FileKind::Regular);
        let mut seen = vec![window.as_secs()];
        for _ in 0..6 {
            window = policy.next_window(FileKind::Regular, window);
            seen.push(window.as_secs());
        }
        assert_eq!(seen, [3, 6, 12, 24, 48, 60, 60]);
        assert_eq!(policy.next_window(FileKind::Directory, policy.first_window(FileKind::Directory)).as_secs(), 60);
        assert_eq!(policy.first_window(FileKind::Regular).as_secs(), 3);
    }

    #[test]
    fn strict_believes_nothing_for_any_time() {
        let policy = Policy::preset(Consistency::Strict);
        assert_eq!(policy.next_window(FileKind::Regular, Duration::from_secs(9)), Duration::ZERO);
        assert_eq!(policy.serve_stale, Duration::ZERO);
    }
}
