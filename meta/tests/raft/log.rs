//! The log: what is there after a restart, a power cut, damage.

use std::{path::Path, sync::Arc, sync::atomic::Ordering};

use forebay_meta::raft::{CommandBytes, Entry, LogStore, OpenError, SnapshotAfter, StateMachine, Types, Vote};
use openraft::{
    EntryPayload, LogState, RaftLogReader,
    entry::RaftPayload,
    storage::{IOFlushed, RaftLogStorage, RaftLogStorageExt, RaftStateMachine},
    type_config::TypeConfigExt,
};

use crate::ledger::{Ledger, append, at, entry};

fn open(directory: &Path) -> Result<LogStore, OpenError> {
    LogStore::open(directory, 1, Arc::new(|| Ok(())))
}

fn entries(from: u64, to: u64) -> Vec<Entry> {
    (from..to).map(|index| entry(1, index, &append(0, 0, index as u32))).collect()
}

async fn indices(log: &mut LogStore) -> Vec<u64> {
    log.try_get_log_entries(..).await.unwrap().iter().map(|entry| entry.log_id.index).collect()
}

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path()).unwrap();
    log.save_vote(&Vote::new(7, 3)).await.unwrap();
    log.blocking_append(entries(0, 20)).await.unwrap();
    log.truncate_after(Some(at(1, 14))).await.unwrap();
    log.save_committed(Some(at(1, 9))).await.unwrap();
    log.blocking_append(vec![entry(2, 15, &append(0, 0, 99))]).await.unwrap();
    log.purge(at(1, 4)).await.unwrap();
    drop(log);
    let mut log = open(directory.path()).unwrap();
    assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new(7, 3)));
    assert_eq!(log.read_committed().await.unwrap(), Some(at(1, 9)));
    let state = LogState { last_purged_log_id: Some(at(1, 4)), last_log_id: Some(at(2, 15)) };
    assert_eq!(log.get_log_state().await.unwrap(), state);
    assert_eq!(indices(&mut log).await, (5..16).collect::<Vec<_>>());
    let read = log.try_get_log_entries(14..16).await.unwrap();
    assert_eq!(read, [entry(1, 14, &append(0, 0, 14)), entry(2, 15, &append(0, 0, 99))]);
}

#[tokio::test]
async fn what_has_left_memory_is_read_from_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path()).unwrap();
    let large = |index| Entry {
        log_id: at(1, index),
        payload: EntryPayload::Normal(CommandBytes(vec![index as u8; 400_000].into())),
    };
    // 80 MB: five times what stays in memory.
    for first in (0..200).step_by(10) {
        log.blocking_append((first..first + 10).map(large)).await.unwrap();
    }
    assert_eq!(log.try_get_log_entries(3..200).await.unwrap(), (3..200).map(large).collect::<Vec<_>>());
    for start in [0, 1, 150, 197, 199] {
        let page = log.limited_get_log_entries(start, 200).await.unwrap();
        assert!((1..=3).contains(&page.len()), "a page is a megabyte, not {} entries", page.len());
        assert_eq!(page[0].log_id.index, start);
    }
    let stream = log.entries_stream(10..200).await;
    let streamed: Vec<_> = futures_util::TryStreamExt::try_collect(stream).await.unwrap();
    assert_eq!(streamed, (10..200).map(large).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_comes_together_is_synced_together() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path()).unwrap();
    let mut told = Vec::new();
    for index in 0..2000 {
        let (sender, receiver) = Types::oneshot();
        log.append(entries(index, index + 1), IOFlushed::signal(sender)).await.unwrap();
        told.push(receiver);
    }
    for done in told {
        done.await.unwrap().unwrap();
    }
    let batches = log.figures().batches.load(Ordering::Relaxed);
    assert!(batches < 500, "{batches} syncs for 2,000 appends");
    assert_eq!(log.figures().entries.load(Ordering::Relaxed), 2000);
}

