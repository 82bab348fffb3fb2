//! One name space: a pseudo file system whose leaves are the exports' roots (RFC 8881 §7.3).

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use forebay_meta::{
    Command, Plane, Reply,
    state::{FsidKey, Identity},
};
use forebay_proto::nfs4::{FileHandle, Status};
use parking_lot::RwLock;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Caller, Export, FileNode,
    handle::{HandleCodec, INLINE_MAX, Parsed},
    handle_table::HandleTable,
};
use crate::source::{File, Source, SourceFsid, SourceHandle};

/// What a filehandle stands for.
#[derive(Clone, Debug)]
pub enum Node {
    /// A directory of the pseudo file system: its place.
    Pseudo(usize),
    /// An object of an export.
    File(FileNode),
}

/// A directory of the pseudo file system.
#[derive(Debug)]
pub struct PseudoDirectory {
    /// Its own id, the same after every restart.
    pub id: u64,
    /// The directory above; the root has none.
    pub parent: Option<usize>,
    /// Names in it.
    pub children: Vec<(Bytes, Child)>,
}

/// What a name in the pseudo file system stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Child {
    /// Another directory.
    Directory(usize),
    /// The root of an export.
    Export(usize),
}

/// Why exports do not make a name space.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// Names collide.
    #[error("exports {0} and {1} cannot both be served: one is inside the other, or they have one name")]
    Overlap(String, String),
}

#[derive(Debug, Default)]
struct FsidIndex {
    by_source: HashMap<(usize, SourceFsid), u32>,
    by_index: HashMap<u32, (usize, SourceFsid)>,
}

/// All exports under one root.
#[derive(Debug)]
pub struct Namespace {
    exports: Vec<Arc<Export>>,
    pseudo: Vec<PseudoDirectory>,
    root_export: bool,
    /// Whether any export wants all its handles in the table.
    table_exports: bool,
    codec: HandleCodec,
    table: HandleTable,
    plane: Plane,
    fsids: RwLock<FsidIndex>,
    fsid_major: u64,
}

impl Namespace {
    /// The name space of `exports`. File systems seen before get the indices they had.
    pub fn new(exports: Vec<Export>, plane: Plane, identity: &Identity) -> Result<Self, NamespaceError> {
        let exports: Vec<_> = exports.into_iter().map(Arc::new).collect();
        let root_export = exports.first().is_some_and(|export| export.name == "/");
        let pseudo = build_pseudo(&exports)?;
        let table_exports = exports.iter().any(|export| export.options.table_handles);
        let namespace = Self {
            exports,
            pseudo,
            root_export,
            table_exports,
            codec: HandleCodec::new(&identity.handle_key),
            table: HandleTable::new(plane.clone(), &identity.handle_key),
            plane,
            fsids: RwLock::default(),
            fsid_major: xxh3_64(identity.cluster.as_bytes()),
        };
        for place in 0..namespace.exports.len() {
            namespace.learn_fsids(place);
        }
        Ok(namespace)
    }

    fn learn_fsids(&self, place: usize) {
        let source = source_name(&self.exports[place]);
        let known: Vec<_> = self.plane.read(|state| {
            let mine = (1..).map_while(|index| state.fsids.key(index).map(|key| (index, key)));
            mine.filter(|(_, key)| key.source == source).map(|(index, key)| (index, SourceFsid(key.fsid))).collect()
        });
        let mut fsids = self.fsids.write();
        for (index, fsid) in known {
            fsids.by_source.insert((place, fsid), index);
            fsids.by_index.insert(index, (place, fsid));
        }
    }

    /// `fsid.major` of everything here; `minor` is the index, 0 for the pseudo file system.
    pub fn fsid_major(&self) -> u64 {
        self.fsid_major
    }

    /// All exports.
    pub fn exports(&self) -> &[Arc<Export>] {
        &self.exports
    }

    /// A directory of the pseudo file system.
    pub fn pseudo(&self, place: usize) -> &PseudoDirectory {
        &self.pseudo[place]
    }

    /// What PUTROOTFH means, if the caller may know: an export at the root is for its clients only.
    pub async fn root(&self, caller: &Caller) -> Result<Node, Status> {
        match self.exports.first() {
            Some(export) if self.root_export && !export.admits(caller.address) => Err(Status::Access),
            Some(_) if self.root_export => self.export_root(0, caller).await,
            _ => Ok(Node::Pseudo(0)),
        }
    }

    /// The root of an export; DELAY while its source has never been reached.
    pub async fn export_root(&self, place: usize, caller: &Caller) -> Result<Node, Status> {
        let export = &self.exports[place];
        let root = match &export.source {
            Source::Local(source) => File::Local(source.root()),
            Source::Cached(source) => File::Cached(match source.root_now() {
                Some(root) => root,
                None => Box::pin(source.root(&export.credentials(caller))).await?,
            }),
        };
        self.node(export, root).await.map(Node::File)
    }

