//! Files that lose their last name while they are open: they work on until the last CLOSE.

use crate::{
    files::node::Kept,
    server::Server,
    state::{FileKey, files},
};

impl files::Kept for Kept {}

/// Whether somebody has the file open.
pub fn in_use(server: &Server, key: FileKey) -> bool {
    server.files.of(key).is_open(key)
}

/// Hands what keeps a file to its opens, if there are any. After the name is gone; other names may remain, and then it
/// does no harm.
pub fn finish(server: &Server, kept: Option<(FileKey, Kept)>) {
    if let Some((key, kept)) = kept {
        // What is not kept is let go here, without the table's lock.
        let _not_kept = server.files.of(key).keep(key, Box::new(kept));
    }
}
