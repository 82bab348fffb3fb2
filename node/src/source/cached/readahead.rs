//! What will be read next, guessed from what was read.
//!
//! Owns: a few streams per file. Never does: read. Invariants: what is suggested lies inside the file, at most the
//! limit ahead of its stream, and is suggested once.

use std::ops::Range;

/// Streams followed in one file: several clients read one file from different places.
const STREAMS: usize = 4;
/// Reads in a row before anything is suggested.
const RUN_MIN: u32 = 2;
/// A client's own parallel reads arrive in any order within this many reads of each other.
const JITTER: u64 = 16;

/// How a file is read.
#[derive(Debug, Default)]
pub struct Reads {
    streams: Vec<Stream>,
}

#[derive(Debug)]
struct Stream {
    /// Where the last read began.
    last: u64,
    /// Where it ended, the furthest.
    end: u64,
    /// Distance between beginnings; 0: not known yet.
    stride: u64,
    run: u32,
    /// The first chunk not yet suggested.
    ahead: u64,
}

impl Reads {
    /// A read of `count` bytes at `offset` of a file of `size` bytes in chunks of `chunk`; at most `limit` chunks ahead.
    /// Which chunks to fetch now; empty mostly.
    pub fn on_read(&mut self, offset: u64, count: u64, size: u64, chunk: u64, limit: u64) -> Vec<u64> {
        if size <= chunk || limit == 0 || count == 0 {
            return Vec::new();
        }
        let place = self.streams.iter().position(|stream| stream.takes(offset, count));
        let Some(place) = place else {
            if self.streams.len() == STREAMS {
                self.streams.remove(0);
            }
            let run = u32::from(offset == 0);
            self.streams.push(Stream { last: offset, end: offset + count, stride: 0, run, ahead: 0 });
            return Vec::new();
        };
        // Most recently used at the end.
        let mut stream = self.streams.remove(place);
        let suggested = stream.advance(offset, count, size, chunk, limit);
        self.streams.push(stream);
        suggested
    }
}

impl Stream {
    fn takes(&self, offset: u64, count: u64) -> bool {
        let sequential = offset <= self.end + JITTER * count && offset + JITTER * count >= self.end;
        let strided = self.stride > 0 && offset == self.last + self.stride;
        let begins_stride = self.stride == 0 && self.run <= 1 && offset > self.last;
        sequential || strided || begins_stride
    }

    fn advance(&mut self, offset: u64, count: u64, size: u64, chunk: u64, limit: u64) -> Vec<u64> {
        let is_sequential = offset <= self.end + JITTER * count && offset + JITTER * count >= self.end;
        let distance = offset.saturating_sub(self.last);
        if is_sequential {
            self.stride = 0;
        } else if distance == self.stride {
            // As expected.
        } else {
            self.stride = distance;
            self.run = 0;
        }
        self.run = self.run.saturating_add(1);
        self.last = offset;
        self.end = self.end.max(offset + count);
        if self.run < RUN_MIN {
            return Vec::new();
        }
        // Twice as far with each read, up to the limit.
        let reach = limit.min(1 << (self.run - RUN_MIN).min(16));
        let chunks = size.div_ceil(chunk);
        if self.stride == 0 {
            let here = offset / chunk;
            let range: Range<u64> = self.ahead.max(here + 1)..(here + 1 + reach).min(chunks);
            self.ahead = self.ahead.max(range.end);
            return range.collect();
        }
        let starts = (1..=reach)
            .map(|step| offset.saturating_add(self.stride.saturating_mul(step)))
            .filter(|start| *start < size);
        let mut wanted: Vec<u64> = starts
            .flat_map(|start| start / chunk..=(start + count - 1).min(size - 1) / chunk)
            .filter(|index| *index >= self.ahead && *index != offset / chunk)
            .collect();
        wanted.dedup();
        self.ahead = wanted.last().map_or(self.ahead, |last| last + 1);
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_sequential_reader_is_led_further_each_time_and_nothing_is_suggested_twice() {
        let mut reads = Reads::default();
        let mut suggested = Vec::new();
        for index in 0..100 {
            let now = reads.on_read(index * MIB, MIB, 100 * MIB, MIB, 8);
            assert!(now.iter().all(|chunk| *chunk > index && *chunk <= index + 8), "{index}: {now:?}");
            suggested.extend(now);
        }
        assert_eq!(suggested, (2..100).collect::<Vec<_>>());
    }

    #[test]
    fn small_reads_in_slightly_mixed_order_are_one_stream() {
        let mut reads = Reads::default();
        let mut suggested = Vec::new();
        for index in 0..1024_u64 {
            // Pairs arrive swapped.
            suggested.extend(reads.on_read((index ^ 1) * 4096, 4096, 64 * MIB, MIB, 8));
        }
        assert_eq!(suggested, (1..12).collect::<Vec<_>>());
    }

    #[test]
    fn a_strided_reader_gets_what_lies_on_its_path() {
        let mut reads = Reads::default();
        let mut suggested = Vec::new();
        for index in 0..10 {
            suggested.extend(reads.on_read(index * 64 * MIB, 4096, 1024 * MIB, MIB, 4));
        }
        assert!(!suggested.is_empty());
        assert!(suggested.iter().all(|chunk| chunk % 64 == 0), "{suggested:?}");
        let mut once = suggested.clone();
        once.dedup();
        assert_eq!(once, suggested);
    }

    #[test]
    fn a_random_reader_gets_nothing() {
        let mut reads = Reads::default();
        let mut seed = 7_u64;
        let mut suggested = 0;
        for _ in 0..1000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let offset = (seed >> 20) % (1 << 18) * 4096;
            suggested += reads.on_read(offset, 4096, 1 << 30, MIB, 8).len();
        }
        assert!(suggested < 50, "{suggested} chunks for 1000 random reads");
    }
}
