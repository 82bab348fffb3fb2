//! The state core: `apply(command) -> reply`, deterministic, no clock, no randomness, no I/O.

mod clients;
mod fsids;

use serde::{Deserialize, Serialize};

pub use clients::{ClientRecord, Clients};
pub use fsids::{FsidKey, Fsids};

/// Who this server is, once and for ever.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// `server_scope` and `so_major_id` of every node.
    pub cluster: String,
    /// Key of the MAC in filehandles.
    pub handle_key: [u8; 16],
}

/// A change of the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Sets the identity, if there is none yet.
    Initialise(Identity),
    /// A node begins to serve: clientids and stateids of this epoch differ from all before.
    StartEpoch,
    /// A client holds state: after a restart it may reclaim.
    RecordClient(ClientRecord),
    /// A client holds nothing any more.
    ForgetClient {
        /// Which.
        clientid: u64,
    },
    /// The grace period is over: clients that did not come back may not reclaim at the next one.
    ForgetOtherEpochs,
    /// The index of a source's file system; assigned at first sight.
    AssignFsid(FsidKey),
}

/// What a command came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Done.
    Done,
    /// The epoch that begins.
    Epoch(u32),
    /// The file system's index.
    Fsid(u32),
}

/// Everything the plane knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Set once.
    pub identity: Option<Identity>,
    /// Starts so far.
    pub epoch: u32,
    /// Clients that may reclaim.
    pub clients: Clients,
    /// File systems seen.
    pub fsids: Fsids,
}

impl State {
    /// Changes the state. The only way it changes.
    pub fn apply(&mut self, command: Command) -> Reply {
        match command {
            Command::Initialise(identity) => {
                self.identity.get_or_insert(identity);
                Reply::Done
            }
            Command::StartEpoch => {
                self.epoch = self.epoch.wrapping_add(1);
                Reply::Epoch(self.epoch)
            }
            Command::RecordClient(record) => {
                self.clients.record(record);
                Reply::Done
            }
            Command::ForgetClient { clientid } => {
                self.clients.forget(clientid);
                Reply::Done
            }
            Command::ForgetOtherEpochs => {
                self.clients.forget_other_epochs(self.epoch);
                Reply::Done
            }
            Command::AssignFsid(key) => Reply::Fsid(self.fsids.assign(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(owner: &str, clientid: u64) -> ClientRecord {
        ClientRecord { owner: owner.as_bytes().to_vec(), clientid, verifier: [1; 8] }
    }

    #[test]
    fn a_transcript() {
        let mut state = State::default();
        let identity = Identity { cluster: "c".into(), handle_key: [7; 16] };
        let other = Identity { cluster: "d".into(), handle_key: [8; 16] };
        state.apply(Command::Initialise(identity.clone()));
        state.apply(Command::Initialise(other));
        assert_eq!(state.identity, Some(identity), "the identity never changes");
        assert_eq!(state.apply(Command::StartEpoch), Reply::Epoch(1));
        let (first, second) = (FsidKey::new("file:///a", 1), FsidKey::new("file:///a", 2));
        assert_eq!(state.apply(Command::AssignFsid(first.clone())), Reply::Fsid(1));
        assert_eq!(state.apply(Command::AssignFsid(second)), Reply::Fsid(2));
        assert_eq!(state.apply(Command::AssignFsid(first)), Reply::Fsid(1), "an index never changes");
        state.apply(Command::RecordClient(client("a", 1 << 32)));
        state.apply(Command::RecordClient(client("b", 1 << 32 | 1)));
        assert_eq!(state.apply(Command::StartEpoch), Reply::Epoch(2));
        assert_eq!(state.clients.len(), 2, "both may reclaim");
        state.apply(Command::RecordClient(client("b", 2 << 32)));
        assert_eq!(state.clients.len(), 2, "the same owner is one client");
        state.apply(Command::ForgetOtherEpochs);
        assert!(!state.clients.may_reclaim(b"a") && state.clients.may_reclaim(b"b"));
        state.apply(Command::ForgetClient { clientid: 1 << 32 | 1 });
        assert!(state.clients.may_reclaim(b"b"), "an old clientid of the same owner forgets nothing");
        state.apply(Command::ForgetClient { clientid: 2 << 32 });
        assert!(!state.clients.may_reclaim(b"b"));
    }
}
