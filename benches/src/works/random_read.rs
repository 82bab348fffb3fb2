//! READs of one page each, at random pages of a file.

use anyhow::{Result, bail};
use forebay_proto::nfs4::{FileHandle, Op, OpReply, Stateid, open, ops::read::ReadArgs};

use super::{Done, Issue, Setup, Work, file};
use crate::{
    client::{Client, put},
    pattern::{self, PAGE},
    wire::{Calls, Reply, encode},
};

/// The work.
#[derive(Debug)]
pub struct RandomRead {
    handle: FileHandle,
    stateid: Stateid,
    /// PUTFH and READ, up to the offset.
    body: Vec<u8>,
    pages: u64,
    random: u64,
    /// The offset each slot reads.
    reading: Vec<u64>,
    verify: bool,
}

impl RandomRead {
    pub fn new(setup: Setup<'_>) -> Result<Self> {
        let (directory, file) = file(setup.client, setup.path)?;
        let pages = file.attributes.size.unwrap_or(0) / PAGE as u64;
        if pages == 0 {
            bail!("{}: shorter than 4 KiB", setup.path);
        }
        let stateid = setup.client.open(&directory.handle, &file.name, open::ACCESS_READ)?;
        let read = ReadArgs { stateid: Stateid { seqid: 0, ..stateid }, offset: 0, count: PAGE as u32 };
        let mut body = encode(&[put(&file.handle), Op::Read(read)]);
        body.truncate(body.len() - 12);
        // Every connection its own walk, every run the same.
        let random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(setup.share.0 + 1);
        let reading = vec![0; setup.depth as usize];
        Ok(Self { handle: file.handle, stateid, body, pages, random, reading, verify: setup.verify })
    }
}

/// splitmix64's step and mix.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Work for RandomRead {
    fn warm_units(&self) -> u64 {
        // Not every page, but enough of them that the server's own caches are what they will be.
        self.pages.min(16_384)
    }

    fn next(&mut self, slot: u32, fresh: bool, calls: &mut Calls) -> Issue {
        if !fresh {
            return Issue::Nothing;
        }
        let offset = random(&mut self.random) % self.pages * PAGE as u64;
        self.reading[slot as usize] = offset;
        calls.send(slot, 2, &[&self.body, &offset.to_be_bytes(), &(PAGE as u32).to_be_bytes()]);
        Issue::Begun
    }

    fn reply(&mut self, slot: u32, reply: &Reply<'_>) -> Result<Done> {
        let (_, length) = reply.read()?;
        if length as usize != PAGE {
            bail!("READ at {}: {length} bytes", self.reading[slot as usize]);
        }
        Ok(Done { units: 1, bytes: PAGE as u64, finished: true })
    }

    fn check(&mut self, slot: u32, results: &[OpReply]) -> Result<()> {
        let [OpReply::PutFh(Ok(())), OpReply::Read(Ok(read))] = results else { bail!("READ: not its results") };
        match pattern::first_difference(self.reading[slot as usize], &read.data) {
            Some(at) if self.verify => bail!("READ: wrong data at or after byte {at}"),
            _ => Ok(()),
        }
    }

    fn finish(&mut self, client: &mut Client) -> Result<()> {
        client.close(&self.handle, self.stateid)
    }
}
