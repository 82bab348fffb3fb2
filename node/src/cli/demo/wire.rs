//! A wire between two ends of one machine: as slow as one between machines.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::Instant,
};

/// Pieces on their way in one direction.
const ON_THE_WAY: usize = 256;
/// Bytes of a piece at most.
const PIECE: usize = 64 << 10;

/// How slow it is, each way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slowness {
    /// How long a byte is on its way.
    pub delay: Duration,
    /// Bytes a second of each connection.
    pub rate: u64,
}

/// Forwards connections to `to` for as long as the runtime lives. Where to connect instead.
pub(super) async fn start(to: SocketAddr, slowness: Slowness) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let Ok(far) = TcpStream::connect(to).await else { continue };
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            tokio::spawn(forward(near_in, far_out, slowness));
            tokio::spawn(forward(far_in, near_out, slowness));
        }
    });
    Ok(address)
}

async fn forward(
    mut from: impl AsyncRead + Unpin + Send + 'static,
    mut to: impl AsyncWrite + Unpin + Send + 'static,
    slowness: Slowness,
) {
    let (sender, mut receiver) = mpsc::channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
    tokio::spawn(async move {
        let mut free_at = Instant::now();
        while let Some((due, bytes)) = receiver.recv().await {
            let begins = due.max(free_at);
            tokio::time::sleep_until(begins).await;
            free_at = begins + Duration::from_secs_f64(bytes.len() as f64 / slowness.rate as f64);
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    });
    let mut buffer = vec![0; PIECE];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if sender.send((Instant::now() + slowness.delay, buffer[..count].to_vec())).await.is_err() {
            return;
        }
    }
}
