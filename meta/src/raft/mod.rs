//! The replicated plane: one Raft group whose core is the cluster's truth, its log and its state on RocksDB.
//!
//! Owns: durability, replication, snapshots, and the way to the leader. Never does: judging commands; that is the [`Core`]'s.
//! Invariant: what was acknowledged is on the disks of a majority, and is applied once, in the same order, everywhere.

pub mod core;
mod database;
mod endpoint;
mod group;
pub mod in_process;
mod log_disk;
mod log_store;
mod log_tail;
mod log_writer;
mod network;
mod options;
mod records;
mod snapshot;
mod snapshot_files;
mod state_files;
mod state_machine;
pub mod transport;
mod types;

pub use self::{
    core::{Change, Changes, Core, Damaged},
    database::OpenError,
    group::{ChangeError, Group, MAX_COMMAND_BYTES, ProposeError, ReadError, StartError, Status},
    log_store::LogStore,
    log_writer::LogFigures,
    network::{Answer, Endpoint, Message, Outcome, Peer, Request, Wire, WireError},
    options::{Options, Timing},
    records::Applied,
    snapshot::{ChunkDecoder, ChunkEncoder, Decoded, MAX_CHUNK_BYTES, MAX_ROW_BYTES, Row},
    snapshot_files::SnapshotFiles,
    state_machine::{Replica, SnapshotAfter, SnapshotMaker, StateMachine},
    types::{
        CommandBytes, Entry, LogIdOf, Membership, NodeId, ReplyBytes, SnapshotMeta, StoredMembership, Types, Vote,
    },
};

/// The bytes of a golden file, which `bytes` must equal. With `FOREBAY_WRITE_GOLDEN` set a file that is not there is written: a form that
/// was ever written is read for ever, so a file that is there is never replaced.
#[cfg(test)]
fn golden(name: &str, bytes: &[u8]) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
    if std::env::var_os("FOREBAY_WRITE_GOLDEN").is_some() && !path.exists() {
        std::fs::write(&path, bytes).expect("the golden file is writable");
    }
    let golden = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(golden == bytes, "{name}: what is written is not what it was; give the form a new version");
    golden
}
