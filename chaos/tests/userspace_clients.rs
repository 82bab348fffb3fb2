//! Clients that share no code with us, in user space: the crate `nfs-rs` and the Python package `nfs4fs`. Each writes a
//! tree and reads it; the server's directory must hold the same.

use std::{
    fs::{self, File},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use forebay_chaos::lab::{
    net::Net,
    run,
    server::{Export, Server},
};
use nfs_rs::Mount;

const LEASE_SECONDS: u32 = 10;

struct Lab {
    net: Net,
    data: tempfile::TempDir,
}

impl Lab {
    fn create() -> Result<Lab> {
        let data = tempfile::Builder::new().prefix("forebay-userspace-").tempdir()?;
        Ok(Lab { net: Net::create()?, data })
    }

    fn serve(&self) -> Result<Server<'_>> {
        let export = Export { name: "/data", directory: self.data.path().into(), options: "rw,no_root_squash" };
        Server::start(&self.net, vec![export], LEASE_SECONDS)
    }
}

#[test]
fn the_crate_nfs_rs_writes_and_reads_a_tree() -> Result<()> {
    let lab = Lab::create()?;
    let mut server = lab.serve()?;
    // As 4.2 it sends a flag of EXCHANGE_ID that Linux's server refuses as well: docs/decisions/0006.
    inside(&lab.net, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(tree_through_nfs_rs(&lab, "4.1"))
    })?;
    server.terminate()?;
    Ok(())
}

/// Runs `work` on a thread that sees the lab's network.
fn inside(net: &Net, work: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    let namespace = File::open(format!("/run/netns/{}", net.name()))?;
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            // SAFETY: the descriptor is open for the length of the call, which moves this thread alone.
            if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
                return Err(std::io::Error::last_os_error()).context("entering the namespace");
            }
            work()
        });
        worker.join().expect("the worker returns its errors")
    })
}

async fn tree_through_nfs_rs(lab: &Lab, version: &str) -> Result<()> {
    let server = lab.net.server_address();
    let url = format!("nfs://{server}/data?version={version}&nfsport=2049&uid=0&gid=0&noresvport=true");
    let mount = nfs_rs::parse_url_and_mount(&url).await?;
    let base = format!("rust-{version}");
    let directory = lab.data.path().join(&base);
    mount.mkdir_path(&base, 0o755).await?;
    for number in 0..40_usize {
        let (path, content) = (format!("{base}/file-{number}"), content(number));
        let made = mount.create_path(&path, Some(0o640)).await?;
        let written = nfs_rs::write_all(&*mount, made.fh.clone(), 0, content.clone()).await?;
        mount.close(made.fh).await?;
        ensure!(written == content.len() as u64, "{path}: {written} bytes written");
        ensure!(fs::read(directory.join(format!("file-{number}")))? == content, "{path} as the server has it");
    }
    // What was made behind the client's back it must see too.
    fs::write(directory.join("from-the-server"), "told by nobody")?;
    mount.symlink_path("file-1", &format!("{base}/link")).await?;
    mount.rename_path(&format!("{base}/file-2"), &format!("{base}/renamed")).await?;
    mount.remove_path(&format!("{base}/file-3")).await?;
    for (name, expected) in
        [("file-39", content(39)), ("renamed", content(2)), ("from-the-server", "told by nobody".into())]
    {
        let found = read_whole(&*mount, &format!("{base}/{name}")).await?;
        ensure!(found == expected, "{name}: {} bytes read, {} expected", found.len(), expected.len());
    }
    ensure!(mount.readlink_path(&format!("{base}/link")).await? == "file-1");
    let attributes = mount.getattr_path(&format!("{base}/file-9")).await?;
    ensure!((attributes.filesize, attributes.file_mode & 0o777) == (content(9).len() as u64, 0o640), "{attributes:?}");
    ensure!(mount.lookup_path(&format!("{base}/file-3")).await.is_err(), "it was removed");
    mount.umount().await?;
    Ok(())
}

/// From nothing to two megabytes, more than one WRITE carries.
fn content(number: usize) -> Bytes {
    (0..number.pow(2) * 1400).map(|place| (place / 7 + number) as u8).collect()
}

async fn read_whole(mount: &dyn Mount, path: &str) -> Result<Bytes> {
    const CHUNK: u32 = 1 << 20;
    let opened = mount.open_path(path, nfs_rs::OPEN_READ).await?;
    let mut whole = Vec::new();
    loop {
        let piece = mount.read(opened.fh.clone(), whole.len() as u64, CHUNK).await?;
        if piece.is_empty() {
            break;
        }
        whole.extend_from_slice(&piece);
    }
    mount.close(opened.fh).await?;
    Ok(whole.into())
}

#[test]
fn the_package_nfs4fs_writes_and_reads_a_tree() -> Result<()> {
    let python = environment()?;
    let lab = Lab::create()?;
    let mut server = lab.serve()?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/client/tree.py");
    for minor in ["1", "2"] {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", lab.net.name()]).arg(&python).arg(&script);
        command.arg(lab.net.server_address().to_string()).arg(minor);
        let told = run(&mut command).with_context(|| format!("minor version {minor}"))?;
        ensure!(told.lines().count() == 62, "{told}");
        for line in told.lines() {
            let (_, path) = line.split_once(' ').context("a digest and a path")?;
            let found = run(Command::new("sha256sum").arg(lab.data.path().join(path)))?;
            ensure!(found.split(' ').next() == line.split(' ').next(), "{path} as the server has it");
        }
    }
    server.terminate()?;
    Ok(())
}

/// A Python with the package, kept under the target directory from one run to the next.
fn environment() -> Result<PathBuf> {
    const PACKAGES: [&str; 3] = ["nfs4fs==0.3.11", "vfsi-fsspec==0.1.11", "fsspec==2026.9.0"];
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nfs4fs-0.3.11");
    let python = directory.join("bin/python");
    let works = |python: &Path| run(Command::new(python).args(["-c", "import nfs4fs"])).is_ok();
    if !works(&python) {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&directory))
            .context("is venv installed? apt-get install python3-venv")?;
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--only-binary=:all:"]).args(PACKAGES))?;
    }
    ensure!(works(&python), "nfs4fs does not import");
    Ok(python)
}
