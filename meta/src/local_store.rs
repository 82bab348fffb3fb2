//! Keeps the state in a directory: a journal of commands, each line with its checksum, on disk before it is applied.
//!
//! Invariants: one process at a time (the journal is locked); a torn last line, left by a crash in mid-write, is cut
//! off; damage anywhere else is an error, never silently skipped.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::state::{Bytes, Change, Changes, Command, Identity, Reply, State, Table};

const JOURNAL: &str = "meta.journal";
const FORMAT: u32 = 2;

/// The journal is written anew, as one snapshot, when it has more lines than this.
const COMPACT_AFTER_LINES: usize = 1024;

/// Why the state cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system refused.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Another process has the directory.
    #[error("{0} is in use by another forebay process; give each its own --data-dir")]
    InUse(PathBuf),
    /// The journal is damaged.
    #[error(
        "{path}, line {line}: {what}. Restore the file from a copy, or move it away to begin anew \
             (clients then lose their handles and must mount again)"
    )]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Format(u32),
    /// All rows: table, key, value.
    Rows(Vec<(u8, Bytes, Bytes)>),
    Command(Command),
}

/// What is kept: the state, and rows of tables that are not in it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Kept {
    state: State,
    others: BTreeMap<(Table, Vec<u8>), Vec<u8>>,
}

impl Kept {
    fn apply(&mut self, command: &Command) -> Reply {
        let mut changes = Changes::default();
        let reply = self.state.apply(command, &mut changes);
        for Change { table, key, value } in changes.take() {
            match value {
                _ if table.is_resident() => {}
                Some(value) => drop(self.others.insert((table, key), value)),
                None => drop(self.others.remove(&(table, key))),
            }
        }
        reply
    }

    fn rows(&self) -> Vec<(u8, Bytes, Bytes)> {
        let resident = self.state.rows().into_iter();
        let resident = resident.filter_map(|row| Some((row.table as u8, Bytes(row.key), Bytes(row.value?))));
        let others = self.others.iter();
        resident
            .chain(others.map(|((table, key), value)| (*table as u8, Bytes(key.clone()), Bytes(value.clone()))))
            .collect()
    }

    fn load(rows: Vec<(u8, Bytes, Bytes)>) -> Result<Kept, String> {
        let mut kept = Kept::default();
        for (number, Bytes(key), Bytes(value)) in rows {
            kept.state.load(number, &key, &value).map_err(|error| error.to_string())?;
            if let Some(table) = Table::from_number(number).filter(|table| !table.is_resident()) {
                kept.others.insert((table, key), value);
            }
        }
        Ok(kept)
    }
}

/// The state and its journal.
#[derive(Debug)]
pub struct LocalStore {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    kept: Kept,
    /// Lines in the journal.
    lines: usize,
    path: PathBuf,
    journal: File,
}

impl LocalStore {
    /// Opens or begins the journal in `directory`. `identity` makes one at the very first start.
    pub fn open(directory: &Path, identity: impl FnOnce() -> Identity) -> Result<Self, StoreError> {
        let path = directory.join(JOURNAL);
        let io = |error| StoreError::Io { path: path.clone(), error };
        // The key in it makes handles: nobody else may read it.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(io)?;
        let mut journal = open_locked(&path)?;
        let mut text = Vec::new();
        journal.read_to_end(&mut text).map_err(io)?;
        let (kept, lines, good) = replay(&path, &text)?;
        if good < text.len() {
            journal.set_len(good as u64).map_err(io)?;
        }
        journal.seek(SeekFrom::End(0)).map_err(io)?;
        let mut inner = Inner { kept, lines, path: path.clone(), journal };
        if lines == 0 || lines > COMPACT_AFTER_LINES {
            inner.compact()?;
        }
        if inner.kept.state.identity.is_none() {
            inner.propose(Command::Initialise(identity()))?;
        }
        Ok(Self { inner: Mutex::new(inner) })
    }

    /// Makes `command` durable, applies it, and says what it came to. Blocks for an fsync.
    pub fn propose(&self, command: Command) -> Result<Reply, StoreError> {
        self.lock().propose(command)
    }

    /// Looks at the state.
    pub fn read<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&self.lock().kept.state)
    }

    /// A row of a table that is not in the state: a handle.
    pub fn row(&self, table: Table, key: &[u8]) -> Option<Vec<u8>> {
        self.lock().kept.others.get(&(table, key.to_vec())).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while the lock was held cannot have left the state half changed: apply comes after the write.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn propose(&mut self, command: Command) -> Result<Reply, StoreError> {
        let line = encode(&Line::Command(command.clone()));
        self.append(&line).map_err(|error| StoreError::Io { path: self.path.clone(), error })?;
        self.lines += 1;
        let reply = self.kept.apply(&command);
        if self.lines > COMPACT_AFTER_LINES {
            self.compact()?;
        }
        Ok(reply)
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let start = self.journal.stream_position()?;
        let written = self.journal.write_all(line).and_then(|()| self.journal.sync_data());
        if written.is_err() {
            // The command was refused: nothing of it may be read at the next start.
            self.journal.set_len(start)?;
            self.journal.seek(SeekFrom::Start(start))?;
        }
        written
    }

    fn compact(&mut self) -> Result<(), StoreError> {
        let io = |error| StoreError::Io { path: self.path.clone(), error };
        let temporary = self.path.with_extension("new");
        // A leftover of an earlier crash is worth nothing: the journal itself is still whole.
        match std::fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
            _ => {}
        }
        let mut fresh = open_locked(&temporary)?;
        for line in [Line::Format(FORMAT), Line::Rows(self.kept.rows())] {
            fresh.write_all(&encode(&line)).map_err(io)?;
        }
        fresh.sync_all().map_err(io)?;
        std::fs::rename(&temporary, &self.path).map_err(io)?;
        // From here on the old journal has no name: a line written to it would be lost, whatever fails below.
        self.journal = fresh;
        if let Some(parent) = self.path.parent() {
            File::open(parent).and_then(|directory| directory.sync_all()).map_err(io)?;
        }
        self.lines = 2;
        Ok(())
    }
}

