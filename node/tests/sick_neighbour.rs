//! A source that does not answer hinders only those who ask it: other exports go on, also on the same connection.
#![allow(clippy::unwrap_used, reason = "in a test, failing where one stands is what is wanted")]

#[path = "common/mod.rs"]
#[macro_use]
mod common;

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use forebay_node::{
    client::{Session, SessionOptions},
    source::cached::CachedOptions,
};
use forebay_proto::nfs4::{Attr, Status};

use common::{Lab, done, ops::*, status, trusting};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_calls_that_wait_for_one_source_do_not_hold_up_another() {
    let exports = vec![("/sick", trusting()), ("/well", trusting())];
    let lab = Lab::new(exports).cached(CachedOptions::default());
    for number in 0..100 {
        std::fs::write(lab.path(&format!("file-{number}")), "x").unwrap();
    }
    let running = lab.start().await;
    // More slots than calls: a client whose slots all wait cannot ask for anything else.
    let options = SessionOptions { slots: 128, ..running.options("a", 0) };
    let session = Arc::new(Session::open(&options).await.unwrap());
    done(&session, at_then("sick", [getattr(&[Attr::Size])])).await;
    done(&session, at_then("well", [getattr(&[Attr::Size])])).await;

    let sick = &running.upstreams[0];
    sick.delay_us.store(3_000_000, Ordering::Relaxed);
    let waiting: Vec<_> = (0..100)
        .map(|number| {
            let session = session.clone();
            tokio::spawn(async move {
                status(&session, at_then(&format!("sick/file-{number}"), [getattr(&[Attr::Size])])).await
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let began = Instant::now();
    for number in 0..10 {
        let name = format!("new-{number}");
        done(&session, at_then("well", [create("o", &name, BOTH)])).await;
    }
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    for call in waiting {
        assert_eq!(call.await.unwrap(), Status::Ok);
    }
}
