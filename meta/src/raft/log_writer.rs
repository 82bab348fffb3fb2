//! The one thread that writes the log: it takes what is queued, writes it as one batch, syncs once, and then tells everybody.
//!
//! Owns: the order of writes. Never does: reading, waiting for anything but its queue and the disk. Invariants: nobody is told before the sync;
//! after a write failed every later one is refused, because a disk that failed a sync may have dropped what it will not report again.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use openraft::storage::IOFlushed;
use parking_lot::Mutex;
use rocksdb::{DB, WriteBatch, WriteOptions};
use tokio::sync::{mpsc, oneshot};

use super::{
    database::broken,
    log_disk::{COMMITTED_KEY, PURGED_KEY, VOTE_KEY, entry_key},
    log_store::Contents,
    log_tail::weight,
    records,
    types::{Entry, LogIdOf, Types, Vote},
};

/// A batch is written when it has this many bytes, however much more is queued: memory, and the time that the first waits for the last.
const MAX_BATCH_BYTES: usize = 8 << 20;
/// And this many writes.
const MAX_BATCH_WRITES: usize = 1024;

/// Told that a write is durable, or why it is not.
pub(super) type Done = oneshot::Sender<io::Result<()>>;
/// Makes the state durable; called before entries that it was made of are deleted.
pub(super) type Barrier = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

/// A change of the log, to be made durable.
pub(super) enum Write {
    /// Entries follow the last one.
    Append { entries: Vec<Entry>, done: IOFlushed<Types> },
    /// The vote is another one.
    Vote { vote: Vote, done: Done },
    /// Entries from `first` to before `end` are no more.
    Truncate { first: u64, end: u64, done: Done },
    /// Entries from `first` up to `upto` are in the state and are no more.
    Purge { first: u64, upto: LogIdOf, done: Done },
}

/// What the thread has done, for whoever wants to know.
#[derive(Debug, Default)]
pub struct LogFigures {
    /// Syncs.
    pub batches: AtomicU64,
    /// Entries.
    pub entries: AtomicU64,
    /// Bytes of entries' records.
    pub bytes: AtomicU64,
}

/// The thread.
pub(super) struct Writer {
    pub(super) database: Arc<DB>,
    pub(super) contents: Arc<Mutex<Contents>>,
    pub(super) queue: mpsc::Receiver<Write>,
    pub(super) barrier: Barrier,
    /// Set when the store is dropped: what is queued is left undone, as at a crash.
    pub(super) stop: Arc<AtomicBool>,
    pub(super) figures: Arc<LogFigures>,
    pub(super) committed_on_disk: Option<LogIdOf>,
}

impl Writer {
    /// Runs until the store is dropped.
    pub(super) fn run(mut self) {
        let mut failure: Option<(io::ErrorKind, String)> = None;
        let mut options = WriteOptions::default();
        options.set_sync(true);
        while let Some(first) = self.queue.blocking_recv() {
            let writes = self.gather(first);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            if failure.is_none()
                && let Err(error) = self.write(&writes, &options)
            {
                tracing::error!(%error, "the Raft log cannot be written; this node stops");
                failure = Some((error.kind(), error.to_string()));
            }
            if failure.is_none() {
                self.note_durable(&writes);
            }
            for write in writes {
                tell(write, failure.as_ref());
            }
        }
    }

    fn gather(&mut self, first: Write) -> Vec<Write> {
        let mut bytes = size(&first);
        let mut writes = vec![first];
        while bytes < MAX_BATCH_BYTES && writes.len() < MAX_BATCH_WRITES {
            let Ok(write) = self.queue.try_recv() else { break };
            bytes += size(&write);
            writes.push(write);
        }
        writes
    }

    fn write(&mut self, writes: &[Write], options: &WriteOptions) -> io::Result<()> {
        if writes.iter().any(|write| matches!(write, Write::Purge { .. })) {
            (self.barrier)()?;
        }
        let mut batch = WriteBatch::default();
        for write in writes {
            self.add(write, &mut batch);
        }
        // The committed position costs no write of its own: it goes along with what comes next.
        let committed = self.contents.lock().committed;
        if committed != self.committed_on_disk
            && let Some(position) = committed
        {
            batch.put(COMMITTED_KEY, records::encode(COMMITTED_KEY, &position));
        }
        self.database.write_opt(batch, options).map_err(broken)?;
        self.committed_on_disk = committed;
        self.figures.batches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn add(&self, write: &Write, batch: &mut WriteBatch) {
        match write {
            Write::Append { entries, .. } => {
                let mut bytes = 0;
                for entry in entries {
                    let key = entry_key(entry.log_id.index);
                    let record = records::encode(&key, entry);
                    bytes += record.len() as u64;
                    batch.put(key, record);
                }
                self.figures.entries.fetch_add(entries.len() as u64, Ordering::Relaxed);
                self.figures.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Write::Vote { vote, .. } => batch.put(VOTE_KEY, records::encode(VOTE_KEY, vote)),
            Write::Truncate { first, end, .. } => batch.delete_range(entry_key(*first), entry_key(*end)),
            Write::Purge { first, upto, .. } => {
                batch.put(PURGED_KEY, records::encode(PURGED_KEY, upto));
                batch.delete_range(entry_key(*first), entry_key(upto.index.saturating_add(1)));
            }
        }
    }

    fn note_durable(&self, writes: &[Write]) {
        let mut contents = self.contents.lock();
        for write in writes {
            match write {
                Write::Append { entries, .. } => {
                    if let Some(last) = entries.last() {
                        contents.tail.durable(last.log_id.index + 1);
                    }
                }
                // Nobody appends while a truncation is waited for: what comes after it at the same indices is not durable yet.
                Write::Truncate { first, .. } => contents.tail.not_durable_from(*first),
                Write::Vote { vote, .. } => contents.vote = Some(*vote),
                Write::Purge { .. } => {}
            }
        }
    }
}

fn size(write: &Write) -> usize {
    match write {
        Write::Append { entries, .. } => entries.iter().map(weight).sum(),
        Write::Vote { .. } | Write::Truncate { .. } | Write::Purge { .. } => 0,
    }
}

fn tell(write: Write, failure: Option<&(io::ErrorKind, String)>) {
    let result = match failure {
        Some((kind, reason)) => Err(io::Error::new(*kind, reason.clone())),
        None => Ok(()),
    };
    match write {
        Write::Append { done, .. } => done.io_completed(result),
        Write::Vote { done, .. } | Write::Truncate { done, .. } | Write::Purge { done, .. } => {
            // Who asked may have been cancelled; that changes nothing about the write.
            let _ = done.send(result);
        }
    }
}
