//! A source whose budget is kept: each request is counted as the source counts it, delayed or, if nobody waits for it,
//! refused when there is no more to spend.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use metrics::{Counter, Gauge, counter, gauge};
use parking_lot::Mutex;

use super::{
    NewObject, ObjectId, SeekWhat, SetAttributes, SourceError, SpaceAttributes, XattrSet,
    budget::{Budget, BudgetMode, Charge, Metered, Outlook, Verdict},
    remote::{
        Changed, Committed, DataRead, DirectoryChange, Health, Made, OnBehalf, Page, Place, RemoteSource, Seen,
        SeenObject, Want, Written,
    },
};

type Result<T> = std::result::Result<T, SourceError>;

/// A source behind its budget.
pub struct MeteredSource {
    inner: Arc<dyn RemoteSource>,
    budget: Mutex<Budget>,
    began: Instant,
    metrics: BudgetMetrics,
}

/// Metrics of a budget. See `docs/metrics.md`.
#[derive(Debug)]
struct BudgetMetrics {
    metadata: Counter,
    read: Counter,
    write: Counter,
    /// Only where there is a balance.
    balance: Option<(Gauge, Gauge)>,
    slope: Gauge,
    delayed: Counter,
    delayed_us: Counter,
    refused: Counter,
}

impl BudgetMetrics {
    fn new(source: &str, has_balance: bool) -> Self {
        let count = |name: &'static str| counter!(name, "source" => source.to_owned());
        let level = |name: &'static str| gauge!(name, "source" => source.to_owned());
        let bytes = |kind: &'static str| counter!("forebay_source_metered_bytes_total", "source" => source.to_owned(), "kind" => kind);
        Self {
            metadata: bytes("metadata"),
            read: bytes("read"),
            write: bytes("write"),
            balance: has_balance
                .then(|| (level("forebay_budget_balance_bytes"), level("forebay_budget_hours_to_empty"))),
            slope: level("forebay_budget_slope_bytes_per_second"),
            delayed: count("forebay_budget_delayed_total"),
            delayed_us: count("forebay_budget_delayed_microseconds_total"),
            refused: count("forebay_budget_refused_total"),
        }
    }
}

impl MeteredSource {
    /// `source`: what its metrics are labelled with.
    pub fn new(inner: Arc<dyn RemoteSource>, budget: Budget, source: &str) -> Arc<Self> {
        let metrics = BudgetMetrics::new(source, matches!(budget.mode(), BudgetMode::Bursting { .. }));
        Arc::new(Self { inner, budget: Mutex::new(budget), began: Instant::now(), metrics })
    }

    fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// How the budget stands, and what was metered.
    pub fn outlook(&self) -> (Outlook, Metered) {
        let mut budget = self.budget.lock();
        let outlook = budget.outlook(self.now());
        (outlook, budget.metered())
    }

    /// Sets the gauges and counters to what is now.
    pub fn publish(&self) {
        let (outlook, metered) = self.outlook();
        self.metrics.metadata.absolute(metered.metadata as u64);
        self.metrics.read.absolute(metered.read as u64);
        self.metrics.write.absolute(metered.write as u64);
        self.metrics.slope.set(outlook.slope);
        if let Some((balance, hours)) = &self.metrics.balance {
            balance.set(outlook.balance.unwrap_or(0.0));
            hours.set(outlook.hours_to_empty.unwrap_or(f64::INFINITY));
        }
    }

    /// Waits until a request may be sent.
    async fn admit(&self, by: &OnBehalf, charge: Charge) -> Result<()> {
        let verdict = self.budget.lock().admit(charge, by.purpose, self.now());
        match verdict {
            Verdict::After(Duration::ZERO) => Ok(()),
            Verdict::After(wait) => {
                self.metrics.delayed.increment(1);
                self.metrics.delayed_us.increment(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
                tokio::time::sleep(wait).await;
                Ok(())
            }
            Verdict::Refused => {
                self.metrics.refused.increment(1);
                Err(SourceError::Unavailable)
            }
        }
    }

    fn settle(&self, said: Charge, moved: Charge) {
        if said != moved {
            self.budget.lock().settle(said, moved, self.now());
        }
    }
}

impl fmt::Debug for MeteredSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeteredSource").field("inner", &self.inner).finish_non_exhaustive()
    }
}

const PLAIN: Charge = Charge { read: 0, write: 0 };

fn reads(bytes: u64) -> Charge {
    Charge { read: bytes, write: 0 }
}

fn came_along(seen: &Seen) -> u64 {
    let data = seen.object.as_ref().ok().and_then(|object| object.data.as_ref());
    data.map_or(0, |data| data.bytes.len() as u64)
}

#[async_trait]
impl RemoteSource for MeteredSource {
    fn health(&self) -> Health {
        self.inner.health()
    }

    fn has_xattrs(&self) -> bool {
        self.inner.has_xattrs()
    }

    async fn root(&self, by: &OnBehalf) -> Result<SeenObject> {
        self.admit(by, PLAIN).await?;
        self.inner.root(by).await
    }

    async fn look(&self, by: &OnBehalf, place: &Place, want: Want) -> Result<Seen> {
        let said = reads(want.read.into());
        self.admit(by, said).await?;
        let seen = self.inner.look(by, place, want).await;
        self.settle(said, reads(seen.as_ref().map_or(0, came_along)));
        seen
    }

