//! The Raft log on RocksDB: entries, the vote, how far it is committed and purged.
//!
//! Owns: the database `log`, and the thread that writes it. Never does: looking into commands. Invariants: entries follow each other without a gap,
//! in memory and on the disk; a record that does not check out is an error, which stops the node; the thread has ended when the store is gone
//! (RocksDB aborts a process that exits under it).

use std::{
    fmt::Debug,
    io,
    ops::{Bound, RangeBounds},
    path::Path,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use futures_util::Stream;
use openraft::{
    LogState, OptionalSend, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
};
use parking_lot::Mutex;
use rocksdb::DB;
use tokio::sync::{mpsc, oneshot};

use super::{
    database::{OpenError, log_options, open},
    log_disk::{claim, read_contents, read_entries},
    log_tail::{Tail, weight},
    log_writer::{Barrier, Done, LogFigures, Write, Writer},
    types::{Entry, LogIdOf, NodeId, Types, Vote},
};

/// Writes that wait for the thread; whoever has another one waits for room.
const QUEUE: usize = 256;
/// One message to a follower, and one page of what is applied, has about this many bytes of entries, or one entry.
const PAGE_BYTES: usize = 1 << 20;

/// How often is looked whether the log is closed.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_millis(2);

/// The log as it is, whether on the disk yet or not.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) vote: Option<Vote>,
    pub(super) purged: Option<LogIdOf>,
    pub(super) last: Option<LogIdOf>,
    /// The index of the first entry that there is, or else of the next one.
    pub(super) first: u64,
    pub(super) committed: Option<LogIdOf>,
    pub(super) tail: Tail,
    /// Counts what takes entries away: a reader that sees another number has to look again.
    pub(super) removals: u64,
}

/// The log. Clones are the same log.
#[derive(Clone)]
pub struct LogStore(Arc<Inner>);

struct Inner {
    database: Arc<DB>,
    contents: Arc<Mutex<Contents>>,
    queue: Option<mpsc::Sender<Write>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    figures: Arc<LogFigures>,
    /// After the database: what it holds on to, such as the directory's lock, is let go of when that is closed.
    _barrier: Barrier,
    /// The last field: gone when the database is closed.
    open: Arc<()>,
}

impl LogStore {
    /// Opens or begins the log of `node` in `directory`. Reads all of it, so that damage is found now and not when a follower asks.
    ///
    /// `barrier` makes the state durable; it is called before entries are purged.
    pub fn open(
        directory: &Path,
        node: NodeId,
        barrier: Arc<dyn Fn() -> io::Result<()> + Send + Sync>,
    ) -> Result<Self, OpenError> {
        let at = OpenError::at(directory);
        let database = Arc::new(open(&log_options(), directory)?);
        claim(&database, directory, node)?;
        let contents = read_contents(&database).map_err(&at)?;
        Self::start(database, contents, barrier).map_err(&at)
    }

    fn start(database: Arc<DB>, contents: Contents, barrier: Barrier) -> io::Result<Self> {
        let (sender, queue) = mpsc::channel(QUEUE);
        let committed_on_disk = contents.committed;
        let contents = Arc::new(Mutex::new(contents));
        let stop = Arc::new(AtomicBool::new(false));
        let figures = Arc::new(LogFigures::default());
        let writer = Writer {
            database: database.clone(),
            contents: contents.clone(),
            queue,
            barrier: barrier.clone(),
            stop: stop.clone(),
            figures: figures.clone(),
            committed_on_disk,
        };
        let thread = std::thread::Builder::new().name("raft-log".into()).spawn(move || writer.run())?;
        let (queue, thread, open) = (Some(sender), Some(thread), Arc::new(()));
        Ok(Self(Arc::new(Inner { database, contents, queue, stop, thread, figures, _barrier: barrier, open })))
    }

    /// What the log's thread has done.
    pub fn figures(&self) -> Arc<LogFigures> {
        self.0.figures.clone()
    }

    /// To see from outside when the log is closed.
    pub(super) fn watch(&self) -> LogWatch {
        LogWatch { open: Arc::downgrade(&self.0.open), figures: self.0.figures.clone() }
    }

    async fn queue(&self, write: Write) -> io::Result<()> {
        let queue = self.0.queue.as_ref().expect("the sender is taken only when the store is dropped");
        queue.send(write).await.map_err(|_| io::Error::other("the Raft log's thread has ended"))
    }

    async fn write(&self, write: impl FnOnce(Done) -> Write) -> io::Result<()> {
        let (done, told) = oneshot::channel();
        self.queue(write(done)).await?;
        told.await.map_err(|_| io::Error::other("the Raft log's thread has ended"))?
    }

