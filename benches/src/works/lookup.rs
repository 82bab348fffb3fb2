//! LOOKUP of each name of a directory in turn: SEQUENCE, PUTFH, LOOKUP, GETFH, ACCESS, GETATTR of what Linux asks for.

use anyhow::{Result, bail};
use forebay_proto::nfs4::{
    Op, OpReply, access,
    ops::{access::AccessArgs, getattr::GetAttrArgs, lookup::LookupArgs},
};

use super::{Done, Issue, Setup, Work, files, getattr::check_attributes, linux_attributes};
use crate::{
    client::{Found, put},
    wire::{Calls, Reply, encode},
};

/// What Linux asks for of a file: to read, change, extend and run it.
const ASKED: u32 = access::READ | access::MODIFY | access::EXTEND | access::EXECUTE;

/// The work.
#[derive(Debug)]
pub struct Lookup {
    files: Vec<Found>,
    /// PUTFH of the directory.
    directory: Vec<u8>,
    /// LOOKUP of each name and what follows it.
    bodies: Vec<Vec<u8>>,
    next: usize,
    asking: Vec<usize>,
}

impl Lookup {
    pub fn new(setup: Setup<'_>) -> Result<Self> {
        let (directory, files) = files(setup.client, setup.path)?;
        let body = |file: &Found| {
            encode(&[
                Op::Lookup(LookupArgs { name: file.name.clone() }),
                Op::GetFh(()),
                Op::Access(AccessArgs { access: ASKED }),
                Op::GetAttr(GetAttrArgs { attributes: linux_attributes() }),
            ])
        };
        let bodies = files.iter().map(body).collect();
        let directory = encode(&[put(&directory.handle)]);
        Ok(Self { files, directory, bodies, next: 0, asking: vec![0; setup.depth as usize] })
    }
}

impl Work for Lookup {
    fn warm_units(&self) -> u64 {
        self.files.len() as u64
    }

    fn next(&mut self, slot: u32, fresh: bool, calls: &mut Calls) -> Issue {
        if !fresh {
            return Issue::Nothing;
        }
        let file = self.next;
        self.next = (file + 1) % self.files.len();
        self.asking[slot as usize] = file;
        calls.send(slot, 5, &[&self.directory, &self.bodies[file]]);
        Issue::Begun
    }

    fn reply(&mut self, _slot: u32, _reply: &Reply<'_>) -> Result<Done> {
        Ok(Done { units: 1, bytes: 0, finished: true })
    }

    fn check(&mut self, slot: u32, results: &[OpReply]) -> Result<()> {
        let [
            _,
            OpReply::Lookup(Ok(())),
            OpReply::GetFh(Ok(got)),
            OpReply::Access(Ok(may)),
            OpReply::GetAttr(Ok(fattr)),
        ] = results
        else {
            bail!("LOOKUP: not its results");
        };
        let expected = &self.files[self.asking[slot as usize]];
        if may.access & access::READ == 0 {
            bail!("ACCESS: a file that root may not read");
        }
        if got.handle != expected.handle {
            bail!("GETFH: another handle than READDIR gave");
        }
        check_attributes(fattr, &expected.attributes)
    }
}
