//! Tests of the local source on real file systems, as root: ext4 (`/var/tmp`) and tmpfs (`/dev/shm`).

mod content;
mod handles;
mod identities;
mod listing;
mod mounted;
mod names;

use std::{path::PathBuf, sync::Arc};

use bytes::BytesMut;

use super::{LocalFile, LocalOptions, LocalSource};
use crate::source::{Credentials, ReadOutcome, SetAttributes, SourceError};

/// A user without any right of root's.
pub(super) const ALICE: u32 = 12_001;
/// Another one.
pub(super) const BOB: u32 = 12_002;

/// An export on a fresh directory that everybody may change.
pub(super) struct Export {
    pub(super) directory: tempfile::TempDir,
    pub(super) source: LocalSource,
}

impl Export {
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A new regular file.
    pub(super) fn file(&self, cred: &Credentials, name: &str) -> Arc<LocalFile> {
        let rest = SetAttributes::default();
        let created = self.source.create(cred, &self.source.root(), name.as_bytes(), 0o644, true, &rest);
        created.expect("a new name in a directory everybody may change").0
    }

    pub(super) fn read(&self, file: &LocalFile) -> Vec<u8> {
        let mut buffer = BytesMut::new();
        let read = self.source.read(file, 0, 1 << 20, &mut buffer, false).expect("readable");
        assert!(matches!(read, ReadOutcome::Done { eof: true, .. }));
        buffer.to_vec()
    }
}

pub(super) fn export_at(parent: &str, options: LocalOptions) -> Export {
    let directory = tempfile::tempdir_in(parent).expect("a place for temporary files");
    open_to_all(directory.path());
    let source = LocalSource::open(directory.path(), options).expect("tests run as root");
    Export { directory, source }
}

pub(super) fn open_to_all(path: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("own directory");
}

/// Runs a test on a disk file system and on tmpfs, each with fine and with coarse clocks.
pub(super) fn on_each(test: impl Fn(&Export)) {
    for parent in ["/var/tmp", "/dev/shm"] {
        for assume_coarse_clock in [false, true] {
            test(&export_at(parent, LocalOptions { assume_coarse_clock, ..LocalOptions::default() }));
        }
    }
}

pub(super) fn user(uid: u32, groups: &[u32]) -> Credentials {
    Credentials { uid, gid: uid, groups: Arc::from(groups) }
}

pub(super) fn root() -> Credentials {
    user(0, &[])
}

pub(super) fn errno(raw: i32) -> SourceError {
    SourceError::Errno(raw)
}
