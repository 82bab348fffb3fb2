//! Judges two samples: what bounds the node between them.
//!
//! Owns: the thresholds and the sentences. Never does: read anything; it is a function of its arguments.
//!
//! A part is suspected only while work waits for it (by Little's law, time spent waiting over time passed is how many waited on
//! average), so an idle node has no findings however slow its source is.

use super::{
    Figures, Finding, Severity,
    sample::{CacheSample, LinkSample, NfsSample, ProcessSample, Sample, SourceSample},
};

/// Calls waiting on a source on average below which it holds nobody up.
const WAITING_MIN: f64 = 0.5;
/// Fewer messages between two samples say nothing about a source.
const CALLS_MIN: f64 = 10.0;
/// Seconds that a file server of the same network needs at most; billed cloud file systems take 1 to 3 ms.
const RTT_HIGH_S: f64 = 0.01;
/// Seconds of queueing below which slots are not short, whatever the round trip is.
const QUEUE_HIGH_S: f64 = 0.001;
/// Queueing of this many round trips: with more slots those calls would be answered already.
const QUEUE_ROUND_TRIPS: f64 = 2.0;
/// Hours ahead at which an operator can still do something about a balance.
const EMPTY_SOON_HOURS: f64 = 24.0;
/// Insertions waiting for the device on average: below, single bursts are being absorbed as they should.
const INSERTS_WAITING: f64 = 0.5;
/// Share of the write queue that counts as full; one chunk more would wait.
const QUEUE_FULL: f64 = 0.95;
/// Chunks asked for between two samples from which on a ratio means something.
const CHUNKS_MIN: u64 = 100;
/// A cache that fits has nearly all its hits; below half most readers wait for the next tier.
const HIT_RATIO_LOW: f64 = 0.5;
/// Evictions per chunk asked for, above which chunks go because of those that come. A cold cache that fills evicts nothing.
const EVICTIONS_HIGH: f64 = 0.1;
/// The working set is told as a multiple up to here; beyond, hits are too few to say.
const MULTIPLE_MAX: f64 = 10.0;
/// Share of all cores; the rest is what the kernel's network threads need.
const CPU_HIGH: f64 = 0.85;
/// Share of the memory limit from which on the kernel may kill the process.
const MEMORY_HIGH: f64 = 0.95;
/// Share of a link's speed: headers take the rest.
const LINK_HIGH: f64 = 0.85;
/// GETATTR, LOOKUP and ACCESS a second that are no trifle.
const METADATA_HIGH: f64 = 1000.0;
/// So many of them for each READ: clients revalidate more than they read.
const METADATA_PER_READ: f64 = 10.0;
/// Names answered here that show that a storm stays in this node.
const NAME_HITS_HIGH: f64 = 0.9;
/// Seconds a call waits inside the node that clients notice beside a network's.
const CALL_QUEUE_HIGH_S: f64 = 0.005;
/// Calls between the samples from which on their mean wait means something.
const CALLS_IN_MIN: u64 = 100;

/// What bounds the node, the worst first; empty if nothing does.
pub fn diagnose(before: &Sample, after: &Sample) -> Vec<Finding> {
    let seconds = (after.at_s - before.at_s).max(0.001);
    let mut found = Vec::new();
    let none = SourceSample::default();
    for now in &after.sources {
        let then = before.sources.iter().find(|then| then.export == now.export).unwrap_or(&none);
        source(then, now, seconds, &mut found);
        budget(then, now, seconds, &mut found);
    }
    if let (Some(then), Some(now)) = (&before.cache, &after.cache) {
        store(then, now, seconds, &mut found);
        working_set(then, now, &mut found);
    }
    process(&before.process, &after.process, seconds, &mut found);
    for now in &after.links {
        if let Some(then) = before.links.iter().find(|then| then.name == now.name) {
            link(then, now, seconds, &mut found);
        }
    }
    clients(before, after, seconds, &mut found);
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    found
}