    /// An object with the index of its file system, which is assigned at first sight.
    pub async fn node(&self, export: &Arc<Export>, file: File) -> Result<FileNode, Status> {
        let fsid = match self.known_index(export, file.fsid()) {
            Some(index) => index,
            None => Box::pin(self.index_of(export, file.fsid())).await?,
        };
        Ok(FileNode { fsid, export: export.clone(), file })
    }

    /// The index of an export's file system, if it has one.
    pub fn known_index(&self, export: &Arc<Export>, fsid: SourceFsid) -> Option<u32> {
        let place = self.exports.iter().position(|known| Arc::ptr_eq(known, export))?;
        self.fsids.read().by_source.get(&(place, fsid)).copied()
    }

    /// The index of an export's file system, which is assigned at first sight.
    pub async fn index_of(&self, export: &Arc<Export>, fsid: SourceFsid) -> Result<u32, Status> {
        let place = self.exports.iter().position(|known| Arc::ptr_eq(known, export)).ok_or(Status::ServerFault)?;
        match self.known_index(export, fsid) {
            Some(index) => Ok(index),
            None => self.assign((place, fsid), export).await,
        }
    }

    async fn assign(&self, key: (usize, SourceFsid), export: &Export) -> Result<u32, Status> {
        let command = Command::AssignFsid(FsidKey::new(source_name(export), key.1.0));
        match self.plane.propose(command).await {
            Ok(Reply::Fsid(index)) => {
                let mut fsids = self.fsids.write();
                fsids.by_source.insert(key, index);
                fsids.by_index.insert(index, key);
                Ok(index)
            }
            Ok(_) => Err(Status::ServerFault),
            Err(error) => {
                tracing::error!(%error, "a new file system cannot be remembered; clients are told to try again");
                Err(Status::Delay)
            }
        }
    }

    /// The wire handle of a node. It may be told once [`Namespace::handles_registered`] was waited for.
    pub fn handle(&self, node: &Node) -> Result<FileHandle, Status> {
        let parsed = match node {
            Node::Pseudo(place) => Parsed::Pseudo(self.pseudo[*place].id),
            Node::File(node) => return self.file_handle(node.fsid, node.file.handle()),
        };
        self.codec.encode(&parsed).ok_or(Status::ServerFault)
    }

    /// The wire handle of an object on the file system with index `fsid`; to be told as [`Namespace::handle`] says.
    pub fn file_handle(&self, fsid: u32, handle: &SourceHandle) -> Result<FileHandle, Status> {
        let parsed = if self.is_tabled(fsid, handle) {
            Parsed::Table(fsid, self.table.tell(fsid, handle)?)
        } else {
            Parsed::Inline(fsid, *handle)
        };
        self.codec.encode(&parsed).ok_or(Status::ServerFault)
    }

    fn is_tabled(&self, fsid: u32, handle: &SourceHandle) -> bool {
        handle.as_bytes().len() > INLINE_MAX
            || self.table_exports
                && self
                    .fsids
                    .read()
                    .by_index
                    .get(&fsid)
                    .is_some_and(|(place, _)| self.exports[*place].options.table_handles)
    }

    /// Whether handles were told that the plane does not know yet.
    pub fn has_unregistered_handles(&self) -> bool {
        self.table.has_pending()
    }

    /// Commands that it took so far to make handles known to the plane.
    pub fn handle_proposals(&self) -> u64 {
        self.table.proposals()
    }

    /// Waits until the plane knows the handles told so far: afterwards clients may see them.
    pub async fn handles_registered(&self) -> Result<(), Status> {
        if self.table.has_pending() { Box::pin(self.table.registered()).await } else { Ok(()) }
    }

    /// What a wire handle stands for, if the caller may know.
    pub async fn resolve(&self, handle: &Bytes, caller: &Caller) -> Result<Node, Status> {
        match self.codec.decode(handle)? {
            Parsed::Pseudo(id) => {
                let place = self.pseudo.iter().position(|directory| directory.id == id);
                place.map(Node::Pseudo).ok_or(Status::Stale)
            }
            Parsed::Inline(index, handle) => self.resolve_file(index, handle, caller).await,
            Parsed::Table(index, key) => {
                let handle = match self.table.find(&key) {
                    Err(Status::Stale) => {
                        Box::pin(self.catch_up()).await?;
                        self.table.find(&key)?
                    }
                    found => found?,
                };
                self.resolve_file(index, handle, caller).await
            }
        }
    }

    /// Another node may have told a handle that this one's replica has not heard of yet: before it is called stale the plane is asked. Whoever
    /// comes here has a handle of this cluster's making.
    async fn catch_up(&self) -> Result<(), Status> {
        self.plane.read_linearizable(|_| ()).await.map_err(|_| Status::Delay)
    }

