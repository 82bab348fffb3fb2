//! `forebay evict`.

use super::ask::{Files, ask, judge, vanished};
use crate::admin::{cache::Verb, doctor::diagnose::bytes};

const EXAMPLES: &str = "\
Examples:
  forebay evict /data/old-run
  forebay evict /data --match 'tmp-*/**'

Nothing is removed at the source. Data, names, attributes and listings are let go, and the next reader has them from
there; pinned files are not pinned any more.
Exit status: 0 all is gone, 1 something could not be looked at (it is listed), 2 wrong arguments.";

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    files: Files,
}

/// Lets go of what the node has of files.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let report = ask(Verb::Evict, &arguments.files, &arguments.files.request(), |_| {})?;
    let totals = &report.totals;
    let (chunks, removed) = (totals.removed_chunks, bytes(totals.removed_bytes as f64));
    eprintln!("{} files: {chunks} chunks, {removed} let go{}", totals.files, vanished(totals));
    judge(&report)
}
