//! `forebay check`.

use super::ask::{Files, ask, judge};
use crate::{
    admin::{
        cache::{Line, Request, Verb},
        doctor::diagnose::bytes,
    },
    source::cached::manage::tally::Totals,
};

const EXAMPLES: &str = "\
Examples:
  forebay check /models /data/train
  forebay check /models --match '**/*.safetensors' --files
  forebay check /models --json

Nothing is read. Bytes in RAM are counted there alone, also if NVMe has them too.
Exit status: 0 all was looked at, 1 something could not be (it is listed), 2 wrong arguments.";

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    files: Files,
    /// A row for each file.
    #[arg(long = "files")]
    each: bool,
}

/// Shows how much of files and trees is cached.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let request = Request { files: arguments.each, ..arguments.files.request() };
    let mut begun = false;
    let report = ask(Verb::Check, &arguments.files, &request, |line| {
        if !std::mem::replace(&mut begun, true) {
            println!("{:>10} {:>12} {:>12} {:>12} {:>6}  PATH", "FILES", "BYTES", "RAM", "NVME", "CACHED");
        }
        print!("{}", row(&line));
    })?;
    judge(&report)
}

fn row(line: &Line) -> String {
    let (files, size, ram, nvme, path) = match line {
        Line::File(file) => ("".into(), file.size, file.ram_bytes, file.nvme_bytes, &file.path),
        Line::Path { path, totals: Totals { files, bytes, ram_bytes, nvme_bytes, .. } } => {
            (files.to_string(), *bytes, *ram_bytes, *nvme_bytes, path)
        }
        Line::Progress { .. } | Line::Report(_) => return String::new(),
    };
    let share = if size == 0 { 100.0 } else { (ram + nvme) as f64 * 100.0 / size as f64 };
    // All but a little is not all.
    let share = if ram + nvme < size { share.min(99.0) } else { share };
    let [size, ram, nvme] = [size, ram, nvme].map(|count| bytes(count as f64));
    format!("{files:>10} {size:>12} {ram:>12} {nvme:>12} {share:>5.0}%  {path}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_how_much_is_where() {
        let totals = Totals { files: 3, bytes: 4 << 20, ram_bytes: 1 << 20, nvme_bytes: 2 << 20, ..Totals::default() };
        let text = row(&Line::Path { path: "/x".into(), totals });
        assert_eq!(
            text.split_whitespace().collect::<Vec<_>>(),
            ["3", "4.0", "MiB", "1.0", "MiB", "2.0", "MiB", "75%", "/x"]
        );
        let nearly = Totals { bytes: 100_000, ram_bytes: 99_999, ..totals };
        let text = row(&Line::Path { path: "/x".into(), totals: Totals { nvme_bytes: 0, ..nearly } });
        assert!(text.contains(" 99%"), "{text}");
    }
}
