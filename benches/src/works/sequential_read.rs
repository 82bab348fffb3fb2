//! 1 MiB READs one after the other over this connection's share of a file, again and again.

use anyhow::{Result, bail};
use forebay_proto::nfs4::{FileHandle, Op, Stateid, open, ops::read::ReadArgs};

use super::{BLOCK, Done, Issue, Setup, Work, file, region};
use crate::{
    client::{Client, put},
    pattern,
    wire::{Calls, Reply, encode},
};

/// The work.
#[derive(Debug)]
pub struct SequentialRead {
    handle: FileHandle,
    stateid: Stateid,
    /// PUTFH and READ, up to the offset.
    body: Vec<u8>,
    blocks: std::ops::Range<u64>,
    next: u64,
    /// The block each slot reads.
    reading: Vec<u64>,
    verify: bool,
}

impl SequentialRead {
    pub fn new(setup: Setup<'_>) -> Result<Self> {
        let (directory, file) = file(setup.client, setup.path)?;
        let blocks = region(file.attributes.size.unwrap_or(0) / BLOCK, setup.share);
        if blocks.is_empty() {
            bail!("{}: shorter than 1 MiB for each connection", setup.path);
        }
        let stateid = setup.client.open(&directory.handle, &file.name, open::ACCESS_READ)?;
        // As Linux reads: whatever sequence the state is at.
        let read = ReadArgs { stateid: Stateid { seqid: 0, ..stateid }, offset: 0, count: BLOCK as u32 };
        let mut body = encode(&[put(&file.handle), Op::Read(read)]);
        body.truncate(body.len() - 12);
        let reading = vec![0; setup.depth as usize];
        let next = blocks.start;
        Ok(Self { handle: file.handle, stateid, body, blocks, next, reading, verify: setup.verify })
    }
}

impl Work for SequentialRead {
    fn warm_units(&self) -> u64 {
        self.blocks.end - self.blocks.start
    }

    fn next(&mut self, slot: u32, fresh: bool, calls: &mut Calls) -> Issue {
        if !fresh {
            return Issue::Nothing;
        }
        let block = self.next;
        self.next = if block + 1 == self.blocks.end { self.blocks.start } else { block + 1 };
        self.reading[slot as usize] = block;
        let offset = (block * BLOCK).to_be_bytes();
        calls.send(slot, 2, &[&self.body, &offset, &(BLOCK as u32).to_be_bytes()]);
        Issue::Begun
    }

    fn reply(&mut self, slot: u32, reply: &Reply<'_>) -> Result<Done> {
        let (_, length) = reply.read()?;
        if u64::from(length) != BLOCK {
            bail!("READ of block {}: {length} bytes", self.reading[slot as usize]);
        }
        Ok(Done { units: 1, bytes: BLOCK, finished: true })
    }

    fn check_data(&mut self, slot: u32, position: u64, bytes: &[u8]) -> Result<()> {
        let offset = self.reading[slot as usize] * BLOCK + position;
        match pattern::first_difference(offset, bytes) {
            Some(at) if self.verify => bail!("READ: wrong data at or after byte {at}"),
            _ => Ok(()),
        }
    }

    fn finish(&mut self, client: &mut Client) -> Result<()> {
        client.close(&self.handle, self.stateid)
    }
}
