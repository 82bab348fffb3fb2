//! Forebay and NFS-Ganesha on the same files with the same load, in pairs: one after the other, round after round.
//!
//! Owns: the order of measurements and what is made of them. Medians are over rounds; a ratio is the median of the rounds' ratios, so
//! that what disturbs the machine for longer than a round disturbs both.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::{
    load::{self, Measured, Plan},
    loopback::Loopback,
    servers::{Server, find_ganesha},
    table,
    tree::{self, Sizes, Tree},
    works::Kind,
};

/// Bytes for which processor time is told.
pub const GIB: f64 = (1_u64 << 30) as f64;
/// Operations, or entries, for which processor time is told.
pub const MANY: f64 = 100_000.0;

/// What the command line says.
#[derive(Clone, Debug)]
pub struct Options {
    /// Pairs of measurements for each work.
    pub rounds: u32,
    /// Each measurement's time.
    pub time: Duration,
    /// What to measure.
    pub works: Vec<Kind>,
    /// Connections of the load generator.
    pub connections: u32,
    /// Slots in use on each; `None` leaves it to the work.
    pub depth: Option<u32>,
    /// Small files.
    pub quick: bool,
    /// Where the results go.
    pub json: PathBuf,
    /// Forebay alone.
    pub skip_ganesha: bool,
}

/// One server in one round.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// In the work's unit.
    pub rate: f64,
    /// Server's processor seconds per GiB or per 100,000.
    pub server_cpu: f64,
    /// Load generator's processor seconds per GiB or per 100,000.
    pub client_cpu: f64,
    /// Share of the time in which the load generator's threads ran.
    pub client_busy: f64,
    /// Half of the operations took no longer.
    pub p50_us: f64,
    /// Of a hundred operations 99 took no longer.
    pub p99_us: f64,
}

/// A figure for each server.
#[derive(Clone, Debug, Serialize)]
pub struct Both {
    /// Forebay's.
    pub forebay: f64,
    /// Ganesha's, if it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ganesha: Option<f64>,
}

/// What loopback TCP moves, and how much of it each server does.
#[derive(Clone, Debug, Serialize)]
pub struct Limit {
    /// Median.
    pub bytes_per_s: f64,
    /// Medians of the rounds' shares.
    pub share: Both,
}

/// One work's results.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Of `forebay` and `ganesha`.
    pub unit: &'static str,
    /// Median.
    pub forebay: f64,
    /// Median.
    pub ganesha: Option<f64>,
    /// Forebay's over Ganesha's, median of the pairs.
    pub ratio: Option<f64>,
    /// Forebay's processor time per unit over Ganesha's, median of the pairs.
    pub cpu_ratio: Option<f64>,
    /// Medians.
    pub p50_us: Both,
    /// Medians.
    pub p99_us: Both,
    /// Of `server_cpu` and `client_cpu`.
    pub cpu_unit: &'static str,
    /// Medians.
    pub server_cpu: Both,
    /// Medians.
    pub client_cpu: Both,
    /// Medians.
    pub client_busy: Both,
    /// Where loopback TCP bounds the work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// Slots in use on each connection.
    pub depth: u32,
    /// Every round's figures, in order.
    pub rounds: Vec<Round>,
}

/// One round of one work.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// Forebay.
    pub forebay: Sample,
    /// Ganesha.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ganesha: Option<Sample>,
    /// Loopback TCP, in bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loopback: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Report {
    run: Run,
    #[serde(flatten)]
    works: BTreeMap<&'static str, Results>,
}

#[derive(Debug, Serialize)]
struct Run {
    rounds: u32,
    seconds: f64,
    connections: u32,
    quick: bool,
    files_in_memory: bool,
    loopback_measured_with: &'static str,
    processors: usize,
    kernel: String,
    /// Of the last minute before the run: anything near a processor or more disturbs it.
    load_average_before: f64,
}

/// Measures everything, prints a table, writes the results.
///
/// # Errors
/// When a server does not start or fails an operation.
pub fn run(options: &Options) -> Result<()> {
    if !options.skip_ganesha {
        find_ganesha()?;
    }
    let sizes = if options.quick { Sizes::QUICK } else { Sizes::FULL };
    let tree = Tree::generate(sizes)?;
    let forebay = Server::forebay(tree.path())?;
    let ganesha = if options.skip_ganesha { None } else { Some(Server::ganesha(tree.path())?) };
    let loopback = Loopback::find();
    let run = Run {
        rounds: options.rounds,
        seconds: options.time.as_secs_f64(),
        connections: options.connections,
        quick: options.quick,
        files_in_memory: tree.in_memory,
        loopback_measured_with: loopback.name(),
        processors: std::thread::available_parallelism().map_or(0, usize::from),
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into(),
        load_average_before: load_average(),
    };
    for warning in warnings(&run) {
        eprintln!("{warning}");
    }
    let mut works = BTreeMap::new();
    println!("{}", table::heading());
    for &work in &options.works {
        let measured = measure(options, work, &forebay, ganesha.as_ref(), &loopback);
        let results = measured.map_err(|error| error.context(logs(&forebay, ganesha.as_ref())))?;
        println!("{}", table::row(work.name(), &results));
        if let Some(warning) = table::saturated(work.name(), &results) {
            eprintln!("{warning}");
        }
        works.insert(work.name(), results);
    }
    println!("{}", table::legend(loopback.name()));
    if let Some(parent) = options.json.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let text = serde_json::to_string_pretty(&Report { run, works })?;
    std::fs::write(&options.json, text + "\n").with_context(|| format!("writing {}", options.json.display()))
}

fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}

