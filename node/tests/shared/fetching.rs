//! Each byte is fetched from the source once, whoever wants it.

use std::sync::{Arc, atomic::Ordering};

use forebay_meta::state::NodeId;
use forebay_node::source::cached::Consistency;

use crate::cluster::{Cluster, options, superuser};

const MIB: usize = 1 << 20;

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[2]).collect()
}

/// All nodes read the file, several readers each, all at once.
async fn read_everywhere(cluster: &Cluster, names: &[&str], length: usize, readers: usize) {
    let whole = Arc::new(content(length));
    let mut tasks = tokio::task::JoinSet::new();
    for member in cluster.members.values() {
        for reader in 0..readers {
            let (cached, root, whole) = (member.cached.clone(), member.root.clone(), whole.clone());
            let name = names[reader % names.len()].to_owned();
            tasks.spawn(async move {
                let by = superuser();
                let file = cached.lookup(&by, &root, name.as_bytes()).await.unwrap();
                let mut at = 0;
                while at < whole.len() {
                    let (bytes, _) = match cached.read_now(&file, at as u64, 256 << 10) {
                        Some(read) => read,
                        None => cached.read(&by, &file, at as u64, 256 << 10).await.unwrap(),
                    };
                    assert!(!bytes.is_empty() && bytes[..] == whole[at..at + bytes.len()], "at {at}");
                    at += bytes.len();
                }
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_read_each_byte_once() {
    let cluster = Cluster::start(3, options(Consistency::CloseToOpen)).await;
    let length = 80 * MIB + 12345;
    cluster.write_file("large", &content(length));
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    read_everywhere(&cluster, &["large"], length, 3).await;
    let read = cluster.upstream.read_bytes.swap(0, Ordering::Relaxed);
    println!("cold: {:.3} source bytes per byte", read as f64 / length as f64);
    assert_eq!(read, length as u64, "cold");
    read_everywhere(&cluster, &["large"], length, 3).await;
    assert_eq!(cluster.upstream.read_bytes.load(Ordering::Relaxed), 0, "warm");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_joins_asks_who_was_there_before_it() {
    let mut cluster = Cluster::start(2, options(Consistency::CloseToOpen)).await;
    let length = 40 * MIB;
    let names = ["a", "b", "c", "d"];
    names.iter().for_each(|name| cluster.write_file(name, &content(length)));
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    read_everywhere(&cluster, &names, length, 4).await;
    assert_eq!(cluster.upstream.read_bytes.swap(0, Ordering::Relaxed), (names.len() * length) as u64);
    cluster.join(NodeId(3), options(Consistency::CloseToOpen)).await;
    cluster.settled().await;
    read_everywhere(&cluster, &names, length, 4).await;
    let read = cluster.upstream.read_bytes.load(Ordering::Relaxed);
    println!("after a join: {:.3} source bytes per byte", read as f64 / (names.len() * length) as f64);
    assert_eq!(read, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_node_had_is_read_from_the_source_without_delay() {
    let mut cluster = Cluster::start(3, options(Consistency::CloseToOpen)).await;
    let length = 70 * MIB;
    cluster.write_file("large", &content(length));
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    cluster.kill(NodeId(2));
    let began = std::time::Instant::now();
    read_everywhere(&cluster, &["large"], length, 2).await;
    let took = began.elapsed();
    println!("read past a dead node in {took:?}");
    assert!(took < std::time::Duration::from_secs(8), "{took:?}");
    cluster.settled().await;
    read_everywhere(&cluster, &["large"], length, 2).await;
}
