//! The demo's processes: a file server and a cache, each a `forebay serve` of its own.

use std::{
    net::{SocketAddr, TcpListener},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;

/// How long a node may take until it serves.
const START_MAX: Duration = Duration::from_secs(20);

/// A node in a process of its own; it ends with this value, as if its power were cut.
pub(super) struct Process {
    /// Where it serves NFS.
    pub nfs: SocketAddr,
    /// Where it tells of itself.
    pub admin: SocketAddr,
    child: Child,
    log: PathBuf,
}

/// Bytes that clients were served, by where they came from.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Served {
    /// Out of memory.
    pub ram: f64,
    /// Off the disk.
    pub nvme: f64,
    /// From the source.
    pub source: f64,
    /// From other nodes of the cluster.
    pub peer: f64,
    /// Calls that the source was asked.
    pub calls: f64,
}

impl Process {
    /// Starts a node and waits until it serves.
    pub(super) fn start(listen: SocketAddr, home: &Path, arguments: &[String]) -> anyhow::Result<Self> {
        let mut process = Self::spawn(listen, home, arguments)?;
        process.wait()?;
        Ok(process)
    }

    /// Starts a node, which may have to wait for others before it serves.
    pub(super) fn spawn(listen: SocketAddr, home: &Path, arguments: &[String]) -> anyhow::Result<Self> {
        std::fs::create_dir_all(home)?;
        let nfs = if listen.port() == 0 { free(listen)? } else { listen };
        let admin = free(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let log = std::fs::File::options().create(true).append(true).open(home.join("log"))?;
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.args(["serve", "--listen", &nfs.to_string(), "--admin", &admin.to_string(), "--data-dir"]);
        command.arg(home.join("data")).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        // SAFETY: prctl is async-signal-safe and takes numbers; it touches only the new process.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let child = command.spawn().context("starting a node")?;
        Ok(Self { nfs, admin, child, log: home.join("log") })
    }

    /// Waits until it serves.
    pub(super) fn wait(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !self.serves() {
            let ended = self.child.try_wait()?;
            if ended.is_some() || begun.elapsed() > START_MAX {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                anyhow::bail!("a node does not serve:\n{log}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn serves(&self) -> bool {
        let asked = minreq::get(format!("http://{}/healthz", self.admin)).with_timeout(1).send();
        asked.is_ok_and(|reply| reply.status_code == 200)
    }

    /// What it served so far.
    pub(super) fn served(&self) -> anyhow::Result<Served> {
        let reply = minreq::get(format!("http://{}/metrics", self.admin)).with_timeout(5).send()?;
        let text = reply.as_str()?;
        let sum = |name: &str, label: &str| -> f64 {
            let rows = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
            rows.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
        };
        let bytes = |tier: &str| sum("forebay_read_bytes_total{", &format!("tier=\"{tier}\""));
        let calls = sum("forebay_source_calls_total{", "") - sum("forebay_source_calls_total{", "SESSION");
        let (ram, nvme, source, peer) = (bytes("ram"), bytes("nvme"), bytes("source"), bytes("peer"));
        Ok(Served { ram, nvme, source, peer, calls })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that nobody listened on, on any address, a moment ago.
pub(super) fn free_port() -> anyhow::Result<u16> {
    Ok(free(SocketAddr::from(([0, 0, 0, 0], 0)))?.port())
}

/// A port that nobody listened on a moment ago.
fn free(address: SocketAddr) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(SocketAddr::new(address.ip(), 0)).context("a free port")?;
    Ok(listener.local_addr()?)
}
