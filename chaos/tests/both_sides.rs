//! A cache in front of a real kernel NFS server (nfsd on a tmpfs, in a guest), with a real kernel client, while others change the same
//! files at the source: afterwards both sides have the same bytes, and what is new at the source is there at once.

use anyhow::{Result, ensure};
use forebay_chaos::lab::kernel_client::{Guest, KernelClient};
use forebay_chaos::lab::net::Net;
use forebay_chaos::lab::server::{Behind, Export, Server};
use std::net::SocketAddr;
use std::time::Duration;

const NFSD: &str = include_str!("guest/nfsd.sh");
const THROUGH: &str = include_str!("guest/through.sh");
const CHURN: &str = include_str!("guest/churn.py");
/// Random changes on each side; `FOREBAY_LAB_CHANGES` asks for more.
const CHANGES: u32 = 300;
/// Windows short enough to wait for: afterwards nothing older may be seen.
const OPTIONS: &str = "acregmin=1,acregmax=2,acdirmin=1,acdirmax=2";
/// The client's own window, the cache's, and what a coarse clock at the source adds.
const WINDOWS: Duration = Duration::from_secs(8);

#[test]
fn a_kernel_server_changed_on_both_sides() -> Result<()> {
    let net = Net::create()?;
    let limit = Duration::from_secs(240);
    let changes = std::env::var("FOREBAY_LAB_CHANGES").ok().and_then(|text| text.parse().ok()).unwrap_or(CHANGES);
    let boot = |script: &str, memory| {
        let guest = KernelClient::new(script).variable("SERVER", net.server_address()).variable("CHANGES", changes);
        guest.file("churn.py", CHURN).memory_mb(memory).limit(limit).boot(&net)
    };
    let mut source = boot(NFSD, 320)?;
    source.wait_for("MARK serving")?;
    let behind = Behind::At(SocketAddr::from((source.address(), 2049)));
    let export = Export { name: "/data", directory: "/".into(), options: "rw,no_root_squash" };
    let mut server = Server::start_behind(&net, vec![export], 10, behind, OPTIONS)?;
    let mut client = boot(THROUGH, 256)?;
    client.wait_for("MARK ready")?;

    both(&mut source, &mut client, "churn", "churned")?;
    source.signal("fresh")?;
    client.signal("fresh")?;
    for number in 1..=20 {
        source.wait_for(&format!("MARK fresh-{number}"))?;
        client.signal(&format!("made-{number}"))?;
        client.wait_for(&format!("MARK seen-{number}"))?;
        source.signal(&format!("seen-{number}"))?;
    }
    std::thread::sleep(WINDOWS);
    both(&mut source, &mut client, "digest", "digested")?;
    source.signal("end")?;

    let (there, here) = (source.wait()?, client.wait()?);
    let digests = |output: &str| -> Vec<String> {
        output.lines().filter(|line| line.starts_with("DIGEST")).map(str::to_owned).collect()
    };
    println!("--- the client:\n{}--- the source:\n{}", here.output, there.output);
    ensure!(here.status == 0, "the client's checks failed");
    let (there, here) = (digests(&there.output), digests(&here.output));
    ensure!(there.len() >= 4, "only {} files are no test", there.len());
    ensure!(there == here, "at the source:\n{}\nthrough the cache:\n{}", there.join("\n"), here.join("\n"));
    server.terminate()?;
    Ok(())
}

fn both(source: &mut Guest, client: &mut Guest, order: &str, done: &str) -> Result<()> {
    source.signal(order)?;
    client.signal(order)?;
    source.wait_for(&format!("MARK {done}"))?;
    client.wait_for(&format!("MARK {done}"))?;
    Ok(())
}