fn warnings(run: &Run) -> Vec<String> {
    let mut warnings = Vec::new();
    if cfg!(debug_assertions) {
        warnings.push("not built with --release: these figures mean nothing".into());
    }
    if run.load_average_before > 0.7 {
        let load = run.load_average_before;
        warnings.push(format!(
            "the machine is busy with something else (load {load:.1}): do not judge a server by this run"
        ));
    }
    warnings
}

fn logs(forebay: &Server, ganesha: Option<&Server>) -> String {
    let ganesha = ganesha.map(Server::log).unwrap_or_default();
    format!("Forebay's log ends:\n{}\nGanesha's log ends:\n{ganesha}\n", forebay.log())
}

fn measure(
    options: &Options,
    work: Kind,
    forebay: &Server,
    ganesha: Option<&Server>,
    loopback: &Loopback,
) -> Result<Results> {
    let one = |server: &Server| {
        let plan = Plan {
            server: server.address,
            path: tree::path_of(work),
            work,
            connections: options.connections,
            depth: options.depth,
            time: options.time,
            verify: true,
            server_pid: Some(server.pid()),
        };
        load::run(&plan)
    };
    let mut rounds = Vec::new();
    let mut depth = 0;
    for _ in 0..options.rounds {
        let forebay = one(forebay)?;
        depth = forebay.depth;
        let ganesha = ganesha.map(one).transpose()?;
        let loopback = work.counts_bytes().then(|| loopback.measure(options.connections, options.time)).transpose()?;
        rounds.push(Round {
            forebay: sample(work, options.connections, &forebay),
            ganesha: ganesha.map(|measured| sample(work, options.connections, &measured)),
            loopback,
        });
    }
    Ok(summarise(work, depth, rounds))
}

fn sample(work: Kind, connections: u32, measured: &Measured) -> Sample {
    let (rate, amount) = if work.counts_bytes() {
        (measured.bytes_per_s, measured.bytes as f64 / GIB)
    } else {
        (measured.units_per_s, measured.units as f64 / MANY)
    };
    let quantile = |quantile| measured.latency.value_at_quantile(quantile) as f64 / 1000.0;
    Sample {
        rate,
        server_cpu: measured.server_cpu_s.unwrap_or(f64::NAN) / amount,
        client_cpu: measured.client_cpu_s / amount,
        client_busy: measured.client_cpu_s / measured.elapsed.as_secs_f64() / f64::from(connections),
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
    }
}

fn summarise(work: Kind, depth: u32, rounds: Vec<Round>) -> Results {
    let both = |figure: fn(&Sample) -> f64| Both {
        forebay: median(rounds.iter().map(|round| figure(&round.forebay))).unwrap_or(f64::NAN),
        ganesha: median(rounds.iter().filter_map(|round| round.ganesha.as_ref().map(figure))),
    };
    let paired = |figure: fn(&Sample) -> f64| {
        median(rounds.iter().filter_map(|round| Some(figure(&round.forebay) / figure(round.ganesha.as_ref()?))))
    };
    let share = |of: fn(&Round) -> Option<&Sample>| {
        median(rounds.iter().filter_map(|round| Some(of(round)?.rate / round.loopback?)))
    };
    let limit = median(rounds.iter().filter_map(|round| round.loopback)).map(|bytes_per_s| Limit {
        bytes_per_s,
        share: Both {
            forebay: share(|round| Some(&round.forebay)).unwrap_or(f64::NAN),
            ganesha: share(|round| round.ganesha.as_ref()),
        },
    });
    let rate = both(|sample| sample.rate);
    let (unit, cpu_unit) = match (work.counts_bytes(), work.unit()) {
        (true, _) => ("bytes/s", "s/GiB"),
        (false, "entries") => ("entries/s", "s/100k entries"),
        (false, _) => ("operations/s", "s/100k operations"),
    };
    Results {
        unit,
        forebay: rate.forebay,
        ganesha: rate.ganesha,
        ratio: paired(|sample| sample.rate),
        cpu_ratio: paired(|sample| sample.server_cpu),
        p50_us: both(|sample| sample.p50_us),
        p99_us: both(|sample| sample.p99_us),
        cpu_unit,
        server_cpu: both(|sample| sample.server_cpu),
        client_cpu: both(|sample| sample.client_cpu),
        client_busy: both(|sample| sample.client_busy),
        limit,
        depth,
        rounds,
    }
}

/// The middle value, or the mean of the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        length if length % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(rate: f64) -> Sample {
        Sample { rate, server_cpu: 1.0 / rate, client_cpu: 0.1, client_busy: 0.5, p50_us: 10.0, p99_us: 20.0 }
    }

    #[test]
    fn ratios_are_made_pair_by_pair() {
        // The machine slowed down for the third pair: both servers with it.
        let round = |forebay, ganesha| Round {
            forebay: sample(forebay),
            ganesha: Some(sample(ganesha)),
            loopback: Some(forebay * 2.0),
        };
        let results = summarise(Kind::SequentialRead, 8, vec![round(20.0, 10.0), round(22.0, 10.0), round(2.0, 1.0)]);
        assert_eq!((results.forebay, results.ganesha, results.ratio), (20.0, Some(10.0), Some(2.0)));
        assert_eq!(results.cpu_ratio, Some(0.5));
        let limit = results.limit.expect("bytes have a limit");
        assert_eq!((limit.bytes_per_s, limit.share.forebay), (40.0, 0.5));
    }

    #[test]
    fn medians() {
        assert_eq!(median([].into_iter()), None);
        assert_eq!(median([3.0].into_iter()), Some(3.0));
        assert_eq!(median([9.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, f64::NAN, 9.0].into_iter()), Some(3.0));
    }
}