    /// Entries from `start` to before `end` that there are; of these the first ones that have about `max_bytes`.
    fn entries(&self, start: u64, end: u64, max_bytes: usize) -> io::Result<Vec<Entry>> {
        loop {
            let (removals, from, to, mut recent) = self.plan(start, end, max_bytes);
            let read = read_entries(&self.0.database, from, to, max_bytes);
            if self.0.contents.lock().removals != removals {
                // Something was truncated or purged meanwhile, so a gap may be no damage.
                continue;
            }
            let (mut entries, whole) = read?;
            if whole {
                entries.append(&mut recent);
            }
            return Ok(entries);
        }
    }

    /// What is to be read from the disk, and the entries after it, which are in memory.
    fn plan(&self, start: u64, end: u64, max_bytes: usize) -> (u64, u64, u64, Vec<Entry>) {
        let contents = self.0.contents.lock();
        let start = start.max(contents.first);
        let end = end.min(contents.last.map_or(0, |last| last.index + 1));
        let on_disk_end = contents.tail.first().map_or(end, |first| first.min(end));
        let mut room = max_bytes;
        let recent = contents.tail.range(start, end).take_while(|entry| {
            let fits = room > 0;
            room = room.saturating_sub(weight(entry));
            fits
        });
        let recent = recent.cloned().collect();
        (contents.removals, start, on_disk_end, recent)
    }
}

/// Sees whether a log is still in use, without being a use.
pub(super) struct LogWatch {
    open: Weak<()>,
    figures: Arc<LogFigures>,
}

impl LogWatch {
    pub(super) fn figures(&self) -> Arc<LogFigures> {
        self.figures.clone()
    }

    /// Waits until the last user of the log is gone, and its thread with it.
    pub(super) async fn closed(&self) {
        // openraft's tasks end one after another and tell nobody.
        while self.open.strong_count() > 0 {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.queue = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the Raft log's thread panicked");
        }
    }
}

fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(&index) => index,
        Bound::Excluded(&index) => index.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&index) => index.saturating_add(1),
        Bound::Excluded(&index) => index,
        Bound::Unbounded => u64::MAX,
    };
    (start, end)
}

impl RaftLogReader<Types> for LogStore {
    // Reads go to memory, but for a node that is far behind or has just started; those read the disk here, a page at a time.
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<Entry>, io::Error>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (start, end) = bounds(&range);
        self.entries(start, end, usize::MAX)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        self.entries(start, end, PAGE_BYTES)
    }

    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<Entry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (start, end) = bounds(&range);
        // Holds one page, not the range: after a long partition that is much to apply at once.
        let pages = futures_util::stream::unfold((self.clone(), start), move |(log, at)| async move {
            if at >= end {
                return None;
            }
            match log.entries(at, end, PAGE_BYTES) {
                Ok(page) => {
                    let next = page.last()?.log_id.index + 1;
                    Some((page.into_iter().map(Ok).collect::<Vec<_>>(), (log, next)))
                }
                Err(error) => Some((vec![Err(error)], (log, end))),
            }
        });
        futures_util::StreamExt::flat_map(pages, futures_util::stream::iter)
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.0.contents.lock().vote)
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let contents = self.0.contents.lock();
        Ok(LogState { last_purged_log_id: contents.purged, last_log_id: contents.last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let vote = *vote;
        self.write(|done| Write::Vote { vote, done }).await
    }

    async fn save_committed(&mut self, committed: Option<LogIdOf>) -> Result<(), io::Error> {
        self.0.contents.lock().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogIdOf>, io::Error> {
        Ok(self.0.contents.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        {
            let mut contents = self.0.contents.lock();
            for entry in &entries {
                if contents.last.is_some_and(|last| last.index + 1 != entry.log_id.index) {
                    return Err(io::Error::other(format!("entry {} does not follow the log", entry.log_id.index)));
                }
                if contents.last == contents.purged {
                    contents.first = entry.log_id.index;
                }
                contents.last = Some(entry.log_id);
                contents.tail.push(entry.clone());
            }
        }
        self.queue(Write::Append { entries, done: callback }).await
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogIdOf>) -> Result<(), io::Error> {
        let first = last_log_id.map_or(0, |last| last.index + 1);
        let end = {
            let mut contents = self.0.contents.lock();
            let end = contents.last.map_or(0, |last| last.index + 1);
            if first >= end {
                return Ok(());
            }
            contents.removals += 1;
            contents.tail.truncate_from(first);
            contents.last = last_log_id.max(contents.purged);
            end
        };
        self.write(|done| Write::Truncate { first, end, done }).await
    }

    async fn purge(&mut self, log_id: LogIdOf) -> Result<(), io::Error> {
        let first = {
            let mut contents = self.0.contents.lock();
            let first = contents.purged.map_or(0, |purged| purged.index + 1);
            if contents.purged >= Some(log_id) {
                return Ok(());
            }
            contents.removals += 1;
            contents.purged = Some(log_id);
            contents.first = contents.first.max(log_id.index + 1);
            contents.last = contents.last.max(Some(log_id));
            contents.tail.purge(log_id.index);
            first
        };
        self.write(|done| Write::Purge { first, upto: log_id, done }).await
    }
}
