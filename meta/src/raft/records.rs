//! The forms in which log entries, votes and the applied state are kept: our own, so that a change of a library changes no disk.
//!
//! A record is one byte of version, eight of checksum, and a body. The checksum covers the key under which the record is kept too: a record
//! in another's place is damage. Invariant: what does not check out is an error, never a default.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use openraft::{BasicNode, EntryPayload};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use xxhash_rust::xxh3::Xxh3;

use super::{
    core::Damaged,
    types::{CommandBytes, Entry, LeaderId, LogIdOf, Membership, StoredMembership, Vote, log_id},
};

/// The version that is written. Others are refused: there is none yet that could be read.
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 9;

/// Something with a form that lasts.
pub(super) trait Record: Sized {
    /// The form.
    type Form: Serialize + DeserializeOwned;

    /// Into the form.
    fn form(&self) -> Self::Form;

    /// Out of it.
    fn from_form(form: Self::Form) -> Result<Self, Damaged>;
}

/// The record of `value`, to be kept under `key`.
pub(super) fn encode<R: Record>(key: &[u8], value: &R) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes[0] = VERSION;
    let mut bytes = postcard::to_extend(&value.form(), bytes).expect("a vector grows, and our forms have lengths");
    let sum = checksum(key, VERSION, &bytes[HEADER_BYTES..]);
    bytes[1..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The value of the record that was found under `key`.
pub(super) fn decode<R: Record>(key: &[u8], record: &[u8]) -> Result<R, Damaged> {
    let (header, body) =
        record.split_at_checked(HEADER_BYTES).ok_or_else(|| Damaged::new("a record is shorter than its header"))?;
    let (version, sum) = (header[0], u64::from_le_bytes(header[1..].try_into().expect("eight of nine bytes")));
    if sum != checksum(key, version, body) {
        return Err(Damaged::new("the checksum of a record does not match"));
    }
    if version != VERSION {
        return Err(Damaged::new(format!("a record has version {version}; this program reads {VERSION}")));
    }
    let (form, rest) = postcard::take_from_bytes(body).map_err(|error| Damaged::new(error.to_string()))?;
    if !rest.is_empty() {
        return Err(Damaged::new("a record has bytes after its end"));
    }
    R::from_form(form)
}

fn checksum(key: &[u8], version: u8, body: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(key);
    hash.update(&[version]);
    hash.update(body);
    hash.digest()
}

#[derive(Serialize, Deserialize)]
pub(super) struct LogIdForm {
    term: u64,
    node: u64,
    index: u64,
}

impl Record for LogIdOf {
    type Form = LogIdForm;

    fn form(&self) -> LogIdForm {
        LogIdForm { term: self.leader_id.term, node: self.leader_id.node_id, index: self.index }
    }

    fn from_form(form: LogIdForm) -> Result<Self, Damaged> {
        Ok(log_id(form.term, form.node, form.index))
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct VoteForm {
    term: u64,
    node: u64,
    committed: bool,
}

impl Record for Vote {
    type Form = VoteForm;

    fn form(&self) -> VoteForm {
        VoteForm { term: self.leader_id.term, node: self.leader_id.node_id, committed: self.committed }
    }

    fn from_form(form: VoteForm) -> Result<Self, Damaged> {
        Ok(Self { leader_id: LeaderId { term: form.term, node_id: form.node }, committed: form.committed })
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct MembershipForm {
    /// One set of voters; two while the group changes from one to the other.
    voters: Vec<BTreeSet<u64>>,
    /// Every member, voter or learner, and its address.
    members: BTreeMap<u64, String>,
}

impl Record for Membership {
    type Form = MembershipForm;

    fn form(&self) -> MembershipForm {
        MembershipForm {
            voters: self.get_joint_config().clone(),
            members: self.nodes().map(|(&id, node)| (id, node.addr.clone())).collect(),
        }
    }

    fn from_form(form: MembershipForm) -> Result<Self, Damaged> {
        if form.voters.is_empty() && form.members.is_empty() {
            // Before the first membership there is none, which `new` would refuse.
            return Ok(Self::default());
        }
        let members: BTreeMap<_, _> = form.members.into_iter().map(|(id, addr)| (id, BasicNode { addr })).collect();
        Self::new(form.voters, members).map_err(|error| Damaged::new(format!("no membership: {error}")))
    }
}

#[derive(Serialize, Deserialize)]
pub(super) enum PayloadForm {
    Blank,
    Command(Bytes),
    Membership(MembershipForm),
}

#[derive(Serialize, Deserialize)]
pub(super) struct EntryForm {
    id: LogIdForm,
    payload: PayloadForm,
}

impl Record for Entry {
    type Form = EntryForm;

    fn form(&self) -> EntryForm {
        let payload = match &self.payload {
            EntryPayload::Blank => PayloadForm::Blank,
            EntryPayload::Normal(command) => PayloadForm::Command(command.0.clone()),
            EntryPayload::Membership(membership) => PayloadForm::Membership(membership.form()),
        };
        EntryForm { id: self.log_id.form(), payload }
    }

    fn from_form(form: EntryForm) -> Result<Self, Damaged> {
        let payload = match form.payload {
            PayloadForm::Blank => EntryPayload::Blank,
            PayloadForm::Command(command) => EntryPayload::Normal(CommandBytes(command)),
            PayloadForm::Membership(membership) => EntryPayload::Membership(Membership::from_form(membership)?),
        };
        Ok(Self { log_id: LogIdOf::from_form(form.id)?, payload })
    }
}

/// How far the state machine is: kept with the rows, in the same batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The last entry that was applied.
    pub last: Option<LogIdOf>,
    /// The last membership among the applied entries.
    pub membership: StoredMembership,
}

#[derive(Serialize, Deserialize)]
pub(super) struct AppliedForm {
    last: Option<LogIdForm>,
    membership_at: Option<LogIdForm>,
    membership: MembershipForm,
}

impl Record for Applied {
    type Form = AppliedForm;

    fn form(&self) -> AppliedForm {
        AppliedForm {
            last: self.last.as_ref().map(Record::form),
            membership_at: self.membership.log_id().as_ref().map(Record::form),
            membership: self.membership.membership().form(),
        }
    }

    fn from_form(form: AppliedForm) -> Result<Self, Damaged> {
        let at = form.membership_at.map(LogIdOf::from_form).transpose()?;
        Ok(Self {
            last: form.last.map(LogIdOf::from_form).transpose()?,
            membership: StoredMembership::new(at, Membership::from_form(form.membership)?),
        })
    }
}

/// Which node a log belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner(pub u64);

impl Record for Owner {
    type Form = u64;

    fn form(&self) -> u64 {
        self.0
    }

    fn from_form(form: u64) -> Result<Self, Damaged> {
        Ok(Self(form))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::{golden, log_disk::entry_key};

    fn membership() -> Membership {
        let node = |addr: &str| BasicNode { addr: addr.into() };
        let members = BTreeMap::from([(1, node("10.0.0.1:7000")), (2, node("b:1")), (9, node(""))]);
        Membership::new(vec![BTreeSet::from([1]), BTreeSet::from([1, 2])], members).expect("voters are members")
    }

    fn entries() -> Vec<Entry> {
        let command = CommandBytes(Bytes::from_static(b"\x01a command"));
        vec![
            Entry { log_id: log_id(1, 1, 0), payload: EntryPayload::Membership(membership()) },
            Entry { log_id: log_id(3, 2, 1), payload: EntryPayload::Blank },
            Entry { log_id: log_id(3, 2, 300), payload: EntryPayload::Normal(command) },
        ]
    }

    #[test]
    fn entries_are_kept_in_the_form_that_they_always_had() {
        let mut bytes = Vec::new();
        for entry in entries() {
            let record = encode(&entry_key(entry.log_id.index), &entry);
            bytes.extend_from_slice(&(record.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&record);
        }
        let golden = golden("raft-entries.bin", &bytes);
        let (mut rest, mut read) = (golden.as_slice(), Vec::new());
        for entry in entries() {
            let (length, tail) = rest.split_first_chunk::<4>().expect("a length");
            let (record, tail) = tail.split_at(u32::from_le_bytes(*length) as usize);
            read.push(decode::<Entry>(&entry_key(entry.log_id.index), record).expect("readable for ever"));
            rest = tail;
        }
        assert_eq!(read, entries());
    }

    #[test]
    fn votes_and_the_applied_state_are_kept_in_the_form_that_they_always_had() {
        let vote = Vote { leader_id: LeaderId { term: 700, node_id: 3 }, committed: true };
        let golden_vote = golden("raft-vote.bin", &encode(b"vote", &vote));
        assert_eq!(decode::<Vote>(b"vote", &golden_vote), Ok(vote));
        let applied = Applied {
            last: Some(log_id(3, 2, 300)),
            membership: StoredMembership::new(Some(log_id(1, 1, 0)), membership()),
        };
        for (name, applied) in [("raft-applied.bin", applied), ("raft-applied-nothing.bin", Applied::default())] {
            let golden = golden(name, &encode(b"applied", &applied));
            assert_eq!(decode::<Applied>(b"applied", &golden), Ok(applied));
        }
    }

    #[test]
    fn nothing_that_was_altered_is_believed() {
        for entry in entries() {
            let key = entry_key(entry.log_id.index);
            let record = encode(&key, &entry);
            for at in 0..record.len() {
                for bit in 0..8 {
                    let mut altered = record.clone();
                    altered[at] ^= 1 << bit;
                    decode::<Entry>(&key, &altered).expect_err("a flipped bit");
                }
                decode::<Entry>(&key, &record[..at]).expect_err("cut short");
            }
            decode::<Entry>(&entry_key(entry.log_id.index + 1), &record).expect_err("in another's place");
            assert_eq!(decode::<Entry>(&key, &record), Ok(entry));
        }
    }
}