/// Changes a database behind the log's back.
fn meddle(directory: &Path, change: impl FnOnce(&rocksdb::DB)) {
    let database = rocksdb::DB::open_default(directory).unwrap();
    change(&database);
    database.flush().unwrap();
}

fn key(index: u64) -> Vec<u8> {
    [&b"e"[..], &index.to_be_bytes()].concat()
}

#[tokio::test]
async fn damage_is_found_at_start() {
    let flip = |database: &rocksdb::DB, key: &[u8], at: usize| {
        let mut record = database.get(key).unwrap().unwrap();
        record[at] ^= 1;
        database.put(key, record).unwrap();
    };
    type Damage<'a> = (&'a str, Box<dyn Fn(&rocksdb::DB)>);
    let damages: [Damage<'_>; 6] = [
        ("a flipped bit in an entry", Box::new(move |database| flip(database, &key(5), 12))),
        ("a version from the future", Box::new(move |database| flip(database, &key(5), 0))),
        ("a flipped bit in the vote", Box::new(move |database| flip(database, b"m.vote", 10))),
        ("a missing entry", Box::new(|database| database.delete(key(5)).unwrap())),
        (
            "an entry in another's place",
            Box::new(|database| {
                let other = database.get(key(6)).unwrap().unwrap();
                database.put(key(5), other).unwrap();
            }),
        ),
        ("a record cut short", Box::new(|database| database.put(key(5), b"short").unwrap())),
    ];
    for (what, damage) in damages {
        let directory = tempfile::tempdir().unwrap();
        let mut log = open(directory.path()).unwrap();
        log.save_vote(&Vote::new(7, 3)).await.unwrap();
        log.blocking_append(entries(0, 10)).await.unwrap();
        drop(log);
        meddle(directory.path(), damage);
        let error = open(directory.path()).err().unwrap_or_else(|| panic!("{what} was not noticed"));
        assert!(matches!(&error, OpenError::Io { .. }), "{what}: {error}");
    }
}

#[tokio::test]
async fn damage_is_found_while_running() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path()).unwrap();
    log.blocking_append(entries(0, 10)).await.unwrap();
    drop(log);
    // 40 MB push the first entries out of memory; then one of their files is altered on the disk.
    let mut log = open(directory.path()).unwrap();
    let payload = EntryPayload::normal(CommandBytes(vec![0xAB; 2_000_000].into()));
    for index in 10..30 {
        log.blocking_append([Entry { log_id: at(1, index), payload: payload.clone() }]).await.unwrap();
    }
    log.try_get_log_entries(12..13).await.unwrap();
    for file in std::fs::read_dir(directory.path()).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "sst") {
            let mut bytes = std::fs::read(&path).unwrap();
            // In place: the store has the file open.
            for at in bytes.len() / 8..bytes.len() / 2 {
                bytes[at] ^= 0xFF;
            }
            std::os::unix::fs::FileExt::write_all_at(
                &std::fs::OpenOptions::new().write(true).open(&path).unwrap(),
                &bytes,
                0,
            )
            .unwrap();
        }
    }
    let read = log.try_get_log_entries(10..20).await;
    assert!(read.is_err(), "altered entries were read: {:?}", read.map(|entries| entries.len()));
}

#[tokio::test]
async fn a_log_is_one_nodes_and_one_processs() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path()).unwrap();
    assert!(matches!(open(directory.path()), Err(OpenError::InUse(_))));
    drop(log);
    let other = LogStore::open(directory.path(), 2, Arc::new(|| Ok(())));
    assert!(matches!(other, Err(OpenError::OtherNode { found: 1, expected: 2, .. })));
}

/// The write-ahead log that a database in `directory` writes, and where it ends.
fn write_ahead_log(directory: &Path) -> (std::path::PathBuf, u64) {
    let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let newest = files.filter(|path| path.extension().is_some_and(|extension| extension == "log")).max().unwrap();
    let length = newest.metadata().unwrap().len();
    (newest, length)
}

