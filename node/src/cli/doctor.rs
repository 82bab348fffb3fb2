//! `forebay doctor`.

use std::net::SocketAddr;

use anyhow::Context as _;

use crate::{
    admin::doctor::{Diagnosis, Finding, INTERVAL, Severity, diagnose::bytes},
    config::DEFAULT_ADMIN,
};

const EXAMPLES: &str = "\
Examples:
  forebay doctor
  forebay doctor --interval 10
  forebay doctor --admin 10.0.0.5:9049 --json

Run it while it is slow: it looks twice and says what bounded the node in between.
Exit status: 0 nothing fails, 1 something does (source, disk, memory) or no node answers, 2 wrong arguments.";

/// Seconds beyond the interval that a node may take.
const PATIENCE_S: u64 = 10;
/// NFS operations a second below which a node is idle.
const IDLE: f64 = 1.0;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The node's admin address.
    #[arg(long, value_name = "ADDR:PORT", default_value = DEFAULT_ADMIN)]
    admin: SocketAddr,
    /// Seconds between the two looks, 0.5 to 60.
    #[arg(long, value_name = "SECONDS", default_value_t = INTERVAL, value_parser = interval)]
    interval: f64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.5..=60.0).contains(seconds));
    seconds.ok_or_else(|| "expected 0.5 to 60 seconds".into())
}

/// Asks a node what bounds it and prints it.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let (admin, interval) = (arguments.admin, arguments.interval);
    let url = format!("http://{admin}/v1/doctor?interval={interval}");
    let asked = minreq::get(&url).with_timeout(interval.ceil() as u64 + PATIENCE_S).send();
    let reply = asked.with_context(|| format!("no node answers on {admin}; is it running?"))?;
    let text = reply.as_str()?;
    anyhow::ensure!(reply.status_code == 200, "{admin} answered {}: {}", reply.status_code, text.trim());
    let diagnosis: Diagnosis = serde_json::from_str(text).context("the answer is not a node's")?;
    if arguments.json {
        println!("{text}");
    } else {
        print!("{}", render(&diagnosis));
    }
    let failing = diagnosis.findings.iter().filter(|finding| finding.severity == Severity::Critical).count();
    anyhow::ensure!(failing == 0, "{failing} of this is failing");
    Ok(())
}

fn render(diagnosis: &Diagnosis) -> String {
    let figures = &diagnosis.figures;
    let hits = figures.hit_ratio.map_or("none was asked for".into(), |ratio| format!("{:.0} % cached", ratio * 100.0));
    let mut text = format!(
        "in {:.1} s: {:.0} operations/s ({:.0} READ, {:.0} GETATTR, LOOKUP, ACCESS), {}/s to clients\n\
         source: {:.0} calls/s, {}/s   chunks: {hits}   CPU: {:.1} of {:.0} cores   memory: {}\n\n",
        figures.seconds,
        figures.operations,
        figures.reads,
        figures.metadata,
        bytes(figures.sent_bytes),
        figures.source_calls,
        bytes(figures.source_read_bytes),
        figures.cores_used,
        figures.cores,
        bytes(figures.resident_bytes as f64),
    );
    diagnosis.findings.iter().for_each(|finding| text += &paragraph(finding));
    match (diagnosis.findings.is_empty(), figures.operations < IDLE) {
        (false, _) => {}
        (true, true) => text += "Nothing bounds this node: it is idle.\n",
        (true, false) => text += "Nothing bounds this node: it answers as fast as clients ask.\n",
    }
    text
}

fn paragraph(finding: &Finding) -> String {
    let severity = match finding.severity {
        Severity::Critical => "CRITICAL",
        Severity::Warning => "WARNING",
        Severity::Info => "NOTE",
    };
    format!("{severity} {}\n  {}.\n  {}\n\n", finding.what, finding.why, finding.advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::doctor::Figures;

    #[test]
    fn a_diagnosis_is_told_in_sentences() {
        let finding = Finding {
            severity: Severity::Warning,
            what: "cpu".into(),
            why: "the process uses 3.9 of the 4 cores".into(),
            advice: "Give it more.".into(),
        };
        let figures = Figures { seconds: 2.0, operations: 10.0, hit_ratio: Some(0.5), ..Figures::default() };
        let text = render(&Diagnosis { findings: vec![finding], figures });
        assert!(text.contains("WARNING cpu\n  the process uses 3.9 of the 4 cores.\n  Give it more.\n"), "{text}");
        assert!(text.contains("50 % cached") && !text.contains("Nothing bounds"), "{text}");
        let idle = render(&Diagnosis::default());
        assert!(idle.ends_with("it is idle.\n"), "{idle}");
    }
}
