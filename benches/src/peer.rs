//! What it costs to get a chunk from another node's memory: two processes on this machine, chunks of 1 MiB over loopback, with
//! mutual TLS, without, and, for comparison, bytes alone over TCP with nobody looking at them.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use clap::ValueEnum;
use forebay_node::peer::{
    Caller, ChunkProvider, ClusterAuthority, Fetched, NodeKey, Peer, PeerError, PeerIdentity, PeerMetrics, PeerOptions,
    PeerServerOptions, Provided, server,
};
use forebay_proto::cluster::{
    ClusterId, FileKey, NodeId, RingEpoch, Version,
    frame::{ChunkRange, Fetch, Priority},
};
use futures_util::future::{BoxFuture, join_all};
use tokio_util::sync::CancellationToken;

use crate::{
    compare::GIB,
    process::{Guard, Scratch, process_cpu},
};

const CLUSTER: ClusterId = ClusterId(*b"forebay measures");
const SERVER: NodeId = NodeId(1);
const CLIENT: NodeId = NodeId(2);
const EPOCH: RingEpoch = RingEpoch(1);
/// Chunks that the serving node has; together more than a processor's caches.
const CHUNKS: u32 = 64;
const CHUNK: usize = 1 << 20;
/// Where the serving process says that it listens.
const ADDRESS: &str = "address";
/// Longer than starting a process takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// How bytes go from one process to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// The peer protocol over mutual TLS.
    Tls,
    /// The peer protocol over plain TCP.
    Plain,
    /// Megabytes written and read, and no protocol.
    Raw,
}

impl Way {
    const ALL: [Self; 3] = [Self::Raw, Self::Plain, Self::Tls];

    fn name(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Plain => "plain",
            Self::Raw => "raw",
        }
    }
}

/// What to measure, and how long.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Each measurement.
    pub time: Duration,
    /// Connections.
    pub connections: usize,
    /// Requests under way at once.
    pub depth: usize,
    /// Measurements of each way; the median is told.
    pub rounds: usize,
}

struct Sample {
    rate: f64,
    server_cpu: f64,
    client_cpu: f64,
    latency: Duration,
}

/// Measures all ways and prints what they cost.
///
/// # Errors
/// When the other process does not start, or an answer is not what it should be.
pub fn run(plan: &Plan) -> Result<()> {
    let scratch = Scratch::new(&std::env::temp_dir())?;
    make_identities(scratch.path())?;
    println!("1 MiB chunks, {} connection(s), {} requests under way", plan.connections, plan.depth);
    println!(
        "{:<6} {:>8} {:>18} {:>18} {:>14} {:>12}",
        "", "GiB/s", "server CPU s/GiB", "client CPU s/GiB", "both", "mean"
    );
    let mut samples: Vec<Vec<Sample>> = Way::ALL.map(|_| Vec::new()).into();
    // Taking turns, so that what the machine does beside spreads over all.
    for _ in 0..plan.rounds.max(1) {
        for (way, samples) in Way::ALL.into_iter().zip(&mut samples) {
            samples.push(measure(way, plan, scratch.path())?);
        }
    }
    for (way, samples) in Way::ALL.into_iter().zip(&samples) {
        let median = |figure: fn(&Sample) -> f64| {
            let mut figures: Vec<_> = samples.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        };
        let (server, client) = (median(|sample| sample.server_cpu), median(|sample| sample.client_cpu));
        let both = median(|sample| sample.server_cpu + sample.client_cpu);
        let latency = median(|sample| sample.latency.as_secs_f64() * 1e3);
        let rate = median(|sample| sample.rate);
        println!("{:<6} {rate:>8.2} {server:>18.3} {client:>18.3} {both:>14.3} {latency:>9.2} ms", way.name());
    }
    Ok(())
}

