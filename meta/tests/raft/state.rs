//! The state on disk, and snapshots of it.

use std::path::Path;

use bytes::Bytes;
use forebay_meta::raft::{Entry, OpenError, SnapshotAfter, SnapshotFiles, StateMachine};
use openraft::{RaftSnapshotBuilder, storage::RaftStateMachine};
use tokio::sync::mpsc;

use crate::{
    ledger::{ARCHIVE, Command, Ledger, append, at, entry},
    log::apply,
};

type State = StateMachine<Ledger>;

fn open(directory: &Path) -> State {
    StateMachine::open(directory, SnapshotAfter::default()).unwrap()
}

/// Entries from index `from` on: every third keeps a row, every seventh of those goes again.
fn story(from: u64, to: u64) -> Vec<Entry> {
    let command = |index: u64| match (index % 3, index % 7) {
        (0, 0) => Command::Drop { key: (index / 2).to_be_bytes().to_vec() },
        (0, _) => Command::Keep { key: index.to_be_bytes().to_vec(), value: vec![index as u8; 300] },
        _ => append((index % 5) as u8, 1, index as u32),
    };
    (from..to).map(|index| entry(1, index, &command(index))).collect()
}

type Everything = (Ledger, Vec<(u8, Vec<u8>, Vec<u8>)>, forebay_meta::raft::Applied);

fn everything(state: &State) -> Everything {
    let replica = state.replica();
    let mut rows = Vec::new();
    replica.rows(0, u8::MAX, |table, key, value| rows.push((table, key.to_vec(), value.to_vec()))).unwrap();
    (replica.read(Clone::clone), rows, replica.applied())
}

fn folders(root: &Path, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap());
    let folders = entries.filter(|entry| entry.path().is_dir());
    folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

async fn build(state: &mut State) -> SnapshotFiles {
    let mut maker = state.try_create_snapshot_builder(true).await.unwrap();
    maker.build_snapshot().await.unwrap().snapshot
}

async fn chunks(snapshot: &SnapshotFiles) -> Vec<Bytes> {
    let (mut receiver, mut chunks) = (snapshot.chunks(), Vec::new());
    while let Some(chunk) = receiver.recv().await {
        chunks.push(chunk.unwrap());
    }
    chunks
}

async fn receive(state: &State, chunks: &[Bytes]) -> std::io::Result<SnapshotFiles> {
    let (sender, receiver) = mpsc::channel(1);
    let chunks = chunks.to_vec();
    let sending = tokio::spawn(async move {
        for chunk in chunks {
            if sender.send(chunk).await.is_err() {
                break;
            }
        }
    });
    let received = state.replica().receive(receiver).await;
    sending.await.unwrap();
    received
}

#[tokio::test]
async fn a_restart_finds_the_state() {
    let directory = tempfile::tempdir().unwrap();
    let mut state = open(directory.path());
    apply(&mut state, story(0, 1000)).await;
    let before = everything(&state);
    assert_eq!(before.0.all().count(), 666);
    let kept = state.replica().row(ARCHIVE, &996_u64.to_be_bytes()).unwrap();
    assert_eq!(kept, Some(vec![996_u64 as u8; 300]));
    drop(state);
    let mut state = open(directory.path());
    assert_eq!(everything(&state), before);
    assert_eq!(state.applied_state().await.unwrap().0, Some(at(1, 999)));
}

#[tokio::test]
async fn a_command_that_nobody_knows_stops_the_node() {
    let directory = tempfile::tempdir().unwrap();
    let mut state = open(directory.path());
    let mut unknown = entry(1, 0, &append(0, 0, 0));
    if let openraft::EntryPayload::Normal(command) = &mut unknown.payload {
        command.0 = Bytes::from_static(&[200, 1, 2]);
    }
    let error = state.apply(futures_util::stream::iter([Ok((unknown, None))])).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    assert_eq!(everything(&state).1, [], "nothing of it is kept");
}

