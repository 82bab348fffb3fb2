//! Snapshots as directories: made as checkpoints, sent as chunks, and built anew from chunks.
//!
//! Invariants: a directory is whole before anybody has a handle of it, and goes with the last handle; sending and receiving hold a few chunks and a
//! memtable, however many rows there are.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use rocksdb::{IngestExternalFileOptions, SstFileWriter};
use tokio::sync::mpsc;

use super::{
    database::{broken, damaged, state_options},
    records::{self, Applied},
    snapshot::{ChunkDecoder, ChunkEncoder, Decoded, Row},
    state_files::{APPLIED_KEY, Directories, Lock, StateDatabase, remove, row_key},
    types::SnapshotMeta,
};

/// Chunks that are read before they can be sent, or came before they can be written.
pub(super) const CHUNKS_AHEAD: usize = 4;
/// A table file is closed when it has this many bytes: RocksDB's own default.
const TABLE_FILE_BYTES: u64 = 64 << 20;

/// A snapshot. Clones are the same one.
#[derive(Clone, Debug)]
pub struct SnapshotFiles(Arc<Files>);

#[derive(Debug)]
struct Files {
    path: PathBuf,
    applied: Applied,
    /// Built here from chunks: installing may take the directory instead of copying it.
    received: bool,
}

impl Drop for Files {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

impl SnapshotFiles {
    /// A checkpoint of `state`. Blocks while what is in memory is written.
    pub(super) fn of(directories: &Directories, state: &StateDatabase) -> io::Result<Self> {
        let path = directories.fresh("snapshots");
        state.checkpoint(&path)?;
        // Entries may have been applied since the caller asked: what the checkpoint covers is in it.
        let applied = StateDatabase::open_read_only(path.clone()).and_then(|copy| copy.applied());
        match applied {
            Ok(applied) => Ok(Self(Arc::new(Files { path, applied, received: false }))),
            Err(error) => {
                remove(&path);
                Err(error)
            }
        }
    }

    /// What it covers.
    pub fn meta(&self) -> SnapshotMeta {
        SnapshotMeta { last_log_id: self.0.applied.last, last_membership: self.0.applied.membership.clone() }
    }

    pub(super) fn applied(&self) -> &Applied {
        &self.0.applied
    }

    /// All of it, in chunks; an error is the last thing that comes.
    pub fn chunks(&self) -> mpsc::Receiver<io::Result<Bytes>> {
        let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
        let files = self.clone();
        tokio::task::spawn_blocking(move || {
            let sent = files.each_chunk(|chunk| {
                sender.blocking_send(Ok(chunk)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
            });
            if let Err(error) = sent {
                // Nobody listens any more if that was the error.
                let _ = sender.blocking_send(Err(error));
            }
        });
        receiver
    }

    fn each_chunk(&self, mut send: impl FnMut(Bytes) -> io::Result<()>) -> io::Result<()> {
        let state = StateDatabase::open_read_only(self.0.path.clone())?;
        let (mut encoder, first) = ChunkEncoder::new(&self.0.applied);
        send(first)?;
        state.rows(0, u8::MAX, |row| match encoder.row(row.table, row.key, row.value).map_err(damaged)? {
            Some(chunk) => send(chunk),
            None => Ok(()),
        })?;
        encoder.finish().into_iter().try_for_each(send)
    }

    /// Builds one from chunks as they come. Ends in an error if they end too early.
    pub(super) async fn receive(directories: Arc<Directories>, mut chunks: mpsc::Receiver<Bytes>) -> io::Result<Self> {
        let build = move || Self::build(&directories, || Ok(chunks.blocking_recv()));
        tokio::task::spawn_blocking(build).await.map_err(io::Error::other)?
    }

    fn build(directories: &Directories, next: impl FnMut() -> io::Result<Option<Bytes>>) -> io::Result<Self> {
        let path = directories.fresh("incoming");
        match build_database(&path, directories.lock(), next) {
            Ok(applied) => Ok(Self(Arc::new(Files { path, applied, received: true }))),
            Err(error) => {
                remove(&path);
                Err(error)
            }
        }
    }

    /// Gives the directory `path`, which is not there, the snapshot's database.
    pub(super) fn place(&self, directories: &Directories, path: &Path) -> io::Result<()> {
        if self.0.received {
            return fs::rename(&self.0.path, path);
        }
        // Another's checkpoint, maybe on another disk: its chunks go through memory.
        let (sender, receiver) = std::sync::mpsc::sync_channel(CHUNKS_AHEAD);
        let files = self.clone();
        std::thread::scope(|scope| {
            let sending = scope.spawn(move || {
                files.each_chunk(|chunk| sender.send(chunk).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe)))
            });
            // The closure owns the receiver: when building fails, sending ends too.
            let built = Self::build(directories, move || Ok(receiver.recv().ok()));
            let sent = sending.join().map_err(|_| io::Error::other("reading a snapshot panicked"))?;
            let built = built?;
            sent?;
            fs::rename(&built.0.path, path)
        })
    }
}

/// Makes a database at `path` of the chunks of a snapshot: sorted table files, taken in at the end.
fn build_database(path: &Path, lock: Lock, mut next: impl FnMut() -> io::Result<Option<Bytes>>) -> io::Result<Applied> {
    let tables = path.join("tables");
    fs::create_dir_all(&tables)?;
    let options = state_options();
    let mut files: Vec<PathBuf> = Vec::new();
    let mut open: Option<SstFileWriter<'_>> = None;
    let (mut decoder, mut applied) = (ChunkDecoder::default(), None);
    while let Some(chunk) = next()? {
        match decoder.chunk(&chunk).map_err(damaged)? {
            Decoded::Start(start) => applied = Some(*start),
            Decoded::Rows(rows) => {
                for Row { table, key, value } in rows {
                    let writer = match &mut open {
                        Some(writer) => writer,
                        None => {
                            files.push(tables.join(format!("{}.sst", files.len())));
                            let writer = open.insert(SstFileWriter::create(&options));
                            writer.open(&files[files.len() - 1]).map_err(broken)?;
                            writer
                        }
                    };
                    writer.put(row_key(table, key), value).map_err(broken)?;
                }
                if open.as_ref().is_some_and(|writer| writer.file_size() >= TABLE_FILE_BYTES)
                    && let Some(mut full) = open.take()
                {
                    full.finish().map_err(broken)?;
                }
            }
            Decoded::End => break,
        }
    }
    if let Some(mut last) = open.take() {
        last.finish().map_err(broken)?;
    }
    let applied = applied.filter(|_| decoder.ended()).ok_or_else(|| damaged("the snapshot ended too early"))?;
    let state = StateDatabase::open(path.to_owned(), lock).map_err(io::Error::other)?;
    if !files.is_empty() {
        let mut ingest = IngestExternalFileOptions::default();
        ingest.set_move_files(true);
        state.database().ingest_external_file_opts(&ingest, files).map_err(broken)?;
    }
    state.database().put(APPLIED_KEY, records::encode(APPLIED_KEY, &applied)).map_err(broken)?;
    state.database().flush().map_err(broken)?;
    drop(state);
    remove(&tables);
    Ok(applied)
}