    async fn look_many(&self, by: &OnBehalf, places: &[Place], want: Want) -> Result<Vec<Result<Seen>>> {
        let said = reads(places.len() as u64 * u64::from(want.read));
        self.admit(by, said).await?;
        let seen = self.inner.look_many(by, places, want).await;
        let moved = seen.iter().flatten().flatten().map(came_along).sum();
        self.settle(said, reads(moved));
        seen
    }

    async fn parent(&self, by: &OnBehalf, dir: &ObjectId) -> Result<SeenObject> {
        self.admit(by, PLAIN).await?;
        self.inner.parent(by, dir).await
    }

    async fn read(&self, by: &OnBehalf, file: &ObjectId, offset: u64, count: u32) -> Result<DataRead> {
        let said = reads(count.into());
        self.admit(by, said).await?;
        let read = self.inner.read(by, file, offset, count).await;
        self.settle(said, reads(read.as_ref().map_or(0, |read| read.data.bytes.len() as u64)));
        read
    }

    async fn write(&self, by: &OnBehalf, file: &ObjectId, offset: u64, data: Bytes, stable: bool) -> Result<Written> {
        let said = Charge { read: 0, write: data.len() as u64 };
        self.admit(by, said).await?;
        let written = self.inner.write(by, file, offset, data, stable).await;
        let count = written.as_ref().map_or(0, |written| u64::from(written.count));
        self.settle(said, Charge { read: 0, write: count });
        written
    }

    async fn commit(&self, by: &OnBehalf, file: &ObjectId) -> Result<Committed> {
        self.admit(by, PLAIN).await?;
        self.inner.commit(by, file).await
    }

    async fn set_attributes(&self, by: &OnBehalf, file: &ObjectId, set: &SetAttributes) -> Result<Changed> {
        self.admit(by, PLAIN).await?;
        self.inner.set_attributes(by, file, set).await
    }

    async fn create(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        exclusive: bool,
        set: &SetAttributes,
    ) -> Result<Made> {
        self.admit(by, PLAIN).await?;
        self.inner.create(by, dir, name, exclusive, set).await
    }

    async fn make(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        object: &NewObject,
        set: &SetAttributes,
    ) -> Result<Made> {
        self.admit(by, PLAIN).await?;
        self.inner.make(by, dir, name, object, set).await
    }

    async fn link(&self, by: &OnBehalf, file: &ObjectId, dir: &ObjectId, name: &[u8]) -> Result<DirectoryChange> {
        self.admit(by, PLAIN).await?;
        self.inner.link(by, file, dir, name).await
    }

    async fn remove(&self, by: &OnBehalf, dir: &ObjectId, name: &[u8]) -> Result<DirectoryChange> {
        self.admit(by, PLAIN).await?;
        self.inner.remove(by, dir, name).await
    }

    async fn rename(
        &self,
        by: &OnBehalf,
        from: (&ObjectId, &[u8]),
        to: (&ObjectId, &[u8]),
    ) -> Result<(DirectoryChange, DirectoryChange)> {
        self.admit(by, PLAIN).await?;
        self.inner.rename(by, from, to).await
    }

    async fn read_link(&self, by: &OnBehalf, link: &ObjectId) -> Result<Bytes> {
        self.admit(by, PLAIN).await?;
        self.inner.read_link(by, link).await
    }

    async fn read_directory(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        cookie: u64,
        verifier: u64,
        bytes: u32,
    ) -> Result<Page> {
        self.admit(by, PLAIN).await?;
        self.inner.read_directory(by, dir, cookie, verifier, bytes).await
    }

    async fn space(&self, by: &OnBehalf, object: &ObjectId) -> Result<SpaceAttributes> {
        self.admit(by, PLAIN).await?;
        self.inner.space(by, object).await
    }

    async fn seek(&self, by: &OnBehalf, file: &ObjectId, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        self.admit(by, PLAIN).await?;
        self.inner.seek(by, file, offset, what).await
    }

    async fn allocate(&self, by: &OnBehalf, file: &ObjectId, offset: u64, length: u64, punch: bool) -> Result<Changed> {
        self.admit(by, PLAIN).await?;
        self.inner.allocate(by, file, offset, length, punch).await
    }

    async fn xattr_get(&self, by: &OnBehalf, file: &ObjectId, name: &[u8]) -> Result<Bytes> {
        self.admit(by, PLAIN).await?;
        self.inner.xattr_get(by, file, name).await
    }

    async fn xattr_list(&self, by: &OnBehalf, file: &ObjectId) -> Result<Vec<Bytes>> {
        self.admit(by, PLAIN).await?;
        self.inner.xattr_list(by, file).await
    }

    async fn xattr_set(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        name: &[u8],
        value: &Bytes,
        how: XattrSet,
    ) -> Result<Changed> {
        self.admit(by, PLAIN).await?;
        self.inner.xattr_set(by, file, name, value, how).await
    }

    async fn xattr_remove(&self, by: &OnBehalf, file: &ObjectId, name: &[u8]) -> Result<Changed> {
        self.admit(by, PLAIN).await?;
        self.inner.xattr_remove(by, file, name).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
