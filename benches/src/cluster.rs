//! Three nodes in front of one source: what a byte costs that another node has in memory, beside one that is in this node's own.
//!
//! Files of one owner each are read at one node, so that every owner has its own in memory; then at another, once: there some files are its own
//! and the others come from peers, file by file in turn, so that both meet the same machine.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};

use crate::{
    counted::Counted,
    load::{self, Plan},
    process::{Scratch, process_cpu},
    servers::{EXPORT, Server},
    tree::write_file,
    works::Kind,
};

/// The source's clock must have moved on before what it says of its files can be told from later changes.
const SETTLE: Duration = Duration::from_millis(2500);
/// Owners that have just begun wait for those before them.
const RING: Duration = Duration::from_secs(5);
/// Bytes of a file: one stripe, so one owner.
const FILE: u64 = 32 << 20;

/// Measures and prints.
///
/// # Errors
/// When a node does not start, or fails an operation.
pub fn run(files: usize) -> Result<()> {
    let tree = Scratch::new(Path::new("/dev/shm"))?;
    let names: Vec<String> = (0..files).map(|file| format!("file-{file:03}")).collect();
    names.iter().try_for_each(|name| write_file(&tree.path().join(name), FILE))?;
    std::thread::sleep(SETTLE);
    let source = Server::forebay(tree.path())?;
    let nodes = Server::cluster(source.address, 3, (3 * (files as u64 * FILE) / 2 + (512 << 20)).to_string())?;
    std::thread::sleep(RING);
    let plan = |node: &Server, name: &str| Plan {
        server: node.address,
        path: format!("{EXPORT}/{name}"),
        work: Kind::SequentialRead,
        connections: 1,
        depth: None,
        time: Duration::from_secs(1),
        verify: false,
        server_pid: None,
    };
    for name in &names {
        load::once(&plan(&nodes[0], name))?;
    }
    let before = read_bytes(&source)?;
    let (mut local, mut remote) = (Vec::new(), Vec::new());
    for name in &names {
        let (cpu, peer) = (cpu(&nodes)?, from_peers(&nodes[1])?);
        let tally = load::once(&plan(&nodes[1], name))?;
        let peer = from_peers(&nodes[1])? - peer;
        let one = (tally.bytes as f64 / tally.elapsed.as_secs_f64(), cpu_since(&nodes, cpu)? / tally.bytes as f64);
        // A few bytes may come along with an OPEN.
        if peer > 0.9 * FILE as f64 { remote.push(one) } else { local.push(one) }
    }
    let after = read_bytes(&source)?;
    ensure!(!local.is_empty() && !remote.is_empty(), "{} local and {} remote files", local.len(), remote.len());
    let gib = f64::from(1 << 30);
    let (own, far) = (summed(&mut local), summed(&mut remote));
    println!(
        "{} files of 32 MiB that are this node's, {} of other nodes'; the source gave {} bytes",
        local.len(),
        remote.len(),
        after - before
    );
    println!(
        "sequential read   own {:6.2} GiB/s   other nodes' {:6.2} GiB/s   {:.2} (held to: 0.6)",
        own.0 / gib,
        far.0 / gib,
        far.0 / own.0
    );
    println!(
        "CPU of all nodes  own {:6.2} s/GiB   other nodes' {:6.2} s/GiB   {:.2} (held to: 1.7)",
        own.1 * gib,
        far.1 * gib,
        far.1 / own.1
    );
    Ok(())
}

fn cpu(nodes: &[Server]) -> Result<f64> {
    nodes.iter().map(|node| Ok(process_cpu(node.pid())?.as_secs_f64())).sum()
}

fn cpu_since(nodes: &[Server], before: f64) -> Result<f64> {
    Ok(cpu(nodes)? - before)
}

fn counted(server: &Server) -> Result<Counted> {
    Counted::read(server.admin.context("a Forebay has an admin port")?)
}

fn from_peers(node: &Server) -> Result<f64> {
    Ok(counted(node)?.sum("forebay_read_bytes_total", "tier=\"peer\""))
}

fn read_bytes(source: &Server) -> Result<f64> {
    Ok(counted(source)?.sum("forebay_nfs_read_bytes_total", ""))
}

/// The middle rate; and what all of them took together, since processor time is counted in hundredths of a second.
fn summed(measured: &mut [(f64, f64)]) -> (f64, f64) {
    measured.sort_by(|a, b| a.0.total_cmp(&b.0));
    let cpu = measured.iter().map(|(_, cpu)| cpu).sum::<f64>() / measured.len() as f64;
    (measured[measured.len() / 2].0, cpu)
}
