//! `forebay serve` from the same build as this program.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::EXPORT;
use crate::process::Guard;

/// Starts it.
pub fn start(tree: &Path, home: &Path, listen: SocketAddr, admin: SocketAddr) -> Result<Guard> {
    let mut command = Command::new(binary()?);
    command.args(["serve", "--listen", &listen.to_string(), "--admin", &admin.to_string(), "--lease-seconds", "60"]);
    command.arg("--export").arg(format!("{EXPORT}=file://{},rw,no_root_squash", tree.display()));
    command.arg("--data-dir").arg(home.join("data"));
    Guard::start(command, &home.join("log"))
}

/// What a cache in front of a source is made of.
#[derive(Clone, Debug)]
pub struct CacheSetup {
    /// Where the source serves.
    pub source: SocketAddr,
    /// Bytes of memory for data, as the command line takes them.
    pub ram: &'static str,
    /// Where data is kept across restarts.
    pub store: Option<PathBuf>,
    /// Further options of the export.
    pub options: &'static str,
}

/// Starts it as a cache.
pub fn start_cache(setup: &CacheSetup, home: &Path, listen: SocketAddr, admin: SocketAddr) -> Result<Guard> {
    let mut command = Command::new(binary()?);
    command.args(["serve", "--listen", &listen.to_string(), "--admin", &admin.to_string(), "--lease-seconds", "60"]);
    command.arg("--export").arg(format!("{EXPORT}=nfs://{}{EXPORT},rw,no_root_squash{}", setup.source, setup.options));
    command.arg("--data-dir").arg(home.join("data")).args(["--ram-cache", setup.ram]);
    if let Some(store) = &setup.store {
        command.arg("--cache").arg(store).args(["--cache-size", "4GiB"]);
    }
    Guard::start(command, &home.join("log"))
}

/// A node of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterNode<'a> {
    /// Where the source serves.
    pub source: SocketAddr,
    /// Bytes of memory for data.
    pub ram: &'a str,
    /// Where other nodes ask it.
    pub control: SocketAddr,
    /// Where they fetch chunks.
    pub peer: SocketAddr,
    /// All nodes' control addresses.
    pub seeds: &'a [String],
}

/// Starts it as a node of a cluster.
pub fn start_node(node: &ClusterNode<'_>, home: &Path, listen: SocketAddr, admin: SocketAddr) -> Result<Guard> {
    let token = home.join("token");
    std::fs::write(&token, "a token for measurements")?;
    let mut command = Command::new(binary()?);
    command.args(["serve", "--listen", &listen.to_string(), "--admin", &admin.to_string(), "--lease-seconds", "60"]);
    command.arg("--export").arg(format!("{EXPORT}=nfs://{}{EXPORT},rw,no_root_squash", node.source));
    command.arg("--data-dir").arg(home.join("data")).args(["--ram-cache", node.ram]);
    command.args(["--cluster", "bench", "--join", &node.seeds.join(",")]);
    command.args(["--bootstrap-expect", &node.seeds.len().to_string()]).arg("--token-file").arg(token);
    command.args(["--control", &node.control.to_string(), "--peer", &node.peer.to_string()]);
    Guard::start(command, &home.join("log"))
}

/// `FOREBAY_BIN`, or the program beside this one, built if it is not there.
fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("FOREBAY_BIN") {
        return Ok(path.into());
    }
    let here = std::env::current_exe().context("finding this program")?;
    let beside = here.with_file_name("forebay");
    if !beside.is_file() {
        eprintln!("no forebay beside this program: building it");
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "--package", "forebay-node", "--bin", "forebay"]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        if !build.status().context("running cargo")?.success() || !beside.is_file() {
            bail!("no {}: build it in the workspace's directory, or set FOREBAY_BIN", beside.display());
        }
    }
    Ok(beside)
}
