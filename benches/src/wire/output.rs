//! What is on its way to the server: call bytes, and slices of one shared payload between them that are never copied.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    ops::Range,
    sync::Arc,
};

/// Slices in one system call: a call and its payload for a handful of slots.
const SLICES_MAX: usize = 32;

/// A queue of bytes.
#[derive(Debug)]
pub struct Output {
    bytes: Vec<u8>,
    /// How much of `bytes` has gone.
    gone: usize,
    pieces: VecDeque<Piece>,
    payload: Arc<[u8]>,
}

#[derive(Debug)]
enum Piece {
    /// The next so many of `bytes`.
    Own(usize),
    /// These of the payload.
    Shared(Range<usize>),
}

impl Output {
    /// An empty queue whose large parts are slices of `payload`.
    pub fn new(payload: Arc<[u8]>) -> Self {
        Self { bytes: Vec::with_capacity(64 << 10), gone: 0, pieces: VecDeque::new(), payload }
    }

    /// Whether all has gone.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Appends what `write` appends.
    pub fn own(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.len();
        write(&mut self.bytes);
        let more = self.bytes.len() - before;
        match self.pieces.back_mut() {
            Some(Piece::Own(length)) => *length += more,
            _ => self.pieces.push_back(Piece::Own(more)),
        }
    }

    /// Appends a slice of the payload.
    pub fn shared(&mut self, range: Range<usize>) {
        self.pieces.push_back(Piece::Shared(range));
    }

    /// Hands slices to `send` until it takes no more. `Ok(false)`: it would block.
    pub fn flush(&mut self, mut send: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>) -> io::Result<bool> {
        while !self.pieces.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let used = self.fill(&mut slices);
            match send(&slices[..used]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.advance(sent),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.gone = 0;
        Ok(true)
    }

    fn fill<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        let mut at = self.gone;
        let pairs = slices.iter_mut().zip(&self.pieces);
        pairs
            .map(|(slice, piece)| {
                *slice = IoSlice::new(match piece {
                    Piece::Own(length) => {
                        at += length;
                        &self.bytes[at - length..at]
                    }
                    Piece::Shared(range) => &self.payload[range.clone()],
                });
            })
            .count()
    }

    fn advance(&mut self, mut sent: usize) {
        while let Some(piece) = self.pieces.front_mut() {
            let left = match piece {
                Piece::Own(length) => {
                    let step = sent.min(*length);
                    (self.gone, *length, sent) = (self.gone + step, *length - step, sent - step);
                    *length
                }
                Piece::Shared(range) => {
                    let step = sent.min(range.len());
                    (range.start, sent) = (range.start + step, sent - step);
                    range.len()
                }
            };
            if left > 0 {
                return;
            }
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_out_in_order_however_little_is_taken() {
        let payload: Arc<[u8]> = (0..50).collect();
        for step in 1..120 {
            let mut output = Output::new(payload.clone());
            output.own(|bytes| bytes.extend_from_slice(b"one"));
            output.own(|bytes| bytes.extend_from_slice(b"two"));
            output.shared(10..50);
            output.own(|bytes| bytes.extend_from_slice(b"three"));
            output.shared(0..1);
            let expected: Vec<u8> = b"onetwo".iter().copied().chain(10..50).chain(*b"three").chain(0..1).collect();
            let mut taken = Vec::new();
            let mut blocked = true;
            while !output
                .flush(|slices| {
                    blocked = !blocked;
                    if blocked {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                    let some: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).take(step).collect();
                    taken.extend_from_slice(&some);
                    Ok(some.len())
                })
                .unwrap()
            {}
            assert_eq!(taken, expected, "step {step}");
            assert!(output.is_empty());
        }
    }
}