fn open_locked(path: &Path) -> Result<File, StoreError> {
    let io = |error| StoreError::Io { path: path.to_owned(), error };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(StoreError::InUse(path.to_owned())),
        Err(std::fs::TryLockError::Error(error)) => Err(io(error)),
    }
}

fn encode(line: &Line) -> Vec<u8> {
    let json = serde_json::to_string(line).expect("our own types have a JSON form");
    format!("{:016x} {json}\n", xxh3_64(json.as_bytes())).into_bytes()
}

fn decode(line: &[u8]) -> Result<Line, String> {
    let (sum, json) = line.split_at_checked(17).ok_or("shorter than a checksum")?;
    let sum = std::str::from_utf8(&sum[..16]).ok().and_then(|hex| u64::from_str_radix(hex, 16).ok());
    if sum != Some(xxh3_64(json)) {
        return Err("checksum does not match".into());
    }
    serde_json::from_slice(json).map_err(|error| error.to_string())
}

/// The state, how many lines gave it, and how many bytes of the text are good.
fn replay(path: &Path, text: &[u8]) -> Result<(Kept, usize, usize), StoreError> {
    let (mut kept, mut lines, mut good) = (Kept::default(), 0, 0);
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        let Some(whole) = line.strip_suffix(b"\n") else { break };
        let damaged = |what| StoreError::Damaged { path: path.to_owned(), line: lines + 1, what };
        match decode(whole).map_err(damaged)? {
            Line::Format(FORMAT) => {}
            Line::Format(other) => {
                return Err(damaged(format!("format {other}, this program reads {FORMAT}")));
            }
            Line::Rows(rows) => kept = Kept::load(rows).map_err(damaged)?,
            Line::Command(command) => drop(kept.apply(&command)),
        }
        lines += 1;
        good += line.len();
    }
    Ok((kept, lines, good))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{ClientRecord, FsidKey, Home, NodeId};

    const START: Command = Command::StartEpoch { node: NodeId(1) };

    fn identity() -> Identity {
        Identity { cluster: "cluster".into(), handle_key: [3; 16] }
    }

    fn open(directory: &Path) -> LocalStore {
        LocalStore::open(directory, identity).unwrap()
    }

    #[test]
    fn everything_proposed_is_there_after_a_restart_and_after_compaction() {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        for number in 0..COMPACT_AFTER_LINES as u64 {
            let record = ClientRecord {
                owner: Bytes(number.to_be_bytes().to_vec()),
                clientid: number,
                verifier: [0; 8],
                principal: Bytes(Vec::new()),
                home: Home { node: NodeId(1), epoch: 0 },
                sequence: 1,
                reclaim_until_ms: None,
            };
            store.propose(Command::RecordClient(record)).unwrap();
        }
        store.propose(Command::AssignFsid(FsidKey::new("s", 9))).unwrap();
        store.propose(Command::RegisterHandles(vec![([7; 16], Bytes(vec![1; 128]))])).unwrap();
        store.propose(START).unwrap();
        let before = store.lock().kept.clone();
        assert_eq!(before.others.len(), 1);
        for _ in 0..3 {
            drop(std::mem::replace(&mut *store.lock(), open_elsewhere()));
            let again = open(directory.path());
            assert_eq!(again.lock().kept, before);
            assert!(again.read(|state| state.clients.may_reclaim(&5_u64.to_be_bytes())));
        }
    }

    fn open_elsewhere() -> Inner {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(JOURNAL);
        Inner { kept: Kept::default(), lines: 0, journal: open_locked(&path).unwrap(), path }
    }

    #[test]
    fn a_torn_last_line_is_cut_at_every_byte() {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        store.propose(START).unwrap();
        let before = store.read(State::clone);
        let path = directory.path().join(JOURNAL);
        let short = std::fs::read(&path).unwrap();
        store.propose(START).unwrap();
        drop(store);
        let long = std::fs::read(&path).unwrap();
        for cut in short.len()..long.len() {
            std::fs::write(&path, &long[..cut]).unwrap();
            assert_eq!(open(directory.path()).read(State::clone), before, "cut at {cut}");
            assert_eq!(std::fs::read(&path).unwrap(), short);
        }
    }

    #[test]
    fn damage_is_told_with_its_line_and_a_second_process_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        assert!(matches!(LocalStore::open(directory.path(), identity), Err(StoreError::InUse(_))));
        store.propose(START).unwrap();
        drop(store);
        let path = directory.path().join(JOURNAL);
        let mut text = std::fs::read(&path).unwrap();
        let place = text.len() - 5;
        text[place] ^= 1;
        std::fs::write(&path, &text).unwrap();
        match LocalStore::open(directory.path(), identity) {
            Err(StoreError::Damaged { line, .. }) => assert_eq!(line, 4),
            other => panic!("damage must be found: {other:?}"),
        }
    }
}
