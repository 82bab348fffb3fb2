//! Somebody between two nodes who changes, repeats and replays what they say.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use forebay_node::peer::{Fetched, PeerError, PeerServerOptions};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::common::{CLIENT, Cluster, EPOCH, LONG, Node, Provider, Raw, SERVER, ask, fetch, one_connection, until};

/// What is done to bytes on their way to the node.
type Tamper = Arc<Mutex<dyn FnMut(&mut Vec<u8>) + Send>>;

/// Passes connections on to `to`; what goes there is kept, and changed.
async fn between(to: SocketAddr, tamper: Tamper) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, seen) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let keeping = seen.clone();
    tokio::spawn(async move {
        while let Ok((from, _)) = listener.accept().await {
            let (tamper, keeping) = (tamper.clone(), keeping.clone());
            let (mut from_read, mut from_write) = from.into_split();
            let (mut to_read, mut to_write) = TcpStream::connect(to).await.unwrap().into_split();
            tokio::spawn(async move { tokio::io::copy(&mut to_read, &mut from_write).await });
            tokio::spawn(async move {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(count @ 1..) = from_read.read(&mut buffer).await {
                    let mut bytes = buffer[..count].to_vec();
                    keeping.lock().extend_from_slice(&bytes);
                    tamper.lock()(&mut bytes);
                    if to_write.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, seen)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_said_once_says_nothing_the_second_time() {
    let cluster = Cluster::new();
    let provider = Provider::full();
    let node = Node::start(cluster.node(SERVER), provider.clone(), PeerServerOptions::default()).await;
    let (address, seen) = between(node.address, Arc::new(Mutex::new(|_: &mut Vec<u8>| {}))).await;
    let asked = ask(cluster.node(CLIENT), address, one_connection());
    assert!(matches!(asked.peer.fetch(EPOCH, fetch(0, 0, 10), LONG).await, Ok(Fetched::Data { .. })));
    asked.peer.close().await;
    let begun = provider.begun();
    let said = seen.lock().clone();
    assert!(said.len() > 500, "a handshake with a certificate, and a request");
    let mut stream = TcpStream::connect(node.address).await.unwrap();
    let _ = stream.write_all(&said).await;
    Raw::new(stream).closed().await;
    node.counted.until("forebay_peer_refused_total{reason=\"certificate\"}", |count| count == 1.0).await;
    assert_eq!(provider.begun(), begun, "nothing was asked");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_changed_or_repeated_on_the_way_ends_the_connection() {
    for repeat in [false, true] {
        let cluster = Cluster::new();
        let provider = Provider::full();
        let node = Node::start(cluster.node(SERVER), provider.clone(), PeerServerOptions::default()).await;
        let armed = Arc::new(Mutex::new(false));
        let tamper = {
            let armed = armed.clone();
            move |bytes: &mut Vec<u8>| {
                if !std::mem::take(&mut *armed.lock()) {
                } else if repeat {
                    let again = bytes.clone();
                    bytes.extend(again);
                } else {
                    let middle = bytes.len() / 2;
                    bytes[middle] ^= 1;
                }
            }
        };
        let (address, _) = between(node.address, Arc::new(Mutex::new(tamper))).await;
        let asked = ask(cluster.node(CLIENT), address, one_connection());
        assert!(matches!(asked.peer.fetch(EPOCH, fetch(0, 0, 10), LONG).await, Ok(Fetched::Data { .. })));
        *armed.lock() = true;
        let told = asked.peer.fetch(EPOCH, fetch(1, 0, 10), LONG).await;
        // A request that went through before its double ended the connection may have been answered.
        assert!(repeat || told == Err(PeerError::Lost), "{told:?}");
        node.counted.until("forebay_peer_refused_total{reason=\"protocol\"}", |count| count == 1.0).await;
        assert!(provider.begun() <= 2, "nothing was asked twice");
        until(|| asked.peer.is_up()).await;
        let after = tokio::time::timeout(LONG, async {
            while !matches!(asked.peer.fetch(EPOCH, fetch(2, 0, 10), LONG).await, Ok(Fetched::Data { .. })) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        after.await.expect("the next connection is a good one");
        node.stop().await;
    }
}
