//! Small files as Linux reads them: OPEN, GETFH, ACCESS, GETATTR; READ; CLOSE; three calls a file, an open-owner a slot.

use anyhow::{Result, anyhow, bail};
use forebay_proto::nfs4::{
    Op, OpNumber, OpReply, access, open,
    ops::{access::AccessArgs, getattr::GetAttrArgs, lookup::LookupArgs},
};

use super::{Done, Issue, Setup, Work, files, linux_attributes};
use crate::{
    client::{Found, open_op, owner, put},
    pattern,
    wire::{AFTER_PUTFH, Calls, Cursor, Reply, encode},
};

/// What a slot does next, or waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Open,
    Read,
    Close,
}

/// One slot's file.
#[derive(Clone, Debug)]
struct Slot {
    step: Step,
    file: usize,
    /// PUTFH of the directory and OPEN, up to the name.
    open: Vec<u8>,
    /// PUTFH of the open file.
    put: Vec<u8>,
    stateid: [u8; 16],
}

/// The work.
#[derive(Debug)]
pub struct OpenReadClose {
    files: Vec<Found>,
    /// OPEN's name, GETFH, ACCESS, GETATTR.
    names: Vec<Vec<u8>>,
    next: usize,
    slots: Vec<Slot>,
    verify: bool,
}

impl OpenReadClose {
    pub fn new(setup: Setup<'_>) -> Result<Self> {
        let (directory, files) = files(setup.client, setup.path)?;
        if let Some(large) = files.iter().find(|file| file.attributes.size.unwrap_or(0) > 64 << 10) {
            bail!("{}: {:?} is larger than 64 KiB", setup.path, large.name);
        }
        let rest = encode(&[
            Op::GetFh(()),
            Op::Access(AccessArgs { access: access::READ }),
            Op::GetAttr(GetAttrArgs { attributes: linux_attributes() }),
        ]);
        let name = |file: &Found| {
            // LOOKUP's argument is the name alone, as OPEN's last is.
            let lookup = encode(&[Op::Lookup(LookupArgs { name: file.name.clone() })]);
            [&lookup[4..], &rest].concat()
        };
        let slot = |number| {
            let op = open_op(owner(setup.client.clientid, number), &Default::default(), open::ACCESS_READ);
            let mut open = encode(&[put(&directory.handle), op]);
            // Without the length of its empty name.
            open.truncate(open.len() - 4);
            Slot { step: Step::Open, file: 0, open, put: Vec::new(), stateid: [0; 16] }
        };
        let names = files.iter().map(name).collect();
        let slots = (0..setup.depth).map(slot).collect();
        Ok(Self { files, names, next: 0, slots, verify: setup.verify })
    }

    fn size(&self, file: usize) -> u32 {
        self.files[file].attributes.size.unwrap_or(0) as u32
    }
}

/// The stateid of OPEN's result and the handle of GETFH's after it.
fn opened<'a>(words: &mut Cursor<'a>) -> Option<([u8; 16], &'a [u8])> {
    let stateid = words.take(16)?.try_into().ok()?;
    // change_info4 and the flags.
    words.take(4 + 8 + 8 + 4)?;
    words.skip_words()?;
    match words.u32()? {
        0 => {}
        // OPEN_DELEGATE_NONE_EXT: why not; two of the reasons carry a boolean.
        3 => {
            if matches!(words.u32()?, 1 | 2) {
                words.u32()?;
            }
        }
        _ => return None,
    }
    if words.u32()? != OpNumber::GetFh as u32 || words.u32()? != 0 {
        return None;
    }
    Some((stateid, words.opaque()?))
}

fn put_bytes(into: &mut Vec<u8>, handle: &[u8]) {
    into.clear();
    into.extend_from_slice(&(OpNumber::PutFh as u32).to_be_bytes());
    into.extend_from_slice(&(handle.len() as u32).to_be_bytes());
    into.extend_from_slice(handle);
    into.resize(into.len().next_multiple_of(4), 0);
}

impl Work for OpenReadClose {
    fn warm_units(&self) -> u64 {
        self.files.len() as u64
    }