/// What the node did meanwhile.
pub fn figures(before: &Sample, after: &Sample) -> Figures {
    let seconds = (after.at_s - before.at_s).max(0.001);
    let rate = |then: u64, now: u64| now.saturating_sub(then) as f64 / seconds;
    let (then, now) = (&before.nfs, &after.nfs);
    let total = |sample: &Sample, of: fn(&SourceSample) -> u64| sample.sources.iter().map(of).sum::<u64>();
    let sources = |of: fn(&SourceSample) -> u64| rate(total(before, of), total(after, of));
    let hits = before.cache.as_ref().zip(after.cache.as_ref()).and_then(|(then, now)| {
        let (ram, nvme, misses) = asked(then, now);
        let all = ram + nvme + misses;
        (all > 0).then(|| (ram + nvme) as f64 / all as f64)
    });
    Figures {
        seconds,
        operations: rate(then.operations, now.operations),
        reads: rate(then.read, now.read),
        metadata: rate(metadata(then), metadata(now)),
        source_calls: sources(|source| source.round_trips),
        source_read_bytes: sources(|source| source.read_bytes),
        sent_bytes: rate(then.sent_bytes, now.sent_bytes),
        hit_ratio: hits,
        cores_used: (after.process.cpu_s - before.process.cpu_s) / seconds,
        cores: after.process.cores,
        resident_bytes: after.process.resident_bytes,
    }
}

fn say(found: &mut Vec<Finding>, severity: Severity, what: &str, why: String, advice: &str) {
    found.push(Finding { severity, what: what.into(), why, advice: advice.into() });
}

fn source(then: &SourceSample, now: &SourceSample, seconds: f64, found: &mut Vec<Finding>) {
    let (url, export) = (&now.url, &now.export);
    let stale = now.stale.saturating_sub(then.stale);
    if !now.up {
        let told = match stale {
            0 => String::new(),
            stale => format!("; {stale} answers were given from what was known"),
        };
        let why = format!("the source of {export}, {url}, does not answer{told}");
        let advice = "Look after the file server and the network to it. What is cached is served for as long as \
                      `serve_stale` and the windows of the export allow.";
        return say(found, Severity::Critical, "source-down", why, advice);
    }
    if stale > 0 {
        let why = format!("{url} answers, but {stale} times not in time: {export} told clients what was known before");
        let advice = "The source is sick or overloaded: see its own monitoring. A longer `timeout` waits for it instead; \
                      `serve_stale=0` fails instead.";
        say(found, Severity::Warning, "served-stale", why, advice);
    }
    let messages = now.round_trips.saturating_sub(then.round_trips) as f64;
    let (answering, queueing) = (now.rtt_s - then.rtt_s, now.queue_s - then.queue_s);
    if messages < CALLS_MIN || (answering + queueing) / seconds < WAITING_MIN {
        return;
    }
    let (rtt, queue) = (answering / messages, queueing / messages);
    if queue > QUEUE_HIGH_S && queue > rtt * QUEUE_ROUND_TRIPS {
        let connections = now.connections;
        let why = format!(
            "calls to {url} wait {} for a free slot and are then answered within {} ({connections} connections)",
            millis(queue),
            millis(rtt)
        );
        let advice = "Let more calls be under way: raise `connections=` and `slots=` of the export.";
        say(found, Severity::Warning, "source-slots", why, advice);
    } else if rtt > RTT_HIGH_S {
        let why = format!(
            "{url} takes {} to answer, with {:.1} calls under way on average and {} of queueing here",
            millis(rtt),
            answering / seconds,
            millis(queue)
        );
        let advice = "The source or the way to it is slow. Ask it less: warm what will be wanted (`forebay warm`), believe \
                      longer (acregmin, acdirmin, policy=scratch), or put the node nearer to it.";
        say(found, Severity::Warning, "source-latency", why, advice);
    }
}

fn budget(then: &SourceSample, now: &SourceSample, seconds: f64, found: &mut Vec<Finding>) {
    let advice = "Ask less of the source: longer windows (acregmin, acdirmin) or policy=scratch, a cache that holds what is \
                  read; or give it more: provisioned or elastic throughput, and `budget=` to match.";
    let url = &now.url;
    let delayed = now.delayed.saturating_sub(then.delayed);
    let refused = now.refused.saturating_sub(then.refused);
    if delayed + refused > 0 {
        let waited = (now.delayed_s - then.delayed_s).max(0.0);
        let why = format!(
            "the budget of {url} is spent: in {seconds:.1} s {delayed} calls were delayed by {} each, and {refused} not \
             sent (read-ahead first)",
            millis(waited / delayed.max(1) as f64)
        );
        say(found, Severity::Warning, "source-budget", why, advice);
    }
    if let Some(hours) = now.hours_to_empty.filter(|hours| now.slope < 0.0 && *hours < EMPTY_SOON_HOURS) {
        let why = format!(
            "the balance of {url} drains by {} a second and is empty in {hours:.1} hours; then it falls to its baseline",
            bytes(-now.slope)
        );
        say(found, Severity::Warning, "source-budget-drains", why, advice);
    }
}

