//! The same checks of a cache whose source is a real kernel NFS server, which runs in a guest of its own.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use forebay_chaos::lab::kernel_client::{Guest, KernelClient};
use forebay_chaos::lab::net::Net;
use forebay_chaos::lab::server::{Behind, Export, Server};

use super::checks::{COMMITS, FILES, WRITER, client, judge, more_acknowledged, pair, start_behind, workloads};

const NFSD_TREE: &str = include_str!("../guest/nfsd-tree.sh");

#[test]
fn files_and_their_attributes_of_a_kernel_server() -> Result<()> {
    let net = Net::create()?;
    let (source, total) = boot(&net, "files")?;
    let export = |name, options| Export { name, directory: "/".into(), options };
    let exports = vec![
        export("/data", "rw,no_root_squash"),
        export("/squash", "rw"),
        export("/anon", "rw,all_squash,anonuid=4000,anongid=4001"),
        export("/ro", "ro,no_root_squash"),
        export("/elsewhere", "rw,192.0.2.0/24"),
    ];
    let server = start_behind(&net, exports, below(&source))?;
    let guest = client(&net, FILES).variable("HOST_TOTAL", total).variable("XATTRS", "yes");
    judge("client", guest.limit(Duration::from_secs(240)).run(&net)?)?;
    end(server, source).map(drop)
}

#[test]
fn directories_git_and_fio_of_a_kernel_server() -> Result<()> {
    let net = Net::create()?;
    let (source, _) = boot(&net, "crowd")?;
    let server = serve_data(&net, &source)?;
    workloads(&net, COMMITS)?;
    end(server, source).map(drop)
}

#[test]
fn two_clients_lock_and_share_a_database_of_a_kernel_server() -> Result<()> {
    let net = Net::create()?;
    let (source, _) = boot(&net, "share")?;
    let server = serve_data(&net, &source)?;
    pair(&net)?;
    end(server, source).map(drop)
}

#[test]
fn a_writer_outlives_its_server_and_the_kernel_server_behind_it() -> Result<()> {
    let net = Net::create()?;
    let (mut source, _) = boot(&net, "restart")?;
    let mut server = serve_data(&net, &source)?;
    let mut guest = client(&net, WRITER).variable("VERSION", "4.2").limit(Duration::from_secs(240)).boot(&net)?;
    more_acknowledged(&mut guest, 20)?;
    for turn in 1..=2 {
        source.signal(&format!("restart-{turn}"))?;
        source.wait_for(&format!("MARK down-{turn}"))?;
        source.signal(&format!("start-{turn}"))?;
        source.wait_for(&format!("MARK up-{turn}"))?;
        more_acknowledged(&mut guest, 20)?;

        server.kill9()?;
        std::thread::sleep(Duration::from_secs(1));
        server.restart()?;
        more_acknowledged(&mut guest, 20)?;
    }
    guest.signal("stop")?;
    let outcome = guest.wait()?;
    let lines = outcome.output.lines().filter(|line| line.starts_with("acked ")).count();
    judge("writer", outcome)?;
    let said = end(server, source)?;
    ensure!(said.contains(&format!("MARK lines {lines}\n")), "{lines} lines were acknowledged; the source:\n{said}");
    Ok(())
}

/// A kernel server with a task; returns it when it serves, and how many bytes its file system has.
fn boot<'net>(net: &'net Net, task: &str) -> Result<(Guest<'net>, String)> {
    let guest = KernelClient::new(NFSD_TREE).variable("TASK", task).variable("COMMITS", COMMITS);
    let mut source = guest.memory_mb(384).limit(Duration::from_secs(300)).boot(net)?;
    let line = source.wait_for("MARK total ")?;
    Ok((source, line.rsplit(' ').next().unwrap_or_default().to_owned()))
}

fn below(source: &Guest<'_>) -> Behind {
    Behind::Below(SocketAddr::from((source.address(), 2049)))
}

fn serve_data<'net>(net: &'net Net, source: &Guest<'_>) -> Result<Server<'net>> {
    let export = Export { name: "/data", directory: "/".into(), options: "rw,no_root_squash" };
    start_behind(net, vec![export], below(source))
}

/// Ends the cache and then its source; returns what the source said.
fn end(mut server: Server<'_>, source: Guest<'_>) -> Result<String> {
    server.terminate()?;
    source.signal("end")?;
    let outcome = source.wait()?;
    let said = outcome.output.clone();
    judge("source", outcome)?;
    Ok(said)
}
