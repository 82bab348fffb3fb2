//! One row for each bottleneck, and rows in which nothing must be found.

use super::*;

type Change = fn(&mut Sample);

/// A node at ease: two seconds of moderate work.
fn well() -> (Sample, Sample) {
    let source = SourceSample {
        export: "/x".into(),
        url: "nfs://far/x".into(),
        up: true,
        connections: 4,
        hours_to_empty: None,
        ..SourceSample::default()
    };
    let cache =
        CacheSample { ram_capacity: 1 << 30, nvme_capacity: 1 << 40, queue_limit: 64 << 20, ..Default::default() };
    let process = ProcessSample { cores: 4.0, resident_bytes: 1 << 30, memory_limit: 8 << 30, ..Default::default() };
    let link = LinkSample { name: "eth0".into(), speed: 1.25e9, ..LinkSample::default() };
    let before = Sample {
        at_s: 10.0,
        sources: vec![source],
        cache: Some(cache),
        process,
        links: vec![link],
        ..Sample::default()
    };
    let mut after = Sample { at_s: 12.0, ..before.clone() };
    of_source(&mut after, 1000, 0.5, 0.01);
    after.nfs = NfsSample {
        operations: 9000,
        getattr: 900,
        lookup: 300,
        access: 300,
        read: 1500,
        calls: 3000,
        queue_s: 0.03,
        ..NfsSample::default()
    };
    chunks(&mut after, (1200, 250, 50), (0, 0));
    after.process.cpu_s = 2.0;
    after.links[0].sent_bytes = 1 << 30;
    (before, after)
}

fn of_source(sample: &mut Sample, round_trips: u64, rtt_s: f64, queue_s: f64) {
    let source = &mut sample.sources[0];
    (source.round_trips, source.rtt_s, source.queue_s) = (round_trips, rtt_s, queue_s);
}

fn cache(sample: &mut Sample) -> &mut CacheSample {
    sample.cache.as_mut().expect("a sample here has a cache")
}

fn chunks(sample: &mut Sample, hits: (u64, u64, u64), evictions: (u64, u64)) {
    let cache = cache(sample);
    (cache.ram_hits, cache.nvme_hits, cache.misses) = hits;
    (cache.ram_evictions, cache.nvme_evictions) = evictions;
}

fn found(change: Change) -> Vec<Finding> {
    let (before, mut after) = well();
    change(&mut after);
    diagnose(&before, &after)
}

