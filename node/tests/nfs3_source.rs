//! The NFSv3 source against a server in this process, which loses, stalls and changes things meanwhile.
#![allow(clippy::unwrap_used, reason = "in a test, failing where one stands is what is wanted")]
#![allow(clippy::result_large_err, reason = "the server's results are those of the wire, attributes included")]

#[path = "nfs3_source/methods.rs"]
mod methods;
#[path = "nfs3_source/ordering.rs"]
mod ordering;
#[path = "nfs3_source/real.rs"]
mod real;
#[path = "nfs3_source/recovery.rs"]
mod recovery;
#[path = "nfs3_source/server.rs"]
mod server;
#[path = "nfs3_source/tree.rs"]
mod tree;

use std::{sync::Arc, time::Duration};

use forebay_node::source::{
    Credentials, ObjectId,
    counters::SourceCounters,
    nfs3::{Nfs3Options, Nfs3Source},
    remote::{Health, OnBehalf, Place, Purpose, RemoteSource, Want},
};
use server::Server;

/// A server and a source that reaches it.
struct Bench {
    server: Server,
    source: Arc<Nfs3Source>,
}

impl Bench {
    async fn new() -> Self {
        Self::with(|_| (), |_| ()).await
    }

    async fn with(manners: impl FnOnce(&mut tree::Manners), change: impl FnOnce(&mut Nfs3Options)) -> Self {
        let server = Server::start().await;
        manners(&mut server.tree.lock().manners);
        let source = connect(server.address.port(), change);
        up(&source).await;
        Self { server, source }
    }

    async fn root(&self) -> ObjectId {
        self.source.root(&user(0)).await.unwrap().id
    }

    async fn find(&self, dir: ObjectId, name: &str) -> ObjectId {
        let place = Place::Name(dir, name.as_bytes().to_vec().into());
        self.source.look(&user(0), &place, Want::default()).await.unwrap().object.unwrap().id
    }
}

fn connect(port: u16, change: impl FnOnce(&mut Nfs3Options)) -> Arc<Nfs3Source> {
    let mut options = Nfs3Options::new("127.0.0.1", "/data");
    (options.port, options.mount_port) = (Some(port), Some(port));
    options.call_timeout = Duration::from_secs(3);
    options.reserved_port = false;
    change(&mut options);
    Nfs3Source::connect(options, Arc::new(SourceCounters::new("nfs3://x/data")))
}

/// A user for whom a client waits.
fn user(uid: u32) -> OnBehalf {
    OnBehalf { user: Credentials { uid, gid: uid, groups: [].into() }, purpose: Purpose::Client }
}

/// Bytes that tell where they are from.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes()).take(length).collect()
}

async fn up(source: &Nfs3Source) {
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
