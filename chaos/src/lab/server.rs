//! A server to try, as a real process in a [`Net`]: `forebay serve`, or Debian's NFS-Ganesha as a reference for the suite itself.
//!
//! Which one is the environment's choice: `FOREBAY_LAB_SERVER=ganesha` picks the reference, anything else Forebay. Forebay serves the
//! directories themselves, or, if asked to, as a cache in front of a source in the same namespace. What a server keeps
//! lies in a directory of the value's own, so that it survives [`Server::kill9`] and [`Server::restart`], and is gone with the value.

use super::net::Net;
use super::{in_namespace, require, signal_group};
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The admin port inside the namespace, whose loopback no other test shares.
const ADMIN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9649);
const NFS_PORT: u16 = 2049;
/// Where what stands behind a cache serves, on the namespace's own loopback.
const SOURCE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 12049);
const MOUNT_PORT: u16 = 12048;
/// Nodes of a cluster, and where they ask each other.
pub const NODES: usize = 3;
const CONTROL_PORT: u16 = 2051;
const PEER_PORT: u16 = 2050;
/// How long a server may take from its start until it serves.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long a server may take to drain after SIGTERM.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
const GLANCE: Duration = Duration::from_millis(50);

/// Where a cluster's node is, on the namespace's loopback.
fn node_address(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, 10 + node as u8)
}

/// Which program serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// This workspace's `forebay`.
    Forebay,
    /// Debian's `nfs-ganesha` with its VFS layer: known to work with Linux clients, so it tells a wrong check from a wrong server.
    Ganesha,
}

impl Kind {
    /// What `FOREBAY_LAB_SERVER` asks for.
    pub fn from_environment() -> Kind {
        match std::env::var("FOREBAY_LAB_SERVER").as_deref() {
            Ok("ganesha") => Kind::Ganesha,
            _ => Kind::Forebay,
        }
    }
}

/// What stands behind a Forebay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// The directories themselves.
    Directories,
    /// NFS-Ganesha over NFSv4.2, and Forebay caches in RAM and in a directory.
    Ganesha,
    /// NFS-Ganesha over NFSv3.
    Ganesha3,
    /// Another Forebay over NFSv4.2.
    Forebay,
    /// A server that the test has started itself, over NFSv4.2; its root is what is exported.
    At(SocketAddr),
    /// The same, with a directory below its root for each export.
    Below(SocketAddr),
}

/// A directory served under a name.
#[derive(Debug, Clone)]
pub struct Export {
    /// The name clients mount, with its slash.
    pub name: &'static str,
    /// The directory.
    pub directory: PathBuf,
    /// Comma-separated, in Forebay's words: `rw` or `ro`, `root_squash`, `no_root_squash`, `all_squash`, `anonuid=`, `anongid=`, a client's CIDR.
    pub options: &'static str,
}

/// A running server.
#[derive(Debug)]
pub struct Server<'net> {
    net: &'net Net,
    kind: Kind,
    exports: Vec<Export>,
    lease_seconds: u32,
    home: tempfile::TempDir,
    child: Option<Child>,
    behind: Behind,
    source: Option<Child>,
    /// Further options of each export, as `policy=strict`.
    cache_options: &'static str,
    /// The server is the node of this number of a cluster of [`NODES`].
    place: Option<usize>,
    /// The cluster's other nodes.
    companions: Vec<Child>,
}

impl<'net> Server<'net> {
    /// Starts a server of the kind the environment asks for and waits until it serves.
    ///
    /// # Errors
    /// When its program is missing, or it ends or does not serve within 20 s; the error shows its log.
    pub fn start(net: &'net Net, exports: Vec<Export>, lease_seconds: u32) -> Result<Server<'net>> {
        Self::start_behind(net, exports, lease_seconds, Behind::Directories, "")
    }

    /// As [`Server::start`], with what is to stand behind it.
    ///
    /// # Errors
    /// As there; also when the source does not serve.
    pub fn start_behind(
        net: &'net Net,
        exports: Vec<Export>,
        lease_seconds: u32,
        behind: Behind,
        cache_options: &'static str,
    ) -> Result<Server<'net>> {
        let home =
            tempfile::Builder::new().prefix("forebay-server-").tempdir().context("a directory for the server")?;
        let mut server = Self::prepare(net, exports, lease_seconds, (behind, home, cache_options), None)?;
        server.launch_source()?;
        server.launch()?;
        Ok(server)
    }

