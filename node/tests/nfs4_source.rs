//! The NFSv4 source against a server in this process, through a proxy that delays, cuts, stalls and counts.
#![allow(clippy::unwrap_used, reason = "in a test, failing where one stands is what is wanted")]

#[path = "common/mod.rs"]
#[macro_use]
mod common;

#[path = "nfs4_source/methods.rs"]
mod methods;
#[path = "nfs4_source/proxy.rs"]
mod proxy;
#[path = "nfs4_source/real.rs"]
mod real;
#[path = "nfs4_source/recovery.rs"]
mod recovery;
#[path = "nfs4_source/vectors.rs"]
mod vectors;

use std::{sync::Arc, time::Duration};

use common::{Lab, Running};
use forebay_node::source::{
    Credentials, ObjectId,
    counters::SourceCounters,
    nfs4::{Nfs4Options, Nfs4Source},
    remote::{Health, OnBehalf, Place, Purpose, RemoteSource, Want},
};
use proxy::Proxy;

/// A source, a proxy before it, a client behind that.
struct Bench {
    lab: Lab,
    running: Option<Running>,
    proxy: Proxy,
    source: Arc<Nfs4Source>,
}

impl Bench {
    async fn new() -> Self {
        Self::with(Lab::default(), |_| ()).await
    }

    async fn with(lab: Lab, change: impl FnOnce(&mut Nfs4Options)) -> Self {
        let running = lab.start().await;
        let proxy = Proxy::start(running.address).await;
        let source = connect(&proxy, change);
        up(&source).await;
        Self { lab, running: Some(running), proxy, source }
    }

    /// Another run of the server on what the last one kept.
    async fn restart(&mut self) {
        self.proxy.refuse(true);
        self.proxy.cut();
        self.running.take().unwrap().stop().await;
        let running = self.lab.start().await;
        self.proxy.retarget(running.address);
        self.running = Some(running);
        self.proxy.refuse(false);
    }

    async fn root(&self) -> ObjectId {
        self.source.root(&user(0)).await.unwrap().id
    }

    async fn find(&self, by: &OnBehalf, dir: ObjectId, name: &str) -> ObjectId {
        let place = Place::Name(dir, name.as_bytes().to_vec().into());
        self.source.look(by, &place, Want::default()).await.unwrap().object.unwrap().id
    }
}

fn connect(proxy: &Proxy, change: impl FnOnce(&mut Nfs4Options)) -> Arc<Nfs4Source> {
    let mut options = Nfs4Options::new("127.0.0.1", proxy.address.port(), "/data", "forebay test nfs://x/data");
    options.call_timeout = Duration::from_secs(3);
    options.reserved_port = false;
    change(&mut options);
    Nfs4Source::connect(options, Arc::new(SourceCounters::new("nfs://x/data")))
}

/// A user for whom a client waits.
fn user(uid: u32) -> OnBehalf {
    OnBehalf { user: Credentials { uid, gid: uid, groups: [].into() }, purpose: Purpose::Client }
}

async fn up(source: &Nfs4Source) {
    until("the source is up", || source.health() == Health::Up).await;
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("ten seconds, and not yet: {what}");
}
