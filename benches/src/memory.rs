//! What Forebay keeps in memory: idle, and for each open file.

use std::{fs, time::Duration};

use anyhow::{Context, Result, bail};
use forebay_proto::nfs4::{Component, open};

use crate::{
    client::Client,
    process::{Scratch, resident_bytes},
    servers::{EXPORT, Server},
};

/// What an idle server may take.
const IDLE_MAX: f64 = 64.0 * 1024.0 * 1024.0;
/// What an open file may take.
const FILE_MAX: f64 = 1024.0;
/// Opens before the first look: code and pools that the first calls bring in are no file's.
const WARM: usize = 200;
/// For what was freed to be given back, and for what was put off to be done.
const SETTLE: Duration = Duration::from_secs(1);

/// Starts Forebay, opens `count` files and says what that took.
///
/// Names are known here and never listed: what a listing leaves in the allocator would be used again for open files and hide them.
///
/// # Errors
/// When Forebay does not start or fails an open, or when its memory did not grow, which no server can do.
pub fn run(count: usize) -> Result<()> {
    let scratch = Scratch::new(&std::env::temp_dir())?;
    for number in 0..count + WARM {
        fs::write(scratch.path().join(name(number)), b"open").context("making the files")?;
    }
    let server = Server::forebay(scratch.path())?;
    std::thread::sleep(SETTLE);
    let idle = resident_bytes(server.pid())?;

    let mut client = Client::connect(server.address, "forebay-benches memory", 16)?;
    let directory = client.walk(EXPORT)?.handle;
    for number in count..count + WARM {
        let path = format!("{EXPORT}/{}", name(number));
        let file = client.walk(&path)?;
        let stateid = client.open(&directory, &file.name, open::ACCESS_READ)?;
        client.close(&file.handle, stateid)?;
    }
    std::thread::sleep(SETTLE);
    let before = resident_bytes(server.pid())?;
    let mut halfway = before;
    for number in 0..count {
        if number == count / 2 {
            halfway = resident_bytes(server.pid())?;
        }
        let name = Component::new(name(number).into_bytes()).context("a short name")?;
        client.open(&directory, &name, open::ACCESS_READ).with_context(|| format!("open number {number}"))?;
    }
    std::thread::sleep(SETTLE);
    let after = resident_bytes(server.pid())?;
    if after <= before {
        bail!("resident memory went from {before} to {after} bytes over {count} opens: this measures nothing");
    }
    let each = |more: u64, less: u64, files: usize| (more as f64 - less as f64) / files as f64;
    let (all, later) = (each(after, before, count), each(after, halfway, count - count / 2));

    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!("idle:           {:>8.1} MiB    at most 64 MiB: {}", mib(idle), verdict(idle as f64, IDLE_MAX));
    println!("each open file: {all:>8.0} bytes  at most 1,024 bytes: {}", verdict(all, FILE_MAX));
    println!(
        "resident before {count} opens {:.1} MiB, after {:.1} MiB; {later:.0} bytes each over the second half",
        mib(before),
        mib(after)
    );
    Ok(())
}

fn name(number: usize) -> String {
    format!("file-{number:07}")
}

fn verdict(value: f64, limit: f64) -> &'static str {
    if value <= limit { "reached" } else { "NOT reached" }
}