    fn next(&mut self, slot: u32, fresh: bool, calls: &mut Calls) -> Issue {
        let state = &mut self.slots[slot as usize];
        match state.step {
            Step::Open if !fresh => Issue::Nothing,
            Step::Open => {
                state.file = self.next;
                self.next = (self.next + 1) % self.files.len();
                calls.send(slot, 5, &[&state.open, &self.names[state.file]]);
                Issue::Begun
            }
            Step::Read => {
                // Number, sequence 0 and the rest of the stateid, offset 0, count.
                let number = (OpNumber::Read as u32).to_be_bytes();
                let file = state.file;
                let count = self.files[file].attributes.size.unwrap_or(0) as u32;
                let parts: [&[u8]; 6] =
                    [&state.put, &number, &[0; 4], &state.stateid[4..], &[0; 8], &count.to_be_bytes()];
                calls.send(slot, 2, &parts);
                Issue::Continued
            }
            Step::Close => {
                let number = (OpNumber::Close as u32).to_be_bytes();
                calls.send(slot, 2, &[&state.put, &number, &[0; 4], &state.stateid]);
                Issue::Continued
            }
        }
    }

    fn reply(&mut self, slot: u32, reply: &Reply<'_>) -> Result<Done> {
        let size = self.size(self.slots[slot as usize].file);
        let state = &mut self.slots[slot as usize];
        match state.step {
            Step::Open => {
                let mut words = reply.cursor(AFTER_PUTFH + 8)?;
                let (stateid, handle) = opened(&mut words)
                    .ok_or_else(|| anyhow!("OPEN: a delegation nobody asked for, or a result that cannot be read"))?;
                state.stateid = stateid;
                put_bytes(&mut state.put, handle);
                state.step = Step::Read;
                Ok(Done::default())
            }
            Step::Read => {
                let (_, length) = reply.read()?;
                if length != size {
                    bail!("READ of a file of {size} bytes: {length} bytes");
                }
                state.step = Step::Close;
                Ok(Done { units: 0, bytes: u64::from(length), finished: false })
            }
            Step::Close => {
                state.step = Step::Open;
                Ok(Done { units: 1, bytes: 0, finished: true })
            }
        }
    }

    fn check(&mut self, _slot: u32, results: &[OpReply]) -> Result<()> {
        match results {
            [_, OpReply::Open(Ok(_)), OpReply::GetFh(Ok(_)), OpReply::Access(Ok(may)), OpReply::GetAttr(Ok(_))] => {
                if may.access & access::READ == 0 {
                    bail!("ACCESS: a file that root may not read");
                }
            }
            [_, OpReply::Read(Ok(read))] => {
                if self.verify && pattern::first_difference(0, &read.data).is_some() {
                    bail!("READ: wrong data");
                }
                if !read.eof {
                    bail!("READ of a whole file: not its end");
                }
            }
            [_, OpReply::Close(Ok(_))] => {}
            _ => bail!("OPEN, READ, CLOSE: not their results"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::{
        nfs4::{
            Bitmap, ChangeInfo, FileHandle, Stateid,
            ops::{
                getfh::GetFhOk,
                open::{NoDelegation, OpenDelegation, OpenOk},
            },
        },
        xdr::{Writer, Xdr},
    };

    #[test]
    fn stateid_and_handle_are_found_behind_every_kind_of_no_delegation() {
        let kinds = [
            OpenDelegation::None,
            OpenDelegation::NoneExtended(NoDelegation::NotWanted),
            OpenDelegation::NoneExtended(NoDelegation::Contention(true)),
            OpenDelegation::NoneExtended(NoDelegation::Resource(false)),
        ];
        for delegation in kinds {
            let ok = OpenOk {
                stateid: Stateid { seqid: 1, other: [5; 12] },
                change: ChangeInfo::default(),
                flags: 4,
                attributes_set: Bitmap::of(&[forebay_proto::nfs4::Attr::Mode]),
                delegation,
            };
            let mut writer = Writer::new();
            ok.encode(&mut writer);
            OpReply::GetFh(Ok(GetFhOk { handle: FileHandle::new(vec![8; 27]).unwrap() })).encode(&mut writer);
            let bytes = writer.finish().to_bytes();
            let (stateid, handle) = opened(&mut Cursor::new(&bytes, 0).unwrap()).unwrap();
            assert_eq!((stateid[..4].to_vec(), handle), (vec![0, 0, 0, 1], &[8; 27][..]));
        }
    }

    #[test]
    fn putfh_by_hand_is_putfh_encoded() {
        for length in [0, 1, 27, 28, 128] {
            let handle = FileHandle::new(vec![6; length]).unwrap();
            let mut bytes = Vec::new();
            put_bytes(&mut bytes, &handle);
            assert_eq!(bytes, encode(&[put(&handle)]));
        }
    }
}