/// A power cut takes what was not synced: of the state possibly all, of the log nothing that was told.
#[tokio::test]
async fn a_power_cut_takes_nothing_that_was_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let state_path = directory.path();
    let mut state = StateMachine::<Ledger>::open(state_path, SnapshotAfter::default()).unwrap();
    let replica = state.replica();
    let mut log = LogStore::open(&state_path.join("log"), 1, Arc::new(move || replica.sync())).unwrap();
    log.blocking_append(entries(0, 100)).await.unwrap();
    apply(&mut state, entries(0, 60)).await;
    // The purge needs the state to be durable as far as it goes.
    log.purge(at(1, 29)).await.unwrap();
    let rows = state_path.join("state/1");
    let (write_ahead_log, durable) = write_ahead_log(&rows);
    apply(&mut state, entries(60, 100)).await;
    log.save_committed(Some(at(1, 99))).await.unwrap();
    log.save_vote(&Vote::new(2, 1)).await.unwrap();
    let before = state.replica().read(Clone::clone);
    drop((state, log));
    // Everything that was written to the state since then is gone, in the middle of a record.
    let file = std::fs::OpenOptions::new().write(true).open(write_ahead_log).unwrap();
    assert!(file.metadata().unwrap().len() > durable + 7, "nothing was written since");
    file.set_len(durable + 7).unwrap();
    let mut state = StateMachine::<Ledger>::open(state_path, SnapshotAfter::default()).unwrap();
    let (applied, _) = state.applied_state().await.unwrap();
    assert_eq!(applied, Some(at(1, 59)), "what the purge made durable, and no more");
    let mut log = LogStore::open(&state_path.join("log"), 1, Arc::new(|| Ok(()))).unwrap();
    let mut helper = openraft::StorageHelper::new(&mut log, &mut state).with_id(1);
    helper.get_initial_state().await.unwrap();
    assert_eq!(state.replica().read(Clone::clone), before, "the rest is in the log");
}

pub async fn apply(state: &mut StateMachine<Ledger>, entries: Vec<Entry>) {
    let entries = entries.into_iter().map(|entry| Ok((entry, None)));
    state.apply(futures_util::stream::iter(entries)).await.unwrap();
}

const FULL_DISK: &str = "FOREBAY_TEST_FULL_DISK";

/// Files can grow to 6 MB only, as on a disk that is full from there on; the test runs itself again under that limit.
#[test]
fn a_full_disk_stops_the_node_and_takes_nothing_that_was_acknowledged() {
    if let Some(directory) = std::env::var_os(FULL_DISK) {
        return fill(Path::new(&directory));
    }
    let directory = tempfile::tempdir().unwrap();
    let script = "trap '' XFSZ; ulimit -f 6144; exec \"$0\" --exact --nocapture \"$1\"";
    let output = std::process::Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg("log::a_full_disk_stops_the_node_and_takes_nothing_that_was_acknowledged")
        .env(FULL_DISK, directory.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    let acknowledged = told.lines().find_map(|line| line.strip_prefix("acknowledged "));
    let acknowledged: u64 = acknowledged.unwrap().trim().parse().unwrap();
    assert!(acknowledged > 2, "{told}");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut log = open(directory.path()).unwrap();
    let there = runtime.block_on(indices(&mut log));
    assert!(there.len() as u64 >= acknowledged, "{acknowledged} were acknowledged and {} are there", there.len());
    runtime.block_on(log.blocking_append(entries(there.len() as u64, there.len() as u64 + 5))).unwrap();
}

fn fill(directory: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut log = open(directory).unwrap();
        let payload = EntryPayload::normal(CommandBytes(vec![0xCD; 1_000_000].into()));
        let large = |index| [Entry { log_id: at(1, index), payload: payload.clone() }];
        let mut index = 0;
        while log.blocking_append(large(index)).await.is_ok() {
            index += 1;
            assert!(index < 1000, "the limit is not in force");
        }
        log.blocking_append(large(index + 1)).await.expect_err("after a failed write nothing is written");
        log.save_vote(&Vote::new(9, 1)).await.expect_err("a vote neither");
        println!("\nacknowledged {index}");
    });
}
