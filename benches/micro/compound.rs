//! What it costs to encode and decode the COMPOUNDs that servers see most, one operation after the other as a server would.
#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay_proto::{
    nfs4::{
        Attr, Attributes, Bitmap, CompoundHeader, FileHandle, FileType, Fsid, NfsTime, Op, OpReply, PROC_COMPOUND,
        PROGRAM, ReplyHeader, SessionId, Stateid, Status, VERSION,
        attr::Principal,
        ops::{
            getattr::GetAttrArgs,
            putfh::PutFhArgs,
            read::{ReadArgs, ReadOk},
            sequence::{SequenceArgs, SequenceOk},
        },
    },
    rpc::{self, AcceptStatus, AuthSys, Call, CallHeader, Credential},
    xdr::{Encoded, List, Opaque, Reader, Writer, Xdr},
};

fn call(last: Op) -> Encoded {
    let sys = AuthSys {
        stamp: 0,
        machine_name: Opaque::new("client").expect("six bytes"),
        uid: 1000,
        gid: 1000,
        groups: List::new(vec![4, 24, 27, 30, 46]).expect("five groups"),
    };
    let sequence =
        SequenceArgs { session: SessionId([1; 16]), sequence: 9, slot: 3, highest_slot: 63, cache_this: false };
    let handle = FileHandle::new(vec![7; 48]).expect("48 bytes");
    let ops = [Op::Sequence(sequence), Op::PutFh(PutFhArgs { handle }), last];
    let mut writer = Writer::new();
    let (xid, credential) = (1, Credential::Sys(sys));
    CallHeader { xid, program: PROGRAM, version: VERSION, procedure: PROC_COMPOUND, credential }.encode(&mut writer);
    CompoundHeader { tag: Opaque::default(), minor_version: 2, operations: ops.len() as u32 }.encode(&mut writer);
    ops.iter().for_each(|op| op.encode(&mut writer));
    writer.finish()
}

fn decode_call(record: Bytes) -> Op {
    let mut call = Call::decode(Reader::new(record)).expect("our own call");
    let header = CompoundHeader::decode(&mut call.arguments).expect("our own header");
    let ops = (0..header.operations).map(|_| Op::decode(&mut call.arguments).expect("our own operation"));
    ops.last().expect("three operations")
}

fn reply(last: OpReply) -> Encoded {
    let sequence = SequenceOk {
        session: SessionId([1; 16]),
        sequence: 9,
        slot: 3,
        highest_slot: 63,
        target_highest_slot: 63,
        status_flags: 0,
    };
    let results = [OpReply::Sequence(Ok(sequence)), OpReply::PutFh(Ok(())), last];
    let mut writer = Writer::new();
    rpc::ReplyHeader::Accepted(AcceptStatus::Success).encode(1, &mut writer);
    ReplyHeader { status: Status::Ok, tag: Opaque::default(), results: results.len() as u32 }.encode(&mut writer);
    results.iter().for_each(|result| result.encode(&mut writer));
    writer.finish()
}

fn attributes() -> Attributes {
    let time = Some(NfsTime { seconds: 1_700_000_000, nanoseconds: 123_456_789 });
    Attributes {
        kind: Some(FileType::Regular),
        change: Some(1 << 40),
        size: Some(4096),
        fsid: Some(Fsid { major: 1, minor: 2 }),
        fileid: Some(1 << 33),
        mode: Some(0o644),
        num_links: Some(1),
        owner: Some(Principal::Id(1000)),
        owner_group: Some(Principal::Id(1000)),
        space_used: Some(4096),
        time_access: time,
        time_metadata: time,
        time_modify: time,
        mounted_on_fileid: Some(1 << 33),
        ..Attributes::default()
    }
}

fn compounds(criterion: &mut Criterion) {
    let read = || {
        let stateid = Stateid { seqid: 0, other: [5; 12] };
        Op::Read(ReadArgs { stateid, offset: 1 << 30, count: 1 << 20 })
    };
    let mask = attributes().mask();
    let getattr = || Op::GetAttr(GetAttrArgs { attributes: mask });
    let mut group = criterion.benchmark_group("call");
    for (name, op) in [("READ", read()), ("GETATTR", getattr())] {
        let record = call(op.clone()).to_bytes();
        group.throughput(Throughput::Elements(1));
        group.bench_function(format!("{name} encode"), |bencher| bencher.iter(|| call(black_box(op.clone()))));
        group.bench_function(format!("{name} decode"), |bencher| {
            bencher.iter(|| decode_call(black_box(record.clone())));
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("reply");
    for (name, bytes) in [("READ 4 KiB", 4 << 10), ("READ 1 MiB", 1 << 20)] {
        let data = Bytes::from(vec![3; bytes]);
        group.bench_function(format!("{name} encode"), |bencher| {
            bencher.iter(|| {
                let data = Opaque::new(black_box(data.clone())).expect("within a record");
                reply(OpReply::Read(Ok(ReadOk { eof: false, data })))
            });
        });
    }
    let attributes = attributes();
    let wanted = mask.union(&Bitmap::of(&[Attr::RawDev]));
    group.bench_function("GETATTR encode", |bencher| {
        bencher.iter(|| reply(OpReply::GetAttr(Ok(black_box(&attributes).to_fattr(&wanted)))));
    });
    group.finish();
}

criterion_group!(benches, compounds);
criterion_main!(benches);
