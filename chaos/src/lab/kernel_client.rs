//! A real Linux NFS client: Debian's user-mode kernel, booted as an ordinary process, running one shell script as root.
//!
//! A guest sees this machine's files read-only, with memory file systems of its own on /tmp, /mnt, /root and /run. It talks to its test
//! in two ways that do not pass through the server under test: lines on its console, and files that the test puts into the guest's
//! directory, which the guest sees as /run/lab. A guest that is dropped or out of time is killed; nothing else is.

use super::net::Net;
use super::{in_namespace, ordinal, require, signal_group};
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How often a guest's console and its process are looked at.
const GLANCE: Duration = Duration::from_millis(20);
/// What a guest's script finds in front of it: helpers that say `ok NAME` and `FAIL NAME: why`.
const PRELUDE: &str = include_str!("guest-prelude.sh");
const INIT: &str = include_str!("guest-init.sh");
const BEGINS: &str = "LAB-OUTPUT-BEGINS";
const ENDS: &str = "LAB-OUTPUT-ENDS ";

/// What to boot.
#[derive(Debug, Clone)]
pub struct KernelClient {
    script: String,
    variables: Vec<(String, String)>,
    files: Vec<(String, String)>,
    memory_mb: u32,
    limit: Duration,
}

impl KernelClient {
    /// A client that runs `script`, with 192 MB of memory and two minutes of time.
    pub fn new(script: &str) -> KernelClient {
        KernelClient {
            script: script.into(),
            variables: Vec::new(),
            files: Vec::new(),
            memory_mb: 192,
            limit: Duration::from_secs(120),
        }
    }

    /// Sets a variable in the script's environment. The value may hold any character but NUL.
    pub fn variable(mut self, name: &str, value: impl ToString) -> KernelClient {
        self.variables.push((name.into(), value.to_string()));
        self
    }

    /// Puts a file into the guest's /run/lab.
    pub fn file(mut self, name: &str, text: &str) -> KernelClient {
        self.files.push((name.into(), text.into()));
        self
    }

    /// Gives the guest other than 192 MB.
    pub fn memory_mb(mut self, memory_mb: u32) -> KernelClient {
        self.memory_mb = memory_mb;
        self
    }

    /// Gives the guest other than two minutes, boot included.
    pub fn limit(mut self, limit: Duration) -> KernelClient {
        self.limit = limit;
        self
    }

    /// Boots the guest and returns while it runs.
    ///
    /// # Errors
    /// When not root, when a package is missing, or the machine refuses an interface or a process.
    pub fn boot<'net>(&self, net: &'net Net) -> Result<Guest<'net>> {
        require(&[("linux.uml", "user-mode-linux"), ("modprobe", "kmod"), ("mount.nfs", "nfs-common")])?;
        let dir = tempfile::Builder::new().prefix("forebay-guest-").tempdir().context("a directory for a guest")?;
        let mut script = String::new();
        for (name, value) in &self.variables {
            script += &format!("export {name}='{}'\n", value.replace('\'', r"'\''"));
        }
        script += PRELUDE;
        script += &self.script;
        fs::write(dir.path().join("script"), script)?;
        for (name, text) in &self.files {
            fs::write(dir.path().join(name), text)?;
        }
        let init = dir.path().join("init");
        fs::write(&init, INIT)?;
        fs::set_permissions(&init, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;

        let console_path = dir.path().join("console");
        let console = File::create(&console_path)?;
        let address = net.next_guest_address();
        let tap = format!("tap{}", ordinal());
        net.add_tap(&tap)?;
        let child = in_namespace(net.name(), Path::new("linux.uml"))
            .args([
                "root=/dev/root",
                "rootfstype=hostfs",
                "rootflags=/",
                "ro",
                "quiet",
                "panic=-1",
                "con=null",
                "con0=null,fd:1",
            ])
            .arg(format!("mem={}M", self.memory_mb))
            .arg(format!("init={}", init.display()))
            .arg(format!("uml_dir={}/", dir.path().display()))
            .arg(format!("eth0=tuntap,{tap}"))
            .arg(format!("LAB_ADDRESS={address}"))
            .arg(format!("LAB_DIR={}", dir.path().display()))
            .arg(format!("LAB_NAME=guest{}", address.octets()[3]))
            .stdin(Stdio::null())
            .stderr(console.try_clone()?)
            .stdout(console)
            .spawn();
        let child = child.inspect_err(|_| net.remove_tap(&tap)).context("starting linux.uml")?;
        Ok(Guest { net, address, tap, dir, child, deadline: Instant::now() + self.limit, limit: self.limit })
    }

    /// Boots the guest and waits for its script to end.
    ///
    /// # Errors
    /// As [`KernelClient::boot`] and [`Guest::wait`].
    pub fn run(&self, net: &Net) -> Result<Outcome> {
        self.boot(net)?.wait()
    }
}