#[tokio::test]
async fn a_snapshot_goes_over_in_chunks_and_replaces_everything() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut state = open(here.path());
    apply(&mut state, story(0, 30_000)).await;
    let snapshot = build(&mut state).await;
    let expected = everything(&state);
    // Applying goes on; the snapshot does not see it.
    apply(&mut state, story(30_000, 31_000)).await;
    let sent = chunks(&snapshot).await;
    assert!(sent.len() > 3, "{} chunks", sent.len());
    assert!(sent.iter().all(|chunk| chunk.len() < 1_100_000));

    let mut other = open(there.path());
    apply(&mut other, story(0, 500)).await;
    let received = receive(&other, &sent).await.unwrap();
    other.install_snapshot(&snapshot.meta(), received).await.unwrap();
    assert_eq!(everything(&other), expected);
    assert_eq!(folders(there.path(), "incoming").len(), 0);
    assert_eq!(folders(there.path(), "state").len(), 1, "the old database is gone");
    let current = other.get_current_snapshot().await.unwrap().unwrap();
    assert_eq!(chunks(&current.snapshot).await, sent, "what it sends on is the same, byte for byte");
    apply(&mut other, story(30_000, 31_000)).await;
    assert_eq!(everything(&other), everything(&state));
    drop((other, current));
    let other = open(there.path());
    assert_eq!(everything(&other), everything(&state));
    assert_eq!(folders(there.path(), "snapshots").len(), 0);
}

#[tokio::test]
async fn a_snapshot_that_is_not_whole_changes_nothing() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut state = open(here.path());
    apply(&mut state, story(0, 30_000)).await;
    let snapshot = build(&mut state).await;
    let sent = chunks(&snapshot).await;
    let mut other = open(there.path());
    apply(&mut other, story(0, 500)).await;
    let before = everything(&other);

    let mut damages: Vec<(String, Vec<Bytes>)> = Vec::new();
    for cut in 0..sent.len() {
        damages.push((format!("{cut} chunks of {}", sent.len()), sent[..cut].to_vec()));
    }
    let mut swapped = sent.clone();
    swapped.swap(1, 2);
    damages.push(("two chunks swapped".into(), swapped));
    let mut twice = sent.clone();
    twice.insert(1, sent[1].clone());
    damages.push(("a chunk twice".into(), twice));
    let mut missing = sent.clone();
    missing.remove(1);
    damages.push(("a chunk missing".into(), missing));
    for number in 0..sent.len() {
        for at in [0, 4, 8, 16, sent[number].len() / 2, sent[number].len() - 1] {
            let mut altered = sent.clone();
            let mut bytes = altered[number].to_vec();
            bytes[at] ^= 1;
            altered[number] = bytes.into();
            damages.push((format!("chunk {number}, byte {at} altered"), altered));
        }
    }
    for (what, chunks) in damages {
        assert!(receive(&other, &chunks).await.is_err(), "{what} was not noticed");
    }
    assert_eq!(everything(&other), before);
    assert_eq!(folders(there.path(), "incoming").len(), 0, "what arrived is removed");
    let received = receive(&other, &sent).await.unwrap();
    other.install_snapshot(&snapshot.meta(), received).await.unwrap();
    assert_eq!(everything(&other), everything(&state));
}

#[tokio::test]
async fn a_crash_while_installing_leaves_the_old_state() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut state = open(here.path());
    apply(&mut state, story(0, 3000)).await;
    let sent = chunks(&build(&mut state).await).await;
    let mut other = open(there.path());
    apply(&mut other, story(0, 500)).await;
    let before = everything(&other);
    // All that installing does before it switches: the database is built, and has its place.
    let received = receive(&other, &sent).await.unwrap();
    let built = folders(there.path(), "incoming");
    copy(&there.path().join("incoming").join(&built[0]), &there.path().join("state/900"));
    std::fs::write(there.path().join("state/CURRENT.new"), "900").unwrap();
    std::mem::forget(received);
    drop(other);
    let other = open(there.path());
    assert_eq!(everything(&other), before);
    assert_eq!(folders(there.path(), "incoming").len(), 0);
    assert_eq!(folders(there.path(), "state"), ["1"]);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        if file.path().is_file() {
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
}

#[tokio::test]
async fn a_directory_is_one_processs() {
    let directory = tempfile::tempdir().unwrap();
    let mut state = open(directory.path());
    apply(&mut state, story(0, 100)).await;
    let snapshot = build(&mut state).await;
    let second = State::open(directory.path(), SnapshotAfter::default());
    assert!(matches!(second, Err(OpenError::InUse(_))));
    assert!(!chunks(&snapshot).await.is_empty(), "whoever came second removed nothing");
}

#[tokio::test]
async fn so_much_was_applied_that_a_snapshot_is_due() {
    let directory = tempfile::tempdir().unwrap();
    let after = SnapshotAfter { entries: 100, bytes: 1 << 30 };
    let mut state: State = StateMachine::open(directory.path(), after).unwrap();
    let replica = state.replica();
    apply(&mut state, story(0, 99)).await;
    let waiting = tokio::time::timeout(std::time::Duration::from_millis(50), replica.snapshot_due());
    assert!(waiting.await.is_err(), "not yet");
    apply(&mut state, story(99, 100)).await;
    replica.snapshot_due().await;
}
