//! The state core: `apply(command) -> reply`, deterministic, no clock, no randomness, no I/O.
//!
//! Owns: every replicated fact but the handles, which are only on disk. Each change of a row comes out in [`Changes`]; whoever
//! keeps rows can make the state again with [`State::load`]. Time is the plane's own: milliseconds that some leader has led,
//! told by [`Command::Tick`]. It stands still without a leader, so it never runs ahead of a node's own clock.

mod changes;
mod clients;
mod command;
mod fsids;
mod locks;
mod nodes;
mod tables;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use changes::{Bytes, Change, Changes, Damaged, Table};
pub use clients::{CLIENTS_MAX, ClientRecord, Clients, Home};
pub use command::{Command, NotEncoded, Reply};
pub use fsids::{FSIDS_MAX, FsidKey, Fsids};
pub use locks::{FileKey, FileLocks, Held, LockRefused, Locks, Owner, Range, Share};
pub use nodes::{NODE_LEASE_MS, NODES_MAX, NodeDescription, NodeId, NodeRecord, NodeState, Nodes, RingRecord};
pub use tables::{
    EXPORTS_MAX, ExportRecord, Exports, HANDLES_MAX, HandleKey, PINS_MAX, Pins, SECRETS_MAX, SOURCE_HANDLE_MAX, Secrets,
};

use changes::decode_row;
use clients::Recorded;

/// Who this cluster is, once and for ever.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// `server_scope` and `so_major_id` of every node.
    pub cluster: String,
    /// Key of the MAC in filehandles.
    pub handle_key: [u8; 16],
}

/// Everything the plane knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Set once.
    pub identity: Option<Identity>,
    /// Starts of nodes so far; the latest one's epoch.
    pub epoch: u32,
    /// The plane's time.
    pub now_ms: u64,
    /// Nodes and rings.
    pub nodes: Nodes,
    /// What is served.
    pub exports: Exports,
    /// File systems seen.
    pub fsids: Fsids,
    /// Clients that hold state.
    pub clients: Clients,
    /// What they hold.
    pub locks: Locks,
    /// What stays in the cache.
    pub pins: Pins,
    /// Keys and tokens.
    pub secrets: Secrets,
}

const IDENTITY: &[u8] = b"identity";
const EPOCH: &[u8] = b"epoch";
const TIME: &[u8] = b"time";

impl State {
    /// Changes the state. The only way it changes. `changes` learns of every row that is another than before.
    pub fn apply(&mut self, command: &Command, changes: &mut Changes) -> Reply {
        match command {
            Command::Initialise(identity) => self.initialise(identity, changes),
            Command::Tick { now_ms } => self.tick(*now_ms, changes),
            Command::Join { node, description } => done(self.nodes.join(*node, description.clone(), changes)),
            Command::StartEpoch { node } => self.start_epoch(*node, changes),
            Command::SetNodeState { node, epoch, state } => {
                found(self.nodes.set_state(*node, *epoch, *state, self.now_ms, changes))
            }
            Command::RenewLeases { nodes, now_ms } => {
                // First, or a lease that was over in the meantime would be renewed unseen.
                self.tick(*now_ms, changes);
                self.nodes.renew(nodes, self.now_ms, changes);
                Reply::Done
            }
            Command::Leave { node } => {
                self.nodes.leave(*node, self.now_ms, changes);
                Reply::Done
            }
            Command::PutExport { name, record } => done(self.exports.put(name, record, changes)),
            Command::RemoveExport { name } => found(self.exports.remove(name, changes)),
            Command::AssignFsid(key) => match self.fsids.assign(key, changes) {
                Some(index) => Reply::Fsid(index),
                None => Reply::Refused("the cluster knows 1048576 file systems, which is the most".into()),
            },
            Command::RegisterHandles(handles) => done(tables::register(handles, changes)),
            Command::Pin { export, path } => done(self.pins.pin(export, path, changes)),
            Command::Unpin { export, path } => found(self.pins.unpin(export, path, changes)),
            Command::PutSecret { name, secret } => done(self.secrets.put(name, secret, changes)),
            Command::RemoveSecret { name } => found(self.secrets.remove(name, changes)),
            Command::AdmitNode { key } => match self.nodes.admit(key, changes) {
                Ok(node) => Reply::Node(node),
                Err(why) => Reply::Refused(why.into()),
            },
            other => self.apply_for_clients(other, changes),
        }
    }

