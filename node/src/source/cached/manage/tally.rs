//! What was done so far, counted.
//!
//! Owns: the sums, where the work is, and a bounded list of what failed. Never does: decide what a failure is.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Failures told one by one; further ones are counted.
pub const FAILURES_MAX: usize = 100;

macro_rules! totals {
    ($($(#[$meta:meta])* $name:ident),* $(,)?) => {
        /// Sums, since the work began.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Totals { $($(#[$meta])* pub $name: u64),* }

        impl Totals {
            /// What was added since `before`.
            pub fn since(&self, before: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(before.$name)),* }
            }
        }
    };
}

totals! {
    /// Directories listed to their end.
    directories,
    /// Files found that are meant.
    files,
    /// Their bytes.
    bytes,
    /// Files that are done with, well or not.
    done_files,
    /// Their bytes, and chunks of files that are not.
    done_bytes,
    /// Files of which nothing had to be fetched.
    present_files,
    /// Bytes that were there already.
    present_bytes,
    /// Files of which something was fetched.
    fetched_files,
    /// Bytes that came from the source.
    fetched_bytes,
    /// Files pinned (or unpinned, if that was wanted).
    pinned_files,
    /// Chunks let go.
    removed_chunks,
    /// Their bytes.
    removed_bytes,
    /// Bytes found in RAM.
    ram_bytes,
    /// Bytes found on NVMe and not in RAM.
    nvme_bytes,
    /// Objects that are neither files nor directories: links, devices.
    others,
    /// Files and directories that went while they were looked at.
    vanished,
    /// Files and directories that failed.
    failed,
}

/// One thing that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// As a client sees it.
    pub path: String,
    /// Why, in words.
    pub reason: String,
}

#[derive(Debug, Default)]
struct Inner {
    totals: Totals,
    current: String,
    failures: Vec<Failure>,
}

/// Where those who work add up and those who watch look.
#[derive(Debug, Default)]
pub struct Tally(Mutex<Inner>);

impl Tally {
    /// Adds.
    pub fn update(&self, add: impl FnOnce(&mut Totals)) {
        add(&mut self.0.lock().totals);
    }

    /// The work is here now.
    pub fn at(&self, path: String) {
        self.0.lock().current = path;
    }

    /// Something failed.
    pub fn fail(&self, path: String, reason: String) {
        let mut inner = self.0.lock();
        inner.totals.failed += 1;
        if inner.failures.len() < FAILURES_MAX {
            inner.failures.push(Failure { path, reason });
        }
    }

    /// The sums, and where the work is.
    pub fn now(&self) -> (Totals, String) {
        let inner = self.0.lock();
        (inner.totals, inner.current.clone())
    }

    /// What failed, the first of it.
    pub fn failures(&self) -> Vec<Failure> {
        self.0.lock().failures.clone()
    }
}