    /// As [`Server::start_behind`], as one node of a cluster of three: the one that is started at `place`, 0 to 2. The others serve on the
    /// namespace's own loopback; see [`Server::companion_address`].
    ///
    /// # Errors
    /// As there; also when the nodes do not find together.
    pub fn start_in_cluster(
        net: &'net Net,
        exports: Vec<Export>,
        lease_seconds: u32,
        behind: Behind,
        place: usize,
    ) -> Result<Server<'net>> {
        let home =
            tempfile::Builder::new().prefix("forebay-server-").tempdir().context("a directory for the server")?;
        fs::write(home.path().join("token"), "a token for the laboratory\n")?;
        let mut server = Self::prepare(net, exports, lease_seconds, (behind, home, ""), Some(place))?;
        server.launch_source()?;
        for companion in (0..NODES).filter(|companion| *companion < place) {
            server.launch_companion(companion)?;
        }
        let mut main = server.spawn()?;
        for companion in (0..NODES).filter(|companion| *companion > place) {
            server.launch_companion(companion)?;
        }
        server.wait_until_it_serves(&mut main)?;
        server.child = Some(main);
        server.wait_for_ring()?;
        Ok(server)
    }

    fn prepare(
        net: &'net Net,
        exports: Vec<Export>,
        lease_seconds: u32,
        (behind, home, cache_options): (Behind, tempfile::TempDir, &'static str),
        place: Option<usize>,
    ) -> Result<Server<'net>> {
        let (child, source, companions) = (None, None, Vec::new());
        let kind = if place.is_some() { Kind::Forebay } else { Kind::from_environment() };
        Ok(Server { net, kind, exports, lease_seconds, home, child, behind, source, cache_options, place, companions })
    }

    /// Where a companion serves NFS.
    pub fn companion_address(&self, companion: usize) -> SocketAddr {
        if Some(companion) == self.place {
            return self.nfs_address();
        }
        SocketAddr::from((self.net.server_address(), NFS_PORT + 100 + companion as u16))
    }

    fn launch_companion(&mut self, companion: usize) -> Result<()> {
        let log =
            OpenOptions::new().create(true).append(true).open(self.home.path().join(format!("log-{companion}")))?;
        let admin = SocketAddr::from((node_address(companion), ADMIN.port()));
        let mut command = self.forebay_at(self.companion_address(companion), admin, &format!("data-{companion}"))?;
        self.join(&mut command, companion);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.companions.push(command.spawn().with_context(|| format!("starting {command:?}"))?);
        Ok(())
    }

    fn join(&self, command: &mut std::process::Command, node: usize) {
        let at = |node: usize, port: u16| SocketAddr::from((node_address(node), port)).to_string();
        let seeds: Vec<String> = (0..NODES).map(|node| at(node, CONTROL_PORT)).collect();
        command.args(["--cluster", "lab", "--bootstrap-expect", &NODES.to_string(), "--join", &seeds.join(",")]);
        command.arg("--token-file").arg(self.home.path().join("token"));
        command.args(["--control", &at(node, CONTROL_PORT), "--peer", &at(node, PEER_PORT)]);
    }

    /// Until all nodes own files.
    fn wait_for_ring(&self) -> Result<()> {
        let started = Instant::now();
        let all = format!("\"ring_members\":{NODES}");
        while !self.admin_get("/status").is_ok_and(|status| status.contains(&all)) {
            if started.elapsed() > START_LIMIT {
                bail!("the nodes do not find together; the log:\n{}", self.log());
            }
            std::thread::sleep(GLANCE);
        }
        // Owners that have just begun wait for those before them.
        std::thread::sleep(Duration::from_secs(4));
        Ok(())
    }

    /// Kills the source, as a power cut would.
    ///
    /// # Errors
    /// When there is none.
    pub fn kill9_source(&mut self) -> Result<()> {
        let mut child = self.source.take().context("no source runs")?;
        signal_group(child.id(), libc::SIGKILL);
        child.wait()?;
        Ok(())
    }

    /// Stops the source where it stands, or lets it go on.
    ///
    /// # Errors
    /// When there is none.
    pub fn stall_source(&self, stalled: bool) -> Result<()> {
        let child = self.source.as_ref().context("no source runs")?;
        signal_group(child.id(), if stalled { libc::SIGSTOP } else { libc::SIGCONT });
        Ok(())
    }

    /// Starts the source (again) and waits until it accepts connections.
    ///
    /// # Errors
    /// When its program is missing, or it does not serve; the error shows its log.
    pub fn launch_source(&mut self) -> Result<()> {
        let mut command = match self.behind {
            Behind::Directories | Behind::At(_) | Behind::Below(_) => return Ok(()),
            Behind::Ganesha | Behind::Ganesha3 => self.ganesha(SOURCE)?,
            Behind::Forebay => self.forebay_source()?,
        };
        let log = OpenOptions::new().create(true).append(true).open(self.home.path().join("source-log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        let started = Instant::now();
        while self.net.connect(SOURCE, Duration::from_secs(1)).is_err() {
            let ended = child.try_wait()?;
            if ended.is_some() || started.elapsed() > START_LIMIT {
                signal_group(child.id(), libc::SIGKILL);
                child.wait()?;
                let log = fs::read(self.home.path().join("source-log")).unwrap_or_default();
                bail!("the source did not serve ({ended:?}); its log:\n{}", String::from_utf8_lossy(&log));
            }
            std::thread::sleep(GLANCE);
        }
        self.source = Some(child);
        Ok(())
    }

    fn forebay_source(&self) -> Result<std::process::Command> {
        let mut command = in_namespace(self.net.name(), &forebay_binary()?);
        command.args(["serve", "--listen", &SOURCE.to_string(), "--admin", "127.0.0.1:9650"]);
        command.arg("--data-dir").arg(self.home.path().join("source-data"));
        command.args(["--lease-seconds", &self.lease_seconds.to_string()]);
        for export in &self.exports {
            let directory = export.directory.display();
            command.args(["--export", &format!("{}=file://{directory},no_root_squash", export.name)]);
        }
        Ok(command)
    }

    /// Which program this is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The server's own process.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Kills the server as a power cut would its process: no handler runs.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill9(&mut self) -> Result<()> {
        let mut child = self.child.take().context("the server does not run")?;
        signal_group(child.id(), libc::SIGKILL);
        child.wait()?;
        Ok(())
    }

    /// Asks the server to go with SIGTERM, and wants it gone with status 0 within 10 s. Returns how long it took.
    ///
    /// # Errors
    /// When it takes longer (then it is killed), or exits otherwise.
    pub fn terminate(&mut self) -> Result<Duration> {
        let mut child = self.child.take().context("the server does not run")?;
        let asked = Instant::now();
        // SAFETY: kill takes numbers; the process is our child and has not been reaped.
        unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
        while asked.elapsed() < DRAIN_LIMIT {
            if let Some(status) = child.try_wait()? {
                self.judge_exit(status)?;
                return Ok(asked.elapsed());
            }
            std::thread::sleep(GLANCE);
        }
        signal_group(child.id(), libc::SIGKILL);
        child.wait()?;
        bail!("the server still ran {DRAIN_LIMIT:?} after SIGTERM; its log:\n{}", self.log());
    }

    /// Starts the server again on what it kept.
    ///
    /// # Errors
    /// As [`Server::start`]; also when it runs.
    pub fn restart(&mut self) -> Result<()> {
        if self.child.is_some() {
            bail!("the server runs already");
        }
        self.launch()
    }

    /// What the server wrote since its first start.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.home.path().join("log")).unwrap_or_default()).into_owned()
    }

    /// Asks the admin port for a path and returns the whole answer, head and body.
    ///
    /// # Errors
    /// When nobody answers. Ganesha has no admin port.
    pub fn admin_get(&self, path: &str) -> Result<String> {
        let mut stream = self.net.connect(ADMIN, Duration::from_secs(2))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    fn nfs_address(&self) -> SocketAddr {
        SocketAddr::from((self.net.server_address(), NFS_PORT))
    }

    fn judge_exit(&self, status: ExitStatus) -> Result<()> {
        if !status.success() {
            bail!("after SIGTERM the server ended with {status}; its log:\n{}", self.log());
        }
        Ok(())
    }

    fn launch(&mut self) -> Result<()> {
        let mut child = self.spawn()?;
        self.wait_until_it_serves(&mut child)?;
        self.child = Some(child);
        Ok(())
    }

    fn spawn(&mut self) -> Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(self.home.path().join("log"))?;
        let mut command = match self.kind {
            Kind::Forebay => self.forebay()?,
            Kind::Ganesha => self.ganesha(self.nfs_address())?,
        };
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.spawn().with_context(|| format!("starting {command:?}"))
    }

    fn wait_until_it_serves(&self, child: &mut Child) -> Result<()> {
        let started = Instant::now();
        while !self.serves() {
            if let Some(status) = child.try_wait()? {
                bail!("the server ended with {status} before it served; its log:\n{}", self.log());
            }
            if started.elapsed() > START_LIMIT {
                signal_group(child.id(), libc::SIGKILL);
                child.wait()?;
                bail!("the server did not serve within {START_LIMIT:?}; its log:\n{}", self.log());
            }
            std::thread::sleep(GLANCE);
        }
        Ok(())
    }

    fn serves(&self) -> bool {
        match self.kind {
            Kind::Forebay => self.admin_get("/healthz").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")),
            Kind::Ganesha => self.net.connect(self.nfs_address(), Duration::from_secs(1)).is_ok(),
        }
    }

    fn forebay(&self) -> Result<std::process::Command> {
        let mut command = self.forebay_at(self.nfs_address(), ADMIN, "data")?;
        if let Some(place) = self.place {
            self.join(&mut command, place);
        }
        Ok(command)
    }

    fn forebay_at(&self, listen: SocketAddr, admin: SocketAddr, data: &str) -> Result<std::process::Command> {
        let mut command = in_namespace(self.net.name(), &forebay_binary()?);
        command.args(["serve", "--listen", &listen.to_string(), "--admin", &admin.to_string()]);
        command.arg("--data-dir").arg(self.home.path().join(data));
        command.args(["--lease-seconds", &self.lease_seconds.to_string()]);
        if self.behind != Behind::Directories {
            let store = self.home.path().join(format!("cache-{data}"));
            command.arg("--cache").arg(store).args(["--cache-size", "512MiB", "--ram-cache", "128MiB"]);
        }
        for export in &self.exports {
            let (name, options, more) = (export.name, export.options, self.cache_options);
            let comma = if more.is_empty() { "" } else { "," };
            let export = match self.behind {
                Behind::Directories => format!("{name}=file://{},{options}", export.directory.display()),
                Behind::Ganesha | Behind::Forebay => format!("{name}=nfs://{SOURCE}{name},{options}{comma}{more}"),
                Behind::Below(source) => format!("{name}=nfs://{source}{name},{options}{comma}{more}"),
                Behind::At(source) => format!("{name}=nfs://{source}/,{options}{comma}{more}"),
                Behind::Ganesha3 => {
                    format!("{name}=nfs3://{SOURCE}{},{options}{comma}{more}", export.directory.display())
                }
            };
            command.args(["--export", &export]);
        }
        Ok(command)
    }

    fn ganesha(&self, listen: SocketAddr) -> Result<std::process::Command> {
        require(&[("ganesha.nfsd", "nfs-ganesha nfs-ganesha-vfs")])?;
        let home = self.home.path();
        let configuration = home.join("ganesha.conf");
        fs::create_dir_all(home.join("recovery"))?;
        fs::write(&configuration, self.ganesha_configuration(&home.join("recovery"), listen)?)?;
        if self.behind == Behind::Ganesha3 {
            return self.ganesha_with_portmapper(&configuration);
        }
        let mut command = in_namespace(self.net.name(), Path::new("ganesha.nfsd"));
        command
            .args(["-F", "-L", "STDOUT", "-N", "NIV_EVENT", "-f"])
            .arg(configuration)
            .arg("-p")
            .arg(home.join("pid"));
        Ok(command)
    }

    /// It does not serve NFSv3 unless it can register itself. The portmapper is reached through a socket in /run: there is one of the
    /// test's own, so that this machine's learns nothing of it.
    fn ganesha_with_portmapper(&self, configuration: &Path) -> Result<std::process::Command> {
        require(&[("rpcbind", "rpcbind"), ("unshare", "util-linux")])?;
        const START: &str = "mount -t tmpfs tmpfs /run && mkdir -p /run/rpcbind /run/ganesha && { rpcbind -f & } && sleep 1 && \
             exec ganesha.nfsd -F -L STDOUT -N NIV_EVENT -f \"$0\" -p \"$1\"";
        let mut command = in_namespace(self.net.name(), Path::new("unshare"));
        command.args(["-m", "sh", "-c", START]).arg(configuration).arg(self.home.path().join("pid"));
        Ok(command)
    }

    fn ganesha_configuration(&self, recovery: &Path, listen: SocketAddr) -> Result<String> {
        let is_source = listen == SOURCE;
        let protocols = if self.behind == Behind::Ganesha3 { "3, 4" } else { "4" };
        let mut text = format!(
            "NFS_Core_Param {{ Protocols = {protocols}; Bind_addr = {}; NFS_Port = {}; MNT_Port = {MOUNT_PORT}; Enable_NLM = false; \
             Enable_RQUOTA = false; }}\n\
             NFSv4 {{ Minor_Versions = 1, 2; Lease_Lifetime = {lease}; Grace_Period = {lease}; Only_Numeric_Owners = true; RecoveryRoot = \"{}\"; }}\n",
            listen.ip(),
            listen.port(),
            recovery.display(),
            lease = self.lease_seconds,
        );
        for (number, export) in self.exports.iter().enumerate() {
            let (mut access, mut squash, mut more) = ("RW", "Root_Squash", String::new());
            let mut clients = None;
            if is_source || !export.options.contains("anonuid") {
                more.push_str("Anonymous_Uid = 65534; Anonymous_Gid = 65534; ");
            }
            // Behind a cache the source trusts whoever comes: squashing is the cache's.
            let options = if is_source { "rw,no_root_squash" } else { export.options };
            for option in options.split(',') {
                match option.split_once('=') {
                    Some(("anonuid", id)) => write!(more, "Anonymous_Uid = {id}; ")?,
                    Some(("anongid", id)) => write!(more, "Anonymous_Gid = {id}; ")?,
                    _ => match option {
                        "rw" => access = "RW",
                        "ro" => access = "RO",
                        "root_squash" => squash = "Root_Squash",
                        "no_root_squash" => squash = "No_Root_Squash",
                        "all_squash" => squash = "All_Squash",
                        cidr => clients = Some(cidr),
                    },
                }
            }
            let access = match clients {
                None => format!("Access_Type = {access};"),
                Some(cidr) => format!(
                    "Access_Type = NONE; CLIENT {{ Clients = {cidr}; Access_Type = {access}; Squash = {squash}; }}"
                ),
            };
            writeln!(
                text,
                "EXPORT {{ Export_Id = {}; Path = \"{}\"; Pseudo = {}; Squash = {squash}; SecType = sys; Protocols = {protocols}; Transports = TCP; \
                 {more}FSAL {{ Name = VFS; }} {access} }}",
                number + 1,
                export.directory.display(),
                export.name,
            )?;
        }
        Ok(text)
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let _ = self.kill9();
        for mut companion in self.companions.drain(..) {
            signal_group(companion.id(), libc::SIGKILL);
            let _ = companion.wait();
        }
        let _ = self.kill9_source();
        if std::thread::panicking() {
            let log = self.log();
            let tail = log.len().saturating_sub(16 * 1024);
            eprintln!("the server's log (its end):\n{}", log.get(tail..).unwrap_or(&log));
            for companion in 0..NODES {
                if let Ok(log) = fs::read(self.home.path().join(format!("log-{companion}"))) {
                    eprintln!("node {companion}'s log:\n{}", String::from_utf8_lossy(&log));
                }
            }
            if let Ok(log) = fs::read(self.home.path().join("source-log")) {
                eprintln!("the source's log:\n{}", String::from_utf8_lossy(&log));
            }
        }
    }
}

/// Where the `forebay` program is: `FOREBAY_BIN`, or the profile directory that this test executable was built into.
fn forebay_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("FOREBAY_BIN") {
        return Ok(path.into());
    }
    let here = std::env::current_exe().context("finding this executable")?;
    // …/debug/deps/test-hash or …/debug/program
    let found = here.ancestors().skip(1).take(2).map(|dir| dir.join("forebay")).find(|path| path.is_file());
    found.with_context(|| {
        format!(
            "no forebay program beside {}: cargo build -p forebay-node --bin forebay, or set FOREBAY_BIN",
            here.display()
        )
    })
}
