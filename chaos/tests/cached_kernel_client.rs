//! The same checks by a real Linux kernel once more, of a Forebay that has all its files from another file server and caches them; and
//! what a client sees of a source that goes away.

#[path = "kernel_client.rs"]
mod checks;
#[path = "cached_kernel_client/kernel_server.rs"]
mod kernel_server;

use std::{fs, time::Duration};

use anyhow::{Result, ensure};
use checks::{Tree, WRITER, acknowledged, client, judge, more_acknowledged, plain_export, start, start_behind};
use forebay_chaos::lab::{net::Net, server::Behind};

const VERSION3: &str = include_str!("guest/version3.sh");
const STALLED: &str = include_str!("guest/stalled.sh");

#[test]
fn a_writer_outlives_the_source_of_its_cache() -> Result<()> {
    let net = Net::create()?;
    let tree = Tree::create()?;
    let data = tree.directory("data", 0o755)?;
    let mut server = start(&net, plain_export(&data))?;
    let mut guest = client(&net, WRITER).variable("VERSION", "4.2").limit(Duration::from_secs(240)).boot(&net)?;
    more_acknowledged(&mut guest, 20)?;
    for _ in 0..2 {
        server.kill9_source()?;
        std::thread::sleep(Duration::from_secs(2));
        let before = acknowledged(&guest);
        server.launch_source()?;
        more_acknowledged(&mut guest, 20)?;
        let in_file = fs::read_to_string(data.join("ledger"))?.lines().count();
        ensure!(in_file >= before, "{before} lines were acknowledged, {in_file} are in the file");
    }
    guest.signal("stop")?;
    let outcome = guest.wait()?;
    let lines = outcome.output.lines().filter(|line| line.starts_with("acked ")).count();
    judge("writer", outcome)?;
    let expected: String = (0..lines).map(|number| format!("line {number}\n")).collect();
    ensure!(fs::read_to_string(data.join("ledger"))? == expected, "the source has other lines than were acknowledged");
    server.terminate()?;
    Ok(())
}

#[test]
fn a_source_that_speaks_version_3() -> Result<()> {
    let net = Net::create()?;
    let tree = Tree::create()?;
    let data = tree.directory("data", 0o755)?;
    let mut server = start_behind(&net, plain_export(&data), Behind::Ganesha3)?;
    judge("client", client(&net, VERSION3).limit(Duration::from_secs(240)).run(&net)?)?;
    ensure!(fs::metadata(data.join("log"))?.len() == 5, "written through");
    server.terminate()?;
    Ok(())
}

#[test]
fn a_source_that_stalls_is_waited_for_where_nothing_is_cached() -> Result<()> {
    let net = Net::create()?;
    let tree = Tree::create()?;
    let data = tree.directory("data", 0o755)?;
    fs::write(data.join("known"), "known\n")?;
    fs::write(data.join("unknown"), "unknown\n")?;
    std::thread::sleep(Duration::from_millis(2200));
    let mut server = start(&net, plain_export(&data))?;
    let mut guest = client(&net, STALLED).limit(Duration::from_secs(240)).boot(&net)?;
    guest.wait_for("MARK read")?;
    server.stall_source(true)?;
    guest.signal("stalled")?;
    guest.wait_for("MARK waiting")?;
    server.stall_source(false)?;
    guest.signal("going")?;
    judge("client", guest.wait()?)?;
    server.terminate()?;
    Ok(())
}
