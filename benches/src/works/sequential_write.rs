//! 1 MiB WRITEs, UNSTABLE, over this connection's share of a file; COMMIT after each pass, before the next begins.

use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use forebay_proto::nfs4::{
    FileHandle, Op, OpReply, StableHow, Stateid, Verifier, open,
    ops::{commit::CommitArgs, read::ReadArgs, write::WriteArgs},
};

use super::{BLOCK, Done, Issue, Setup, Work, file, region};
use crate::{
    client::{Client, put},
    pattern,
    wire::{AFTER_PUTFH, Calls, Reply, encode},
};

/// WRITE's arguments after the stateid: offset, stability, length.
const TAIL: usize = 8 + 4 + 4;

/// The work.
#[derive(Debug)]
pub struct SequentialWrite {
    handle: FileHandle,
    stateid: Stateid,
    /// PUTFH and WRITE, up to the offset.
    write: Vec<u8>,
    /// PUTFH and COMMIT.
    commit: Vec<u8>,
    payload: Arc<[u8]>,
    blocks: std::ops::Range<u64>,
    next: u64,
    unanswered: u64,
    commits: Option<u32>,
    verifier: Option<Verifier>,
}

impl SequentialWrite {
    pub fn new(setup: Setup<'_>) -> Result<Self> {
        let (directory, file) = file(setup.client, setup.path)?;
        let blocks = region(file.attributes.size.unwrap_or(0) / BLOCK, setup.share);
        if blocks.is_empty() {
            bail!("{}: shorter than 1 MiB for each connection", setup.path);
        }
        let stateid = setup.client.open(&directory.handle, &file.name, open::ACCESS_BOTH)?;
        let args = WriteArgs {
            stateid: Stateid { seqid: 0, ..stateid },
            offset: 0,
            stable: StableHow::Unstable,
            data: Default::default(),
        };
        let mut write = encode(&[put(&file.handle), Op::Write(args)]);
        write.truncate(write.len() - TAIL);
        let commit = encode(&[put(&file.handle), Op::Commit(CommitArgs { offset: 0, count: 0 })]);
        let mut payload = vec![0; BLOCK as usize];
        pattern::fill(0, &mut payload);
        let next = blocks.start;
        Ok(Self {
            handle: file.handle,
            stateid,
            write,
            commit,
            payload: payload.into(),
            blocks,
            next,
            unanswered: 0,
            commits: None,
            verifier: None,
        })
    }

    /// A block starts with the number of its first page; the rest is the same in all, so that one payload serves every call.
    fn number(block: u64) -> [u8; pattern::NUMBER] {
        (block * BLOCK / pattern::PAGE as u64).to_be_bytes()
    }

    fn same_verifier(&mut self, verifier: Option<&[u8]>) -> Result<()> {
        let verifier: Verifier =
            verifier.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| anyhow!("a result without a verifier"))?;
        match self.verifier.replace(verifier) {
            Some(before) if before != verifier => bail!("the write verifier changed: the server lost what was written"),
            _ => Ok(()),
        }
    }

    fn read_back(&self, client: &mut Client, block: u64) -> Result<()> {
        let read = ReadArgs { stateid: self.stateid, offset: block * BLOCK, count: BLOCK as u32 };
        let replies = client.call(vec![put(&self.handle), Op::Read(read)])?;
        let Some(OpReply::Read(Ok(read))) = replies.get(1) else { bail!("READ: not its result") };
        let expected = [&Self::number(block)[..], &self.payload[pattern::NUMBER..]].concat();
        if read.data[..] != expected[..] {
            bail!("READ of block {block}: not what was written");
        }
        Ok(())
    }
}

impl Work for SequentialWrite {
    fn warm_units(&self) -> u64 {
        self.blocks.end - self.blocks.start
    }

    fn next(&mut self, slot: u32, fresh: bool, calls: &mut Calls) -> Issue {
        if !fresh || self.commits.is_some() {
            return Issue::Nothing;
        }
        if self.next == self.blocks.end {
            if self.unanswered > 0 {
                return Issue::Nothing;
            }
            self.commits = Some(slot);
            self.next = self.blocks.start;
            calls.send(slot, 2, &[&self.commit]);
            return Issue::Begun;
        }
        let block = self.next;
        self.next += 1;
        self.unanswered += 1;
        let offset = (block * BLOCK).to_be_bytes();
        let stable = (StableHow::Unstable as u32).to_be_bytes();
        let length = (BLOCK as u32).to_be_bytes();
        let parts: [&[u8]; 5] = [&self.write, &offset, &stable, &length, &Self::number(block)];
        calls.send_with(slot, 2, &parts, pattern::NUMBER..BLOCK as usize);
        Issue::Begun
    }

    fn reply(&mut self, slot: u32, reply: &Reply<'_>) -> Result<Done> {
        let mut words = reply.cursor(AFTER_PUTFH + 8)?;
        if self.commits == Some(slot) {
            self.commits = None;
            self.same_verifier(words.take(8))?;
            return Ok(Done::default());
        }
        let (count, _committed) = (words.u32(), words.u32());
        self.same_verifier(words.take(8))?;
        self.unanswered -= 1;
        if count != Some(BLOCK as u32) {
            bail!("WRITE of 1 MiB: {count:?} bytes taken");
        }
        Ok(Done { units: 1, bytes: BLOCK, finished: true })
    }

    fn payload(&self) -> Arc<[u8]> {
        self.payload.clone()
    }

    fn finish(&mut self, client: &mut Client) -> Result<()> {
        // The first pass wrote every block, and every later one the same.
        let middle = self.blocks.start.midpoint(self.blocks.end - 1);
        for block in [self.blocks.start, middle, self.blocks.end - 1] {
            self.read_back(client, block)?;
        }
        client.close(&self.handle, self.stateid)
    }
}
