//! `forebay pin` and `forebay unpin`.

use super::{
    ask::{Files, ask, judge, vanished},
    warm,
};
use crate::admin::cache::{Request, Verb};

const PIN_EXAMPLES: &str = "\
Examples:
  forebay pin /models/base
  forebay pin /data --match '**/index.bin' --no-warm

Pinned files stay on NVMe whatever else is wanted, over restarts, until `forebay unpin` or `forebay evict`. Files that
come later are not pinned by it. What is not cached is fetched, unless told not to.
Exit status: 0 all is pinned, 1 something is not (it is listed), 2 wrong arguments.";

const UNPIN_EXAMPLES: &str = "\
Examples:
  forebay unpin /models/base

What is cached stays until the room is wanted.
Exit status: 0 nothing is pinned any more, 1 something could not be looked at (it is listed), 2 wrong arguments.";

/// Arguments of `pin`.
#[derive(Debug, clap::Args)]
#[command(after_help = PIN_EXAMPLES)]
pub struct PinArguments {
    #[command(flatten)]
    files: Files,
    /// Calls to the source under way at once [default: 16].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: Option<u16>,
    /// Do not fetch what is not cached; it is pinned when it comes.
    #[arg(long, conflicts_with = "parallel")]
    no_warm: bool,
}

/// Arguments of `unpin`.
#[derive(Debug, clap::Args)]
#[command(after_help = UNPIN_EXAMPLES)]
pub struct UnpinArguments {
    #[command(flatten)]
    files: Files,
}

/// Pins files.
pub fn pin(arguments: &PinArguments) -> anyhow::Result<()> {
    let parallel = arguments.parallel.map(usize::from);
    let request = Request { parallel, no_warm: arguments.no_warm, ..arguments.files.request() };
    let report = ask(Verb::Pin, &arguments.files, &request, |_| {})?;
    if arguments.no_warm {
        let totals = &report.totals;
        eprintln!("{} of {} files pinned{}", totals.pinned_files, totals.files, vanished(totals));
    } else {
        eprintln!("{}", warm::summary(&report));
    }
    judge(&report)
}

/// Unpins files.
pub fn unpin(arguments: &UnpinArguments) -> anyhow::Result<()> {
    let report = ask(Verb::Unpin, &arguments.files, &arguments.files.request(), |_| {})?;
    let totals = &report.totals;
    eprintln!("{} of {} files are not pinned any more{}", totals.pinned_files, totals.files, vanished(totals));
    judge(&report)
}
