//! A slow wire: forwards TCP connections, replies delayed and at a bounded rate.
//!
//! Owns: threads, one for each direction of a connection and one that waits. Never does: look at what it forwards.
//! Invariant: bytes come out in order, none before its time; as much may be on its way as a long wire would hold.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use anyhow::Result;

/// Bytes on their way in chunks of at most 64 KiB: 64 MiB.
const ON_THE_WAY: usize = 1024;

/// A wire to a server.
#[derive(Debug)]
pub struct Proxy {
    /// Where to connect instead.
    pub address: SocketAddr,
    delay_us: Arc<AtomicU64>,
    bytes_per_s: Arc<AtomicU64>,
}

impl Proxy {
    /// Forwards to `server`, at first without delay.
    ///
    /// # Errors
    /// When no port is free.
    pub fn start(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let (delay_us, bytes_per_s) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let wire = (delay_us.clone(), bytes_per_s.clone(), Arc::new(Mutex::new(Instant::now())));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(server) else { continue };
                let _ = (client.set_nodelay(true), far.set_nodelay(true));
                let (Ok(client_in), Ok(far_in)) = (client.try_clone(), far.try_clone()) else { continue };
                std::thread::spawn(move || forward(client_in, far, None));
                let wire = wire.clone();
                std::thread::spawn(move || forward(far_in, client, Some(wire)));
            }
        });
        Ok(Self { address, delay_us, bytes_per_s })
    }

    /// From now on replies take this much longer, and all connections share this many bytes a second (0: no bound).
    pub fn set(&self, delay: Duration, bytes_per_s: u64) {
        self.delay_us.store(delay.as_micros() as u64, Ordering::Relaxed);
        self.bytes_per_s.store(bytes_per_s, Ordering::Relaxed);
    }
}

/// Delay, rate, and when the shared wire is free.
type Wire = (Arc<AtomicU64>, Arc<AtomicU64>, Arc<Mutex<Instant>>);

fn forward(mut from: TcpStream, mut to: TcpStream, wire: Option<Wire>) {
    let Some((delay_us, bytes_per_s, free_at)) = wire else {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(std::net::Shutdown::Write);
        return;
    };
    let (sender, receiver) = mpsc::sync_channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
    std::thread::spawn(move || {
        for (due, bytes) in receiver {
            let rate = bytes_per_s.load(Ordering::Relaxed);
            let mut begins = due;
            if rate > 0 {
                let mut free = free_at.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                begins = due.max(*free);
                *free = begins + Duration::from_secs_f64(bytes.len() as f64 / rate as f64);
            }
            std::thread::sleep(begins.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count) = from.read(&mut buffer) {
        let due = Instant::now() + Duration::from_micros(delay_us.load(Ordering::Relaxed));
        if count == 0 || sender.send((due, buffer[..count].to_vec())).is_err() {
            return;
        }
    }
}
