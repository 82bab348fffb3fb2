//! What a source counts of what it is asked, and how much more it will let us ask.
//!
//! Owns: the arithmetic of billed and throttled file systems, as a pure model. Never does: wait, look at a clock, ask.
//!
//! Such file systems meter each request at a least size, count reads at a third, and let a balance pay for bursts:
//! whoever drains it falls to the baseline rate, which for a small file system is that of a floppy drive. The model
//! says how far that is, and is asked before each request.

use std::time::Duration;

use crate::source::remote::Purpose;

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;
const GIB: f64 = 1024.0 * MIB;
const TIB: f64 = 1024.0 * GIB;

/// Most that a balance holds.
const BALANCE_MAX: f64 = 2.1 * TIB;
/// What may be used at once of a rate: smooths single requests.
const BURST_SECONDS: f64 = 1.0;
/// A request that would have to wait longer is told to come again.
const WAIT_MAX: Duration = Duration::from_secs(8);
/// While less than this share of a full balance is left, nothing is read ahead.
const AHEAD_MIN: f64 = 0.02;
/// The slope is that of about the last ten minutes.
const SLOPE_SECONDS: f64 = 600.0;

/// How a source counts, and what it allows.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum BudgetMode {
    /// It allows everything; what it would count is told all the same.
    #[default]
    None,
    /// Baseline by size, bursts from a balance. `stored`: bytes the file system holds.
    Bursting {
        /// Bytes the file system holds.
        stored: f64,
    },
    /// Everything, for money.
    Elastic,
    /// So many metered bytes a second.
    Provisioned {
        /// Metered bytes a second.
        rate: f64,
    },
}

/// What a request moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Charge {
    /// It reads this much file data.
    pub read: u64,
    /// It writes this much.
    pub write: u64,
}

/// Metered bytes since the beginning, by what they were for.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Metered {
    /// Requests that moved no data.
    pub metadata: f64,
    /// Reads, at a third.
    pub read: f64,
    /// Writes.
    pub write: f64,
}

impl Metered {
    /// All of it.
    pub fn total(&self) -> f64 {
        self.metadata + self.read + self.write
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it after this time.
    After(Duration),
    /// Do not: it was for later, or would have to wait too long.
    Refused,
}

/// The state of a budget, as shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlook {
    /// Bytes left to burst with; `None` where there is no balance.
    pub balance: Option<f64>,
    /// Metered bytes a second that may be used for ever; infinite where there is no limit.
    pub baseline: f64,
    /// Change of the balance, bytes a second; negative while it drains.
    pub slope: f64,
    /// Hours until it is empty at that slope; `None` if it does not drain.
    pub hours_to_empty: Option<f64>,
}

/// A budget. Times are seconds since any fixed moment and must not go back.
#[derive(Clone, Debug)]
pub struct Budget {
    mode: BudgetMode,
    metered: Metered,
    balance: f64,
    /// What may be used at once; negative: that much is owed by requests that wait.
    bucket: f64,
    last: f64,
    /// Metered bytes a second, lately.
    usage: f64,
}

impl BudgetMode {
    /// `none`, `bursting:SIZE` (of the file system), `elastic`, `provisioned:SIZE` (a second).
    pub fn parse(text: &str) -> Result<Self, String> {
        let size = |text: &str| crate::config::units::size(text).map(|bytes| bytes as f64);
        match text.split_once(':') {
            None if text == "none" => Ok(Self::None),
            None if text == "elastic" => Ok(Self::Elastic),
            Some(("bursting", stored)) => Ok(Self::Bursting { stored: size(stored)? }),
            Some(("provisioned", rate)) => match size(rate)? {
                rate if rate >= MIB => Ok(Self::Provisioned { rate }),
                _ => Err("provisioned: expected at least 1MiB a second".into()),
            },
            _ => Err(format!(
                "`{text}`: expected none, bursting:SIZE of the file system, elastic, or provisioned:SIZE a second"
            )),
        }
    }

    /// Metered bytes a second that may be used for ever.
    fn baseline(&self) -> f64 {
        match self {
            Self::None | Self::Elastic => f64::INFINITY,
            Self::Bursting { stored } => (50.0 * KIB * stored / GIB).max(MIB),
            Self::Provisioned { rate } => *rate,
        }
    }

    /// Metered bytes a second while the balance lasts.
    fn burst(&self) -> f64 {
        match self {
            Self::None | Self::Elastic => f64::INFINITY,
            Self::Bursting { stored } => (100.0 * KIB * stored / GIB).max(100.0 * MIB),
            Self::Provisioned { rate } => *rate,
        }
    }

