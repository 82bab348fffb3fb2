//! READDIR (RFC 8881 §18.23).

use std::ops::ControlFlow;

use bytes::Bytes;
use forebay_proto::limits::RECORD_MAX;
use forebay_proto::nfs4::{
    Attr, Attributes, Bitmap, Component, Fattr, Status, Verifier,
    ops::readdir::{Entry, ReadDirArgs, ReadDirOk},
};

use super::Context;
use crate::{
    files::{FileNode, Namespace, Node, attributes, namespace::Child},
    source::{DirectoryEntry, EntryObject, File, SourceError, SourceFsid},
};

/// Cookies are the source's own and stay valid over changes, so the verifier never changes either. Zero, since clients exist that
/// never send another.
const VERIFIER: Verifier = [0; 8];

/// Bytes of a reply around its entries: verifier, end of list, eof.
const FRAME: usize = 16;

/// Entries of one reply at most: bounds the time one call takes.
const ENTRIES_MAX: usize = 8192;

/// File systems first seen in one listing; if there are more, their entries say DELAY.
const UNKNOWN_MAX: usize = 256;

pub async fn run(cx: &Context<'_>, args: &ReadDirArgs) -> Result<ReadDirOk, Status> {
    if matches!(args.cookie, 1 | 2) {
        return Err(Status::BadCookie);
    }
    if args.cookie != 0 && args.verifier != VERIFIER {
        return Err(Status::NotSame);
    }
    let write_only = Bitmap::of(&[Attr::TimeAccessSet, Attr::TimeModifySet]);
    if !args.attributes.intersection(&write_only).is_empty() {
        return Err(Status::Inval);
    }
    let room = args.max_count.min(cx.payload_room()) as usize;
    let mut listing = Listing {
        cx,
        mask: args.attributes.intersection(&attributes::READABLE),
        room: room.checked_sub(FRAME).ok_or(Status::TooSmall)?,
        entries: Vec::new(),
        failed: None,
    };
    let end = match cx.directory()? {
        Node::Pseudo(place) => listing.pseudo(*place, args.cookie).await,
        Node::File(node) => listing.source(node, args.cookie).await?,
    };
    // Whatever was told, before the client sees it.
    if listing.mask.has(Attr::FileHandle) {
        cx.server.namespace.handles_registered().await?;
    }
    if let Some(status) = listing.failed {
        return Err(status);
    }
    if listing.entries.is_empty() && !end {
        return Err(Status::TooSmall);
    }
    Ok(ReadDirOk { verifier: VERIFIER, entries: listing.entries, eof: end })
}

struct Listing<'a, 'b> {
    cx: &'a Context<'b>,
    mask: Bitmap,
    room: usize,
    entries: Vec<Entry>,
    failed: Option<Status>,
}

impl Listing<'_, '_> {
    /// Adds an entry; `Break` if it does not fit.
    fn push(&mut self, cookie: u64, name: Bytes, attributes: Fattr) -> ControlFlow<()> {
        let Some(name) = Component::new(name) else { return ControlFlow::Continue(()) };
        // Following flag, cookie, name, bitmap, values: each padded to four bytes.
        let bitmap = 4 + attributes.mask.encoded_words() * 4;
        let size = 4 + 8 + 4 + name.len().next_multiple_of(4) + bitmap + 4 + attributes.values.len();
        let Some(left) = self.room.checked_sub(size) else { return ControlFlow::Break(()) };
        self.room = left;
        self.entries.push(Entry { cookie, name, attributes });
        ControlFlow::Continue(())
    }

    async fn pseudo(&mut self, place: usize, cookie: u64) -> bool {
        let namespace = &self.cx.server.namespace;
        let children = &namespace.pseudo(place).children;
        for (index, (name, child)) in children.iter().enumerate() {
            let own_cookie = index as u64 + 3;
            let visible = match child {
                Child::Directory(_) => true,
                Child::Export(export) => namespace.exports()[*export].admits(self.cx.caller.address),
            };
            if own_cookie <= cookie || !visible {
                continue;
            }
            let told = match child {
                Child::Directory(place) => {
                    attributes::of_pseudo(namespace, *place, &self.mask, self.cx.server.lease_seconds())
                }
                Child::Export(export) => self.export(*export).await,
            };
            if self.told(own_cookie, name.clone(), told).is_break() {
                return false;
            }
        }
        true
    }

    /// An export's root among pseudo directories. One whose source cannot be reached must not spoil the listing of the
    /// others: it is told as what it is mounted on.
    async fn export(&self, place: usize) -> Result<Attributes, Status> {
        let (server, caller) = (self.cx.server, self.cx.caller);
        let told = match server.namespace.export_root(place, caller).await {
            Ok(node) => attributes::of_node(&server.namespace, &node, &self.mask, server.lease_seconds(), caller).await,
            Err(status) => Err(status),
        };
        match told {
            Err(Status::Delay) => {
                let mut told = attributes::of_pseudo(&server.namespace, 0, &self.mask, server.lease_seconds())?;
                let id = server.namespace.mounted_on(&server.namespace.exports()[place]);
                (told.fileid, told.mounted_on_fileid, told.filehandle) = (Some(id), Some(id), None);
                Ok(told)
            }
            told => told,
        }
    }

