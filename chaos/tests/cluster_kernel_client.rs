//! The same checks by a real Linux kernel, of one node of a cluster of three, which owns a third of what it serves: the rest it asks the others.
//! In each test the client's node has another place among them.

#[path = "kernel_client.rs"]
#[allow(dead_code, reason = "the checks are shared with other suites")]
mod checks;

use anyhow::Result;
use checks::{Tree, pair_at, plain_export};
use forebay_chaos::lab::{
    net::Net,
    server::{Behind, Server},
};

/// Locks are the whole cluster's, and what one node's client wrote another's reads: record locks, `flock`, and a database that both change.
/// `FOREBAY_INCREMENTS` says how many times each of them does (500 make a thousand transactions).
#[test]
fn two_clients_of_two_nodes_lock_and_share_a_database() -> Result<()> {
    let net = Net::create()?;
    let tree = Tree::create()?;
    let data = tree.directory("data", 0o777)?;
    let mut server = Server::start_in_cluster(&net, plain_export(&data), 10, Behind::Forebay, 0)?;
    let ports = [server.companion_address(0).port(), server.companion_address(1).port()];
    let increments = std::env::var("FOREBAY_INCREMENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    pair_at(&net, ports, increments)?;
    server.terminate()?;
    Ok(())
}