#[test]
fn each_bottleneck_is_named_and_no_other() {
    let rows: [(&str, Severity, &str, Change); 21] = [
        ("source-down", Severity::Critical, "does not answer", |after| after.sources[0].up = false),
        ("served-stale", Severity::Warning, "7 times", |after| after.sources[0].stale = 7),
        ("source-latency", Severity::Warning, "40.0 ms", |after| of_source(after, 1000, 40.0, 0.5)),
        ("source-slots", Severity::Warning, "wait 20.0 ms", |after| of_source(after, 1000, 2.0, 20.0)),
        ("source-budget", Severity::Warning, "10 calls were delayed by 500.0 ms each", |after| {
            (after.sources[0].delayed, after.sources[0].delayed_s) = (10, 5.0);
        }),
        ("source-budget", Severity::Warning, "3 not", |after| after.sources[0].refused = 3),
        ("source-budget-drains", Severity::Warning, "5.0 hours", |after| {
            (after.sources[0].slope, after.sources[0].hours_to_empty) = (-1048576.0, Some(5.0));
        }),
        ("nvme-degraded", Severity::Critical, "memory only", |after| cache(after).degraded = true),
        ("nvme-damage", Severity::Critical, "2 chunks", |after| cache(after).checksum_failures = 2),
        ("nvme-damage", Severity::Critical, "5 reads or writes", |after| cache(after).store_errors = 5),
        ("nvme-writes", Severity::Warning, "4.0 chunks", |after| cache(after).insert_wait_s = 8.0),
        ("nvme-writes", Severity::Warning, "64.0 MiB", |after| cache(after).queued_bytes = 64 << 20),
        ("working-set", Severity::Warning, "about 4.0 times the 1.0 TiB", |after| {
            chunks(after, (100, 150, 750), (900, 700));
        }),
        ("working-set", Severity::Warning, "more than 10 times the 1.0 GiB", |after| {
            cache(after).nvme_capacity = 0;
            chunks(after, (10, 0, 990), (900, 0));
        }),
        ("ram", Severity::Info, "about 5.0 times", |after| chunks(after, (200, 790, 10), (700, 0))),
        ("cpu", Severity::Warning, "3.9 of the 4 cores", |after| after.process.cpu_s = 7.8),
        ("memory", Severity::Critical, "7.9 GiB of the 8.0 GiB", |after| {
            after.process.resident_bytes = (79 << 30) / 10
        }),
        ("network", Severity::Warning, "eth0 sends", |after| after.links[0].sent_bytes = 2_400_000_000),
        ("network", Severity::Warning, "eth0 receives", |after| after.links[0].received_bytes = 2_400_000_000),
        ("metadata", Severity::Warning, "90 % of the names", |after| {
            (after.nfs.getattr, after.nfs.read) = (40_000, 100);
            (after.sources[0].name_hits, after.sources[0].name_misses) = (9000, 1000);
        }),
        ("node-queue", Severity::Warning, "10.0 ms", |after| after.nfs.queue_s = 30.0),
    ];
    for (what, severity, said, change) in rows {
        let found = found(change);
        assert_eq!(found.iter().map(|one| one.what.as_str()).collect::<Vec<_>>(), [what], "{found:?}");
        assert_eq!(found[0].severity, severity, "{found:?}");
        assert!(found[0].why.contains(said), "{said}: {found:?}");
        assert!(found[0].advice.len() > 20, "{found:?}");
    }
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let rows: [(&str, Change); 12] = [
        ("moderate work", |_| {}),
        ("idle", |after| *after = Sample { at_s: 12.0, ..well().0 }),
        ("a slow source that hardly anybody asks", |after| of_source(after, 12, 0.9, 0.0)),
        ("a single slow call", |after| of_source(after, 1, 5.0, 0.0)),
        ("a busy source that answers quickly", |after| of_source(after, 100_000, 80.0, 20.0)),
        ("a balance that lasts for days", |after| {
            (after.sources[0].slope, after.sources[0].hours_to_empty) = (-1024.0, Some(72.0));
        }),
        ("a cold cache that fills", |after| chunks(after, (10, 0, 5000), (0, 0))),
        ("RAM that turns over while NVMe has little to do", |after| chunks(after, (900, 90, 10), (500, 0))),
        ("a few chunks of a large set", |after| chunks(after, (1, 1, 40), (40, 40))),
        ("a burst that the write queue absorbs", |after| {
            (cache(after).insert_wait_s, cache(after).queued_bytes) = (0.2, 32 << 20);
        }),
        ("many attributes among many reads", |after| (after.nfs.getattr, after.nfs.read) = (60_000, 50_000)),
        ("an interface that does not say how fast it is", |after| {
            after.links[0] = LinkSample { speed: 0.0, sent_bytes: 1 << 40, ..after.links[0].clone() };
        }),
    ];
    for (what, change) in rows {
        assert_eq!(found(change), [], "{what}");
    }
}

#[test]
fn the_worst_comes_first_and_old_damage_is_no_new_one() {
    let found = found(|after| {
        after.process.cpu_s = 8.0;
        after.sources[0].up = false;
        cache(after).degraded = true;
    });
    assert_eq!(found.iter().map(|one| one.what.as_str()).collect::<Vec<_>>(), ["source-down", "nvme-degraded", "cpu"]);
    let (mut before, mut after) = well();
    cache(&mut before).checksum_failures = 4;
    cache(&mut after).checksum_failures = 4;
    let found = diagnose(&before, &after);
    assert_eq!((found.len(), found[0].severity), (1, Severity::Info), "{found:?}");
}

#[test]
fn figures_are_rates() {
    let (before, after) = well();
    let figures = figures(&before, &after);
    assert_eq!((figures.seconds, figures.operations, figures.reads, figures.metadata), (2.0, 4500.0, 750.0, 750.0));
    assert_eq!((figures.source_calls, figures.cores_used), (500.0, 1.0));
    assert!((figures.hit_ratio.unwrap_or(0.0) - 1450.0 / 1500.0).abs() < 1e-9);
}
