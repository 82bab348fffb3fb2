//! What is to be fetched next, and what goes together.
//!
//! Owns: putting small files of like size into one call, and large ones after each other. Never does: fetch.
//! Invariant: no call brings more than [`BATCH_FILES`] files or about [`BATCH_BYTES`].

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
};

use super::walk::Found;
use crate::source::cached::{CHUNK, CachedFile, attributes::SMALL};

/// Files that come in one call, and their bytes: about one COMPOUND of a source that grants 1 MiB.
const BATCH_FILES: usize = 128;
const BATCH_BYTES: u64 = 1 << 20;
/// Files of one batch are of like size, since a source must be told how much to send of each.
const CLASSES: [u64; 4] = [4 << 10, 16 << 10, 64 << 10, SMALL];

/// A file fetched chunk by chunk.
pub(super) struct Large {
    pub(super) found: Found,
    pub(super) file: Arc<CachedFile>,
    pub(super) content: u64,
    pub(super) size: u64,
    pub(super) attempt: u32,
    pub(super) left: AtomicU64,
    pub(super) fetched: AtomicU64,
    pub(super) failed: AtomicBool,
}

pub(super) enum Job {
    /// Small files that come together.
    Batch(Vec<Found>),
    /// A file about to be fetched chunk by chunk, and how often it was begun.
    Open(Box<Found>, u32),
    /// A chunk, and those after it.
    Chunk(Arc<Large>, u64),
    /// Files that are there and to be pinned.
    Pin(Vec<Found>),
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) ready: VecDeque<Job>,
    bins: [Vec<Found>; CLASSES.len()],
    pub(super) young: Vec<Found>,
}

impl Queue {
    pub(super) fn push(&mut self, found: Found) {
        let size = found.attributes.size;
        let Some(class) = CLASSES.iter().position(|most| size <= *most) else {
            self.ready.push_back(Job::Open(Box::new(found), 1));
            return;
        };
        let bin = &mut self.bins[class];
        let most = (BATCH_BYTES / CLASSES[class]) as usize;
        bin.push(found);
        if bin.len() >= most.min(BATCH_FILES) {
            self.ready.push_back(Job::Batch(std::mem::take(bin)));
        }
    }

    /// What is left goes as it is.
    pub(super) fn flush(&mut self) {
        let left = self.bins.iter_mut().map(std::mem::take).filter(|bin| !bin.is_empty());
        self.ready.extend(left.map(Job::Batch));
    }

    pub(super) fn next(&mut self) -> Option<Job> {
        let job = self.ready.pop_front()?;
        if let Job::Chunk(large, index) = &job
            && (index + 1) * CHUNK < large.size
        {
            self.ready.push_front(Job::Chunk(large.clone(), index + 1));
        }
        Some(job)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::source::{FileAttributes, FileKind, ObjectId, SourceFsid, SourceHandle, Time};

    fn found(size: u64) -> Found {
        let fsid = SourceFsid(1);
        let attributes = FileAttributes {
            fsid,
            fileid: 1,
            mounted_on_fileid: 1,
            kind: FileKind::Regular,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            size,
            space_used: size,
            device: (0, 0),
            accessed: Time::default(),
            modified: Time::default(),
            changed: Time::default(),
            created: None,
            change: 1,
        };
        let id = ObjectId { fsid, handle: SourceHandle::new(b"f").unwrap() };
        Found { id, key: 1, attributes, path: Bytes::new() }
    }

    #[test]
    fn files_of_like_size_come_together_and_no_call_brings_too_much() {
        let mut queue = Queue::default();
        let sizes = (0..5000_u64).map(|number| number * 7919 % (2 * SMALL));
        let mut left = 0;
        for size in sizes {
            queue.push(found(size));
            left += 1;
        }
        queue.flush();
        let mut batches = 0;
        while let Some(job) = queue.next() {
            match job {
                Job::Batch(files) => {
                    let largest = files.iter().map(|found| found.attributes.size).max().unwrap();
                    assert!(files.len() <= BATCH_FILES && files.len() as u64 * largest <= BATCH_BYTES);
                    let class = |found: &Found| CLASSES.iter().position(|most| found.attributes.size <= *most);
                    assert!(files.iter().all(|found| class(found) == class(&files[0])));
                    left -= files.len();
                    batches += 1;
                }
                Job::Open(found, 1) => {
                    assert!(found.attributes.size > SMALL);
                    left -= 1;
                }
                _ => panic!("nothing else was put in"),
            }
        }
        assert_eq!(left, 0);
        assert!(batches < 800, "{batches}");
    }
}