    fn apply_for_clients(&mut self, command: &Command, changes: &mut Changes) -> Reply {
        match command {
            Command::RecordClient(record) => self.record_client(record, changes),
            Command::ForgetClient { clientid } => found(self.forget_client(*clientid, changes)),
            Command::ForgetUnreclaimed { home } => {
                for clientid in self.clients.of_earlier(*home) {
                    self.forget_client(clientid, changes);
                }
                Reply::Done
            }
            Command::MoveClient { clientid, from, to } => found(self.clients.change(*clientid, changes, |record| {
                let known = record.home == *from;
                if known {
                    // Whoever takes it over goes on where it was: there is nothing to reclaim.
                    (record.home, record.reclaim_until_ms) = (*to, None);
                }
                known
            })),
            Command::OpenReclaim { home, until_ms } => {
                let at_home = self.clients.iter().filter(|record| record.home == *home).map(|record| record.clientid);
                for clientid in at_home.collect::<Vec<_>>() {
                    self.clients.change(clientid, changes, |record| {
                        record.reclaim_until_ms.replace(*until_ms) != Some(*until_ms)
                    });
                }
                Reply::Done
            }
            Command::ReclaimComplete { clientid } => {
                found(self.clients.change(*clientid, changes, |record| record.reclaim_until_ms.take().is_some()))
            }
            Command::Lock { file, lock, waits } => self.lock(*file, lock, *waits, changes),
            Command::Unlock { file, owner, range } => {
                self.locks.unlock(*file, owner, *range, changes);
                Reply::Done
            }
            Command::ReleaseOwner { file, owner } => {
                self.locks.release_owner(*file, owner, changes);
                Reply::Done
            }
            Command::Share { file, share } => self.share(*file, share, changes),
            Command::Unshare { file, owner } => {
                self.locks.unshare(*file, owner, changes);
                Reply::Done
            }
            _ => Reply::Absent,
        }
    }

    fn initialise(&mut self, identity: &Identity, changes: &mut Changes) -> Reply {
        if self.identity.is_some() {
            return Reply::Absent;
        }
        changes.put(Table::Facts, IDENTITY, identity);
        self.identity = Some(identity.clone());
        Reply::Done
    }

    /// Time that would go back stands still: a leader that was deposed may be late.
    fn tick(&mut self, now_ms: u64, changes: &mut Changes) -> Reply {
        if now_ms <= self.now_ms {
            return Reply::Done;
        }
        self.now_ms = now_ms;
        changes.put(Table::Facts, TIME, &now_ms);
        self.nodes.expire(now_ms, changes);
        for clientid in self.clients.late(now_ms) {
            self.forget_client(clientid, changes);
        }
        Reply::Done
    }

    fn start_epoch(&mut self, node: NodeId, changes: &mut Changes) -> Reply {
        let Some(epoch) = self.epoch.checked_add(1) else {
            return Reply::Refused("nodes have been started 4 Gi times; there are no epochs left".into());
        };
        self.epoch = epoch;
        changes.put(Table::Facts, EPOCH, &epoch);
        self.nodes.start(node, epoch, self.now_ms, changes);
        Reply::Epoch(epoch)
    }

