//! A network for one test: a namespace with a bridge, the server's address on it, and addresses to hand out to guests.
//!
//! The namespace has no way out. Its addresses are the same in every test, which is safe because no two tests share a namespace.

use super::{ordinal, require, run};
use anyhow::{Context, Result};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// The bridge's name inside the namespace.
pub const BRIDGE: &str = "lab0";

/// A namespace with a bridge; both go away with the value.
#[derive(Debug)]
pub struct Net {
    name: String,
    next_host: AtomicU8,
}

impl Net {
    /// Makes the namespace, its loopback and its bridge.
    ///
    /// # Errors
    /// When not root, or `ip` is missing or refuses.
    pub fn create() -> Result<Net> {
        require(&[("ip", "iproute2")])?;
        let net = Net { name: format!("fblab{}-{}", std::process::id(), ordinal()), next_host: AtomicU8::new(10) };
        run(Command::new("ip").args(["netns", "add", &net.name]))?;
        let address = format!("{}/24", net.server_address());
        for arguments in [
            vec!["link", "set", "lo", "up"],
            vec!["link", "add", BRIDGE, "type", "bridge", "stp_state", "0", "forward_delay", "0"],
            vec!["addr", "add", &address, "dev", BRIDGE],
            vec!["link", "set", BRIDGE, "up"],
        ] {
            run(Command::new("ip").args(["-n", &net.name]).args(arguments))?;
        }
        Ok(net)
    }

    /// The namespace's name, as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address servers listen on.
    pub fn server_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 71, 0, 1)
    }

    /// An address that no guest in this network has yet. There are 240.
    pub(super) fn next_guest_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 71, 0, self.next_host.fetch_add(1, Ordering::Relaxed))
    }

    /// Adds a tap interface to the bridge.
    pub(super) fn add_tap(&self, tap: &str) -> Result<()> {
        run(Command::new("ip").args(["-n", &self.name, "tuntap", "add", "dev", tap, "mode", "tap"]))?;
        run(Command::new("ip").args([
            "-n",
            &self.name,
            "link",
            "set",
            tap,
            "txqueuelen",
            "10000",
            "master",
            BRIDGE,
            "up",
        ]))?;
        Ok(())
    }

    /// Takes a tap interface away; one that is gone already is fine.
    pub(super) fn remove_tap(&self, tap: &str) {
        let _ = run(Command::new("ip").args(["-n", &self.name, "link", "del", tap]));
    }

    /// Connects to an address as a process inside the namespace would.
    ///
    /// # Errors
    /// When the namespace cannot be entered or nobody answers within `patience`.
    pub fn connect(&self, to: SocketAddr, patience: Duration) -> Result<TcpStream> {
        let path = format!("/run/netns/{}", self.name);
        let namespace = File::open(&path).with_context(|| path)?;
        // A thread of its own: setns moves only the calling thread, and this one is not to come back to the test.
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    // SAFETY: the descriptor is open for the length of the call.
                    if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
                        return Err(std::io::Error::last_os_error()).context("entering the namespace");
                    }
                    let stream =
                        TcpStream::connect_timeout(&to, patience).with_context(|| format!("connecting to {to}"))?;
                    stream.set_read_timeout(Some(patience))?;
                    stream.set_write_timeout(Some(patience))?;
                    Ok(stream)
                })
                .join()
                .expect("the connecting thread returns its errors")
        })
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("ip").args(["netns", "del", &self.name])) {
            eprintln!("lab: {error:#}");
        }
    }
}
