//! Results as a person reads them.

use crate::compare::{Both, GIB, Results};

/// The first lines.
pub fn heading() -> String {
    format!(
        "{:<16} {:>12} {:>12} {:>6} {:>6}  {:>15} {:>15}  {:>15} {:>15} {:>11}  {:>13}\n{:<16} {:>12} {:>12} {:>6} {:>6}  {:>15} {:>15}  \
         {:>15} {:>15} {:>11}  {:>13}",
        "work",
        "Forebay",
        "Ganesha",
        "ratio",
        "CPU",
        "p50 µs",
        "p99 µs",
        "server CPU",
        "client CPU",
        "client busy",
        "loopback TCP",
        "",
        "",
        "",
        "",
        "ratio",
        "F / G",
        "F / G",
        "F / G",
        "F / G",
        "F / G",
        "share F / G",
    )
}

/// One work.
pub fn row(name: &str, results: &Results) -> String {
    let rate = |value: f64| match results.unit {
        "bytes/s" => format!("{:.2} GiB/s", value / GIB),
        _ => format!("{value:.0}/s"),
    };
    let ratio = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
    let limit = results.limit.as_ref().map_or("-".into(), |limit| pair(&limit.share, 2));
    format!(
        "{name:<16} {:>12} {:>12} {:>6} {:>6}  {:>15} {:>15}  {:>15} {:>15} {:>11}  {:>13}",
        rate(results.forebay),
        results.ganesha.map_or("-".into(), rate),
        ratio(results.ratio),
        ratio(results.cpu_ratio),
        pair(&results.p50_us, 0),
        pair(&results.p99_us, 0),
        pair(&results.server_cpu, 2),
        pair(&results.client_cpu, 2),
        pair(&results.client_busy, 2),
        limit,
    )
}

/// What the columns are.
pub fn legend(loopback: &str) -> String {
    format!(
        "F Forebay, G NFS-Ganesha. Rates: readdir counts entries, open_read_close files. CPU: seconds per GiB of the sequential works, \
         per 100,000 operations or entries of the others; the CPU ratio is Forebay's over Ganesha's. Loopback TCP: measured with {loopback}."
    )
}

/// Says so if the load generator had no time left: then it, not the server, is what was measured.
pub fn saturated(name: &str, results: &Results) -> Option<String> {
    const FULL: f64 = 0.9;
    let busy = &results.client_busy;
    let which = match (busy.forebay > FULL, busy.ganesha.is_some_and(|busy| busy > FULL)) {
        (true, true) => "both servers",
        (true, false) => "Forebay",
        (false, true) => "Ganesha",
        (false, false) => return None,
    };
    Some(format!("{name}: the load generator was the limit for {which}; try more --connections"))
}

fn pair(both: &Both, digits: usize) -> String {
    let ganesha = both.ganesha.map_or("-".into(), |value| format!("{value:.digits$}"));
    format!("{:.digits$} / {ganesha}", both.forebay)
}
