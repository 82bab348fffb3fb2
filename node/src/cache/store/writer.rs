//! The thread that writes.
//!
//! Owns: the log, and whether the store is healthy. Never does: fail a caller; what cannot be written is only not kept.
//!
//! A store that fails is given up with everything on it: its superblock gets another name, as far as it can still be
//! written, and when it comes back it is empty. Anything else would have to remember what was removed meanwhile.

use std::{io, sync::Arc, thread::JoinHandle, time::Duration};

use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use tokio::sync::Semaphore;

use super::{
    Core, Health, Job, Limits, Store,
    layout::{BLOCK, CHUNK_RECORD_DEFAULTS, Record, RecordKind, Superblock, TOMBSTONES_MAX, encode_keys},
    log::{Commit, Log},
    medium::Medium,
    open::{OpenError, Opened, write_superblock},
    quota::Quotas,
    recovery::{self, Recovered},
};
use crate::cache::{key::ChunkKey, metrics::CacheMetrics, ram::Ram};

/// Jobs taken from the queue at once.
const JOBS_AT_ONCE: usize = 256;

/// Opens the store; with `true`, emptied.
pub type Opener = Box<dyn Fn(bool) -> Result<Opened, OpenError> + Send>;

struct Writer {
    store: Arc<Store>,
    opener: Opener,
    log: Option<Log>,
    quotas: Quotas,
}

impl Store {
    /// Opens and reads the store, and starts the thread.
    ///
    /// # Errors
    /// It cannot be opened or read.
    pub fn start(
        opener: Opener,
        limits: Limits,
        ram: Arc<Ram>,
        metrics: Arc<CacheMetrics>,
    ) -> Result<(Arc<Self>, JoinHandle<()>), OpenError> {
        let recovered = read_store(opener(false)?, (limits.clock)())?;
        metrics.recovered_damage.add(recovered.damaged);
        let room_blocks = u32::try_from(limits.queue_bytes / BLOCK as u64).unwrap_or(u32::MAX).clamp(2, 1 << 28);
        let unsaid = recovered.pinned_files.iter().filter(|(_, written)| **written == 0);
        let queue = unsaid.map(|(file, _)| say_pinned(*file)).collect();
        let core = Core {
            index: recovered.index,
            medium: Some(Arc::clone(&recovered.log.medium)),
            pending: HashMap::new(),
            pending_pinned: 0,
            queue,
            pinned_files: recovered.pinned_files,
            forget: Vec::new(),
            unsettled: 0,
            tickets: 0,
            health: Health::Healthy,
        };
        let store = Arc::new(Self {
            core: Mutex::new(core),
            wake: Condvar::new(),
            room: Arc::new(Semaphore::new(room_blocks as usize)),
            room_blocks,
            limits,
            ram,
            metrics,
        });
        store.metrics.degraded.set(0.0);
        let writer = Writer { store: Arc::clone(&store), opener, log: Some(recovered.log), quotas: Quotas::default() };
        let thread = std::thread::Builder::new().name("cache-writer".into()).spawn(move || writer.run());
        let path = || std::path::PathBuf::from("thread");
        let thread = thread.map_err(|source| OpenError::Io { path: path(), source })?;
        Ok((store, thread))
    }
}

fn read_store(opened: Opened, now: u64) -> Result<Recovered, OpenError> {
    let medium = Arc::new(Medium::new(opened.device, opened.superblock));
    recovery::recover(medium, now, opened.session)
        .map_err(|source| OpenError::Io { path: std::path::PathBuf::from("(reading the store)"), source })
}

fn say_pinned(file: u128) -> Job {
    let record = super::control(RecordKind::Pin, ChunkKey { file, version: 0, index: 0 });
    Job::Control { record, room: None, done: None, unsettled: 0 }
}

impl Writer {
    fn run(mut self) {
        let result = self.enforce_quotas();
        self.judge(result);
        loop {
            let (mut jobs, forget, closing) = self.next_jobs();
            let idle = jobs.is_empty() && forget.is_empty();
            let result = if idle && !closing { self.look_after() } else { self.work(&mut jobs, forget) };
            self.judge(result);
            self.store.publish();
            if closing && self.store.core.lock().queue.is_empty() {
                break;
            }
        }
        if let Some(log) = self.log.as_mut() {
            let result = log.seal(&self.store);
            self.judge(result);
        }
    }

    /// Jobs in their order; none after a while in which there were none.
    fn next_jobs(&self) -> (VecDeque<Job>, Vec<ChunkKey>, bool) {
        let mut core = self.store.core.lock();
        if core.queue.is_empty() && core.forget.is_empty() && core.health != Health::Closing {
            self.store.wake.wait_for(&mut core, self.store.limits.retry.min(Duration::from_secs(10)));
        }
        let count = core.queue.len().min(JOBS_AT_ONCE);
        let jobs = core.queue.drain(..count).collect();
        (jobs, std::mem::take(&mut core.forget), core.health == Health::Closing)
    }

