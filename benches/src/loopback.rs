//! What plain TCP moves over this machine's loopback: the limit of what any server could do here.
//!
//! Measured with iperf3; where that is not installed, with two threads that send and receive 128 KiB at a time, as iperf3 does.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};

use crate::{
    process::{Guard, Scratch},
    servers::free_address,
};

/// iperf3's default for TCP.
const CHUNK: usize = 128 << 10;

/// What measures.
#[derive(Debug)]
pub enum Loopback {
    /// The program.
    Iperf3(PathBuf),
    /// Threads of our own.
    Threads,
}

impl Loopback {
    /// iperf3 if it is here.
    pub fn find() -> Self {
        let program = PathBuf::from("/usr/bin/iperf3");
        if program.is_file() { Self::Iperf3(program) } else { Self::Threads }
    }

    /// What it is, for the results.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Iperf3(_) => "iperf3",
            Self::Threads => "a sending and a receiving thread (iperf3 is not installed)",
        }
    }

    /// Bytes per second over `connections`.
    ///
    /// # Errors
    /// When it cannot be measured.
    pub fn measure(&self, connections: u32, time: Duration) -> Result<f64> {
        match self {
            Self::Iperf3(program) => iperf3(program, connections, time).context("iperf3"),
            Self::Threads => threads(connections, time),
        }
    }
}

fn iperf3(program: &PathBuf, connections: u32, time: Duration) -> Result<f64> {
    let home = Scratch::new(&std::env::temp_dir())?;
    let port = free_address()?.port().to_string();
    let mut serve = Command::new(program);
    serve.args(["-s", "-1", "-B", "127.0.0.1", "-p", &port]);
    let _server = Guard::start(serve, &home.path().join("server"))?;
    let started = Instant::now();
    loop {
        let mut send = Command::new(program);
        send.args(["-c", "127.0.0.1", "-p", &port, "-J", "-P", &connections.to_string()]);
        // Whole seconds are all it knows.
        send.args(["-t", &time.as_secs_f64().ceil().to_string()]);
        let output = send.output()?;
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).context("what it printed")?;
        if let Some(bits) = told.pointer("/end/sum_received/bits_per_second").and_then(|bits| bits.as_f64()) {
            return Ok(bits / 8.0);
        }
        if started.elapsed() > Duration::from_secs(5) {
            bail!("{}", told.get("error").map_or_else(|| "no result".into(), ToString::to_string));
        }
        // Its server was not listening yet.
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn threads(connections: u32, time: Duration) -> Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let mut pairs = Vec::new();
    for _ in 0..connections {
        let sender = TcpStream::connect(address)?;
        pairs.push((sender, listener.accept()?.0));
    }
    std::thread::scope(|scope| {
        let mut receivers = Vec::new();
        for (sender, receiver) in pairs {
            scope.spawn(move || send(sender, time));
            receivers.push(scope.spawn(move || receive(receiver)));
        }
        let mut rate = 0.0;
        for receiver in receivers {
            rate += receiver.join().map_err(|_| anyhow!("a receiving thread panicked"))??;
        }
        Ok(rate)
    })
}

fn send(mut stream: TcpStream, time: Duration) -> Result<()> {
    let chunk = vec![7; CHUNK];
    let started = Instant::now();
    while started.elapsed() < time {
        stream.write_all(&chunk)?;
    }
    Ok(stream.shutdown(Shutdown::Write)?)
}

fn receive(mut stream: TcpStream) -> Result<f64> {
    let mut chunk = vec![0; CHUNK];
    let (started, mut bytes) = (Instant::now(), 0);
    loop {
        match stream.read(&mut chunk)? {
            0 => return Ok(bytes as f64 / started.elapsed().as_secs_f64()),
            count => bytes += count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_move_bytes() {
        let rate = Loopback::Threads.measure(2, Duration::from_millis(50)).unwrap();
        assert!(rate > 1e6, "{rate}");
    }
}
