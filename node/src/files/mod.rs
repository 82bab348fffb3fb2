//! Files as a client sees them: one name space over all exports, handles, attributes, permission.
//!
//! Owns: the pseudo file system, filehandles and their MAC, fsid indices, squashing. Never does: NFS state, sockets.
//! Invariants: a handle that was not made here is BADHANDLE; nothing outside an export can be reached.

pub mod attributes;
mod buffers;
pub mod export;
pub mod handle;
mod handle_table;
pub mod names;
pub mod namespace;
pub mod node;
pub mod status;

pub use export::{Caller, Export, ExportOptions, Squash};
pub use namespace::{Namespace, Node};
pub use node::FileNode;