/// What a guest's script did.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The script's exit status: with the prelude's `finish`, how many checks failed.
    pub status: i32,
    /// Everything the script printed on either output.
    pub output: String,
}

/// A guest that was booted.
#[derive(Debug)]
pub struct Guest<'net> {
    net: &'net Net,
    address: Ipv4Addr,
    tap: String,
    dir: tempfile::TempDir,
    child: Child,
    deadline: Instant,
    limit: Duration,
}

impl Guest<'_> {
    /// Its address in the network.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Waits until the script has printed a line that starts with `start`, and returns that line.
    ///
    /// # Errors
    /// When the guest ends, or its time does, before that.
    pub fn wait_for(&mut self, start: &str) -> Result<String> {
        loop {
            let ended = self.child.try_wait()?.is_some();
            // Only whole lines: the last piece may still be growing.
            let console = self.console();
            let whole = console.rfind('\n').map_or("", |end| &console[..end]);
            if let Some(line) = whole.lines().find(|line| line.starts_with(start)) {
                return Ok(line.to_string());
            }
            if ended {
                bail!("the guest ended before it printed {start:?}:\n{console}");
            }
            self.glance(start)?;
        }
    }

    /// Puts an empty file into the guest's /run/lab; a script waits for it with the prelude's `await`.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn signal(&self, name: &str) -> Result<()> {
        fs::write(self.dir.path().join(name), "").with_context(|| format!("signal {name}"))
    }

    /// What the guest's console shows so far.
    pub fn console(&self) -> String {
        let bytes = fs::read(self.dir.path().join("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    /// Waits for the script's end.
    ///
    /// # Errors
    /// When the guest runs out of time or dies without finishing the script; the error shows its console.
    pub fn wait(mut self) -> Result<Outcome> {
        while self.child.try_wait()?.is_none() {
            self.glance("the script's end")?;
        }
        let console = self.console();
        let (_, script) = console.split_once(&format!("{BEGINS}\n")).unwrap_or(("", ""));
        // The script's last line may lack its line feed, so the mark is not always at the start of one.
        let Some((output, end)) = script.rsplit_once(ENDS) else {
            bail!("the guest died before its script ended; its console:\n{console}");
        };
        let status = end.lines().next().unwrap_or_default().trim();
        let status = status.parse().with_context(|| format!("exit status {status:?}"))?;
        Ok(Outcome { status, output: output.to_string() })
    }

    fn glance(&self, waiting_for: &str) -> Result<()> {
        if Instant::now() > self.deadline {
            bail!(
                "{:?} are over and the guest still runs, waited for {waiting_for}; its console:\n{}",
                self.limit,
                self.console()
            );
        }
        std::thread::sleep(GLANCE);
        Ok(())
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            signal_group(self.child.id(), libc::SIGKILL);
            let _ = self.child.wait();
        }
        self.net.remove_tap(&self.tap);
    }
}
