//! The directories of a node's state: the database that is in use, snapshots of it, and what arrives from the leader.
//!
//! ```text
//! log/            the Raft log's database
//! state/CURRENT   the number of the database in use; replaced by an atomic rename, never written in place
//! state/N/        a database: rows and how far they are applied
//! snapshots/N/    a checkpoint of it, hard links mostly
//! incoming/N/     a database that a snapshot is being built into
//! LOCK            locked by whoever has any of it open
//! ```
//! Invariants: nothing is touched before the lock is had (RocksDB renames files before it looks at its own); what `CURRENT` names is whole and durable; everything else is of no use after a restart and is removed.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use rocksdb::{DB, Direction, IteratorMode, ReadOptions, checkpoint::Checkpoint};

use super::{
    database::{self, OpenError, broken, damaged, state_options, sync_directory},
    records::{self, Applied},
    snapshot::Row,
};

pub(super) const APPLIED_KEY: &[u8] = &[0];
const ROW: u8 = 1;

/// The key of a row: in the order of (table, key).
pub(super) fn row_key(table: u8, key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2 + key.len());
    bytes.extend_from_slice(&[ROW, table]);
    bytes.extend_from_slice(key);
    bytes
}

/// A database of rows, open.
pub(super) struct StateDatabase {
    database: Option<DB>,
    path: PathBuf,
    retired: AtomicBool,
    /// Held until the database is closed.
    _lock: Option<Lock>,
}

/// That nobody else has the directory.
pub(super) type Lock = Arc<File>;

impl StateDatabase {
    pub(super) fn open(path: PathBuf, lock: Lock) -> Result<Self, OpenError> {
        let database = database::open(&state_options(), &path)?;
        Ok(Self { database: Some(database), path, retired: AtomicBool::new(false), _lock: Some(lock) })
    }

    /// Opens what nobody writes any more.
    pub(super) fn open_read_only(path: PathBuf) -> io::Result<Self> {
        let database = DB::open_for_read_only(&state_options(), &path, false).map_err(broken)?;
        Ok(Self { database: Some(database), path, retired: AtomicBool::new(false), _lock: None })
    }

    pub(super) fn database(&self) -> &DB {
        self.database.as_ref().expect("closed only when dropped")
    }

    /// How far the rows are applied.
    pub(super) fn applied(&self) -> io::Result<Applied> {
        match self.database().get(APPLIED_KEY).map_err(broken)? {
            Some(record) => records::decode(APPLIED_KEY, &record).map_err(|error| damaged(format!("state: {error}"))),
            None => Ok(Applied::default()),
        }
    }

    /// Calls `each` for every row from the table `from` to the table `to`, in the order of keys.
    pub(super) fn rows(&self, from: u8, to: u8, mut each: impl FnMut(Row<'_>) -> io::Result<()>) -> io::Result<()> {
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(match to.checked_add(1) {
            Some(next) => vec![ROW, next],
            None => vec![ROW + 1],
        });
        // A walk over all rows must not push out those that are asked for.
        options.fill_cache(false);
        let start = [ROW, from];
        for item in self.database().iterator_opt(IteratorMode::From(&start, Direction::Forward), options) {
            let (key, value) = item.map_err(broken)?;
            let Some((&[_, table], key)) = key.split_first_chunk::<2>() else {
                return Err(damaged("a row of the state has no table"));
            };
            each(Row { table, key, value: &value })?;
        }
        Ok(())
    }

    /// Makes all that was written durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.database().flush_wal(true).map_err(broken)
    }

    /// A durable copy at `path`, which must not be there. Hard links, but for what the write-ahead log still has.
    pub(super) fn checkpoint(&self, path: &Path) -> io::Result<()> {
        Checkpoint::new(self.database()).and_then(|checkpoint| checkpoint.create_checkpoint(path)).map_err(broken)
    }

    /// The directory goes when the last reader has.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }
}

impl Drop for StateDatabase {
    fn drop(&mut self) {
        self.database = None;
        if self.retired.load(Ordering::Acquire) {
            remove(&self.path);
        }
    }
}

/// Removes a directory that is of no use; what is left of it goes at the next start.
pub(super) fn remove(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "a directory that is of no use cannot be removed");
    }
}

/// Where everything is.
#[derive(Debug)]
pub(super) struct Directories {
    root: PathBuf,
    lock: Lock,
    /// Names that were not used in this process; directories of earlier ones are removed at start.
    next: AtomicU64,
}

impl Directories {
    /// Makes what is missing, removes what is of no use, and says which database is in use, and whether it is one already: if not, it is to
    /// be made there and switched to.
    pub(super) fn open(root: &Path) -> Result<(Self, PathBuf, bool), OpenError> {
        for name in ["state", "snapshots", "incoming"] {
            let path = root.join(name);
            // Secrets are among the rows: nobody else may read them.
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(OpenError::at(&path))?;
        }
        let lock = lock(root)?;
        let current = root.join("state/CURRENT");
        let number = match fs::read_to_string(&current) {
            Ok(text) => text.trim().parse().map_err(|_| OpenError::at(&current)(damaged("this is no number")))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(OpenError::at(&current)(error)),
        };
        let directories = Self { root: root.to_owned(), lock, next: AtomicU64::new(number + 1) };
        directories.sweep(number).map_err(OpenError::at(root))?;
        if number == 0 {
            let path = directories.fresh("state");
            return Ok((directories, path, false));
        }
        let path = root.join("state").join(number.to_string());
        Ok((directories, path, true))
    }

    /// The lock, to be held for as long as anything is open.
    pub(super) fn lock(&self) -> Lock {
        self.lock.clone()
    }

    /// A name in `state`, `snapshots` or `incoming` that nothing has.
    pub(super) fn fresh(&self, folder: &str) -> PathBuf {
        self.root.join(folder).join(self.next.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// From now on, and after a crash at any moment, the database at `path` is the one in use.
    pub(super) fn switch(&self, path: &Path) -> io::Result<()> {
        let (folder, name) = (self.root.join("state"), path.file_name().unwrap_or_default());
        sync_directory(path)?;
        sync_directory(&folder)?;
        let temporary = folder.join("CURRENT.new");
        let mut file = File::create(&temporary)?;
        writeln!(file, "{}", name.to_string_lossy())?;
        file.sync_all()?;
        fs::rename(&temporary, folder.join("CURRENT"))?;
        sync_directory(&folder)
    }

    fn sweep(&self, number: u64) -> io::Result<()> {
        for folder in ["snapshots", "incoming", "state"] {
            for entry in fs::read_dir(self.root.join(folder))? {
                let entry = entry?;
                let in_use = folder == "state" && *entry.file_name() == *number.to_string();
                if entry.file_type()?.is_dir() && !in_use {
                    remove(&entry.path());
                }
            }
        }
        Ok(())
    }
}

fn lock(root: &Path) -> Result<Lock, OpenError> {
    let path = root.join("LOCK");
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(OpenError::at(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(Arc::new(file)),
        Err(fs::TryLockError::WouldBlock) => Err(OpenError::InUse(root.to_owned())),
        Err(fs::TryLockError::Error(error)) => Err(OpenError::at(&path)(error)),
    }
}
