//! A TCP proxy between a source and its client, which delays, cuts, stalls, slows, and counts what goes by.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

#[derive(Default)]
struct Knobs {
    delay_us: AtomicU64,
    bytes_per_second: AtomicU64,
    refuse: AtomicBool,
    /// Records until one is forwarded, its reply swallowed, and all connections cut.
    fuse: AtomicI64,
    /// As `fuse`, but the record does not arrive.
    fuse_before: AtomicI64,
    records: AtomicU64,
    accepted: AtomicU64,
}

/// A proxy that runs until it is dropped.
pub struct Proxy {
    pub address: SocketAddr,
    knobs: Arc<Knobs>,
    target: watch::Sender<SocketAddr>,
    stalled: watch::Sender<bool>,
    cut: Arc<Mutex<CancellationToken>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut.lock().cancel();
    }
}

impl Proxy {
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (knobs, target, stalled) =
            (Arc::new(Knobs::default()), watch::Sender::new(target), watch::Sender::new(false));
        knobs.fuse.store(i64::MAX, Ordering::Relaxed);
        knobs.fuse_before.store(i64::MAX, Ordering::Relaxed);
        let cut = Arc::new(Mutex::new(CancellationToken::new()));
        let task = tokio::spawn({
            let (knobs, target, stalled, cut) = (knobs.clone(), target.clone(), stalled.clone(), cut.clone());
            async move {
                loop {
                    let (client, _) = listener.accept().await.unwrap();
                    if knobs.refuse.load(Ordering::Relaxed) {
                        continue;
                    }
                    let address = *target.borrow();
                    let Ok(server) = TcpStream::connect(address).await else { continue };
                    knobs.accepted.fetch_add(1, Ordering::Relaxed);
                    tokio::spawn(forward(client, server, knobs.clone(), stalled.subscribe(), cut.clone()));
                }
            }
        });
        Self { address, knobs, target, stalled, cut, task }
    }

    pub fn delay(&self, delay: Duration) {
        self.knobs.delay_us.store(delay.as_micros() as u64, Ordering::Relaxed);
    }

    pub fn bandwidth(&self, bytes_per_second: u64) {
        self.knobs.bytes_per_second.store(bytes_per_second, Ordering::Relaxed);
    }

    /// New connections are closed at once.
    pub fn refuse(&self, refuse: bool) {
        self.knobs.refuse.store(refuse, Ordering::Relaxed);
    }

    pub fn stall(&self, stalled: bool) {
        self.stalled.send_replace(stalled);
    }

    pub fn retarget(&self, target: SocketAddr) {
        self.target.send_replace(target);
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        std::mem::take(&mut *self.cut.lock()).cancel();
    }

    /// The `nth` record from now (1: the next) arrives, its reply does not, and all connections are cut.
    pub fn cut_after(&self, nth: i64) {
        self.knobs.fuse.store(nth, Ordering::Relaxed);
    }

    /// The `nth` record from now does not arrive, and all connections are cut.
    pub fn cut_before(&self, nth: i64) {
        self.knobs.fuse_before.store(nth, Ordering::Relaxed);
    }

    /// Calls that went by.
    pub fn records(&self) -> u64 {
        self.knobs.records.load(Ordering::Relaxed)
    }

    /// Connections made.
    pub fn accepted(&self) -> u64 {
        self.knobs.accepted.load(Ordering::Relaxed)
    }
}

async fn forward(
    client: TcpStream,
    server: TcpStream,
    knobs: Arc<Knobs>,
    stalled: watch::Receiver<bool>,
    cut: Arc<Mutex<CancellationToken>>,
) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let token = cut.lock().clone();
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let muted = Arc::new(AtomicBool::new(false));
    tokio::select! {
        () = upward(from_client, to_server, &knobs, stalled.clone(), &muted, &cut) => {}
        () = downward(from_server, to_client, &knobs, stalled, &muted) => {}
        () = token.cancelled() => {}
    }
}

async fn upward(
    mut from: OwnedReadHalf,
    to: OwnedWriteHalf,
    knobs: &Arc<Knobs>,
    stalled: watch::Receiver<bool>,
    muted: &AtomicBool,
    cut: &Mutex<CancellationToken>,
) {
    let (sender, receiver) = mpsc::channel(1024);
    let reading = async {
        let mut marker = [0; 4];
        while from.read_exact(&mut marker).await.is_ok() {
            let mut record = vec![0; (u32::from_be_bytes(marker) & 0x7fff_ffff) as usize];
            if from.read_exact(&mut record).await.is_err() {
                return;
            }
            knobs.records.fetch_add(1, Ordering::Relaxed);
            if knobs.fuse_before.fetch_sub(1, Ordering::Relaxed) == 1 {
                std::mem::take(&mut *cut.lock()).cancel();
                return;
            }
            let last = knobs.fuse.fetch_sub(1, Ordering::Relaxed) == 1;
            if last {
                muted.store(true, Ordering::Relaxed);
            }
            let bytes = [&marker[..], &record].concat();
            if sender.send((due(knobs), bytes)).await.is_err() {
                return;
            }
            if last {
                sleep(Duration::from_millis(50)).await;
                std::mem::take(&mut *cut.lock()).cancel();
                return;
            }
        }
    };
    tokio::select! {
        () = reading => {}
        () = deliver(receiver, to, knobs, stalled, None) => {}
    }
}

async fn downward(
    mut from: OwnedReadHalf,
    to: OwnedWriteHalf,
    knobs: &Arc<Knobs>,
    stalled: watch::Receiver<bool>,
    muted: &AtomicBool,
) {
    let (sender, receiver) = mpsc::channel(1024);
    let reading = async {
        let mut chunk = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from.read(&mut chunk).await {
            if sender.send((due(knobs), chunk[..read].to_vec())).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = reading => {}
        () = deliver(receiver, to, knobs, stalled, Some(muted)) => {}
    }
}

fn due(knobs: &Knobs) -> Instant {
    Instant::now() + Duration::from_micros(knobs.delay_us.load(Ordering::Relaxed))
}

async fn deliver(
    mut receiver: mpsc::Receiver<(Instant, Vec<u8>)>,
    mut to: OwnedWriteHalf,
    knobs: &Knobs,
    mut stalled: watch::Receiver<bool>,
    muted: Option<&AtomicBool>,
) {
    while let Some((due, bytes)) = receiver.recv().await {
        let _ = stalled.wait_for(|stalled| !stalled).await;
        sleep_until(due).await;
        if muted.is_some_and(|muted| muted.load(Ordering::Relaxed)) {
            continue;
        }
        let rate = knobs.bytes_per_second.load(Ordering::Relaxed);
        if rate > 0 {
            sleep(Duration::from_secs_f64(bytes.len() as f64 / rate as f64)).await;
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