    /// Which export's file system has this index.
    async fn of_index(&self, index: u32) -> Result<(usize, SourceFsid), Status> {
        let known = || self.fsids.read().by_index.get(&index).copied();
        if let Some(found) = known() {
            return Ok(found);
        }
        Box::pin(self.catch_up()).await?;
        (0..self.exports.len()).for_each(|place| self.learn_fsids(place));
        known().ok_or(Status::Stale)
    }

    async fn resolve_file(&self, index: u32, handle: SourceHandle, caller: &Caller) -> Result<Node, Status> {
        let (place, fsid) = self.of_index(index).await?;
        let export = &self.exports[place];
        if !export.admits(caller.address) {
            return Err(Status::Access);
        }
        let file = match &export.source {
            Source::Local(source) => File::Local(source.resolve(fsid, &handle)?),
            Source::Cached(source) => File::Cached(match source.resolve_now(fsid, &handle) {
                Some(file) => file,
                None => Box::pin(source.resolve(&export.credentials(caller), fsid, &handle)).await?,
            }),
        };
        Ok(Node::File(FileNode { export: export.clone(), fsid: index, file }))
    }

    /// A name in a directory.
    pub async fn lookup(&self, node: &Node, name: &[u8], caller: &Caller) -> Result<Node, Status> {
        match node {
            Node::Pseudo(place) => {
                let children = &self.pseudo[*place].children;
                let child = children.iter().find(|(known, _)| known == name).map(|(_, child)| *child);
                match child {
                    Some(Child::Directory(place)) => Ok(Node::Pseudo(place)),
                    Some(Child::Export(place)) if self.exports[place].admits(caller.address) => {
                        self.export_root(place, caller).await
                    }
                    _ => Err(Status::NoEnt),
                }
            }
            Node::File(node) => {
                let file = node.lookup(caller, name).await?;
                self.node(&node.export, file).await.map(Node::File)
            }
        }
    }

    /// The directory above; NOENT at the root.
    pub async fn parent(&self, node: &Node, caller: &Caller) -> Result<Node, Status> {
        match node {
            Node::Pseudo(place) => self.pseudo[*place].parent.map(Node::Pseudo).ok_or(Status::NoEnt),
            Node::File(node) => match node.parent(caller).await? {
                Some(file) => self.node(&node.export, file).await.map(Node::File),
                None => self.above_export(&node.export),
            },
        }
    }

    fn above_export(&self, export: &Arc<Export>) -> Result<Node, Status> {
        let holds = |child: &Child| matches!(child, Child::Export(place) if Arc::ptr_eq(&self.exports[*place], export));
        let place = self.pseudo.iter().position(|directory| directory.children.iter().any(|(_, child)| holds(child)));
        place.map(Node::Pseudo).filter(|_| !self.root_export).ok_or(Status::NoEnt)
    }

    /// The id of the pseudo directory that an export's root is mounted on.
    pub fn mounted_on(&self, export: &Export) -> u64 {
        xxh3_64(export.name.as_bytes())
    }
}

fn source_name(export: &Export) -> String {
    format!("{} {}", export.name, export.url)
}

fn build_pseudo(exports: &[Arc<Export>]) -> Result<Vec<PseudoDirectory>, NamespaceError> {
    let mut pseudo = vec![PseudoDirectory { id: xxh3_64(b"/"), parent: None, children: Vec::new() }];
    for (place, export) in exports.iter().enumerate() {
        if export.name == "/" {
            match exports {
                [_] => continue,
                [first, second, ..] => return Err(NamespaceError::Overlap(first.name.clone(), second.name.clone())),
                [] => {}
            }
        }
        let parts: Vec<_> = export.name.split('/').filter(|part| !part.is_empty()).collect();
        let Some((last, directories)) = parts.split_last() else { continue };
        let (mut here, mut path) = (0, String::new());
        for part in directories {
            path = format!("{path}/{part}");
            here = match pseudo[here].children.iter().find(|(name, _)| *name == part.as_bytes()) {
                Some((_, Child::Directory(next))) => *next,
                Some((_, Child::Export(other))) => return Err(overlap(&exports[*other], export)),
                None => {
                    let next = pseudo.len();
                    pseudo.push(PseudoDirectory {
                        id: xxh3_64(path.as_bytes()),
                        parent: Some(here),
                        children: Vec::new(),
                    });
                    let name = Bytes::copy_from_slice(part.as_bytes());
                    pseudo[here].children.push((name, Child::Directory(next)));
                    next
                }
            };
        }
        if pseudo[here].children.iter().any(|(name, _)| *name == last.as_bytes()) {
            let inside =
                exports.iter().find(|other| !Arc::ptr_eq(other, export) && other.name.starts_with(&export.name));
            return Err(overlap(export, inside.unwrap_or(export)));
        }
        pseudo[here].children.push((Bytes::copy_from_slice(last.as_bytes()), Child::Export(place)));
    }
    Ok(pseudo)
}

fn overlap(one: &Export, other: &Export) -> NamespaceError {
    NamespaceError::Overlap(one.name.clone(), other.name.clone())
}