fn store(then: &CacheSample, now: &CacheSample, seconds: f64, found: &mut Vec<Finding>) {
    if now.degraded {
        let why = "the cache store failed: data is cached in memory only".to_owned();
        let advice = "See the log and the disk (smartctl, dmesg). The node looks for the store again by itself, and what \
                      was on it is fetched anew.";
        say(found, Severity::Critical, "nvme-degraded", why, advice);
    }
    let damaged = now.checksum_failures.saturating_sub(then.checksum_failures);
    let errors = now.store_errors.saturating_sub(then.store_errors);
    if damaged + errors > 0 {
        let why = format!(
            "{damaged} chunks did not read back as they were written, {errors} reads or writes of the store failed; they \
             were fetched from the source instead"
        );
        say(
            found,
            Severity::Critical,
            "nvme-damage",
            why,
            "The disk is failing, or somebody writes to it: replace it.",
        );
    } else if now.checksum_failures > 0 {
        let why = format!("{} chunks did not read back since the start, none just now", now.checksum_failures);
        say(found, Severity::Info, "nvme-damage-before", why, "Watch the disk (smartctl); clients got the right data.");
    }
    let waiting = (now.insert_wait_s - then.insert_wait_s) / seconds;
    let full = now.queue_limit > 0 && now.queued_bytes as f64 >= now.queue_limit as f64 * QUEUE_FULL;
    if waiting >= INSERTS_WAITING || full {
        let why = format!(
            "{waiting:.1} chunks on average wait until the cache store takes them; {} are queued to be written",
            bytes(now.queued_bytes as f64)
        );
        let advice = "The disk writes more slowly than the source sends. A faster one, or several striped (md RAID 0), is \
                      what helps; readers do not wait for it, warming does.";
        say(found, Severity::Warning, "nvme-writes", why, advice);
    }
}

/// Chunks found in RAM, on NVMe, and nowhere.
fn asked(then: &CacheSample, now: &CacheSample) -> (u64, u64, u64) {
    let since = |of: fn(&CacheSample) -> u64| of(now).saturating_sub(of(then));
    (since(|cache| cache.ram_hits), since(|cache| cache.nvme_hits), since(|cache| cache.misses))
}

fn working_set(then: &CacheSample, now: &CacheSample, found: &mut Vec<Finding>) {
    let (ram, nvme, misses) = asked(then, now);
    let all = ram + nvme + misses;
    if all < CHUNKS_MIN {
        return;
    }
    let share = |part: u64| part as f64 / all as f64;
    let pushed = |then: u64, now: u64| share(now.saturating_sub(then)) > EVICTIONS_HIGH;
    let has_store = now.nvme_capacity > 0;
    let last_evicts = match has_store {
        true => pushed(then.nvme_evictions, now.nvme_evictions),
        false => pushed(then.ram_evictions, now.ram_evictions),
    };
    let capacity = if has_store { now.nvme_capacity } else { now.ram_capacity };
    if share(ram + nvme) < HIT_RATIO_LOW && last_evicts {
        let why = format!(
            "only {} of the chunks asked for were in the cache, and others went to make room: what is read is {} the {} it \
             has, or is read once and never again",
            percent(share(ram + nvme)),
            larger(share(ram + nvme)),
            bytes(capacity as f64)
        );
        let advice = match has_store {
            true => "Give it a larger --cache, let nodes share the work, or pin what matters (`forebay pin`).",
            false => "Give the node a cache on NVMe (--cache DIR), or a larger --ram-cache.",
        };
        say(found, Severity::Warning, "working-set", why, advice);
    } else if has_store && share(ram) < HIT_RATIO_LOW && pushed(then.ram_evictions, now.ram_evictions) && nvme > ram {
        let why = format!(
            "{} of the chunks come from NVMe and {} from RAM, where others went to make room: what is read is {} the {} of \
             RAM",
            percent(share(nvme)),
            percent(share(ram)),
            larger(share(ram)),
            bytes(now.ram_capacity as f64)
        );
        say(
            found,
            Severity::Info,
            "ram",
            why,
            "A larger --ram-cache would serve it faster, if clients wait for the disk.",
        );
    }
}

