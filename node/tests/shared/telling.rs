//! What one node changes, another tells.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use forebay_node::source::{
    SetAttributes, SetTime, SourceError, Time,
    cached::{CachedOptions, Consistency, OnPartition, Policy},
};

use crate::cluster::{Cluster, options, superuser};

/// Whatever each node knew, after an answered change every node tells the state after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_answered_change_every_node_tells_it() {
    let cluster = Cluster::start(3, options(Consistency::Scratch)).await;
    let by = superuser();
    for number in 0..20_u32 {
        cluster.write_file(&format!("file{number}"), format!("{number:08}").as_bytes());
    }
    for number in 0..20_u32 {
        let name = format!("file{number}");
        let mut files = Vec::new();
        for node in 1..=3 {
            let member = cluster.node(node);
            let file = member.cached.lookup(&by, &member.root, name.as_bytes()).await.unwrap();
            let (bytes, eof) = member.cached.read(&by, &file, 0, 100).await.unwrap();
            assert_eq!((&bytes[..], eof), (format!("{number:08}").as_bytes(), true));
            files.push(file);
        }
        for writer in 1..=3_u64 {
            let text = format!("{writer:03}{number:05}");
            let member = cluster.node(writer);
            let file = &files[writer as usize - 1];
            member.cached.write(&by, file, 0, Bytes::from(text.clone()), true).await.unwrap();
            for node in 1..=3 {
                let member = cluster.node(node);
                let file = &files[node as usize - 1];
                let (bytes, _) = match member.cached.read_now(file, 0, 100) {
                    Some(read) => read,
                    None => member.cached.read(&by, file, 0, 100).await.unwrap(),
                };
                assert_eq!(&bytes[..], text.as_bytes(), "file {number}, written at {writer}, read at {node}");
            }
            let set = SetAttributes {
                modified: Some(SetTime::To(Time { seconds: i64::from(number) * 10 + writer as i64, nanoseconds: 0 })),
                ..SetAttributes::default()
            };
            member.cached.set_attributes(&by, file, &set).await.unwrap();
            for node in 1..=3 {
                let told = cluster.node(node).cached.attributes(&by, &files[node as usize - 1]).await.unwrap();
                assert_eq!(told.modified.seconds, i64::from(number) * 10 + writer as i64);
            }
        }
        let member = cluster.node(u64::from(number) % 3 + 1);
        let renamed = format!("renamed{number}");
        let root = &member.root;
        member.cached.rename(&by, (root, name.as_bytes()), (root, renamed.as_bytes()), None).await.unwrap();
        for node in 1..=3 {
            let member = cluster.node(node);
            let old = member.cached.lookup(&by, &member.root, name.as_bytes()).await.map(|file| *file.id());
            assert_eq!(old, Err(SourceError::Errno(libc::ENOENT)), "at {node}");
            let new = member.cached.lookup(&by, &member.root, renamed.as_bytes()).await.unwrap();
            assert_eq!(new.id(), files[0].id());
        }
        let member = cluster.node((u64::from(number) + 1) % 3 + 1);
        member.cached.remove(&by, &member.root, renamed.as_bytes(), false).await.unwrap();
        for node in 1..=3 {
            let member = cluster.node(node);
            let gone = member.cached.attributes(&by, &files[node as usize - 1]).await;
            assert_eq!(gone, Err(SourceError::Stale), "at {node}");
        }
    }
}