fn make_identities(home: &Path) -> Result<()> {
    let authority = ClusterAuthority::create(CLUSTER, SystemTime::now())?;
    fs::write(home.join("authority"), authority.certificate())?;
    for node in [SERVER, CLIENT] {
        let key = NodeKey::create()?;
        let certificate = authority.issue(node, key.public_key(), SystemTime::now())?;
        fs::write(home.join(format!("certificate-{}", node.0)), certificate)?;
        fs::write(home.join(format!("key-{}", node.0)), key.secret_key())?;
    }
    Ok(())
}

fn identity(way: Way, node: NodeId, home: &Path) -> Result<PeerIdentity> {
    if way != Way::Tls {
        return Ok(PeerIdentity::open(CLUSTER, node));
    }
    let read = |name: String| fs::read(home.join(&name)).context(name);
    let certificate = read(format!("certificate-{}", node.0))?;
    let key = NodeKey::restore(&read(format!("key-{}", node.0))?)?;
    Ok(PeerIdentity::mutual(CLUSTER, node, &read("authority".into())?, &certificate, &key)?)
}

fn measure(way: Way, plan: &Plan, home: &Path) -> Result<Sample> {
    let said = home.join(ADDRESS);
    let _ = fs::remove_file(&said);
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("peer-node").arg("--way").arg(way.name()).arg("--home").arg(home);
    let mut server = Guard::start(command, &home.join("log"))?;
    let began = Instant::now();
    let address: SocketAddr = loop {
        match fs::read_to_string(&said).ok().and_then(|text| text.parse().ok()) {
            Some(address) => break address,
            None if server.ended()?.is_some() || began.elapsed() > PATIENCE => bail!("no node: {}", server.log()),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let used =
        || -> Result<(Duration, Duration)> { Ok((process_cpu(server.pid())?, process_cpu(std::process::id())?)) };
    let count = match way {
        Way::Raw => Counting::raw(address)?,
        Way::Tls | Way::Plain => Counting::peer(identity(way, CLIENT, home)?, address, plan)?,
    };
    let (started, before, at_first) = (Instant::now(), used()?, count.chunks());
    std::thread::sleep(plan.time);
    let (elapsed, after, chunks) = (started.elapsed(), used()?, count.chunks() - at_first);
    count.end()?;
    ensure!(chunks > 0, "nothing came");
    let gib = chunks as f64 * CHUNK as f64 / GIB;
    Ok(Sample {
        rate: gib / elapsed.as_secs_f64(),
        server_cpu: (after.0 - before.0).as_secs_f64() / gib,
        client_cpu: (after.1 - before.1).as_secs_f64() / gib,
        latency: elapsed.mul_f64(plan.depth as f64 / chunks as f64),
    })
}

/// Something that gets chunks in the background until it is told to end.
struct Counting {
    chunks: Arc<AtomicU64>,
    end: CancellationToken,
    thread: std::thread::JoinHandle<Result<()>>,
}

impl Counting {
    fn chunks(&self) -> u64 {
        self.chunks.load(Ordering::Relaxed)
    }

    fn end(self) -> Result<()> {
        self.end.cancel();
        self.thread.join().map_err(|_| anyhow::anyhow!("the measuring thread failed"))?
    }

    fn new(work: impl FnOnce(&AtomicU64, &CancellationToken) -> Result<()> + Send + 'static) -> Self {
        let (chunks, end) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        let (counted, ended) = (chunks.clone(), end.clone());
        Self { chunks, end, thread: std::thread::spawn(move || work(&counted, &ended)) }
    }

    fn raw(address: SocketAddr) -> Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        Ok(Self::new(move |chunks, end| {
            let mut buffer = vec![0; CHUNK];
            while !end.is_cancelled() {
                stream.read_exact(&mut buffer)?;
                chunks.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        }))
    }

    fn peer(identity: PeerIdentity, address: SocketAddr, plan: &Plan) -> Result<Self> {
        let (connections, depth) = (plan.connections, plan.depth);
        let runtime = runtime()?;
        let options = PeerOptions { connections, ..PeerOptions::default() };
        let peer = {
            let _inside = runtime.enter();
            Arc::new(Peer::new(identity, SERVER, address, options, Arc::new(PeerMetrics::default())))
        };
        runtime.block_on(look_once(&peer))?;
        Ok(Self::new(move |chunks, end| {
            runtime.block_on(async {
                let asking = |first| ask(&peer, first, chunks, end);
                let done = join_all((0..depth).map(asking)).await;
                peer.close().await;
                done.into_iter().collect()
            })
        }))
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// Every chunk once, with all its bytes compared.
async fn look_once(peer: &Peer) -> Result<()> {
    for chunk in 0..CHUNKS {
        let told = peer.fetch(EPOCH, whole(chunk), PATIENCE).await?;
        ensure!(matches!(&told, Fetched::Data { bytes, .. } if *bytes == content(chunk)), "chunk {chunk} is another");
    }
    Ok(())
}

async fn ask(peer: &Peer, first: usize, chunks: &AtomicU64, end: &CancellationToken) -> Result<()> {
    for chunk in (0..CHUNKS).cycle().skip(first % CHUNKS as usize) {
        if end.is_cancelled() {
            break;
        }
        match peer.fetch(EPOCH, whole(chunk), PATIENCE).await {
            Ok(Fetched::Data { bytes, .. }) if bytes.len() == CHUNK => chunks.fetch_add(1, Ordering::Relaxed),
            Ok(other) => bail!("not a chunk: {other:?}"),
            Err(error @ (PeerError::Down | PeerError::Lost | PeerError::Deadline)) => return Err(error.into()),
        };
    }
    Ok(())
}

fn whole(chunk: u32) -> Fetch {
    let (file, version) = (FileKey { fsid: 1, fileid: 1 }, Version::from_content(1));
    Fetch { file, version, chunk, range: ChunkRange::WHOLE, priority: Priority::Reader }
}

fn content(chunk: u32) -> Bytes {
    (0..CHUNK).map(|place| (place * 7 + place / 4096 + chunk as usize * 13) as u8).collect::<Vec<_>>().into()
}

/// A node's memory.
struct Memory(Vec<Bytes>);

impl ChunkProvider for Memory {
    fn epoch(&self) -> RingEpoch {
        EPOCH
    }
    fn fetch(&self, _: Caller, fetch: Fetch) -> BoxFuture<'_, Provided> {
        let chunk = self.0.get(fetch.chunk as usize);
        let (from, to) = (fetch.range.offset(), fetch.range.offset() + fetch.range.length());
        let provided =
            chunk.map_or(Provided::Miss, |chunk| Provided::Data { bytes: chunk.slice(from..to), eof: false });
        Box::pin(std::future::ready(provided))
    }
}

/// The serving process: says where it listens in a file in `home`, and serves until it is killed.
///
/// # Errors
/// When it cannot.
pub fn node(way: Way, home: &Path) -> Result<()> {
    let say = |address: SocketAddr| -> Result<()> {
        fs::write(home.join("said"), address.to_string())?;
        Ok(fs::rename(home.join("said"), home.join(ADDRESS))?)
    };
    let chunks: Vec<_> = (0..CHUNKS).map(content).collect();
    if way == Way::Raw {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        say(listener.local_addr()?)?;
        let (mut stream, _) = listener.accept()?;
        for chunk in chunks.iter().cycle() {
            stream.write_all(chunk)?;
        }
    }
    runtime()?.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        say(listener.local_addr()?)?;
        let identity = identity(way, SERVER, home)?;
        let (metrics, options) = (Arc::new(PeerMetrics::default()), PeerServerOptions::default());
        server::serve(identity, Arc::new(Memory(chunks)), metrics, options, listener, CancellationToken::new()).await;
        Ok(())
    })
}
