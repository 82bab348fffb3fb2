//! Takes one call and its reply for each operation out of a capture: how `testdata/golden` was made (see README.md there).
//!
//! ```text
//! cargo run -p forebay-proto --example golden -- CAPTURE.pcap DIRECTORY
//! ```
//!
//! The capture is pcap (not pcapng) of Ethernet frames with IPv4 and TCP; the server's port is 2049.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use bytes::{Bytes, BytesMut};
use forebay_proto::{
    limits::RECORD_MAX,
    nfs4::{CompoundHeader, Op, PROC_COMPOUND, ReplyHeader, Status},
    rpc::{Call, RecordReader, Reply, marker},
    xdr::{Reader, Xdr},
};

const NFS: u16 = 2049;

/// One direction of a connection: the client's address and port, and whether it is what the client sends.
type Direction = (u32, u16, bool);

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [capture, directory] = &arguments[..] else { panic!("usage: golden CAPTURE.pcap DIRECTORY") };
    let capture = std::fs::read(capture).expect("the capture");
    let mut best: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for (call, reply) in pairs(&capture) {
        let Some(names) = operations(&call, &reply) else { continue };
        let pair = [&marker(call.len())[..], &call, &marker(reply.len()), &reply].concat();
        for name in names {
            let known = best.entry(name).or_insert_with(|| pair.clone());
            if pair.len() < known.len() {
                known.clone_from(&pair);
            }
        }
    }
    for (name, pair) in best {
        println!("{name} {}", pair.len());
        std::fs::write(Path::new(directory).join(format!("{name}.bin")), pair).expect("a golden file");
    }
}

/// `4.MINOR-OPERATION` for each operation of a call that went well.
fn operations(call: &Bytes, reply: &Bytes) -> Option<Vec<String>> {
    let call = Call::decode(Reader::new(call.clone())).ok().filter(|call| call.header.procedure == PROC_COMPOUND)?;
    let mut arguments = call.arguments;
    let header = CompoundHeader::decode(&mut arguments).ok()?;
    let mut reply = Reply::decode(Reader::new(reply.clone())).ok()?;
    let (_, replies) = ReplyHeader::decode_all(&mut reply.results).ok()?;
    let ops: Vec<_> = (0..header.operations).map_while(|_| Op::decode(&mut arguments).ok()).collect();
    let good = ops.iter().zip(&replies).filter(|(_, reply)| reply.status() == Status::Ok);
    Some(good.map(|(op, _)| format!("4.{}-{}", header.minor_version, op.number().name())).collect())
}

/// Calls and replies of all connections, matched by connection and transaction id.
fn pairs(capture: &[u8]) -> Vec<(Bytes, Bytes)> {
    let mut streams: HashMap<Direction, BTreeMap<u32, Vec<u8>>> = HashMap::new();
    for frame in frames(capture) {
        if let Some((key, sequence, data)) = segment(frame) {
            streams.entry(key).or_default().insert(sequence, data.to_vec());
        }
    }
    let mut calls = HashMap::new();
    let mut replies = Vec::new();
    for (&(client, port, from_client), segments) in &streams {
        for record in records(segments) {
            let Some(xid) = record.first_chunk::<4>().copied() else { continue };
            if from_client {
                calls.insert((client, port, xid), record);
            } else {
                replies.push(((client, port, xid), record));
            }
        }
    }
    replies.into_iter().filter_map(|(key, reply)| Some((calls.get(&key)?.clone(), reply))).collect()
}

fn frames(capture: &[u8]) -> Vec<&[u8]> {
    assert_eq!(capture[..4], 0xa1b2_c3d4_u32.to_le_bytes(), "a little-endian pcap file");
    let (mut rest, mut frames) = (&capture[24..], Vec::new());
    while let Some(length) = rest.get(8..12).and_then(|word| word.first_chunk()) {
        let length = u32::from_le_bytes(*length) as usize;
        let Some(frame) = rest.get(16..16 + length) else { break };
        frames.push(frame);
        rest = &rest[16 + length..];
    }
    frames
}

/// Where a segment belongs: direction, sequence number, data.
fn segment(frame: &[u8]) -> Option<(Direction, u32, &[u8])> {
    let packet = frame.get(14..).filter(|packet| frame[12..14] == [8, 0] && packet.get(9) == Some(&6))?;
    let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    let tcp = packet.get(usize::from(packet[0] & 15) * 4..total)?;
    let word =
        |at: usize| tcp.get(at..at + 4).and_then(|word| word.first_chunk()).map(|word| u32::from_be_bytes(*word));
    let ports = word(0)?;
    let (source, target) = ((ports >> 16) as u16, ports as u16);
    let data = tcp.get(usize::from(tcp.get(12)? >> 4) * 4..).filter(|data| !data.is_empty())?;
    let address =
        |at: usize| packet.get(at..at + 4).and_then(|four| four.first_chunk()).map(|four| u32::from_be_bytes(*four));
    match (source, target) {
        (_, NFS) => Some(((address(12)?, source, true), word(4)?, data)),
        (NFS, _) => Some(((address(16)?, target, false), word(4)?, data)),
        _ => None,
    }
}

/// The records of one direction. Streams here are short: sequence numbers do not wrap.
fn records(segments: &BTreeMap<u32, Vec<u8>>) -> Vec<Bytes> {
    let (mut reader, mut input, mut records) = (RecordReader::new(RECORD_MAX), BytesMut::new(), Vec::new());
    let mut next = segments.keys().next().copied().unwrap_or_default();
    for (&sequence, data) in segments {
        // What was sent again is here already.
        let Some(known) = next.checked_sub(sequence) else { break };
        let Some(fresh) = data.get(known as usize..) else { continue };
        input.extend_from_slice(fresh);
        next += fresh.len() as u32;
        while let Ok(Some(record)) = reader.next_record(&mut input) {
            records.push(record);
        }
    }
    records
}
