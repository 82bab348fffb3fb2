//! Calls that arrive together, with more bytes of replies than a connection lets wait: all are answered, at once.

use std::time::Duration;

use forebay_node::{
    client::{Session, SessionOptions},
    config::{Config, FileConfig, Overrides},
    run,
};
use forebay_proto::nfs4::{
    Component, Op, OpReply, Stateid,
    ops::{lookup::LookupArgs, read::ReadArgs},
};
use futures_util::future::join_all;

const MEGABYTE: u32 = 1 << 20;

/// Any stall in the connection's loop would last until its watch ticks, many seconds later.
const AT_ONCE: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_large_reads_never_stalls() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("large"), vec![7; 4 << 20]).unwrap();
    let flags = Overrides {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        admin: Some("127.0.0.1:0".parse().unwrap()),
        data_dir: Some(directory.path().join(".data")),
        exports: vec![format!("/x=file://{},no_root_squash", directory.path().display())],
        ..Overrides::default()
    };
    let config = Config::resolve(FileConfig::default(), flags).unwrap();
    let metrics = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder().handle();
    let node = run::start(config, metrics).await.unwrap();
    let session = Session::open(&SessionOptions::new(node.nfs, "burst", 0, 0)).await.unwrap();
    let name = |name: &'static str| Op::Lookup(LookupArgs { name: Component::new(name).unwrap() });
    let read = |chunk: u64| {
        let offset = chunk % 4 * u64::from(MEGABYTE);
        let read = Op::Read(ReadArgs { stateid: Stateid::ANONYMOUS, offset, count: MEGABYTE });
        session.call(vec![Op::PutRootFh(()), name("x"), name("large"), read])
    };
    for _ in 0..20 {
        let replies = tokio::time::timeout(AT_ONCE, join_all((0..64).map(read))).await.expect("no stall");
        for reply in replies {
            match reply.unwrap().pop() {
                Some(OpReply::Read(Ok(read))) => assert_eq!(read.data.len(), MEGABYTE as usize),
                other => panic!("{other:?}"),
            }
        }
    }
    session.close().await.unwrap();
    node.drain().await;
}
