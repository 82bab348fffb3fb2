//! Listings of a whole directory, with what Linux asks for about each entry when it reads a directory "plus".

use std::collections::HashSet;

use anyhow::{Result, anyhow, bail};
use bytes::Bytes;
use forebay_proto::nfs4::{Attr, Bitmap, Op, OpReply, ops::readdir::ReadDirArgs};

use super::{Done, Issue, Setup, Work, linux_attributes};
use crate::{
    client::put,
    wire::{AFTER_PUTFH, Calls, Cursor, Reply, encode},
};

/// `dircount` and `maxcount`, which Linux sets to the same value, larger the longer a directory proves to be.
const COUNT: u32 = 128 << 10;

/// Where one slot's listing is.
#[derive(Debug, Clone, Default)]
struct Listing {
    cookie: [u8; 8],
    verifier: [u8; 8],
    entries: u64,
    names: HashSet<Bytes>,
}

/// The work.
#[derive(Debug)]
pub struct Readdir {
    /// PUTFH and READDIR's number.
    before: Vec<u8>,
    /// READDIR's counts and attributes.
    after: Vec<u8>,
    expected: u64,
    listings: Vec<Listing>,
}

impl Readdir {
    pub fn new(setup: Setup<'_>) -> Result<Self> {
        let directory = setup.client.walk(setup.path)?;
        let expected = setup.client.list(&directory.handle)?.len() as u64;
        if expected == 0 {
            bail!("{}: nothing in it", setup.path);
        }
        let more = Bitmap::of(&[Attr::RdattrError, Attr::FileHandle]);
        let args = ReadDirArgs {
            cookie: 0,
            verifier: [0; 8],
            directory_count: COUNT,
            max_count: COUNT,
            attributes: linux_attributes().union(&more),
        };
        let before_cookie = encode(&[put(&directory.handle)]).len() + 4;
        let mut before = encode(&[put(&directory.handle), Op::ReadDir(args)]);
        let after = before.split_off(before_cookie + 16);
        before.truncate(before_cookie);
        Ok(Self { before, after, expected, listings: vec![Listing::default(); setup.depth as usize] })
    }
}

/// Counts entries after the verifier: how many, the last one's cookie if any, whether the directory ends there.
fn walk(words: &mut Cursor<'_>) -> Option<(u64, Option<[u8; 8]>, bool)> {
    let (mut entries, mut cookie) = (0, None);
    while words.u32()? != 0 {
        cookie = Some(words.u64()?.to_be_bytes());
        words.opaque()?;
        words.skip_words()?;
        words.opaque()?;
        entries += 1;
    }
    Some((entries, cookie, words.u32()? != 0))
}

impl Work for Readdir {
    fn warm_units(&self) -> u64 {
        self.expected * 2
    }

    fn next(&mut self, slot: u32, fresh: bool, calls: &mut Calls) -> Issue {
        let listing = &self.listings[slot as usize];
        let begins = listing.cookie == [0; 8];
        if begins && !fresh {
            return Issue::Nothing;
        }
        calls.send(slot, 2, &[&self.before, &listing.cookie, &listing.verifier, &self.after]);
        if begins { Issue::Begun } else { Issue::Continued }
    }

    fn reply(&mut self, slot: u32, reply: &Reply<'_>) -> Result<Done> {
        let listing = &mut self.listings[slot as usize];
        let mut words = reply.cursor(AFTER_PUTFH + 8)?;
        let broken = || anyhow!("READDIR: a listing that cannot be read");
        listing.verifier = words.take(8).and_then(|verifier| verifier.try_into().ok()).ok_or_else(broken)?;
        let (entries, cookie, eof) = walk(&mut words).ok_or_else(broken)?;
        listing.entries += entries;
        match cookie {
            Some(cookie) => listing.cookie = cookie,
            None if !eof => bail!("READDIR: neither entries nor the end"),
            None => {}
        }
        if eof {
            if listing.entries != self.expected {
                bail!("READDIR: {} entries in a directory of {}", listing.entries, self.expected);
            }
            (listing.cookie, listing.verifier, listing.entries) = ([0; 8], [0; 8], 0);
        }
        Ok(Done { units: entries, bytes: 0, finished: eof })
    }

    fn check(&mut self, slot: u32, results: &[OpReply]) -> Result<()> {
        let [OpReply::PutFh(Ok(())), OpReply::ReadDir(Ok(listed))] = results else { bail!("READDIR: not its results") };
        let listing = &mut self.listings[slot as usize];
        for entry in &listed.entries {
            if !entry.attributes.mask.has(Attr::FileHandle) || !entry.attributes.mask.has(Attr::Size) {
                bail!("READDIR: an entry without handle or size");
            }
            if !listing.names.insert(Bytes::copy_from_slice(&entry.name)) {
                bail!("READDIR: {:?} twice", entry.name);
            }
        }
        if listed.eof {
            if listing.names.len() as u64 != self.expected {
                bail!("READDIR: {} names in a directory of {}", listing.names.len(), self.expected);
            }
            listing.names = HashSet::new();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::{
        nfs4::{Attributes, Component, ops::readdir::Entry, ops::readdir::ReadDirOk},
        xdr::Xdr,
    };

    #[test]
    fn entries_are_counted_and_the_last_cookie_kept() {
        let attributes = Attributes { size: Some(7), ..Attributes::default() };
        let fattr = attributes.to_fattr(&Bitmap::of(&[Attr::Size]));
        let entries: Vec<Entry> = (1..=5_u64)
            .map(|cookie| Entry {
                cookie: cookie << 33,
                name: Component::new(vec![b'n'; cookie as usize]).unwrap(),
                attributes: fattr.clone(),
            })
            .collect();
        let encoded = ReadDirOk { verifier: [3; 8], entries, eof: true }.to_bytes();
        let walked = walk(&mut Cursor::new(&encoded, 8).unwrap()).unwrap();
        assert_eq!(walked, (5, Some((5_u64 << 33).to_be_bytes()), true));
        for cut in 8..encoded.len() {
            assert!(walk(&mut Cursor::new(&encoded[..cut], 8).unwrap()).is_none(), "cut at {cut}");
        }
        let empty = ReadDirOk { verifier: [0; 8], entries: Vec::new(), eof: false }.to_bytes();
        assert_eq!(walk(&mut Cursor::new(&empty, 8).unwrap()), Some((0, None, false)));
    }
}
