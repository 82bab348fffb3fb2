//! What it costs to ask who owns a file, and to build the ring of a membership.
#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay_proto::cluster::{FileKey, NodeId, Ring, RingEpoch, Stripe, Weight, moved};

fn members(nodes: u64) -> Vec<(NodeId, Weight)> {
    (1..=nodes).map(|node| (NodeId(node), Weight::STANDARD)).collect()
}

fn ring(nodes: u64) -> Ring {
    Ring::new(RingEpoch(1), &members(nodes)).expect("nodes of usual weight")
}

fn lookups(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring");
    group.throughput(Throughput::Elements(1));
    for nodes in [3, 10, 100] {
        let ring = ring(nodes);
        let mut fileid = 0_u64;
        // Files in no order: each look-up begins somewhere else in the table.
        let mut next = move || {
            fileid = fileid.wrapping_add(0x9E37_79B9_7F4A_7C15);
            FileKey { fsid: 1, fileid }
        };
        group.bench_function(format!("owner of {nodes}"), |bencher| {
            bencher.iter(|| black_box(&ring).file_owner(next()));
        });
        group.bench_function(format!("first three of {nodes}"), |bencher| {
            bencher.iter(|| black_box(&ring).preference(next(), Stripe(0)).take(3).last());
        });
    }
    group.finish();
}

fn building(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring");
    group.sample_size(20);
    for nodes in [3, 10, 100] {
        let members = members(nodes);
        group.bench_function(format!("build for {nodes}"), |bencher| {
            bencher.iter(|| Ring::new(RingEpoch(1), black_box(&members)));
        });
    }
    let (old, new) = (ring(10), ring(11));
    group.bench_function("moved from 10 to 11", |bencher| bencher.iter(|| moved(black_box(&old), &new)));
    group.finish();
}

criterion_group!(benches, lookups, building);
criterion_main!(benches);
