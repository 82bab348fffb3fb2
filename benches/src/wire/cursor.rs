//! A cursor over the words of a reply, for the few that a work needs. `None` is "the reply ends here".

/// Reads words and skips items.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// Starts `at` bytes into `bytes`.
    pub fn new(bytes: &'a [u8], at: usize) -> Option<Self> {
        bytes.get(at..).map(|bytes| Self { bytes })
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        let (word, rest) = self.bytes.split_first_chunk::<4>()?;
        self.bytes = rest;
        Some(u32::from_be_bytes(*word))
    }

    /// The next 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        let (word, rest) = self.bytes.split_first_chunk::<8>()?;
        self.bytes = rest;
        Some(u64::from_be_bytes(*word))
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    /// Variable-length opaque data, without its padding.
    pub fn opaque(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        let taken = self.take(length.checked_next_multiple_of(4)?)?;
        taken.get(..length)
    }

    /// Skips a list of words with its count before it: a bitmap.
    pub fn skip_words(&mut self) -> Option<()> {
        let words = self.u32()? as usize;
        self.take(words.checked_mul(4)?).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_out_and_the_end_is_none() {
        let bytes = [0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 3, b'a', b'b', b'c', 0, 0, 0, 0, 1, 1, 1, 1, 1];
        let mut cursor = Cursor::new(&bytes, 0).unwrap();
        assert_eq!((cursor.u32(), cursor.u64(), cursor.opaque()), (Some(9), Some(5), Some(&b"abc"[..])));
        assert_eq!((cursor.skip_words(), cursor.u32()), (Some(()), None));
        assert!(Cursor::new(&bytes, 29).is_none());
        let lying = [0xff; 8];
        assert!(Cursor::new(&lying, 0).unwrap().opaque().is_none());
        assert!(Cursor::new(&lying, 0).unwrap().skip_words().is_none());
    }
}
