//! Asks a node for work on its cache and shows how far it is.
//!
//! Owns: the request, the stream of lines, bars on a terminal and plain lines elsewhere, the end of an answer. Never does:
//! decide what is printed as a result.

use std::{
    io::{BufRead as _, BufReader, IsTerminal as _, Read as _},
    net::SocketAddr,
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    admin::{
        cache::{HEADER, Line, Report, Request, Verb},
        doctor::diagnose::bytes,
    },
    config::DEFAULT_ADMIN,
    source::cached::manage::tally::Totals,
};

/// A node says something twice a second; silent for this long it is gone.
const SILENCE: Duration = Duration::from_secs(60);
/// Time between two lines of progress where there is no terminal.
const PLAIN: Duration = Duration::from_secs(5);
/// Longest line of an answer; a path and its numbers are far shorter.
const LINE_MAX: u64 = 4 << 20;
/// Lines read before they are shown.
const LINES: usize = 256;

/// Which files, and whom to ask.
#[derive(Debug, clap::Args)]
pub struct Files {
    /// Files and directories as clients see them: /EXPORT/path/inside.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Only files whose path below PATH matches: `*`, `?`, `[…]` within a name, `**` across names.
    #[arg(long = "match", value_name = "GLOB")]
    pattern: Option<String>,
    /// The node's admin address.
    #[arg(long, value_name = "ADDR:PORT", default_value = DEFAULT_ADMIN)]
    admin: SocketAddr,
    /// Print JSON lines as the node sends them.
    #[arg(long)]
    json: bool,
}

impl Files {
    /// A request for them.
    pub fn request(&self) -> Request {
        Request { paths: self.paths.clone(), r#match: self.pattern.clone(), ..Request::default() }
    }
}

/// Has a node do something. Rows go to `row` (unless JSON is wanted, which is printed); the report comes back.
///
/// # Errors
/// The node cannot be reached, refuses, or stops in the middle.
pub fn ask(verb: Verb, files: &Files, request: &Request, mut row: impl FnMut(Line)) -> anyhow::Result<Report> {
    let lines = begin(verb, files.admin, request)?;
    let mut shown = Shown::new(!files.json && std::io::stderr().is_terminal());
    loop {
        let text = match lines.recv_timeout(SILENCE) {
            Ok(line) => line?,
            Err(RecvTimeoutError::Timeout) => anyhow::bail!("{} has been silent for {SILENCE:?}", files.admin),
            Err(RecvTimeoutError::Disconnected) => {
                anyhow::bail!("{} ended the answer in the middle: it was stopped, or see its log", files.admin)
            }
        };
        if files.json {
            println!("{text}");
        }
        match serde_json::from_str(&text).context("the answer is not a node's")? {
            Line::Progress { totals, current } if !files.json => shown.progress(verb, &totals, &current),
            Line::Progress { .. } => {}
            Line::Report(report) => {
                shown.end();
                return Ok(report);
            }
            line if !files.json => shown.aside(|| row(line)),
            _ => {}
        }
    }
}

/// Sends the request; the answer's lines. They are read by a thread of their own, so that silence is noticed.
fn begin(verb: Verb, admin: SocketAddr, request: &Request) -> anyhow::Result<mpsc::Receiver<anyhow::Result<String>>> {
    let url = format!("http://{admin}/v1/{}", verb.name());
    let body = serde_json::to_string(request)?;
    let asked = minreq::post(&url).with_header(HEADER, "1").with_header("Content-Type", "application/json");
    let reply = asked.with_body(body).send_lazy();
    let reply = reply.with_context(|| format!("no node answers on {admin}; is it running?"))?;
    let code = reply.status_code;
    let mut reader = BufReader::new(reply);
    if code != 200 {
        let mut text = String::new();
        reader.take(LINE_MAX).read_to_string(&mut text).ok();
        anyhow::bail!(
            "{}",
            if text.trim().is_empty() { format!("the node answered {code}") } else { text.trim().into() }
        );
    }
    let (sender, receiver) = mpsc::sync_channel(LINES);
    std::thread::spawn(move || {
        loop {
            let mut line = String::new();
            let read = (&mut reader).take(LINE_MAX).read_line(&mut line);
            let line = match read {
                Ok(0) => return,
                Ok(_) => Ok(line.trim_end().to_owned()),
                Err(error) => Err(anyhow::Error::from(error).context("the node went away in the middle")),
            };
            let failed = line.is_err();
            if sender.send(line).is_err() || failed {
                return;
            }
        }
    });
    Ok(receiver)
}

/// Progress, as far as it was shown.
struct Shown {
    bar: Option<ProgressBar>,
    last: Instant,
}

impl Shown {
    fn new(terminal: bool) -> Self {
        let bar = terminal.then(|| {
            let style = ProgressStyle::with_template("{spinner} [{bar:24}] {prefix}  {wide_msg}");
            // A template that does not parse would be a mistake in the line above; the default one serves as well.
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ");
            ProgressBar::new(0).with_style(style)
        });
        Self { bar, last: Instant::now() }
    }

    fn progress(&mut self, verb: Verb, totals: &Totals, current: &str) {
        let (done, all) = (bytes(totals.done_bytes as f64), bytes(totals.bytes as f64));
        let sums = format!("{}/{} files, {done} of {all}", totals.done_files, totals.files);
        match &self.bar {
            Some(bar) => {
                bar.set_length(totals.bytes.max(1));
                bar.set_position(totals.done_bytes.min(totals.bytes));
                bar.set_prefix(sums);
                bar.set_message(current.to_owned());
                bar.tick();
            }
            None if self.last.elapsed() >= PLAIN => {
                self.last = Instant::now();
                eprintln!("{}: {sums}, at {current}", verb.name());
            }
            None => {}
        }
    }

    /// Prints something else while a bar is shown.
    fn aside(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Lists what failed.
///
/// # Errors
/// Something did.
pub fn judge(report: &Report) -> anyhow::Result<()> {
    for failure in &report.failures {
        eprintln!("{}: {}", failure.path, failure.reason);
    }
    let (failed, listed) = (report.totals.failed, report.failures.len() as u64);
    match failed {
        0 => Ok(()),
        failed if failed > listed => anyhow::bail!("{failed} failed, the first {listed} of them listed above"),
        failed => anyhow::bail!("{failed} failed, listed above"),
    }
}

/// What vanished, if anything did, to be appended to a summary.
pub fn vanished(totals: &Totals) -> String {
    match totals.vanished {
        0 => String::new(),
        count => format!(", {count} vanished meanwhile"),
    }
}
