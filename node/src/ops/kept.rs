//! Files that lose their last name while they are open: they work on until the last CLOSE.

use crate::{
    files::FileNode,
    server::Server,
    source::{Credentials, FileKind, local::LocalFile},
    state::{FileKey, files::Kept},
};

/// Keeps one pin.
#[derive(Debug)]
pub struct Pinned(std::sync::Arc<LocalFile>);

impl Kept for Pinned {}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.unpin();
    }
}

/// Pins what `name` stands for. Before the name goes: somebody may open the file until the very moment.
pub fn prepare(directory: &FileNode, credentials: &Credentials, name: &[u8]) -> Option<(FileKey, Pinned)> {
    let file = directory.child(credentials, name).ok()?;
    if file.kind() != FileKind::Regular {
        return None;
    }
    let node = FileNode { export: directory.export.clone(), fsid: directory.fsid, file };
    node.file.pin();
    Some((node.key(), Pinned(node.file)))
}

/// Hands the pin to the file's opens, if somebody has it open. After the name is gone; other names may remain, and then
/// the pin does no harm.
pub fn finish(server: &Server, kept: Option<(FileKey, Pinned)>) {
    if let Some((key, pinned)) = kept {
        // What is not kept is let go here, without the table's lock.
        let _not_kept = server.files.of(key).keep(key, Box::new(pinned));
    }
}
