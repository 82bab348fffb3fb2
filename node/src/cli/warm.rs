//! `forebay warm`.

use super::ask::{Files, ask, judge, vanished};
use crate::admin::{
    cache::{Report, Request, Verb},
    doctor::diagnose::bytes,
};

const EXAMPLES: &str = "\
Examples:
  forebay warm /models/llama-70b
  forebay warm /data/train --match '**/*.tar' --parallel 64
  forebay warm /data/index --pin

What is cached at the source's present version is not fetched again. Ctrl-C ends it; what was fetched stays.
Exit status: 0 all is cached, 1 something is not (it is listed), 2 wrong arguments.";

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    files: Files,
    /// Calls to the source under way at once [default: 16].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: Option<u16>,
    /// Pin the files: they stay on NVMe whatever else is wanted.
    #[arg(long)]
    pin: bool,
}

/// Fetches files into the node's cache.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let parallel = arguments.parallel.map(usize::from);
    let request = Request { parallel, pin: arguments.pin, ..arguments.files.request() };
    let report = ask(Verb::Warm, &arguments.files, &request, |_| {})?;
    eprintln!("{}", summary(&report));
    judge(&report)
}

/// What was fetched, in words.
pub fn summary(report: &Report) -> String {
    let totals = &report.totals;
    let mut text = format!(
        "{} files, {}: {} files ({}) were cached, {} files ({}) fetched in {:.1} s, {} a second{}",
        totals.files,
        bytes(totals.bytes as f64),
        totals.present_files,
        bytes(totals.present_bytes as f64),
        totals.fetched_files,
        bytes(totals.fetched_bytes as f64),
        report.seconds,
        bytes(report.rate),
        vanished(totals)
    );
    if totals.pinned_files > 0 {
        text += &format!(", {} pinned", totals.pinned_files);
    }
    if report.evicted_chunks > 0 && totals.fetched_files > 0 {
        text += &format!("\n{} chunks were let go meanwhile: the cache may not hold all of it", report.evicted_chunks);
    }
    text
}
