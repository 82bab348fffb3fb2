//! One volume, two doors: an S3 server writes into the directory that a file server exports, and a cache in front of that file server
//! shows what was written at once; what is written through the cache, S3 reads.
#![allow(clippy::unwrap_used, reason = "in a test, failing where one stands is what is wanted")]

#[path = "common/mod.rs"]
#[macro_use]
#[allow(unused_macros, unused_imports, reason = "each test file uses what it needs")]
mod common;

use std::{net::SocketAddr, path::Path, sync::Arc};

use bytes::Bytes;
use forebay_node::{
    client::{ReadAt, VectorClient, WriteAt},
    source::Credentials,
};
use hyper_util::rt::{TokioExecutor, TokioIo};

use common::Lab;

/// An S3 server whose buckets are the directories in `root`.
async fn s3(root: &Path) -> SocketAddr {
    let files = s3s_fs::FileSystem::new(root).unwrap();
    let service = s3s::service::S3ServiceBuilder::new(files).build();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service.clone();
            tokio::spawn(async move {
                let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

/// One request; the answer's body. It must go well.
async fn ask(method: &'static str, url: String, body: Bytes) -> String {
    let asked = tokio::task::spawn_blocking(move || {
        let request = minreq::Request::new(minreq::Method::Custom(method.into()), &url);
        request.with_body(body.to_vec()).with_timeout(60).send().unwrap()
    });
    let reply = asked.await.unwrap();
    let text = String::from_utf8_lossy(reply.as_bytes()).into_owned();
    assert!((200..300).contains(&reply.status_code), "{method}: {} {text}", reply.status_code);
    text
}

async fn get(url: String) -> Bytes {
    let asked = tokio::task::spawn_blocking(move || minreq::get(&url).with_timeout(60).send().unwrap());
    let reply = asked.await.unwrap();
    assert_eq!(reply.status_code, 200);
    reply.into_bytes().into()
}

fn pattern(seed: u64, length: usize) -> Bytes {
    let words = (0..length as u64 / 8 + 1)
        .flat_map(|word| (seed << 40 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    words.take(length).collect::<Vec<_>>().into()
}

/// All of a file, read through the cache in calls of 1 MiB.
async fn cat(client: &VectorClient, path: &str, length: usize) -> Bytes {
    let mut all = Vec::new();
    while all.len() < length {
        let read = ReadAt { path: path.into(), offset: all.len() as u64, count: 1 << 20 };
        let part = client.readv(&[read]).await.unwrap().remove(0).unwrap();
        assert!(!part.bytes.is_empty(), "{path} ends at {}", all.len());
        all.extend_from_slice(&part.bytes);
    }
    all.into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_s3_writes_is_read_through_the_cache_at_once_and_the_other_way_round() {
    // The file server, and S3 on its directory.
    let lab = Lab::default();
    std::fs::create_dir(lab.path("bucket")).unwrap();
    let source = lab.start().await;
    let s3 = s3(&lab.path("")).await;
    let url = |key: &str| format!("http://{s3}/bucket/{key}");
    // The cache in front of it, and a client of the cache.
    let cache = common::cache_of(source.address).await;
    let root = Credentials { uid: 0, gid: 0, groups: Arc::from([]) };
    let client = VectorClient::connect("127.0.0.1", cache.address.port(), "/data", root).await.unwrap();

    // One object. Its name was asked for, in vain, just before.
    let missing = client.getattrsv(&["bucket/one"]).await.unwrap().remove(0);
    assert!(missing.is_err());
    ask("PUT", url("one"), pattern(1, 100_000)).await;
    assert!(cat(&client, "bucket/one", 100_000).await == pattern(1, 100_000));

    // 50 MB in parts.
    let large = pattern(2, 50_000_000);
    let begun = ask("POST", url("large?uploads"), Bytes::new()).await;
    let id = begun.split("<UploadId>").nth(1).unwrap().split('<').next().unwrap().to_owned();
    let mut parts = String::new();
    for (number, part) in large.chunks(10 << 20).enumerate() {
        let number = number + 1;
        let part = Bytes::copy_from_slice(part);
        ask("PUT", url(&format!("large?partNumber={number}&uploadId={id}")), part).await;
        parts += &format!("<Part><PartNumber>{number}</PartNumber><ETag>\"{number}\"</ETag></Part>");
    }
    let complete = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    ask("POST", url(&format!("large?uploadId={id}")), complete.into()).await;
    assert!(cat(&client, "bucket/large", large.len()).await == large);

    // A batch of 50, read in as few round trips as the server allows.
    for number in 0..50 {
        ask("PUT", url(&format!("batch-{number}")), pattern(100 + number, 4096)).await;
    }
    let reads: Vec<_> =
        (0..50).map(|number| ReadAt { path: format!("bucket/batch-{number}"), offset: 0, count: 4096 }).collect();
    for (number, read) in client.readv(&reads).await.unwrap().into_iter().enumerate() {
        assert!(read.unwrap().bytes == pattern(100 + number as u64, 4096), "object {number}");
    }

    // And back: written through the cache, read by S3.
    let data = pattern(3, 300_000);
    let write =
        WriteAt { path: "bucket/through".into(), offset: 0, data: data.clone(), create: Some(0o644), sync: true };
    assert_eq!(client.writev(&[write]).await.unwrap().remove(0).unwrap().count as usize, data.len());
    assert!(get(url("through")).await == data);
    client.close().await;
}
