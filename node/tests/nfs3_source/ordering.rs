//! Attributes that come with data or names are from before them, whoever changes things meanwhile.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use forebay_node::source::{
    SourceError,
    remote::{Place, RemoteSource, Want},
};
use forebay_proto::nfs3::{Lookup, Procedure, Read, ReadDirPlus};
use parking_lot::Mutex;

use crate::{Bench, pattern, user};

/// A generator whose seed is printed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// What each version of the file had as its change attribute, by its first byte.
type Versions = Arc<Mutex<HashMap<u8, u64>>>;

/// Between a READ and its attributes the file is written, more or less often; data is told under a version that is not
/// newer than it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_is_never_older_than_the_version_it_is_told_under() {
    let seed = 0x0bad_cafe_u64;
    println!("seed {seed:#x}");
    for (percent, pieces) in [(0, false), (30, false), (30, true), (100, false), (100, true)] {
        let bench = Bench::with(
            |manners| {
                if pieces {
                    manners.read_max = 512
                }
            },
            |_| (),
        )
        .await;
        let id = bench.server.tree.lock().put("file", &[0; 2000]);
        let versions = Versions::default();
        let change = move |tree: &crate::tree::Tree| {
            let changed = tree.fattr(id).unwrap().changed;
            u64::from(changed.seconds) * 1_000_000_000 + u64::from(changed.nanoseconds)
        };
        versions.lock().insert(0, change(&bench.server.tree.lock()));
        let (seen, mut version, mut random) = (versions.clone(), 0_u8, Random(seed));
        let writes = Arc::new(AtomicUsize::new(0));
        let wrote = writes.clone();
        bench.server.tree.lock().meanwhile = Some(Box::new(move |tree, procedure| {
            if procedure == Read::NUMBER && random.below(100) < percent && version < 250 {
                version += 1;
                tree.overwrite(id, &[version; 2000]);
                seen.lock().insert(version, change(tree));
                wrote.fetch_add(1, Ordering::Relaxed);
            }
        }));
        let (root, by) = (bench.root().await, user(0));
        let file = bench.find(root, "file").await;
        for round in 0..40 {
            let (attributes, data) = if round % 2 == 0 {
                let read = bench.source.read(&by, &file, 0, 2000).await.unwrap();
                (read.attributes, read.data)
            } else {
                let place = Place::Name(root, Bytes::from_static(b"file"));
                let want = Want { access: true, read: 500, open: false };
                let object = bench.source.look(&by, &place, want).await.unwrap().object.unwrap();
                (object.attributes, object.data.unwrap())
            };
            for byte in data.bytes.iter() {
                let of_data = versions.lock()[byte];
                assert!(of_data >= attributes.change, "{percent}% round {round}: {of_data} < {}", attributes.change);
            }
        }
        let writes = writes.load(Ordering::Relaxed);
        println!("{percent}% pieces {pieces}: {} READs, {writes} writes", bench.server.calls_of(Read::NUMBER));
        assert_eq!(writes > 0, percent > 0);
        // Under a writer that never rests a read is made three times, and no more.
        let per_call = if pieces { 4 } else { 1 };
        assert!(bench.server.calls_of(Read::NUMBER) <= 40 * 3 * per_call);
    }
}

/// A name is made between its LOOKUP and the directory's attributes: "no such name" is told of the directory before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_such_name_is_told_of_the_directory_as_it_was_before() {
    let bench = Bench::new().await;
    let (root, by) = (bench.root().await, user(0));
    let before = bench.source.root(&by).await.unwrap().attributes.change;
    bench.server.tree.lock().meanwhile = Some(Box::new(|tree, procedure| {
        if procedure == Lookup::NUMBER && tree.named("late").is_none() {
            tree.put("late", b"");
        }
    }));
    let place = Place::Name(root, Bytes::from_static(b"late"));
    let seen = bench.source.look(&by, &place, Want::default()).await.unwrap();
    let told = seen.directory.unwrap().change;
    match seen.object {
        // Asked again, since the directory had changed.
        Ok(_) => assert!(told > before),
        Err(SourceError::Errno(libc::ENOENT)) => assert_eq!(told, before),
        Err(other) => panic!("{other}"),
    }
    assert_eq!(bench.server.calls_of(Lookup::NUMBER), 2);
    // One that is never there while the directory changes all the time: the older attributes are told in the end.
    let mut number = 0;
    bench.server.tree.lock().meanwhile = Some(Box::new(move |tree, procedure| {
        if procedure == Lookup::NUMBER {
            number += 1;
            tree.put(&format!("other{number}"), b"");
        }
    }));
    let place = Place::Name(root, Bytes::from_static(b"never"));
    let seen = bench.source.look(&by, &place, Want::default()).await.unwrap();
    let now = bench.source.root(&by).await.unwrap().attributes.change;
    assert!(seen.object.is_err() && seen.directory.unwrap().change < now);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_is_told_of_the_directory_as_it_was_before() {
    let bench = Bench::new().await;
    let (root, by) = (bench.root().await, user(0));
    let mut number = 0;
    bench.server.tree.lock().meanwhile = Some(Box::new(move |tree, procedure| {
        if procedure == ReadDirPlus::NUMBER {
            number += 1;
            tree.put(&format!("n{number}"), b"");
        }
    }));
    for _ in 0..3 {
        let page = bench.source.read_directory(&by, &root, 0, 0, 4096).await.unwrap();
        let now = bench.source.root(&by).await.unwrap().attributes.change;
        assert!(page.directory.change < now, "an entry was made after the listing");
        // One that is listed under these attributes was there when they were taken, or later.
        let all = bench.server.tree.lock().nodes.len() - 1;
        assert!(page.entries.len() < all, "{} of {all}", page.entries.len());
    }
}

/// Attributes remembered from long ago are not told although the server sends none with READ.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_remembered_is_not_told_in_place_of_what_is() {
    let bench = Bench::new().await;
    let id = bench.server.tree.lock().put("file", b"old");
    let (root, by) = (bench.root().await, user(0));
    let file = bench.find(root, "file").await;
    bench.server.tree.lock().overwrite(id, b"newer");
    bench.server.tree.lock().manners.post_attributes = false;
    let read = bench.source.read(&by, &file, 0, 100).await.unwrap();
    assert_eq!((&read.data.bytes[..], read.attributes.size), (&b"newer"[..], 5));
    bench.server.tree.lock().overwrite(id, &pattern(9));
    let seen =
        bench.source.look(&by, &Place::Object(file), Want { access: true, read: 100, open: false }).await.unwrap();
    let object = seen.object.unwrap();
    assert_eq!((object.attributes.size, object.data.unwrap().bytes.len()), (9, 9));
}