    async fn source(&mut self, node: &FileNode, cookie: u64) -> Result<bool, Status> {
        let (namespace, caller) = (&self.cx.server.namespace, self.cx.caller);
        let lease_seconds = self.cx.server.lease_seconds();
        let want_files = !self.mask.is_subset_of(&attributes::FROM_DIRECTORY);
        // Of a listing, all is on one file system but what is mounted in it, and that is rare.
        let space = if attributes::wants_space(&self.mask) { Some(node.space(caller).await?) } else { None };
        let (room, mask) = (self.room, self.mask);
        for first in [true, false] {
            let mut unknown = Vec::new();
            let mut sink = |entry: DirectoryEntry<File>| match entry.file {
                None => self.push(entry.cookie, entry.name, plain(&mask)),
                // It was removed while we listed: as if it had never been there.
                Some(Err(SourceError::Stale | SourceError::Errno(libc::ENOENT))) => ControlFlow::Continue(()),
                Some(Err(error)) => self.told(entry.cookie, entry.name, Err(error.into())),
                Some(Ok(EntryObject::Open(file))) => {
                    let found = known(namespace, node, file.fsid(), &mut unknown);
                    let told =
                        found.map(|fsid| FileNode { fsid, export: node.export.clone(), file }).and_then(|found| {
                            let told = found.attributes_now().ok_or(Status::Delay)??;
                            attributes::of_file(namespace, &found, (&told, space), &mask, lease_seconds)
                        });
                    self.told(entry.cookie, entry.name, told)
                }
                Some(Ok(EntryObject::Told { id, attributes: told })) => {
                    let told = known(namespace, node, id.fsid, &mut unknown).and_then(|fsid| {
                        attributes::of_told(namespace, (fsid, &id), (&told, space), &mask, lease_seconds)
                    });
                    self.told(entry.cookie, entry.name, told)
                }
            };
            let end = node.read_directory(caller, cookie, (ENTRIES_MAX, room), want_files, &mut sink).await?;
            if unknown.is_empty() || !first {
                if !end && mask.has(Attr::FileHandle) && namespace.has_unregistered_handles() {
                    self.tell_on(node).await;
                }
                return Ok(end);
            }
            // File systems seen for the first time: once they have their indices, all is listed again.
            for fsid in unknown {
                namespace.index_of(&node.export, fsid).await?;
            }
            self.entries.clear();
            (self.room, self.failed) = (room, None);
        }
        Err(Status::Delay)
    }

    /// Tells the plane's table of what the next calls will list, so that a long listing is registered in a few commands. What goes wrong
    /// here is found again when it is listed.
    async fn tell_on(&self, node: &FileNode) {
        let (namespace, Some(last)) = (&self.cx.server.namespace, self.entries.last()) else { return };
        let mut sink = |entry: DirectoryEntry<File>| {
            let told = match entry.file {
                Some(Ok(EntryObject::Open(file))) => {
                    let fsid = namespace.known_index(&node.export, file.fsid());
                    fsid.map(|fsid| namespace.file_handle(fsid, file.handle()))
                }
                Some(Ok(EntryObject::Told { id, .. })) => {
                    let fsid = namespace.known_index(&node.export, id.fsid);
                    fsid.map(|fsid| namespace.file_handle(fsid, &id.handle))
                }
                _ => None,
            };
            if told == Some(Err(Status::Delay)) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let limits = (ENTRIES_MAX, RECORD_MAX as usize);
        if let Err(status) = node.read_directory(self.cx.caller, last.cookie, limits, true, &mut sink).await {
            tracing::debug!(?status, "listing ahead for the handle table");
        }
    }

    fn told(&mut self, cookie: u64, name: Bytes, told: Result<Attributes, Status>) -> ControlFlow<()> {
        match told {
            Ok(told) => self.push(cookie, name, told.to_fattr(&self.mask)),
            Err(Status::Stale) => ControlFlow::Continue(()),
            Err(status) if self.mask.has(Attr::RdattrError) => {
                let told = Attributes { rdattr_error: Some(status), ..Attributes::default() };
                self.push(cookie, name, told.to_fattr(&self.mask))
            }
            Err(status) => {
                self.failed = Some(status);
                ControlFlow::Break(())
            }
        }
    }
}

/// The index of a file system that an entry is on; one without is asked for, and the listing is done again.
fn known(
    namespace: &Namespace,
    node: &FileNode,
    fsid: SourceFsid,
    unknown: &mut Vec<SourceFsid>,
) -> Result<u32, Status> {
    let index = namespace.known_index(&node.export, fsid);
    if index.is_none() && !unknown.contains(&fsid) && unknown.len() < UNKNOWN_MAX {
        unknown.push(fsid);
    }
    index.ok_or(Status::Delay)
}

fn plain(mask: &Bitmap) -> Fattr {
    Attributes { rdattr_error: Some(Status::Ok), ..Attributes::default() }.to_fattr(mask)
}
