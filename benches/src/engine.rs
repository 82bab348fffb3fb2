//! Drives one connection: as many calls under way as there are slots, batches out, batches in, one thread, one clock read a batch.
//!
//! Never does: knowing what a call means (the works), starting threads (`load`).
//! Invariant: a slot is either free or waits for exactly one reply.

use std::{
    io::Read,
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use socket2::Socket;

use crate::{
    client::PATIENCE,
    process::thread_cpu,
    wire::{Calls, Event, Input, Reply, decode, xid},
    works::{Done, Issue, Work},
};

/// Latencies are told apart up to this many nanoseconds, to three digits.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// When to stop beginning operations.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After so many units.
    Units(u64),
    /// At this time.
    Time(Instant),
}

/// What was done before the end came.
#[derive(Debug)]
pub struct Tally {
    /// Operations or directory entries.
    pub units: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// What this thread used of a processor meanwhile.
    pub cpu: Duration,
    /// Nanoseconds from an operation's first call to its last reply.
    pub latency: Histogram<u64>,
}

/// A connection with its slots.
#[derive(Debug)]
pub struct Engine {
    socket: Socket,
    /// The calling side, which knows each slot's sequence.
    pub calls: Calls,
    input: Input,
    depth: usize,
    free: Vec<u32>,
    began: Vec<Instant>,
    long: Option<Long>,
}

/// A long reply of which the start is here.
#[derive(Debug)]
struct Long {
    slot: u32,
    done: Done,
    position: u64,
}

impl Engine {
    /// Drives `depth` slots over `socket`.
    pub fn new(socket: Socket, calls: Calls, input: Input, depth: u32) -> Self {
        let free = (0..depth).rev().collect();
        let began = vec![Instant::now(); depth as usize];
        Self { socket, calls, input, depth: depth as usize, free, began, long: None }
    }

    /// Works until the end, then waits for what is under way, which is not counted. `checking` looks at every byte.
    ///
    /// # Errors
    /// When the server fails an operation, answers wrongly or not at all.
    pub fn run(&mut self, work: &mut dyn Work, until: Until, checking: bool) -> Result<Tally> {
        let (start, cpu) = (Instant::now(), thread_cpu());
        let mut tally = Tally {
            units: 0,
            bytes: 0,
            elapsed: Duration::ZERO,
            cpu: Duration::ZERO,
            latency: Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).context("a histogram")?,
        };
        let mut uncounted = tally.clone_empty();
        let mut now = start;
        let mut ending = false;
        loop {
            let reached = match until {
                Until::Units(units) => tally.units >= units,
                Until::Time(end) => now >= end,
            };
            if reached && !ending {
                ending = true;
                tally.elapsed = now - start;
                tally.cpu = thread_cpu() - cpu;
            }
            self.issue(work, now, !ending);
            if self.free.len() == self.depth {
                if ending {
                    return Ok(tally);
                }
                bail!("no slot has anything to do");
            }
            self.exchange()?;
            now = Instant::now();
            self.take(work, now, if ending { &mut uncounted } else { &mut tally }, checking)?;
        }
    }

    /// Calls on every free slot that has something to call.
    fn issue(&mut self, work: &mut dyn Work, now: Instant, fresh: bool) {
        let mut at = self.free.len();
        while at > 0 {
            at -= 1;
            let slot = self.free[at];
            match work.next(slot, fresh, &mut self.calls) {
                Issue::Begun => self.began[slot as usize] = now,
                Issue::Continued => {}
                Issue::Nothing => continue,
            }
            self.free.swap_remove(at);
        }
    }

    /// Sends what can be sent and receives something, or waits until either can be done.
    fn exchange(&mut self) -> Result<()> {
        const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let socket = &self.socket;
        let sent = self.calls.output.flush(|slices| socket.send_vectored_with_flags(slices, FLAGS));
        if !sent.context("sending calls")? && !readable(socket)? {
            return Ok(());
        }
        match (&self.socket).read(self.input.space()) {
            Ok(0) => bail!("the server closed the connection"),
            Ok(count) => self.input.received(count),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => bail!("no reply within {PATIENCE:?}"),
            Err(error) => return Err(error).context("receiving replies"),
        }
        Ok(())
    }

    /// Hands the replies that are here to the work.
    fn take(&mut self, work: &mut dyn Work, now: Instant, tally: &mut Tally, checking: bool) -> Result<()> {
        while let Some(event) = self.input.next_event()? {
            match event {
                Event::Reply(record) => {
                    let (slot, done) = answered(&self.calls, work, record)?;
                    if checking {
                        work.check(slot, &decode(record)?.1[1..])?;
                    }
                    tally.add(done, now - self.began[slot as usize])?;
                    self.free.push(slot);
                }
                Event::Start(record) => {
                    let (slot, done) = answered(&self.calls, work, record)?;
                    self.long = Some(Long { slot, done, position: 0 });
                }
                Event::Data(bytes) => {
                    let Some(long) = &mut self.long else { bail!("data outside a reply") };
                    if checking {
                        work.check_data(long.slot, long.position, bytes)?;
                    }
                    long.position += bytes.len() as u64;
                }
                Event::End => {
                    let Some(long) = self.long.take() else { bail!("the end of no reply") };
                    tally.add(long.done, now - self.began[long.slot as usize])?;
                    self.free.push(long.slot);
                }
            }
        }
        Ok(())
    }
}

impl Tally {
    fn clone_empty(&self) -> Self {
        let (elapsed, cpu) = (Duration::ZERO, Duration::ZERO);
        Self { units: 0, bytes: 0, elapsed, cpu, latency: Histogram::new_from(&self.latency) }
    }

    fn add(&mut self, done: Done, latency: Duration) -> Result<()> {
        self.units += done.units;
        self.bytes += done.bytes;
        if done.finished {
            self.latency.record(latency.as_nanos() as u64).context("a latency of over a minute")?;
        }
        Ok(())
    }
}

fn answered(calls: &Calls, work: &mut dyn Work, record: &[u8]) -> Result<(u32, Done)> {
    let Some(slot) = xid(record).and_then(|xid| calls.slot_of(xid)) else { bail!("a reply to no call") };
    let reply = Reply::parse(record, calls.operations(slot))?;
    Ok((slot, work.reply(slot, &reply)?))
}

/// Waits until the socket can be read or written; whether it can be read.
fn readable(socket: &Socket) -> Result<bool> {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN | libc::POLLOUT, revents: 0 };
    // SAFETY: one pollfd, which lives until poll returns.
    let ready = unsafe { libc::poll(&mut poll, 1, PATIENCE.as_millis() as i32) };
    if ready == 0 {
        bail!("the server neither takes calls nor answers for {PATIENCE:?}");
    }
    Ok(poll.revents & !libc::POLLOUT != 0)
}
