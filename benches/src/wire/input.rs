//! Cuts what arrives into replies, in one buffer that is used again and again.
//!
//! Invariant: the data of a long reply is handed on where it was received and never copied or kept.

use anyhow::{Result, bail};

use super::READ_DATA;

const LAST_FRAGMENT: u32 = 1 << 31;
/// Longest reply: READDIR's and READ's limit with room for a server that gives a little more.
const REPLY_MAX: usize = 4 << 20;

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A whole reply.
    Reply(&'a [u8]),
    /// The start of a long one, up to a READ's data.
    Start(&'a [u8]),
    /// More of the long one.
    Data(&'a [u8]),
    /// The long one is complete.
    End,
}

/// The receive buffer and the place in the stream.
#[derive(Debug)]
pub struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes of a long reply still to come; `None` outside one.
    long: Option<usize>,
    /// Replies longer than this are handed on in pieces.
    whole_max: usize,
}

impl Input {
    /// Receives `size` bytes at a time at most, and hands on replies of up to `whole_max` bytes whole.
    pub fn new(size: usize, whole_max: usize) -> Self {
        Self { buffer: vec![0; size], start: 0, end: 0, long: None, whole_max }
    }

    /// Where to receive to.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.buffer[self.end..]
    }

    /// So many bytes were received.
    pub fn received(&mut self, count: usize) {
        self.end += count;
    }

    /// The next event, if enough is here for one.
    ///
    /// # Errors
    /// When a record is in fragments or longer than any reply.
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>> {
        if let Some(left) = self.long {
            return Ok(self.more_of_long(left));
        }
        let here = self.end - self.start;
        let Some(marker) = self.buffer[self.start..self.end].first_chunk::<4>() else { return Ok(None) };
        let marker = u32::from_be_bytes(*marker);
        let length = (marker & !LAST_FRAGMENT) as usize;
        if marker & LAST_FRAGMENT == 0 || length > REPLY_MAX {
            bail!("record marker {marker:#x}: replies in fragments, or over {REPLY_MAX} bytes, are not expected");
        }
        let body = self.start + 4;
        if length > self.whole_max.max(READ_DATA) {
            if here < 4 + READ_DATA {
                return Ok(None);
            }
            self.start = body + READ_DATA;
            self.long = Some(length - READ_DATA);
            return Ok(Some(Event::Start(&self.buffer[body..self.start])));
        }
        if here < 4 + length {
            self.make_room(4 + length);
            return Ok(None);
        }
        self.start = body + length;
        Ok(Some(Event::Reply(&self.buffer[body..self.start])))
    }

    fn more_of_long(&mut self, left: usize) -> Option<Event<'_>> {
        if left == 0 {
            self.long = None;
            return Some(Event::End);
        }
        let step = left.min(self.end - self.start);
        if step == 0 {
            return None;
        }
        let from = self.start;
        self.start += step;
        self.long = Some(left - step);
        Some(Event::Data(&self.buffer[from..self.start]))
    }

    /// The record at `start` must fit behind it.
    fn make_room(&mut self, length: usize) {
        if self.start + length <= self.buffer.len() {
            return;
        }
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if length > self.buffer.len() {
            self.buffer.resize(length.next_power_of_two(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::rpc::marker;

    #[derive(Debug, PartialEq, Eq, Clone)]
    enum Seen {
        Whole(Vec<u8>),
        Long(Vec<u8>),
    }

    fn feed(stream: &[u8], step: usize, size: usize, whole_max: usize) -> Vec<Seen> {
        let mut input = Input::new(size, whole_max);
        let (mut seen, mut long) = (Vec::new(), Vec::new());
        let mut rest = stream;
        while !rest.is_empty() {
            let space = input.space();
            let count = step.min(rest.len()).min(space.len());
            assert!(count > 0, "no room to receive to");
            space[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            input.received(count);
            while let Some(event) = input.next_event().expect("a well-formed stream") {
                match event {
                    Event::Reply(record) => seen.push(Seen::Whole(record.to_vec())),
                    Event::Start(bytes) | Event::Data(bytes) => long.extend_from_slice(bytes),
                    Event::End => seen.push(Seen::Long(std::mem::take(&mut long))),
                }
            }
        }
        seen
    }

    #[test]
    fn records_come_out_however_they_arrive() {
        let lengths = [40_usize, 0, 300, READ_DATA, 5000, 41, 1000, 4];
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        for (number, length) in lengths.into_iter().enumerate() {
            let record: Vec<u8> = (0..length).map(|at| (at * 7 + number) as u8).collect();
            stream.extend_from_slice(&marker(length));
            stream.extend_from_slice(&record);
            expected.push(if length > 512 { Seen::Long(record) } else { Seen::Whole(record) });
        }
        for step in [1, 2, 3, 5, 64, 107, 108, 109, 512, 4096, 10_000] {
            for size in [128, 700, 8192] {
                assert_eq!(feed(&stream, step, size, 512), expected, "step {step} size {size}");
            }
        }
        let whole = feed(&stream, 100, 256, usize::MAX);
        assert!(whole.iter().all(|seen| matches!(seen, Seen::Whole(_))));
        assert_eq!(whole.len(), lengths.len());
    }

    #[test]
    fn fragments_and_giants_are_refused() {
        for marker in [0x0000_0010_u32, 0xffff_ffff] {
            let mut input = Input::new(64, 64);
            input.space()[..4].copy_from_slice(&marker.to_be_bytes());
            input.received(4);
            assert!(input.next_event().is_err());
        }
    }
}