    fn has_balance(&self) -> bool {
        matches!(self, Self::Bursting { .. })
    }

    /// What a request counts for.
    pub fn metered(&self, charge: Charge) -> Metered {
        let least = if matches!(self, Self::Elastic) { 32.0 * KIB } else { 4.0 * KIB };
        let data = |bytes: u64| if bytes == 0 { 0.0 } else { (bytes as f64).max(least) };
        let (read, write) = (data(charge.read) / 3.0, data(charge.write));
        let metadata = if charge == Charge::default() { 4.0 * KIB } else { 0.0 };
        Metered { metadata, read, write }
    }
}

impl Budget {
    /// A budget with this balance (`None`: a full one), beginning at `now`.
    pub fn new(mode: BudgetMode, balance: Option<u64>, now: f64) -> Self {
        let balance = balance.map_or(BALANCE_MAX, |bytes| (bytes as f64).min(BALANCE_MAX));
        let bucket = mode.burst() * BURST_SECONDS;
        Self { mode, metered: Metered::default(), balance, bucket, last: now, usage: 0.0 }
    }

    /// How the source counts.
    pub fn mode(&self) -> BudgetMode {
        self.mode
    }

    fn pass(&mut self, now: f64) {
        let passed = (now - self.last).max(0.0);
        self.last = self.last.max(now);
        self.usage *= (-passed / SLOPE_SECONDS).exp();
        if self.mode.has_balance() {
            self.balance = (self.balance + passed * self.mode.baseline()).min(BALANCE_MAX);
        }
        let rate = self.rate();
        if rate.is_finite() {
            self.bucket = (self.bucket + passed * rate).min(rate * BURST_SECONDS);
        }
    }

    /// Metered bytes a second that may be used now.
    fn rate(&self) -> f64 {
        if self.mode.has_balance() && self.balance > 0.0 { self.mode.burst() } else { self.mode.baseline() }
    }

