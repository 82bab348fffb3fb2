//! The demo with several nodes: a source, nodes that form a cluster, one address that spreads clients over them.

use std::{
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tokio::net::{TcpListener, TcpStream};

use super::{Arguments, LOOPBACK, driver::Driver, nodes::Process};
use crate::admin::Status;

/// Clients, over all nodes.
const CLIENTS: usize = 30;
/// How long nodes may take to find together and to be sure of what is theirs.
const TOGETHER: Duration = Duration::from_secs(30);
/// Owners that have just begun wait for those that owned before them.
const SETTLED: Duration = Duration::from_secs(4);

/// Runs it.
pub(super) async fn show(arguments: &Arguments, tree: &Path, place: &Path) -> anyhow::Result<()> {
    let (_source, wire) = super::start_source(arguments, tree, place).await?;
    let nodes = start_nodes(arguments, place, wire)?;
    let address = balance(arguments.listen, nodes.iter().map(|node| node.nfs).collect()).await?;
    println!("  {:<22} {address}, spreads connections over the nodes", "balancer");
    println!();
    let unique = u64::from(arguments.megabytes) << 20;
    pass("cold: every client reads the whole file through the balancer", &nodes, (address, unique), arguments).await?;
    pass("warm: the same again", &nodes, (address, unique), arguments).await?;
    let mut nodes = nodes;
    let gone = nodes.pop().context("there are nodes")?;
    println!("\n  node {} is killed with -9", gone.nfs);
    drop(gone);
    let address = balance(LOOPBACK, nodes.iter().map(|node| node.nfs).collect()).await?;
    wait_for_ring(&nodes, nodes.len())?;
    pass(
        "without it: the others go on, and ask the source for what it had alone",
        &nodes,
        (address, unique),
        arguments,
    )
    .await?;
    if arguments.keep {
        println!("\nThe cluster is at {address} until Ctrl-C:");
        println!("  mount -t nfs -o vers=4.2,hard,port={} {}:/demo /mnt", address.port(), address.ip());
        for node in &nodes {
            println!("  forebay status --admin {}", node.admin);
        }
        tokio::signal::ctrl_c().await?;
    }
    Ok(())
}

fn start_nodes(arguments: &Arguments, place: &Path, wire: SocketAddr) -> anyhow::Result<Vec<Process>> {
    let token = place.join("token");
    std::fs::write(&token, uuid::Uuid::new_v4().to_string())?;
    let at = |node: usize, port: u16| SocketAddr::from(([127, 0, 1, 1 + node as u8], port));
    // Ports that are free now, the same for each node on an address of its own.
    let (control, peer) = (super::nodes::free_port()?, super::nodes::free_port()?);
    let seeds: Vec<String> = (0..arguments.nodes).map(|node| at(node, control).to_string()).collect();
    let ram = (u64::from(arguments.megabytes) << 20) + super::ROOM;
    let mut nodes = Vec::new();
    for node in 0..arguments.nodes {
        let store = place.join(format!("cache-{node}"));
        let parts = [
            ["--cluster", "demo"].map(str::to_owned),
            ["--join".to_owned(), seeds.join(",")],
            ["--bootstrap-expect".to_owned(), arguments.nodes.to_string()],
            ["--token-file".to_owned(), token.display().to_string()],
            ["--control".to_owned(), at(node, control).to_string()],
            ["--peer".to_owned(), at(node, peer).to_string()],
            ["--export".to_owned(), format!("/demo=nfs://{wire}/demo,no_root_squash")],
            ["--ram-cache".to_owned(), ram.to_string()],
            ["--cache".to_owned(), store.display().to_string()],
            ["--cache-size".to_owned(), (2 * ram).to_string()],
        ];
        let home = place.join(format!("node-{node}"));
        nodes.push(Process::spawn(SocketAddr::from(([127, 0, 1, 1 + node as u8], 0)), &home, &parts.concat())?);
    }
    for node in &mut nodes {
        node.wait()?;
    }
    wait_for_ring(&nodes, arguments.nodes)?;
    for node in &nodes {
        println!("  {:<22} {} (status: forebay status --admin {})", "node", node.nfs, node.admin);
    }
    Ok(nodes)
}

/// Until all nodes own files, and nobody who owned them before is believed any more.
fn wait_for_ring(nodes: &[Process], members: usize) -> anyhow::Result<()> {
    let begun = Instant::now();
    let there = |node: &Process| {
        let asked = minreq::get(format!("http://{}/status", node.admin)).with_timeout(2).send().ok()?;
        let status: Status = serde_json::from_str(asked.as_str().ok()?).ok()?;
        Some(status.members?.ring_members)
    };
    while !nodes.iter().all(|node| there(node) == Some(members)) {
        anyhow::ensure!(begun.elapsed() < TOGETHER, "the nodes do not find together");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(SETTLED);
    Ok(())
}

/// One address for all nodes, as a network load balancer has: each connection goes to the next node.
async fn balance(listen: SocketAddr, nodes: Vec<SocketAddr>) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(listen).await.context("an address for the balancer")?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        for node in nodes.iter().cycle() {
            let Ok((mut near, _)) = listener.accept().await else { return };
            let node = *node;
            tokio::spawn(async move {
                let Ok(mut far) = TcpStream::connect(node).await else { return };
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                // Whichever end goes first ends it.
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    Ok(address)
}

/// All clients read the whole file at once; what that took, and from whom.
async fn pass(
    what: &str,
    nodes: &[Process],
    (address, unique): (SocketAddr, u64),
    arguments: &Arguments,
) -> anyhow::Result<()> {
    println!("{what}");
    let before: Vec<_> = nodes.iter().map(Process::served).collect::<anyhow::Result<_>>()?;
    let begun = Instant::now();
    let megabytes = u64::from(arguments.megabytes);
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        clients.spawn(async move {
            let driver = Driver::connect_as(address, &format!("forebay-demo-{client}")).await?;
            let root = driver.handle(&[b"demo"]).await?;
            let large = driver.open(&root, b"large", false).await?;
            driver.read(&large, megabytes).await?;
            driver.close(&large).await?;
            driver.leave().await
        });
    }
    while let Some(done) = clients.join_next().await {
        done.context("a client failed")??;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let read = CLIENTS as f64 * unique as f64;
    println!(
        "  {CLIENTS} clients read {:.1} GiB in {seconds:.1} s, {:.0} MiB/s",
        read / (1 << 30) as f64,
        read / seconds / (1 << 20) as f64
    );
    let mut from_source = 0.0;
    for (node, before) in nodes.iter().zip(before) {
        let after = node.served()?;
        let mib = |bytes: f64| bytes / (1 << 20) as f64;
        let source = after.source - before.source;
        from_source += source;
        println!(
            "  node {:<18} RAM {:>6.0} MiB   NVMe {:>5.0} MiB   other nodes {:>5.0} MiB   source {:>5.0} MiB",
            node.nfs.to_string(),
            mib(after.ram - before.ram),
            mib(after.nvme - before.nvme),
            mib(after.peer - before.peer),
            mib(source),
        );
    }
    println!("  source bytes per unique byte: {:.2}", from_source / unique as f64);
    Ok(())
}
