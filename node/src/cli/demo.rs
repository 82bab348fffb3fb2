//! `forebay demo`: one node on a generated tree, driven by a client in this process, over real TCP.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use forebay_proto::{
    limits::IO_MAX,
    nfs4::{
        Attr, Attributes, Bitmap, Component, Fattr, FileHandle, LimitedOpaque, Op, OpReply, StableHow, StateOwner,
        Stateid, access, open,
        ops::{
            access::AccessArgs,
            close::CloseArgs,
            commit::CommitArgs,
            getattr::GetAttrArgs,
            lookup::LookupArgs,
            open::{CreateHow, OpenArgs, OpenClaim, OpenHow},
            putfh::PutFhArgs,
            read::ReadArgs,
            readdir::ReadDirArgs,
            write::WriteArgs,
        },
    },
    xdr::Opaque,
};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::{
    client::{Session, SessionOptions},
    config::{Config, ExportConfig},
    run,
};

const EXAMPLES: &str = "\
Examples:
  forebay demo
  forebay demo --megabytes 2048 --files 5000
  forebay demo --keep        (goes on serving, for a mount of your own)";

/// Calls under way at once.
const DEPTH: usize = 16;
const SMALL_FILE: usize = 4096;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Size of the large file.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    megabytes: u32,
    /// Number of 4 KiB files.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    files: u32,
    /// Make the sample tree in this directory [default: a temporary one].
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Serve NFS on this address.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Go on serving until Ctrl-C.
    #[arg(long)]
    keep: bool,
}

/// Runs the demo.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    super::log("warn");
    let place = match &arguments.directory {
        Some(directory) => tempfile::Builder::new().prefix("forebay-demo-").tempdir_in(directory),
        None => tempfile::Builder::new().prefix("forebay-demo-").tempdir(),
    }
    .context("no place for the sample tree")?;
    let tree = place.path().join("tree");
    println!("forebay {} demo: one node, one client, NFSv4.2 over loopback\n", env!("CARGO_PKG_VERSION"));
    step("sample tree", || make_tree(&tree, arguments))?;
    let metrics = metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder()?;
    let runtime = super::runtime()?;
    runtime.block_on(async {
        let node = run::start(config(arguments, &tree, place.path())?, metrics).await?;
        println!("  {:<22} {} serves {}", "node", node.nfs, tree.display());
        let result = drive(node.nfs, arguments).await;
        if result.is_ok() {
            println!("\nFrom any Linux host that reaches a node served with --listen 0.0.0.0:2049:");
            println!("  mount -t nfs -o vers=4.2,hard HOST:/demo /mnt");
            if arguments.keep {
                println!("This one is at {} until Ctrl-C:", node.nfs);
                println!("  mount -t nfs -o vers=4.2,hard,port={} {}:/demo /mnt", node.nfs.port(), node.nfs.ip());
                tokio::signal::ctrl_c().await?;
            }
        }
        node.drain().await;
        result
    })?;
    runtime.shutdown_timeout(Duration::from_millis(500));
    drop(place);
    println!("Stopped; the sample tree is removed.");
    Ok(())
}

fn config(arguments: &Arguments, tree: &Path, place: &Path) -> anyhow::Result<Config> {
    let url = format!("file://{}", tree.display());
    let mut export: ExportConfig = format!("/demo={},no_root_squash", url.replace(',', "%2C")).parse()?;
    tree.clone_into(&mut export.path);
    let lease = Duration::from_secs(60);
    Ok(Config {
        listen: arguments.listen,
        admin: SocketAddr::from(([127, 0, 0, 1], 0)),
        data_dir: place.join("data"),
        lease,
        grace: lease,
        slots: 64,
        exports: vec![export],
    })
}

/// Runs one step of the preparation and says how long it took.
fn step(what: &str, work: impl FnOnce() -> anyhow::Result<String>) -> anyhow::Result<()> {
    let begun = Instant::now();
    let done = work()?;
    println!("  {what:<22} {done} in {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

fn make_tree(tree: &Path, arguments: &Arguments) -> anyhow::Result<String> {
    let small = tree.join("small");
    std::fs::create_dir_all(&small)?;
    for number in 0..arguments.files {
        std::fs::write(small.join(format!("file-{number:05}")), pattern(u64::from(number), SMALL_FILE))?;
    }
    Ok(format!("{} files of 4 KiB", arguments.files))
}

/// Bytes that tell where they belong: a wrong block cannot pass for a right one.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    for (place, word) in bytes.chunks_exact_mut(8).zip(0..) {
        place.copy_from_slice(&pattern_word(seed, word));
    }
    bytes
}

