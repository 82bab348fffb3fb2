//! A process that is killed while it writes: what it said was flushed is there, and nothing is wrong.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use super::{content, durable, files::at, key};
use crate::cache::Cache;

const DIRECTORY: &str = "FOREBAY_TEST_KILL_DIRECTORY";

fn length_of(index: u32) -> usize {
    (index as usize * 7919) % 300_000
}

/// Not a test of its own: what the process does that is killed.
#[tokio::test]
async fn child_that_writes_until_it_is_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let cache = Cache::open(at(directory.as_ref(), 64 << 20)).unwrap();
    for index in 0.. {
        let bytes = content(u64::from(index), length_of(index));
        cache.insert(key(1, index), bytes, durable()).await.unwrap();
        if index % 7 == 3 {
            // Of these the first content must not come back.
            cache.insert(key(2, index), content(1, 5000), durable()).await.unwrap();
            cache.replace_in_ram(key(2, index), content(2, 5000), durable()).await;
        }
        if index % 10 == 9 {
            cache.flush().await.unwrap();
            println!("flushed {index}");
        }
    }
}

#[tokio::test]
async fn a_killed_process_loses_only_what_was_not_flushed() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cache::tests::kill::child_that_writes_until_it_is_killed", "--nocapture"])
            .env(DIRECTORY, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let wanted = 100 + 60 * round;
        let flushed = lines.filter_map(|line| line.split("flushed ").nth(1)?.parse::<u32>().ok());
        let last = { flushed }.find(|index| *index >= wanted);
        child.kill().unwrap();
        child.wait().unwrap();
        let last = last.expect("the child did not write");

        let cache = Cache::open(at(dir.path(), 64 << 20)).unwrap();
        // The newest hundred fit the store for sure.
        for index in last - 99..=last {
            let (bytes, _) = cache.get(&key(1, index)).await.expect("flushed, and not there");
            assert!(bytes == content(u64::from(index), length_of(index)), "wrong bytes");
        }
        for index in 0..last + 200 {
            assert_eq!(cache.get(&key(2, index)).await, None, "replaced content came back");
            if let Some((bytes, _)) = cache.get(&key(1, index)).await {
                assert!(bytes == content(u64::from(index), length_of(index)), "wrong bytes");
            }
        }
    }
}