    fn record_client(&mut self, record: &ClientRecord, changes: &mut Changes) -> Reply {
        match self.clients.record(record.clone(), changes) {
            Ok(Recorded::New) => Reply::Done,
            Ok(Recorded::Newer) => Reply::Absent,
            Ok(Recorded::Instead(clientid)) => {
                self.locks.release_client(clientid, changes);
                Reply::Replaced { clientid }
            }
            Err(why) => Reply::Refused(why.into()),
        }
    }

    fn forget_client(&mut self, clientid: u64, changes: &mut Changes) -> bool {
        self.locks.release_client(clientid, changes);
        self.clients.forget(clientid, changes)
    }

    /// A lock of a client that is not on record would stay for ever.
    fn lock(&mut self, file: FileKey, lock: &Held, waits: bool, changes: &mut Changes) -> Reply {
        if !self.clients.is_recorded(lock.owner.clientid) {
            return Reply::Absent;
        }
        granted(self.locks.lock(file, lock.clone(), waits, self.now_ms, changes))
    }

    fn share(&mut self, file: FileKey, share: &Share, changes: &mut Changes) -> Reply {
        if !self.clients.is_recorded(share.owner.clientid) {
            return Reply::Absent;
        }
        granted(self.locks.share(file, share.clone(), changes))
    }

    /// Every row of the resident tables; loading them makes an equal state.
    pub fn rows(&self) -> Vec<Change> {
        let mut changes = Changes::default();
        if let Some(identity) = &self.identity {
            changes.put(Table::Facts, IDENTITY, identity);
        }
        if self.epoch > 0 {
            changes.put(Table::Facts, EPOCH, &self.epoch);
        }
        if self.now_ms > 0 {
            changes.put(Table::Facts, TIME, &self.now_ms);
        }
        self.nodes.rows(&mut changes);
        self.exports.rows(&mut changes);
        self.fsids.rows(&mut changes);
        self.clients.rows(&mut changes);
        self.locks.rows(&mut changes);
        self.pins.rows(&mut changes);
        self.secrets.rows(&mut changes);
        changes.take()
    }

    /// Takes a row from disk. Rows of one table come in the order of their keys.
    ///
    /// # Errors
    /// When it is damaged or of a program with other tables: the node must stop rather than go on without it.
    pub fn load(&mut self, table: u8, key: &[u8], value: &[u8]) -> Result<(), Damaged> {
        match Table::from_number(table).ok_or(Damaged::Table(table))? {
            Table::Facts => self.load_fact(key, value),
            Table::Nodes => self.nodes.load_node(key, value),
            Table::Rings => self.nodes.load_ring(key, value),
            Table::Exports => self.exports.load(key, value),
            Table::Fsids => self.fsids.load(key, value),
            Table::Handles => Ok(()),
            Table::Clients => self.clients.load(key, value),
            Table::Locks => self.locks.load(key, value),
            Table::Pins => self.pins.load(value),
            Table::Secrets => self.secrets.load(key, value),
            Table::NodeKeys => self.nodes.load_key(key, value),
        }
    }

    fn load_fact(&mut self, key: &[u8], value: &[u8]) -> Result<(), Damaged> {
        match key {
            IDENTITY => self.identity = Some(decode_row(Table::Facts, value)?),
            EPOCH => self.epoch = decode_row(Table::Facts, value)?,
            TIME => self.now_ms = decode_row(Table::Facts, value)?,
            other => {
                let what = format!("the fact {:?} is unknown", String::from_utf8_lossy(other));
                return Err(Damaged::Row { table: Table::Facts, what });
            }
        }
        Ok(())
    }
}

fn done(outcome: Result<(), &'static str>) -> Reply {
    match outcome {
        Ok(()) => Reply::Done,
        Err(why) => Reply::Refused(why.into()),
    }
}

fn found(found: bool) -> Reply {
    if found { Reply::Done } else { Reply::Absent }
}

fn granted(outcome: Result<(), LockRefused>) -> Reply {
    match outcome {
        Ok(()) => Reply::Done,
        Err(refused) => Reply::NotGranted(refused),
    }
}
