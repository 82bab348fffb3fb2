//! Calls of one session's slots: which sequence each slot is at, which transaction id it waits for.

use std::{ops::Range, sync::Arc};

use forebay_proto::{
    nfs4::Op,
    xdr::{Writer, Xdr},
};

use super::{Head, Output};

/// Slots in a transaction id: its low half.
const SLOT_MASK: u32 = 0xffff;

/// The calling side of a session.
#[derive(Debug)]
pub struct Calls {
    head: Head,
    /// The sequence each slot used last.
    sequences: Vec<u32>,
    /// The transaction id each slot used last.
    xids: Vec<u32>,
    /// The operations after SEQUENCE that each slot called last.
    operations: Vec<u32>,
    generation: u32,
    /// What was called and has not gone yet.
    pub output: Output,
}

impl Calls {
    /// Calls on as many slots as there are `sequences`, the last that each slot used.
    pub fn new(head: Head, sequences: Vec<u32>, payload: Arc<[u8]>) -> Self {
        let (xids, operations) = (vec![0; sequences.len()], vec![0; sequences.len()]);
        Self { head, sequences, xids, operations, generation: 0x1000, output: Output::new(payload) }
    }

    /// Calls `operations` encoded in `body` after SEQUENCE.
    pub fn send(&mut self, slot: u32, operations: u32, body: &[&[u8]]) {
        self.send_with(slot, operations, body, 0..0);
    }

    /// As [`Calls::send`]; the end of the last operation is a slice of the shared payload, a multiple of four long.
    pub fn send_with(&mut self, slot: u32, operations: u32, body: &[&[u8]], payload: Range<usize>) {
        self.generation = (self.generation + 1) & SLOT_MASK;
        let xid = self.generation << 16 | slot;
        self.xids[slot as usize] = xid;
        self.operations[slot as usize] = operations;
        let sequence = &mut self.sequences[slot as usize];
        *sequence = sequence.wrapping_add(1);
        let (head, sequence) = (&self.head, *sequence);
        self.output.own(|out| {
            let start = head.begin(out, xid, slot, sequence, operations);
            body.iter().for_each(|part| out.extend_from_slice(part));
            Head::end(out, start, payload.len());
        });
        if !payload.is_empty() {
            self.output.shared(payload);
        }
    }

    /// The operations after SEQUENCE that a slot called last.
    pub fn operations(&self, slot: u32) -> u32 {
        self.operations[slot as usize]
    }

    /// The sequence that a slot used last.
    pub fn sequence(&self, slot: u32) -> u32 {
        self.sequences[slot as usize]
    }

    /// The slot that waits for the reply with this transaction id.
    pub fn slot_of(&self, xid: u32) -> Option<u32> {
        let slot = xid & SLOT_MASK;
        (self.xids.get(slot as usize) == Some(&xid)).then_some(slot)
    }
}

/// Operations as they stand in a body.
pub fn encode(ops: &[Op]) -> Vec<u8> {
    let mut writer = Writer::new();
    ops.iter().for_each(|op| op.encode(&mut writer));
    writer.finish().to_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::{nfs4::SessionId, rpc::Credential};

    #[test]
    fn a_slot_knows_its_own_transaction_id_only() {
        let head = Head::new(&Credential::None, 1, SessionId([0; 16]), 3);
        let mut calls = Calls::new(head, vec![4, 0, 0], Arc::from([]));
        calls.send(2, 0, &[]);
        let first = calls.xids[2];
        assert_eq!(calls.slot_of(first), Some(2));
        calls.send(2, 0, &[]);
        assert_eq!(calls.slot_of(first), None);
        assert_eq!(calls.slot_of(calls.xids[2]), Some(2));
        assert_eq!(calls.slot_of(7), None);
        assert_eq!(calls.sequences, [4, 0, 2]);
    }
}
