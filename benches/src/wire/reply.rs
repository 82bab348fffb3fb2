//! A reply, read as little as possible: is it a success, and where do the results start.

use anyhow::{Result, anyhow, bail};
use bytes::Bytes;
use forebay_proto::{
    nfs4::{OpNumber, OpReply, ReplyHeader, Status},
    rpc::{self, AcceptStatus},
    xdr::Reader,
};

use super::Cursor;

/// From the record's start to the first result: transaction id, five words of RPC, three of COMPOUND.
const RESULTS_AT: usize = 36;
/// SEQUENCE's result: number, status, session, five words.
const SEQUENCE_RESULT: usize = 44;
/// Where the result after SEQUENCE and PUTFH starts, from the record's start.
pub const AFTER_PUTFH: usize = RESULTS_AT + SEQUENCE_RESULT + 8;
/// Where the data of a READ after SEQUENCE and PUTFH starts: number, status, end of file, length before it.
pub const READ_DATA: usize = AFTER_PUTFH + 16;

/// A successful reply, or the start of one.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    /// The record as far as it is here, without its marker.
    pub record: &'a [u8],
}

/// The transaction id of a record.
pub fn xid(record: &[u8]) -> Option<u32> {
    record.first_chunk::<4>().map(|xid| u32::from_be_bytes(*xid))
}

impl<'a> Reply<'a> {
    /// Looks at the words before the results. A failure is told with the operation's name and status.
    ///
    /// # Errors
    /// When the call was not run or an operation failed. `record` must then be whole to tell which.
    pub fn parse(record: &'a [u8], operations: u32) -> Result<Self> {
        // Reply, accepted, verifier AUTH_NONE and empty, success; NFS4_OK, no tag.
        const GOOD: [u32; 7] = [1, 0, 0, 0, 0, 0, 0];
        let Some(mut words) = Cursor::new(record, 4) else { bail!("a reply of {} bytes", record.len()) };
        let good = GOOD.iter().all(|good| words.u32() == Some(*good));
        if good && words.u32() == Some(operations + 1) {
            return Ok(Self { record });
        }
        Err(explain(record, operations))
    }

    /// A cursor `at` bytes into the record.
    pub fn cursor(&self, at: usize) -> Result<Cursor<'a>> {
        Cursor::new(self.record, at).ok_or_else(|| anyhow!("a reply of {} bytes is too short", self.record.len()))
    }

    /// The result of a READ after SEQUENCE and PUTFH: end of file, bytes.
    pub fn read(&self) -> Result<(bool, u32)> {
        let mut words = self.cursor(AFTER_PUTFH + 8)?;
        let eof = words.u32().ok_or_else(|| anyhow!("READ without a result"))?;
        let length = words.u32().ok_or_else(|| anyhow!("READ without a length"))?;
        Ok((eof != 0, length))
    }
}

/// Everything in the record.
///
/// # Errors
/// When it is not what the operations should give.
pub fn decode(record: &[u8]) -> Result<(Status, Vec<OpReply>)> {
    let reply = rpc::Reply::decode(Reader::new(Bytes::copy_from_slice(record)))?;
    if reply.header != rpc::ReplyHeader::Accepted(AcceptStatus::Success) {
        bail!("the server refused the call: {:?}", reply.header);
    }
    let mut results = reply.results;
    let (header, replies) = ReplyHeader::decode_all(&mut results)?;
    results.finish()?;
    Ok((header.status, replies))
}

/// An operation's failure in words.
pub fn failure(reply: &OpReply) -> anyhow::Error {
    let operation = OpNumber::from_number(reply.number()).map_or("an operation", OpNumber::name);
    anyhow!("{operation}: NFS4ERR_{} ({})", reply.status().name(), reply.status().number())
}

fn explain(record: &[u8], operations: u32) -> anyhow::Error {
    match decode(record) {
        Err(error) => error.context("a reply that cannot be read"),
        Ok((_, replies)) => match replies.last() {
            Some(last) if last.status() != Status::Ok => failure(last),
            _ => anyhow!("{} results, or a tag, where {} results were due", replies.len(), operations + 1),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::{
        nfs4::{
            SessionId,
            ops::{read::ReadOk, sequence::SequenceOk},
        },
        xdr::{Opaque, Writer, Xdr},
    };

    fn record(xid: u32, status: Status, results: &[OpReply]) -> Vec<u8> {
        let mut writer = Writer::new();
        rpc::ReplyHeader::Accepted(AcceptStatus::Success).encode(xid, &mut writer);
        ReplyHeader { status, tag: Opaque::default(), results: results.len() as u32 }.encode(&mut writer);
        results.iter().for_each(|result| result.encode(&mut writer));
        writer.finish().to_bytes().to_vec()
    }

    fn sequence() -> OpReply {
        let ok = SequenceOk {
            session: SessionId([1; 16]),
            sequence: 1,
            slot: 0,
            highest_slot: 1,
            target_highest_slot: 1,
            status_flags: 0,
        };
        OpReply::Sequence(Ok(ok))
    }

    #[test]
    fn a_read_is_found_where_it_should_be() {
        let data: Vec<u8> = (0..97).collect();
        let read = OpReply::Read(Ok(ReadOk { eof: true, data: Opaque::new(data.clone()).unwrap() }));
        let record = record(42, Status::Ok, &[sequence(), OpReply::PutFh(Ok(())), read]);
        assert_eq!(xid(&record), Some(42));
        let reply = Reply::parse(&record, 2).unwrap();
        assert_eq!(reply.read().unwrap(), (true, 97));
        assert_eq!(&record[READ_DATA..READ_DATA + 97], &data);
        // The start alone is enough.
        let start = Reply::parse(&record[..READ_DATA], 2).unwrap();
        assert_eq!(start.read().unwrap(), (true, 97));
    }

    #[test]
    fn failures_carry_the_operation_and_its_status() {
        let stale = record(1, Status::Stale, &[sequence(), OpReply::PutFh(Err(Status::Stale))]);
        assert_eq!(Reply::parse(&stale, 2).unwrap_err().to_string(), "PUTFH: NFS4ERR_STALE (70)");
        let short = record(1, Status::Ok, &[sequence()]);
        assert!(Reply::parse(&short, 2).unwrap_err().to_string().contains("1 results"));
        let mut writer = Writer::new();
        rpc::ReplyHeader::Accepted(AcceptStatus::GarbageArguments).encode(5, &mut writer);
        let refused = writer.finish().to_bytes();
        assert!(format!("{:#}", Reply::parse(&refused, 2).unwrap_err()).contains("GarbageArguments"));
        for cut in 0..stale.len() {
            assert!(Reply::parse(&stale[..cut], 2).is_err(), "cut at {cut}");
        }
    }
}
