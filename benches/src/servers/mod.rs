//! Servers under measurement, each a process of its own on a loopback port.
//!
//! Invariant: what is returned serves `/bench`; it ends with its value.

mod forebay;
mod ganesha;

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    client::Client,
    process::{Guard, Scratch},
};

pub use forebay::CacheSetup;
pub use ganesha::find as find_ganesha;

/// The name both servers export the tree under.
pub const EXPORT: &str = "/bench";
/// How long a server may take until it serves.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    /// Where its counters are; of Ganesha nowhere.
    pub admin: Option<SocketAddr>,
    process: Guard,
    _home: Scratch,
}

impl Server {
    /// Starts Forebay on `tree`.
    ///
    /// # Errors
    /// When there is no binary and none can be built, or it does not serve.
    pub fn forebay(tree: &Path) -> Result<Self> {
        let home = Scratch::new(&std::env::temp_dir())?;
        let (address, admin) = (free_address()?, free_address()?);
        let process = forebay::start(tree, home.path(), address, admin)?;
        Self { address, admin: Some(admin), process, _home: home }.ready().context("Forebay")
    }

    /// Starts Forebay as a cache.
    ///
    /// # Errors
    /// As [`Server::forebay`].
    pub fn cache(setup: &CacheSetup) -> Result<Self> {
        let home = Scratch::new(&std::env::temp_dir())?;
        let (address, admin) = (free_address()?, free_address()?);
        let process = forebay::start_cache(setup, home.path(), address, admin)?;
        Self { address, admin: Some(admin), process, _home: home }.ready().context("Forebay as a cache")
    }

    /// Starts so many Forebays as a cluster in front of a source.
    ///
    /// # Errors
    /// As [`Server::forebay`].
    pub fn cluster(source: SocketAddr, nodes: usize, ram: String) -> Result<Vec<Self>> {
        let controls = (0..nodes).map(|_| free_address()).collect::<Result<Vec<_>>>()?;
        let seeds: Vec<String> = controls.iter().map(SocketAddr::to_string).collect();
        let mut started = Vec::new();
        for control in &controls {
            let home = Scratch::new(&std::env::temp_dir())?;
            let (address, admin) = (free_address()?, free_address()?);
            let node =
                forebay::ClusterNode { source, ram: &ram, control: *control, peer: free_address()?, seeds: &seeds };
            let process = forebay::start_node(&node, home.path(), address, admin)?;
            started.push(Self { address, admin: Some(admin), process, _home: home });
        }
        started.into_iter().map(|node| node.ready().context("Forebay as a node")).collect()
    }

    /// Starts NFS-Ganesha on `tree`.
    ///
    /// # Errors
    /// When it is not installed or does not serve.
    pub fn ganesha(tree: &Path) -> Result<Self> {
        let home = Scratch::new(&std::env::temp_dir())?;
        let address = free_address()?;
        let process = ganesha::start(tree, home.path(), address)?;
        Self { address, admin: None, process, _home: home }.ready().context("NFS-Ganesha")
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        self.process.log()
    }

    fn ready(mut self) -> Result<Self> {
        let started = Instant::now();
        loop {
            let found = Client::connect(self.address, "forebay-benches ready?", 2).and_then(|mut client| {
                client.walk(EXPORT)?;
                client.end()
            });
            let Err(error) = found else { return Ok(self) };
            if let Some(status) = self.process.ended()? {
                bail!("it ended with {status} before it served:\n{}", self.process.log());
            }
            if started.elapsed() > START_LIMIT {
                return Err(error.context(format!("it did not serve in {START_LIMIT:?}:\n{}", self.process.log())));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A loopback address that nobody listened on a moment ago.
pub fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
