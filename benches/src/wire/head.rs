//! What every call of a session starts with: record marker, RPC header, COMPOUND header, SEQUENCE.
//!
//! Encoded once; each call is a copy with its transaction id, slot, sequence and number of operations patched in.

use forebay_proto::{
    nfs4::{CompoundHeader, Op, PROC_COMPOUND, PROGRAM, SessionId, VERSION, ops::sequence::SequenceArgs},
    rpc::{CallHeader, Credential, marker},
    xdr::{Opaque, Writer, Xdr},
};

/// Where the transaction id is: right after the marker.
const XID_AT: usize = 4;

/// The start of a session's calls.
#[derive(Clone, Debug)]
pub struct Head {
    bytes: Vec<u8>,
    operations_at: usize,
    sequence_at: usize,
}

impl Head {
    /// For a session of `slots` slots. Replies are not asked to be kept.
    pub fn new(credential: &Credential, minor_version: u32, session: SessionId, slots: u32) -> Self {
        let mut writer = Writer::new();
        writer.u32(0);
        let call = CallHeader {
            xid: 0,
            program: PROGRAM,
            version: VERSION,
            procedure: PROC_COMPOUND,
            credential: credential.clone(),
        };
        call.encode(&mut writer);
        CompoundHeader { tag: Opaque::default(), minor_version, operations: 0 }.encode(&mut writer);
        let operations_at = writer.len() - 4;
        // The operation's number and the session's id come before the sequence; the slot comes after it.
        let sequence_at = writer.len() + 4 + 16;
        let highest_slot = slots.saturating_sub(1);
        Op::Sequence(SequenceArgs { session, sequence: 0, slot: 0, highest_slot, cache_this: false })
            .encode(&mut writer);
        Self { bytes: writer.finish().to_bytes().to_vec(), operations_at, sequence_at }
    }

    /// Appends a call's start to `out` and returns where it begins. `operations` counts those after SEQUENCE.
    pub fn begin(&self, out: &mut Vec<u8>, xid: u32, slot: u32, sequence: u32, operations: u32) -> usize {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        let record = &mut out[start..];
        patch(record, XID_AT, xid);
        patch(record, self.operations_at, operations + 1);
        patch(record, self.sequence_at, sequence);
        patch(record, self.sequence_at + 4, slot);
        start
    }

    /// Sets the marker of the call that begins at `start`; `beyond` bytes of it are not in `out`.
    pub fn end(out: &mut [u8], start: usize, beyond: usize) {
        let length = out.len() - start - 4 + beyond;
        out[start..start + 4].copy_from_slice(&marker(length));
    }
}

fn patch(record: &mut [u8], at: usize, value: u32) {
    record[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::{Bytes, BytesMut};
    use forebay_proto::{
        nfs4::OpNumber,
        rpc::{AuthSys, Call, RecordReader},
        xdr::{List, Reader},
    };

    #[test]
    fn a_patched_call_decodes_to_what_was_patched_in() {
        let machine_name = Opaque::new("client").expect("six bytes");
        let sys = AuthSys { stamp: 7, machine_name, uid: 1, gid: 2, groups: List::new(vec![3, 4]).expect("two") };
        for credential in [Credential::None, Credential::Sys(sys)] {
            let head = Head::new(&credential, 2, SessionId([9; 16]), 64);
            let mut out = vec![0xee; 3];
            let start = head.begin(&mut out, 0xabcd_0005, 5, 77, 1);
            out.extend_from_slice(&Op::GetFh(()).to_bytes());
            Head::end(&mut out, start, 0);

            let mut input = BytesMut::from(&out[3..]);
            let record = RecordReader::new(4096).next_record(&mut input).unwrap().expect("one whole record");
            assert!(input.is_empty());
            let mut call = Call::decode(Reader::new(record)).unwrap();
            assert_eq!((call.header.xid, &call.header.credential), (0xabcd_0005, &credential));
            let compound = CompoundHeader::decode(&mut call.arguments).unwrap();
            assert_eq!((compound.minor_version, compound.operations), (2, 2));
            let expected = SequenceArgs {
                session: SessionId([9; 16]),
                sequence: 77,
                slot: 5,
                highest_slot: 63,
                cache_this: false,
            };
            assert_eq!(Op::decode(&mut call.arguments).unwrap(), Op::Sequence(expected));
            assert_eq!(Op::decode(&mut call.arguments).unwrap().number(), OpNumber::GetFh);
            call.arguments.finish().unwrap();
        }
    }

    #[test]
    fn the_marker_counts_a_payload_sent_from_elsewhere() {
        let head = Head::new(&Credential::None, 1, SessionId([0; 16]), 1);
        let mut out = Vec::new();
        let start = head.begin(&mut out, 1, 0, 1, 0);
        Head::end(&mut out, start, 1 << 20);
        let marker = u32::from_be_bytes(*Bytes::from(out.clone()).first_chunk::<4>().unwrap());
        assert_eq!(marker, 1 << 31 | (out.len() as u32 - 4 + (1 << 20)));
    }
}