/// How much larger than the cache what is read must be: of chunks read evenly the share that fits is found.
fn larger(hits: f64) -> String {
    let multiple = 1.0 / hits.max(0.001);
    if multiple > MULTIPLE_MAX {
        format!("more than {MULTIPLE_MAX:.0} times")
    } else {
        format!("about {multiple:.1} times")
    }
}

fn process(then: &ProcessSample, now: &ProcessSample, seconds: f64, found: &mut Vec<Finding>) {
    let used = (now.cpu_s - then.cpu_s) / seconds;
    if now.cores > 0.0 && used >= now.cores * CPU_HIGH {
        let why = format!("the process uses {used:.1} of the {:.0} cores it may use", now.cores);
        let advice = "Give it more cores (or a larger CPU quota), or let further nodes share the clients.";
        say(found, Severity::Warning, "cpu", why, advice);
    }
    let (resident, limit) = (now.resident_bytes as f64, now.memory_limit as f64);
    if limit > 0.0 && resident >= limit * MEMORY_HIGH {
        let why = format!("the process has {} of the {} of memory it may have", bytes(resident), bytes(limit));
        let advice = "The kernel may end it: lower --ram-cache, or raise the limit.";
        say(found, Severity::Critical, "memory", why, advice);
    }
}

fn link(then: &LinkSample, now: &LinkSample, seconds: f64, found: &mut Vec<Finding>) {
    for (way, then, now_bytes) in
        [("receives", then.received_bytes, now.received_bytes), ("sends", then.sent_bytes, now.sent_bytes)]
    {
        let rate = now_bytes.saturating_sub(then) as f64 / seconds;
        if now.speed > 0.0 && rate >= now.speed * LINK_HIGH {
            let why = format!("{} {way} {} a second of the {} it can", now.name, bytes(rate), bytes(now.speed));
            let advice = "The network is full: a faster interface, or further nodes.";
            say(found, Severity::Warning, "network", why, advice);
        }
    }
}

fn metadata(nfs: &NfsSample) -> u64 {
    nfs.getattr + nfs.lookup + nfs.access
}

fn clients(before: &Sample, after: &Sample, seconds: f64, found: &mut Vec<Finding>) {
    let (then, now) = (&before.nfs, &after.nfs);
    let calls = now.calls.saturating_sub(then.calls);
    let wait = (now.queue_s - then.queue_s) / calls.max(1) as f64;
    if calls >= CALLS_IN_MIN && wait >= CALL_QUEUE_HIGH_S {
        let why = format!("calls of clients wait {} inside the node before they are begun", millis(wait));
        let advice =
            "Its threads are busy: see the other findings, and whether other programs take the machine's cores.";
        say(found, Severity::Warning, "node-queue", why, advice);
    }
    let asked = metadata(now).saturating_sub(metadata(then)) as f64 / seconds;
    let reads = now.read.saturating_sub(then.read) as f64 / seconds;
    if asked < METADATA_HIGH || asked < reads * METADATA_PER_READ {
        return;
    }
    let names = |sample: &Sample| {
        let sums = sample
            .sources
            .iter()
            .fold((0, 0), |(hits, misses), source| (hits + source.name_hits, misses + source.name_misses));
        (sums.0 as f64, sums.1 as f64)
    };
    let ((hits_then, misses_then), (hits_now, misses_now)) = (names(before), names(after));
    let (hits, misses) = ((hits_now - hits_then).max(0.0), (misses_now - misses_then).max(0.0));
    let mut why = format!("clients send {asked:.0} GETATTR, LOOKUP and ACCESS a second, and {reads:.0} READs");
    let mut advice =
        "On the clients: mount with longer acregmin and acdirmin (or actimeo=60), and nocto where files are \
                      not changed while they are read."
            .to_owned();
    if hits + misses > 0.0 {
        let ratio = hits / (hits + misses);
        why += &format!("; {} of the names were known here", percent(ratio));
        if ratio < NAME_HITS_HIGH && after.sources.iter().any(|source| !source.scratch) {
            advice +=
                " Here: policy=scratch for exports whose files do not change, so that names are not asked for again.";
        }
    }
    say(found, Severity::Warning, "metadata", why, &advice);
}

fn millis(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1000.0)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Bytes in words.
pub fn bytes(count: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (count.max(1.0).log2() / 10.0).floor().clamp(0.0, 4.0);
    let digits = usize::from(power > 0.0);
    format!("{:.digits$} {}", count / 1024_f64.powf(power), units[power as usize])
}

#[cfg(test)]
mod tests;
