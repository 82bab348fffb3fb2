//! A source and nodes in processes of their own, each node on a loopback address of its own.

use std::{
    net::{Ipv4Addr, SocketAddr},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use forebay_node::{
    admin::{Status, cluster::Members},
    client::{Session, SessionOptions},
};

const NFS: u16 = 20_490;
const CONTROL: u16 = 20_510;
const PEER: u16 = 20_500;
const ADMIN: u16 = 20_491;

/// A cluster's token.
pub const TOKEN: &str = "a token that only the test knows";

/// A process that ends with the value.
pub struct Process(Child);

impl Process {
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Ends in good order.
    pub fn terminate(&mut self) {
        // SAFETY: kill takes numbers; the process is our child and has not been reaped.
        unsafe { libc::kill(self.0.id() as libc::pid_t, libc::SIGTERM) };
        let begun = Instant::now();
        while self.0.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(15), "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn ended(&mut self) -> Option<i32> {
        self.0.try_wait().unwrap().map(|status| status.code().unwrap_or(-1))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// All of it.
pub struct Farm {
    pub home: tempfile::TempDir,
    /// 127.a.b.x
    net: (u8, u8),
    source: Process,
    pub nodes: Vec<Option<Process>>,
    pub expect: usize,
    seeds: usize,
}

fn spawn(arguments: &[String], log: PathBuf) -> Process {
    let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.arg("serve").args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.env("FOREBAY_LOG", "info");
    // SAFETY: prctl is async-signal-safe and takes numbers; it touches only the new process.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    Process(command.spawn().unwrap())
}

impl Farm {
    /// A source with a tree; nodes that are to be `expect`, none of which runs yet.
    pub fn new(expect: usize) -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let number = std::process::id() as u16 ^ (NEXT.fetch_add(1, Ordering::Relaxed) << 8);
        // Loopback addresses that no other test has.
        let net = (40 + (number % 200) as u8, (number / 200 % 250) as u8 + 1);
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("tree")).unwrap();
        std::fs::write(home.path().join("token"), TOKEN).unwrap();
        let address = SocketAddr::from((Ipv4Addr::new(127, net.0, net.1, 100), NFS));
        let admin = SocketAddr::new(address.ip(), ADMIN);
        let tree = home.path().join("tree");
        let arguments = [
            format!("--listen={address}"),
            format!("--admin={admin}"),
            format!("--data-dir={}", home.path().join("source").display()),
            format!("--export=/tree=file://{},no_root_squash", tree.display()),
        ];
        let source = spawn(&arguments, home.path().join("log-source"));
        let farm = Self { home, net, source, nodes: Vec::new(), expect, seeds: expect };
        farm.wait("the source", || farm.ask(admin, "/healthz").is_some());
        farm
    }

    pub fn address(&self, node: usize, port: u16) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::new(127, self.net.0, self.net.1, 1 + node as u8), port))
    }

    pub fn nfs(&self, node: usize) -> SocketAddr {
        self.address(node, NFS)
    }

    pub fn control(&self, node: usize) -> SocketAddr {
        self.address(node, CONTROL)
    }

    /// Starts a node, or starts it again.
    pub fn start(&mut self, node: usize) {
        self.start_with(node, &[]);
    }

    pub fn start_with(&mut self, node: usize, more: &[String]) {
        let seeds: Vec<String> = (0..self.seeds).map(|seed| self.control(seed).to_string()).collect();
        let source = SocketAddr::from((Ipv4Addr::new(127, self.net.0, self.net.1, 100), NFS));
        let path = |name: &str| self.home.path().join(name).display().to_string();
        let mut arguments = vec![
            format!("--listen={}", self.nfs(node)),
            format!("--admin={}", self.address(node, ADMIN)),
            format!("--control={}", self.control(node)),
            format!("--peer={}", self.address(node, PEER)),
            format!("--data-dir={}", path(&format!("data-{node}"))),
            "--cluster=farm".into(),
            format!("--join={}", seeds.join(",")),
            "--ram-cache=64MiB".into(),
            "--lease-seconds=10".into(),
            format!("--export=/tree=nfs://{source}/tree,no_root_squash"),
        ];
        if node < self.expect {
            arguments.push(format!("--bootstrap-expect={}", self.expect));
        }
        if !more.iter().any(|argument| argument.starts_with("--token-file")) {
            arguments.push(format!("--token-file={}", path("token")));
        }
        arguments.extend_from_slice(more);
        let process = spawn(&arguments, self.home.path().join(format!("log-{node}")));
        if self.nodes.len() <= node {
            self.nodes.resize_with(node + 1, || None);
        }
        self.nodes[node] = Some(process);
    }

    pub fn kill(&mut self, node: usize) {
        self.nodes[node].take().unwrap().kill();
    }

    pub fn wipe(&self, node: usize) {
        std::fs::remove_dir_all(self.home.path().join(format!("data-{node}"))).unwrap();
    }

    pub fn log(&self, node: usize) -> String {
        std::fs::read_to_string(self.home.path().join(format!("log-{node}"))).unwrap_or_default()
    }

    fn ask(&self, admin: SocketAddr, path: &str) -> Option<String> {
        let asked = minreq::get(format!("http://{admin}{path}")).with_timeout(2).send().ok()?;
        (asked.status_code == 200).then(|| asked.as_str().unwrap_or_default().to_owned())
    }

    pub fn metrics(&self, node: usize) -> String {
        self.ask(self.address(node, ADMIN), "/metrics").unwrap_or_default()
    }

    pub fn status(&self, node: usize) -> Option<Status> {
        serde_json::from_str(&self.ask(self.address(node, ADMIN), "/status")?).ok()
    }

    pub fn members(&self, node: usize) -> Option<Members> {
        self.status(node)?.members
    }

    /// Waits for something that should happen soon.
    pub fn wait(&self, what: &str, mut happened: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !happened() {
            if begun.elapsed() > Duration::from_secs(30) {
                for node in 0..self.nodes.len() {
                    eprintln!("--- node {node}\n{}", self.log(node));
                }
                panic!("{what}: not within 30 s");
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Nodes that run.
    pub fn running(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].is_some()).collect()
    }

    /// Waits until all nodes that run own files by one ring of one cluster with one leader.
    pub fn wait_for_ring(&self) {
        let running = self.running();
        self.wait("one ring of all", || {
            let seen: Vec<_> = running.iter().filter_map(|node| self.status(*node)).collect();
            let members: Vec<_> = seen.iter().filter_map(|status| status.members.clone()).collect();
            members.len() == running.len()
                && members.iter().all(|seen| {
                    seen.ring_members == running.len()
                        && seen.leader.is_some()
                        && seen.leader == members[0].leader
                        && seen.ring_epoch == members[0].ring_epoch
                })
                && seen.iter().all(|status| status.cluster == seen[0].cluster)
        });
    }

    /// A session with a node.
    pub async fn client(&self, node: usize, owner: &str) -> Session {
        Session::open(&SessionOptions::new(self.nfs(node), owner, 0, 0)).await.unwrap()
    }

    pub fn source_is_there(&mut self) -> bool {
        self.source.ended().is_none()
    }
}