fn pattern_word(seed: u64, word: u64) -> [u8; 8] {
    (seed << 24 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()
}

/// Whether `data` is the pattern of `seed` from word `first` on.
fn is_pattern(data: &[u8], seed: u64, first: u64) -> bool {
    data.chunks_exact(8).zip(first..).all(|(bytes, word)| bytes == pattern_word(seed, word))
}

async fn drive(server: SocketAddr, arguments: &Arguments) -> anyhow::Result<()> {
    let session = Session::open(&SessionOptions::new(server, "forebay-demo", 0, 0)).await?;
    let driver = Driver { session, chunk: IO_MAX };
    let root = driver.handle(&[b"demo"]).await?;
    let large = driver.open(&root, b"large", true).await?;
    let chunks = u64::from(arguments.megabytes);
    let megabytes = f64::from(arguments.megabytes);
    println!();
    rate("write, 1 MiB", megabytes, "MB/s", driver.write(&large, chunks)).await?;
    rate("read, 1 MiB", megabytes, "MB/s", driver.read(&large, chunks)).await?;
    let random = 20_000;
    rate("read, 4 KiB random", f64::from(random), "reads/s", driver.read_random(&large, chunks, random)).await?;
    driver.close(&large).await?;
    let small = driver.handle(&[b"demo", b"small"]).await?;
    let files = f64::from(arguments.files);
    rate("list directory", files, "entries/s", driver.list(&small, arguments.files)).await?;
    rate("look up and stat", files, "files/s", driver.stat(&small, arguments.files)).await?;
    rate("open, read, close", files, "files/s", driver.read_small(&small, arguments.files)).await?;
    driver.session.close().await?;
    Ok(())
}

async fn rate(
    what: &str,
    units: f64,
    unit: &str,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    work.await.with_context(|| what.to_owned())?;
    let seconds = begun.elapsed().as_secs_f64();
    println!("  {what:<22} {:>12.0} {unit:<10} verified, {seconds:.2} s", units / seconds);
    Ok(())
}

/// An open file.
struct Opened {
    handle: FileHandle,
    stateid: Stateid,
}

struct Driver {
    session: Session,
    chunk: u32,
}

impl Driver {
    async fn handle(&self, path: &[&[u8]]) -> anyhow::Result<FileHandle> {
        let mut ops = vec![Op::PutRootFh(())];
        ops.extend(path.iter().map(|name| lookup(name)));
        ops.push(Op::GetFh(()));
        match self.session.call(ops).await?.pop() {
            Some(OpReply::GetFh(Ok(found))) => Ok(found.handle),
            other => anyhow::bail!("GETFH gave {other:?}"),
        }
    }

    async fn open(&self, directory: &FileHandle, name: &[u8], create: bool) -> anyhow::Result<Opened> {
        let attributes = Attributes { mode: Some(0o644), ..Attributes::default() };
        let fattr = attributes.to_fattr(&Bitmap::of(&[Attr::Mode]));
        let how = if create { OpenHow::Create(CreateHow::Unchecked(fattr)) } else { OpenHow::NoCreate };
        let share_access = if create { open::ACCESS_BOTH } else { open::ACCESS_READ };
        let owner =
            StateOwner { clientid: self.session.clientid, owner: LimitedOpaque::new("demo").unwrap_or_default() };
        let claim = OpenClaim::Null(component(name));
        let open = OpenArgs { seqid: 0, share_access, share_deny: 0, owner, how, claim };
        let replies = self.session.call(vec![put(directory), Op::Open(open), Op::GetFh(())]).await?;
        match replies.as_slice() {
            [_, OpReply::Open(Ok(opened)), OpReply::GetFh(Ok(found))] => {
                Ok(Opened { handle: found.handle.clone(), stateid: opened.stateid })
            }
            other => anyhow::bail!("OPEN gave {other:?}"),
        }
    }

    async fn close(&self, file: &Opened) -> anyhow::Result<()> {
        let close = Op::Close(CloseArgs { seqid: 0, stateid: file.stateid });
        self.session.call(vec![put(&file.handle), close]).await?;
        Ok(())
    }

    async fn write(&self, file: &Opened, chunks: u64) -> anyhow::Result<()> {
        let calls = stream::iter(0..chunks).map(|chunk| async move {
            let data = Opaque::new(pattern(chunk, self.chunk as usize)).context("a chunk fits a call")?;
            let offset = chunk * u64::from(self.chunk);
            let write = WriteArgs { stateid: file.stateid, offset, stable: StableHow::Unstable, data };
            match self.session.call(vec![put(&file.handle), Op::Write(write)]).await?.pop() {
                Some(OpReply::Write(Ok(done))) if done.count == self.chunk => Ok(()),
                other => anyhow::bail!("WRITE gave {other:?}"),
            }
        });
        calls.buffer_unordered(DEPTH).try_collect::<()>().await?;
        let commit = Op::Commit(CommitArgs { offset: 0, count: 0 });
        self.session.call(vec![put(&file.handle), commit]).await?;
        Ok(())
    }

    async fn read_at(&self, file: &Opened, offset: u64, count: u32) -> anyhow::Result<Bytes> {
        let read = Op::Read(ReadArgs { stateid: file.stateid, offset, count });
        match self.session.call(vec![put(&file.handle), read]).await?.pop() {
            Some(OpReply::Read(Ok(read))) if read.data.len() == count as usize => Ok(read.data.into_bytes()),
            other => anyhow::bail!("READ gave {:?}", other.map(|reply| reply.status())),
        }
    }

    async fn read(&self, file: &Opened, chunks: u64) -> anyhow::Result<()> {
        let calls = stream::iter(0..chunks).map(|chunk| async move {
            let data = self.read_at(file, chunk * u64::from(self.chunk), self.chunk).await?;
            ensure!(is_pattern(&data, chunk, 0), "chunk {chunk} holds wrong bytes");
            Ok(())
        });
        calls.buffer_unordered(DEPTH).try_collect().await
    }

    async fn read_random(&self, file: &Opened, chunks: u64, count: u32) -> anyhow::Result<()> {
        let calls = stream::iter(0..u64::from(count)).map(|number| async move {
            let place = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
            let (chunk, page) = (place % chunks, place / chunks % u64::from(self.chunk / 4096));
            let offset = chunk * u64::from(self.chunk) + page * 4096;
            let data = self.read_at(file, offset, 4096).await?;
            ensure!(is_pattern(&data, chunk, page * 512), "page {page} of chunk {chunk} holds wrong bytes");
            Ok(())
        });
        calls.buffer_unordered(DEPTH).try_collect().await
    }

    async fn list(&self, directory: &FileHandle, expected: u32) -> anyhow::Result<()> {
        let (mut cookie, mut verifier, mut found) = (0, [0; 8], 0);
        loop {
            let attributes = Bitmap::of(&[Attr::Type, Attr::Size, Attr::FileId, Attr::FileHandle, Attr::TimeModify]);
            let (directory_count, max_count) = (self.chunk / 8, self.chunk);
            let list = ReadDirArgs { cookie, verifier, directory_count, max_count, attributes };
            match self.session.call(vec![put(directory), Op::ReadDir(list)]).await?.pop() {
                Some(OpReply::ReadDir(Ok(page))) => {
                    found += page.entries.len();
                    verifier = page.verifier;
                    cookie = page.entries.last().map_or(cookie, |entry| entry.cookie);
                    if page.eof {
                        break;
                    }
                }
                other => anyhow::bail!("READDIR gave {other:?}"),
            }
        }
        ensure!(found == expected as usize, "{found} entries, expected {expected}");
        Ok(())
    }

    async fn stat(&self, directory: &FileHandle, files: u32) -> anyhow::Result<()> {
        let calls = stream::iter(0..files).map(|number| async move {
            let attributes = Bitmap::of(&[Attr::Type, Attr::Size, Attr::Change, Attr::Mode, Attr::TimeModify]);
            let name = format!("file-{number:05}");
            let access = Op::Access(AccessArgs { access: access::READ });
            let ops = vec![put(directory), lookup(name.as_bytes()), access, Op::GetAttr(GetAttrArgs { attributes })];
            match self.session.call(ops).await?.pop() {
                Some(OpReply::GetAttr(Ok(fattr))) => {
                    ensure!(size(&fattr)? == SMALL_FILE as u64, "{name} has a wrong size");
                    Ok(())
                }
                other => anyhow::bail!("GETATTR gave {other:?}"),
            }
        });
        calls.buffer_unordered(DEPTH).try_collect().await
    }

    async fn read_small(&self, directory: &FileHandle, files: u32) -> anyhow::Result<()> {
        let calls = stream::iter(0..files).map(|number| async move {
            let file = self.open(directory, format!("file-{number:05}").as_bytes(), false).await?;
            let data = self.read_at(&file, 0, SMALL_FILE as u32).await?;
            ensure!(is_pattern(&data, u64::from(number), 0), "file {number} holds wrong bytes");
            self.close(&file).await
        });
        calls.buffer_unordered(DEPTH).try_collect().await
    }
}

fn size(fattr: &Fattr) -> anyhow::Result<u64> {
    let attributes = Attributes::from_fattr(fattr).map_err(|status| anyhow::anyhow!("attributes: {status:?}"))?;
    attributes.size.context("no size in the attributes")
}

fn component(name: &[u8]) -> Component {
    Component::new(name.to_vec()).expect("our names are short")
}

fn lookup(name: &[u8]) -> Op {
    Op::Lookup(LookupArgs { name: component(name) })
}

fn put(handle: &FileHandle) -> Op {
    Op::PutFh(PutFhArgs { handle: handle.clone() })
}
