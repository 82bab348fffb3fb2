//! Any source, and any object of one.
//!
//! Owns: the choice between a local directory, whose answers are at hand, and a cached source, which may have to ask.
//! Never does: the work of either.

use std::sync::Arc;

use super::{
    FileKind, ObjectId, SourceFsid, SourceHandle,
    cached::{CachedFile, CachedSource},
    local::{LocalFile, LocalSource},
};

/// Where an export's files are.
#[derive(Debug)]
pub enum Source {
    /// A directory of this machine.
    Local(LocalSource),
    /// A file server behind the cache.
    Cached(Arc<CachedSource>),
}

/// An object of a source.
#[derive(Clone, Debug)]
pub enum File {
    /// Of a [`Source::Local`].
    Local(Arc<LocalFile>),
    /// Of a [`Source::Cached`].
    Cached(Arc<CachedFile>),
}

impl Source {
    /// Whether it knows extended attributes.
    pub fn has_xattrs(&self) -> bool {
        match self {
            Self::Local(_) => true,
            Self::Cached(source) => source.remote().has_xattrs(),
        }
    }
}

impl File {
    /// What names it.
    pub fn id(&self) -> ObjectId {
        match self {
            Self::Local(file) => file.id(),
            Self::Cached(file) => *file.id(),
        }
    }

    /// Which file system of the source it is on.
    pub fn fsid(&self) -> SourceFsid {
        match self {
            Self::Local(file) => file.fsid(),
            Self::Cached(file) => file.id().fsid,
        }
    }

    /// The source's handle.
    pub fn handle(&self) -> &SourceHandle {
        match self {
            Self::Local(file) => file.handle(),
            Self::Cached(file) => &file.id().handle,
        }
    }

    /// What kind of object it is; never changes.
    pub fn kind(&self) -> FileKind {
        match self {
            Self::Local(file) => file.kind(),
            Self::Cached(file) => file.kind(),
        }
    }

    /// It is the export's root.
    pub fn is_root(&self) -> bool {
        match self {
            Self::Local(file) => file.is_root(),
            Self::Cached(file) => file.is_root(),
        }
    }
}