    /// A request is about to be sent at `now`. What is sent is counted; what is refused is not.
    pub fn admit(&mut self, charge: Charge, purpose: Purpose, now: f64) -> Verdict {
        self.pass(now);
        let metered = self.mode.metered(charge);
        let cost = metered.total();
        let rate = self.rate();
        let wait = if rate.is_finite() && self.bucket < cost { (cost - self.bucket) / rate } else { 0.0 };
        let is_low = self.mode.has_balance() && self.balance < BALANCE_MAX * AHEAD_MIN;
        if purpose == Purpose::Ahead && (wait > 0.0 || is_low) {
            return Verdict::Refused;
        }
        let wait = Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX);
        if wait > WAIT_MAX {
            return Verdict::Refused;
        }
        self.spend(metered);
        Verdict::After(wait)
    }

    /// More was moved than was said (an answer brought data along).
    pub fn settle(&mut self, said: Charge, moved: Charge, now: f64) {
        self.pass(now);
        let (said, moved) = (self.mode.metered(said), self.mode.metered(moved));
        let difference = Metered {
            metadata: moved.metadata - said.metadata,
            read: moved.read - said.read,
            write: moved.write - said.write,
        };
        self.spend(difference);
    }

    fn spend(&mut self, metered: Metered) {
        let cost = metered.total();
        self.metered.metadata += metered.metadata;
        self.metered.read += metered.read;
        self.metered.write += metered.write;
        self.usage += cost / SLOPE_SECONDS;
        if self.mode.has_balance() {
            self.balance -= cost;
        }
        if self.rate().is_finite() {
            self.bucket -= cost;
        }
    }

    /// What was metered so far.
    pub fn metered(&self) -> Metered {
        self.metered
    }

    /// How it stands and where it goes.
    pub fn outlook(&mut self, now: f64) -> Outlook {
        self.pass(now);
        let baseline = self.mode.baseline();
        let slope = if baseline.is_finite() { baseline - self.usage } else { -self.usage };
        let balance = self.mode.has_balance().then_some(self.balance.max(0.0));
        let drains = balance.filter(|_| slope < 0.0);
        Outlook { balance, baseline, slope, hours_to_empty: drains.map(|left| left / -slope / 3600.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ_MIB: Charge = Charge { read: 1 << 20, write: 0 };

    #[test]
    fn requests_are_metered_at_their_least_size_and_reads_at_a_third() {
        let bursting = BudgetMode::Bursting { stored: GIB };
        for (mode, charge, expected) in [
            (bursting, Charge::default(), 4.0 * KIB),
            (bursting, Charge { read: 1, write: 0 }, 4.0 * KIB / 3.0),
            (bursting, Charge { read: 0, write: 1 }, 4.0 * KIB),
            (bursting, READ_MIB, MIB / 3.0),
            (BudgetMode::Elastic, Charge::default(), 4.0 * KIB),
            (BudgetMode::Elastic, Charge { read: 0, write: 1 }, 32.0 * KIB),
        ] {
            assert_eq!(mode.metered(charge).total(), expected, "{mode:?} {charge:?}");
        }
    }

    #[test]
    fn ten_hours_of_metadata_eat_half_of_a_small_file_systems_floor() {
        // 4.24 million requests in ten hours: 16.2 GiB, 0.46 MiB a second, where the floor is 1 MiB a second.
        let mut budget = Budget::new(BudgetMode::Bursting { stored: GIB }, Some(10 << 30), 0.0);
        let requests = 4_240_000;
        for number in 0..requests {
            let now = 36_000.0 * f64::from(number) / f64::from(requests);
            assert_eq!(budget.admit(Charge::default(), Purpose::Client, now), Verdict::After(Duration::ZERO));
        }
        let metered = budget.metered().total();
        assert!((metered / GIB - 16.2).abs() < 0.1, "{metered}");
        let outlook = budget.outlook(36_000.0);
        assert!((outlook.slope / MIB - 0.54).abs() < 0.02, "{outlook:?}");
        assert_eq!(outlook.hours_to_empty, None);
    }

    #[test]
    fn a_burst_drains_the_balance_and_then_the_baseline_is_all_there_is() {
        let mut budget = Budget::new(BudgetMode::Bursting { stored: 100.0 * GIB }, Some(1 << 30), 0.0);
        let (mut now, mut waited) = (0.0, 0.0);
        let mut moved = 0.0;
        while now < 600.0 {
            match budget.admit(READ_MIB, Purpose::Client, now) {
                Verdict::After(wait) => {
                    now += wait.as_secs_f64();
                    waited += wait.as_secs_f64();
                    moved += MIB;
                }
                Verdict::Refused => now += 1.0,
            }
            now += 0.001;
        }
        // 1 GiB of balance and 600 s of 5,000 KiB/s, tripled for reads.
        let most = 3.0 * (GIB + 600.0 * 5000.0 * KIB + 100.0 * MIB);
        assert!(moved <= most * 1.01, "{} of {}", moved / GIB, most / GIB);
        assert!(moved >= most * 0.9, "{} of {}", moved / GIB, most / GIB);
        assert!(waited > 100.0);
        let outlook = budget.outlook(now);
        assert!(outlook.balance.unwrap() < GIB / 10.0, "{outlook:?}");
    }

    #[test]
    fn what_is_read_ahead_is_given_up_before_anybody_waits() {
        let mut budget = Budget::new(BudgetMode::Provisioned { rate: MIB }, None, 0.0);
        while budget.admit(READ_MIB, Purpose::Client, 0.0) == Verdict::After(Duration::ZERO) {}
        assert_eq!(budget.admit(READ_MIB, Purpose::Ahead, 0.0), Verdict::Refused);
        let counted = budget.metered().total();
        assert!(matches!(budget.admit(READ_MIB, Purpose::Client, 0.0), Verdict::After(wait) if wait > Duration::ZERO));
        assert!(budget.metered().total() > counted);
        assert_eq!(budget.admit(READ_MIB, Purpose::Ahead, 60.0), Verdict::After(Duration::ZERO), "time heals");
    }

    #[test]
    fn hours_to_empty_are_those_of_the_slope() {
        let mut budget = Budget::new(BudgetMode::Bursting { stored: GIB }, Some(100 << 30), 0.0);
        for second in 0..7200 {
            for _ in 0..3 {
                budget.admit(Charge { read: 0, write: 1 << 20 }, Purpose::Client, f64::from(second));
            }
        }
        let outlook = budget.outlook(7200.0);
        // 3 MiB a second against a floor of 1.
        assert!((outlook.slope / MIB + 2.0).abs() < 0.05, "{outlook:?}");
        let expected = outlook.balance.unwrap() / (2.0 * MIB) / 3600.0;
        assert!((outlook.hours_to_empty.unwrap() - expected).abs() < expected * 0.05, "{outlook:?}");
    }

    #[test]
    fn without_limits_everything_goes_and_is_counted() {
        let mut budget = Budget::new(BudgetMode::Elastic, None, 0.0);
        for _ in 0..1000 {
            assert_eq!(budget.admit(READ_MIB, Purpose::Ahead, 0.0), Verdict::After(Duration::ZERO));
        }
        assert!((budget.metered().read - 1000.0 * MIB / 3.0).abs() < 1.0);
        assert_eq!(budget.outlook(1.0).hours_to_empty, None);
    }
}
