//! Serves a directory to a real Linux kernel client and runs a shell script there: a lab bench of one line.
//!
//! ```text
//! cargo build -p forebay-node && cargo run -p forebay-chaos --example guest -- DIRECTORY 'mount …; ls'
//! ```
//!
//! `FOREBAY_LAB_BEHIND=ganesha`, `ganesha3` or `forebay` puts a cache in front of that server of the directory; with
//! `FOREBAY_LAB_METRICS=1` the server's metrics are printed at the end.
//!
//! In the script `$SERVER` is the server's address, and the directory is exported as `/data`, with root as root.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use forebay_chaos::lab::{
    kernel_client::KernelClient,
    net::Net,
    server::{Behind, Export, Server},
};

const LEASE_SECONDS: u32 = 10;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: guest DIRECTORY SCRIPT";
    let directory = PathBuf::from(arguments.next().context(usage)?).canonicalize()?;
    let script = arguments.next().context(usage)?;
    let net = Net::create()?;
    let export = Export { name: "/data", directory, options: "rw,no_root_squash" };
    let behind = match std::env::var("FOREBAY_LAB_BEHIND").as_deref() {
        Ok("ganesha") => Behind::Ganesha,
        Ok("ganesha3") => Behind::Ganesha3,
        Ok("forebay") => Behind::Forebay,
        _ => Behind::Directories,
    };
    let mut server = Server::start_behind(&net, vec![export], LEASE_SECONDS, behind, "")?;
    let guest = KernelClient::new(&script).variable("SERVER", net.server_address());
    let outcome = guest.limit(Duration::from_secs(600)).run(&net)?;
    print!("{}", outcome.output);
    if std::env::var_os("FOREBAY_LAB_METRICS").is_some() {
        print!("{}", server.admin_get("/metrics")?);
    }
    server.terminate()?;
    std::process::exit(outcome.status);
}