/// What an owner granted is told without asking anybody, until it is taken back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_granted_costs_no_further_question() {
    let cluster = Cluster::start(3, options(Consistency::Scratch)).await;
    let by = superuser();
    cluster.write_file("file", b"12345678");
    let mut files = Vec::new();
    for node in 1..=3 {
        let member = cluster.node(node);
        let file = member.cached.lookup(&by, &member.root, b"file").await.unwrap();
        member.cached.attributes(&by, &file).await.unwrap();
        files.push(file);
    }
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    cluster.upstream.take_calls();
    for _ in 0..1000 {
        for node in 1..=3 {
            assert!(cluster.node(node).cached.attributes_now(&files[node as usize - 1]).is_some());
        }
    }
    assert_eq!(cluster.upstream.calls(), 0);
    let asked = cluster.net.calls.load(Ordering::Relaxed);
    cluster.node(1).cached.write(&by, &files[0], 0, Bytes::from_static(b"abcdefgh"), true).await.unwrap();
    assert!(cluster.net.calls.load(Ordering::Relaxed) > asked, "others were told to forget it");
    let known = (1..=3).filter(|node| {
        let told = cluster.node(*node).cached.attributes_now(&files[*node as usize - 1]);
        told.is_some_and(|told| told.change != 0)
    });
    assert!(known.count() <= 1, "only the owner may know");
}

/// Listings: names and what is told of their objects are as after every answered change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_are_as_after_every_answered_change() {
    let cluster = Cluster::start(3, options(Consistency::Scratch)).await;
    let by = superuser();
    for number in 0..50 {
        cluster.write_file(&format!("file{number:02}"), b"x");
    }
    for round in 0..30_i64 {
        let member = cluster.node(round as u64 % 3 + 1);
        let name = format!("file{:02}", round % 50);
        let file = member.cached.lookup(&by, &member.root, name.as_bytes()).await.unwrap();
        let modified = Some(SetTime::To(Time { seconds: 1000 + round, nanoseconds: 0 }));
        let set = SetAttributes { modified, ..SetAttributes::default() };
        member.cached.set_attributes(&by, &file, &set).await.unwrap();
        let made = format!("made{round}");
        member.cached.create(&by, &member.root, made.as_bytes(), true, &SetAttributes::default()).await.unwrap();
        for node in 1..=3 {
            let member = cluster.node(node);
            let mut told = std::collections::BTreeMap::new();
            let mut cookie = 0;
            loop {
                let from = cookie;
                let mut sink = |entry: forebay_node::source::DirectoryEntry<forebay_node::source::File>| {
                    cookie = entry.cookie;
                    let Some(Ok(forebay_node::source::EntryObject::Told { attributes, .. })) = entry.file else {
                        panic!("{entry:?}")
                    };
                    told.insert(entry.name.clone(), attributes.modified.seconds);
                    std::ops::ControlFlow::Continue(())
                };
                let ended = member
                    .cached
                    .read_directory(&by, &member.root, from, (1000, 64 << 10), true, &mut sink)
                    .await
                    .unwrap();
                if ended {
                    break;
                }
            }
            assert_eq!(told.get(name.as_bytes()), Some(&(1000 + round)), "round {round} at {node}");
            assert_eq!(told.len(), 50 + round as usize + 1, "round {round} at {node}");
        }
    }
}

/// A node that can ask neither the others nor the source tells what it knows only where its export says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_cut_off_tells_what_it_knows_only_if_it_is_to() {
    for (on_partition, serves) in [(OnPartition::Refuse, false), (OnPartition::Serve, true)] {
        let base = options(Consistency::CloseToOpen);
        let policy = Policy { on_partition, ..base.policy };
        let cluster = Cluster::start(3, CachedOptions { policy, ..base }).await;
        cluster.write_file("file", b"12345678");
        let (by, member) = (superuser(), cluster.node(1));
        let file = member.cached.lookup(&by, &member.root, b"file").await.unwrap();
        member.cached.read(&by, &file, 0, 8).await.unwrap();
        cluster.net.cut_off(member.id);
        // Until its own lease, and whatever others let it believe, is over.
        tokio::time::sleep(std::time::Duration::from_secs(4)).await;
        cluster.upstream.down.store(true, Ordering::Relaxed);
        let read = member.cached.read(&by, &file, 0, 8).await.map(|(bytes, _)| bytes);
        assert_eq!(read.is_ok(), serves, "{on_partition:?}: {read:?}");
        cluster.upstream.down.store(false, Ordering::Relaxed);
        let read = member.cached.read(&by, &file, 0, 8).await.unwrap();
        assert_eq!(&read.0[..], b"12345678", "the source alone is enough to read");
        cluster.net.heal();
    }
}
