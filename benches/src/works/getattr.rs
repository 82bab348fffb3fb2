//! GETATTR of each file of a directory in turn, or of one file: SEQUENCE, PUTFH, GETATTR of what Linux asks for.

use anyhow::{Result, bail};
use forebay_proto::nfs4::{Attributes, FileType, Op, OpReply, ops::getattr::GetAttrArgs};

use super::{Done, Issue, Setup, Work, files, linux_attributes};
use crate::{
    client::{Found, put},
    wire::{Calls, Reply, encode},
};

/// The work.
#[derive(Debug)]
pub struct Getattr {
    files: Vec<Found>,
    bodies: Vec<Vec<u8>>,
    next: usize,
    asking: Vec<usize>,
}

impl Getattr {
    pub fn new(setup: Setup<'_>) -> Result<Self> {
        let found = setup.client.walk(setup.path)?;
        let files = match found.attributes.kind {
            Some(FileType::Directory) => files(setup.client, setup.path)?.1,
            _ => vec![found],
        };
        let getattr = Op::GetAttr(GetAttrArgs { attributes: linux_attributes() });
        let bodies = files.iter().map(|file| encode(&[put(&file.handle), getattr.clone()])).collect();
        Ok(Self { files, bodies, next: 0, asking: vec![0; setup.depth as usize] })
    }
}

impl Work for Getattr {
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
        calls.send(slot, 2, &[&self.bodies[file]]);
        Issue::Begun
    }

    fn reply(&mut self, _slot: u32, _reply: &Reply<'_>) -> Result<Done> {
        Ok(Done { units: 1, bytes: 0, finished: true })
    }

    fn check(&mut self, slot: u32, results: &[OpReply]) -> Result<()> {
        let [OpReply::PutFh(Ok(())), OpReply::GetAttr(Ok(fattr))] = results else { bail!("GETATTR: not its results") };
        let expected = &self.files[self.asking[slot as usize]].attributes;
        check_attributes(fattr, expected)
    }
}

/// Everything that was asked for, and of the same file.
pub fn check_attributes(fattr: &forebay_proto::nfs4::Fattr, expected: &Attributes) -> Result<()> {
    if fattr.mask != linux_attributes() {
        bail!("GETATTR: not all that was asked for: {:?}", fattr.mask);
    }
    let Ok(attributes) = Attributes::from_fattr(fattr) else { bail!("GETATTR: attributes that cannot be read") };
    let told = (attributes.kind, attributes.size, attributes.fileid);
    if told != (expected.kind, expected.size, expected.fileid) {
        bail!("GETATTR: {told:?}, another file's");
    }
    Ok(())
}
