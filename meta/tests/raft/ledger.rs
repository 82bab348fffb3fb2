//! A small core for the tests: lists that remember who wrote what in which order, and a table that is on disk only.

use std::{
    collections::BTreeMap,
    fmt::{self, Debug},
};

use bytes::Bytes;
use forebay_meta::raft::{Changes, CommandBytes, Core, Damaged, Entry, LogIdOf, ReplyBytes};
use openraft::EntryPayload;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Resident: each list's entries, by list and position.
pub const LISTS: u8 = 1;
/// On disk only.
pub const ARCHIVE: u8 = 7;

const VERSION: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Mark {
    pub client: u32,
    pub serial: u32,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Appends to a list.
    Append { list: u8, mark: Mark },
    /// A row of the archive.
    Keep { key: Vec<u8>, value: Vec<u8> },
    /// It goes.
    Drop { key: Vec<u8> },
}

impl Debug for Command {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Append { list, mark } => write!(formatter, "{mark:?} to list {list}"),
            Self::Keep { key, value } => write!(formatter, "keep {key:?}, {} bytes", value.len()),
            Self::Drop { key } => write!(formatter, "drop {key:?}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Where in the list.
    Position(u64),
    Done,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    pub lists: BTreeMap<u8, Vec<Mark>>,
}

impl Ledger {
    pub fn all(&self) -> impl Iterator<Item = Mark> + '_ {
        self.lists.values().flatten().copied()
    }
}

impl Core for Ledger {
    type Command = Command;
    type Reply = Reply;

    fn apply(&mut self, command: &Command, changes: &mut Changes) -> Reply {
        match command {
            Command::Append { list, mark } => {
                let marks = self.lists.entry(*list).or_default();
                let position = marks.len() as u64;
                marks.push(*mark);
                let mut key = vec![*list];
                key.extend_from_slice(&position.to_be_bytes());
                changes.put(LISTS, key, postcard::to_stdvec(mark).unwrap());
                Reply::Position(position)
            }
            Command::Keep { key, value } => {
                changes.put(ARCHIVE, key.clone(), value.clone());
                Reply::Done
            }
            Command::Drop { key } => {
                changes.delete(ARCHIVE, key.clone());
                Reply::Done
            }
        }
    }

    fn load(&mut self, table: u8, key: &[u8], value: &[u8]) -> Result<(), Damaged> {
        let (list, position) = key.split_first().ok_or_else(|| Damaged::new("no list"))?;
        let marks = self.lists.entry(*list).or_default();
        if table != LISTS || position != (marks.len() as u64).to_be_bytes() {
            return Err(Damaged::new("not the next entry of a list"));
        }
        marks.push(postcard::from_bytes(value).map_err(|error| Damaged::new(error.to_string()))?);
        Ok(())
    }

    fn is_resident(table: u8) -> bool {
        table == LISTS
    }

    fn encode_command(command: &Command) -> Vec<u8> {
        encode(command)
    }

    fn decode_command(bytes: &[u8]) -> Result<Command, Damaged> {
        decode(bytes)
    }

    fn encode_reply(reply: &Reply) -> Vec<u8> {
        encode(reply)
    }

    fn decode_reply(bytes: &[u8]) -> Result<Reply, Damaged> {
        decode(bytes)
    }
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(value, vec![VERSION]).unwrap()
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Damaged> {
    match bytes.split_first() {
        Some((&VERSION, rest)) => postcard::from_bytes(rest).map_err(|error| Damaged::new(error.to_string())),
        other => Err(Damaged::new(format!("version {:?}", other.map(|(version, _)| version)))),
    }
}

pub fn append(list: u8, client: u32, serial: u32) -> Command {
    Command::Append { list, mark: Mark { client, serial } }
}

/// The place of an entry that node 1 made as leader of `term`.
pub fn at(term: u64, index: u64) -> LogIdOf {
    openraft::testing::log_id::<forebay_meta::raft::Types>(term, 1, index)
}

pub fn entry(term: u64, index: u64, command: &Command) -> Entry {
    let payload = EntryPayload::Normal(CommandBytes(Bytes::from(Ledger::encode_command(command))));
    Entry { log_id: at(term, index), payload }
}

#[allow(dead_code)]
pub fn reply(bytes: &ReplyBytes) -> Reply {
    Ledger::decode_reply(&bytes.0).unwrap()
}
