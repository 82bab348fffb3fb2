//! What each operation does: one file an operation, named by the RFC's word.
//!
//! Owns: the context of a COMPOUND and what several operations share. Never does: the order of operations, slots,
//! sizes; those are `front::compound`'s.
#![allow(missing_docs, reason = "an operation's `run` is what its file says")]

pub mod access;
pub mod allocate;
pub mod close;
pub mod commit;
pub mod copy;
pub mod create;
pub mod create_session;
pub mod exchange_id;
pub mod getattr;
pub mod getfh;
pub mod io_advise;
mod kept;
pub mod link;
pub mod lock;
pub mod lockt;
pub mod locku;
pub mod lookup;
pub mod open;
pub mod open_downgrade;
pub mod putfh;
pub mod read;
pub mod read_plus;
pub mod readdir;
pub mod readlink;
pub mod remove;
pub mod rename;
pub mod secinfo;
pub mod seek;
pub mod session;
pub mod setattr;
pub mod stateids;
pub mod verify;
pub mod write;
pub mod xattr;

mod context;

use forebay_proto::nfs4::{Stateid, Status, open as share};

pub use context::Context;

use crate::{
    files::{FileNode, Node, node::blocking},
    source::FileKind,
};

/// On what grounds a call may touch a file's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authority {
    /// An open of the same user.
    Open,
    /// The file's permissions.
    Permission,
}

/// Puts changed names and attributes on disk, unless the export leaves that to the kernel. Data is COMMIT's.
pub(crate) async fn durable<const N: usize>(cx: &Context<'_>, changed: [&FileNode; N]) -> Result<(), Status> {
    if !changed.iter().any(|node| node.must_sync()) {
        return Ok(());
    }
    let changed = changed.map(FileNode::clone);
    match blocking(move || changed.iter().try_for_each(FileNode::sync)).await? {
        Ok(()) => Ok(()),
        Err(error) => {
            // It may have been a failed write-back of a client's data, and the kernel tells it once.
            cx.server.lost_writes();
            Err(error.into())
        }
    }
}

/// The node, if it is a regular file (RFC 8881 §18.22.3 names the errors).
pub(crate) fn regular(node: &FileNode) -> Result<&FileNode, Status> {
    match node.kind() {
        FileKind::Regular => Ok(node),
        FileKind::Directory => Err(Status::IsDir),
        FileKind::Symlink => Err(Status::Symlink),
        _ => Err(Status::WrongType),
    }
}

/// The node, if names can be looked up in it (RFC 8881 §18.13.3 names the errors).
pub(crate) fn directory_of(node: &Node) -> Result<&Node, Status> {
    match node {
        Node::File(file) if file.kind() == FileKind::Symlink => Err(Status::Symlink),
        Node::File(file) if file.kind() != FileKind::Directory => Err(Status::NotDir),
        _ => Ok(node),
    }
}

/// Whether data may be read or written: by an open, or without one by the file's permissions (RFC 8881 §8.2.5, §9.1.2).
pub(crate) async fn authorize(
    cx: &Context<'_>,
    node: &FileNode,
    stateid: &Stateid,
    access: u32,
) -> Result<Authority, Status> {
    let stateid = cx.stateid(stateid)?;
    let key = node.key();
    if stateid == Stateid::ANONYMOUS || stateid == Stateid::READ_BYPASS {
        let bypass = stateid == Stateid::READ_BYPASS && access == share::ACCESS_READ;
        loop {
            // Bound first, so that the table is not locked while a holder is judged: expiring one locks it again.
            let holder = cx.server.files.of(key).denied(key, access);
            let elsewhere = || cx.server.shared_locks()?.denies(key, forebay_proto::nfs4::ClientId(0), &[], access);
            let holder = holder.or_else(elsewhere);
            match holder {
                Some(holder) if !bypass => cx.server.conflict(holder, Status::Locked).await?,
                _ => return by_permission(cx, node, access).await,
            }
        }
    }
    let granted = cx.server.files.of(key).granted(key, cx.client()?.id, &stateid)?;
    let covered = granted.access & access != 0;
    if !covered && access == share::ACCESS_WRITE {
        return Err(Status::OpenMode);
    }
    // A client may read to fill a page that it was only allowed to write: then the permissions decide.
    if covered && granted.uid == cx.uid(node) { Ok(Authority::Open) } else { by_permission(cx, node, access).await }
}

async fn by_permission(cx: &Context<'_>, node: &FileNode, access: u32) -> Result<Authority, Status> {
    let may = node.access(cx.caller).await?;
    let wanted = if access == share::ACCESS_READ { may.read || may.execute } else { may.write };
    // The owner's own descriptor may be older than the mode it has now.
    if wanted || node.attributes(cx.caller).await?.uid == cx.uid(node) {
        Ok(Authority::Permission)
    } else {
        Err(Status::Access)
    }
}