    /// What is left of `jobs` after an error is dropped by the caller, once the store says that it is degraded.
    fn work(&mut self, jobs: &mut VecDeque<Job>, forget: Vec<ChunkKey>) -> io::Result<()> {
        let Some(log) = self.log.as_mut() else { return Ok(()) };
        while let Some(job) = jobs.pop_front() {
            match job {
                Job::Write { key, ticket, room } => {
                    if let Some((record, bytes)) = self.store.pending_record(&key, ticket) {
                        log.append(&self.store, record, &bytes, Commit::New { ticket, _room: room })?;
                    }
                }
                Job::Control { record, room, done, unsettled } => {
                    log.append(&self.store, record, &[], Commit::Control { _room: room, done, unsettled })?;
                }
                Job::Flush(done) => {
                    log.waiting.push(done);
                    log.write_batch(&self.store)?;
                }
            }
        }
        for keys in forget.chunks(TOMBSTONES_MAX) {
            let payload = encode_keys(keys);
            let length = u32::try_from(payload.len()).expect("at most a block");
            let record = Record { kind: RecordKind::TombstoneList, length, ..CHUNK_RECORD_DEFAULTS };
            log.append(&self.store, record, &payload, Commit::Forgotten(keys.len()))?;
        }
        log.write_batch(&self.store)?;
        // Before a flush is answered: whoever waited for it finds quotas kept.
        self.enforce_quotas()?;
        match self.log.as_mut() {
            Some(log) if log.unsettled() => log.settle(&self.store),
            _ => Ok(()),
        }
    }

    fn enforce_quotas(&mut self) -> io::Result<()> {
        self.log.as_ref().map_or(Ok(()), |log| self.quotas.enforce(log, &self.store))
    }

    /// Nothing to write: is the store still there, or there again?
    fn look_after(&mut self) -> io::Result<()> {
        match &self.log {
            Some(log) => log.medium.device.check(),
            None => {
                self.come_back();
                Ok(())
            }
        }
    }

    fn judge(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.give_up(&error);
        }
    }

    fn give_up(&mut self, error: &io::Error) {
        let Some(log) = self.log.take() else { return };
        self.store.metrics.errors_write.add(1);
        self.store.metrics.degraded.set(1.0);
        tracing::error!(
            %error,
            "the cache store failed: chunks are kept in RAM only. Check the device and its space; it is tried again every {} s \
             and starts empty",
            self.store.limits.retry.as_secs()
        );
        let mut core = self.store.core.lock();
        if core.health == Health::Healthy {
            core.health = Health::Degraded;
        }
        let dropped = (std::mem::take(&mut core.index), core.medium.take(), core.queue.drain(..).collect::<Vec<_>>());
        let pending = std::mem::take(&mut core.pending);
        core.pending_pinned = 0;
        core.pinned_files.values_mut().for_each(|written| *written = 0);
        core.forget.clear();
        core.unsettled = 0;
        drop(core);
        let renamed = Superblock { uuid: uuid::Uuid::new_v4().as_u128(), ..log.medium.superblock };
        // It failed already; this is only for a restart before it is back.
        write_superblock(log.medium.device.as_ref(), &renamed).ok();
        // Whoever waits for the log or a place in the queue is told by this.
        drop((log, dropped, pending));
    }

    fn come_back(&mut self) {
        let now = (self.store.limits.clock)();
        let recovered = match (self.opener)(true).and_then(|opened| read_store(opened, now)) {
            Ok(recovered) => recovered,
            Err(error) => {
                self.store.metrics.errors_open.add(1);
                tracing::debug!(%error, "the cache store is not back yet");
                return;
            }
        };
        let mut core = self.store.core.lock();
        if core.health != Health::Degraded {
            return;
        }
        core.medium = Some(Arc::clone(&recovered.log.medium));
        core.health = Health::Healthy;
        let pinned: Vec<u128> = core.pinned_files.keys().copied().collect();
        core.queue.extend(pinned.into_iter().map(say_pinned));
        drop(core);
        self.log = Some(recovered.log);
        self.quotas = Quotas::default();
        self.store.metrics.degraded.set(0.0);
        tracing::info!("the cache store is back, empty");
    }
}

impl Store {
    /// The record and bytes of a chunk that still has its ticket.
    fn pending_record(&self, key: &ChunkKey, ticket: u64) -> Option<(Record, bytes::Bytes)> {
        let core = self.core.lock();
        let pending = core.pending.get(key).filter(|pending| pending.ticket == ticket)?;
        let record = Record {
            key: *key,
            pinned: pending.placement.pinned,
            length: u32::try_from(pending.bytes.len()).ok()?,
            export: pending.placement.export,
            expires: pending.placement.expires.map_or(0, |at| u32::try_from(at).unwrap_or(u32::MAX).max(1)),
            ..CHUNK_RECORD_DEFAULTS
        };
        Some((record, pending.bytes.clone()))
    }

    /// Sets the gauges.
    pub fn publish(&self) {
        let now = self.snapshot();
        self.metrics.nvme.bytes.set(now.usage.bytes as f64);
        self.metrics.nvme.chunks.set(now.usage.chunks as f64);
        self.metrics.nvme.capacity.set(now.capacity as f64);
        self.metrics.pinned_bytes.set(now.usage.pinned_bytes as f64);
        self.metrics.queue_bytes.set(now.queued as f64);
    }
}
