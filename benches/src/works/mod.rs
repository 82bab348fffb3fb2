//! What can be measured: one work a file, each with its own calls and its own look at the replies.

mod getattr;
mod lookup;
mod open_read_close;
mod random_read;
mod readdir;
mod sequential_read;
mod sequential_write;

use std::sync::Arc;

use anyhow::{Result, bail};
use forebay_proto::nfs4::{Attr, Bitmap, FileType, OpReply};

use crate::{
    client::{Client, Found},
    wire::{Calls, Reply},
};

/// Bytes of a sequential READ or WRITE.
pub const BLOCK: u64 = 1 << 20;

/// A work by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Kind {
    /// 1 MiB READs, one after the other, over a file.
    SequentialRead,
    /// 1 MiB WRITEs (UNSTABLE) over a file, COMMIT at the end of each pass.
    SequentialWrite,
    /// READs of 4 KiB at random pages of a file.
    #[value(name = "random_read_4k")]
    RandomRead,
    /// GETATTR of each file of a directory in turn.
    Getattr,
    /// LOOKUP, GETFH, ACCESS, GETATTR of each name of a directory in turn.
    Lookup,
    /// Listings of a whole directory with what Linux asks for about each entry.
    Readdir,
    /// OPEN, READ, CLOSE of each small file of a directory in turn.
    OpenReadClose,
}

impl Kind {
    /// In the order in which they are measured.
    pub const ALL: [Self; 7] = [
        Self::SequentialRead,
        Self::SequentialWrite,
        Self::RandomRead,
        Self::Getattr,
        Self::Lookup,
        Self::Readdir,
        Self::OpenReadClose,
    ];

    /// As in the command line and in the results.
    pub fn name(self) -> &'static str {
        match self {
            Self::SequentialRead => "sequential_read",
            Self::SequentialWrite => "sequential_write",
            Self::RandomRead => "random_read_4k",
            Self::Getattr => "getattr",
            Self::Lookup => "lookup",
            Self::Readdir => "readdir",
            Self::OpenReadClose => "open_read_close",
        }
    }

    /// Whether bytes are what counts.
    pub fn counts_bytes(self) -> bool {
        matches!(self, Self::SequentialRead | Self::SequentialWrite)
    }

    /// What [`Done::units`] counts.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Readdir => "entries",
            _ => "operations",
        }
    }

    /// Slots in use when nobody says how many: enough that the server never waits for us, few enough that what is under way stays in a
    /// processor's cache.
    pub fn default_depth(self) -> u32 {
        match self {
            Self::SequentialRead | Self::SequentialWrite => 8,
            Self::Readdir => 4,
            _ => 32,
        }
    }

    /// Replies of up to so many bytes are looked at whole.
    pub fn whole_max(self) -> usize {
        if self == Self::SequentialRead { 32 << 10 } else { usize::MAX }
    }
}

/// What a reply completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Operations or entries.
    pub units: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// The operation that its slot began is over.
    pub finished: bool,
}

/// What a slot did when it was free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issue {
    /// Called the first call of an operation.
    Begun,
    /// Called a further one.
    Continued,
    /// Nothing: others must be answered first, or the end has come.
    Nothing,
}

/// A work on one connection.
pub trait Work: Send {
    /// Units after which everything has been touched once.
    fn warm_units(&self) -> u64;

    /// Calls the slot's next call. Begins an operation only if `fresh`.
    fn next(&mut self, slot: u32, fresh: bool, calls: &mut Calls) -> Issue;

    /// Takes the slot's reply, which is a success; of a long one, the start.
    ///
    /// # Errors
    /// When it is not what was asked for.
    fn reply(&mut self, slot: u32, reply: &Reply<'_>) -> Result<Done>;

    /// Looks at every result after SEQUENCE's. Comes after [`Work::reply`].
    ///
    /// # Errors
    /// When anything is wrong.
    fn check(&mut self, _slot: u32, _results: &[OpReply]) -> Result<()> {
        Ok(())
    }

    /// Looks at the data of a long reply, `position` bytes into it.
    ///
    /// # Errors
    /// When it is not what the file holds.
    fn check_data(&mut self, _slot: u32, _position: u64, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }

    /// What the shared payload must be for this work's calls.
    fn payload(&self) -> Arc<[u8]> {
        Arc::from([])
    }

    /// Closes what is open.
    ///
    /// # Errors
    /// When the server fails that.
    fn finish(&mut self, _client: &mut Client) -> Result<()> {
        Ok(())
    }
}

/// What a work is made from.
#[derive(Debug)]
pub struct Setup<'a> {
    /// To find and open files with.
    pub client: &'a mut Client,
    /// The file, or the directory of files.
    pub path: &'a str,
    /// Slots.
    pub depth: u32,
    /// Which connection this is, and of how many.
    pub share: (u64, u64),
    /// Files hold [`crate::pattern`]: check that.
    pub verify: bool,
}

/// Makes a work ready to run.
///
/// # Errors
/// When the path is not what the work needs.
pub fn build(kind: Kind, setup: Setup<'_>) -> Result<Box<dyn Work>> {
    Ok(match kind {
        Kind::SequentialRead => Box::new(sequential_read::SequentialRead::new(setup)?),
        Kind::SequentialWrite => Box::new(sequential_write::SequentialWrite::new(setup)?),
        Kind::RandomRead => Box::new(random_read::RandomRead::new(setup)?),
        Kind::Getattr => Box::new(getattr::Getattr::new(setup)?),
        Kind::Lookup => Box::new(lookup::Lookup::new(setup)?),
        Kind::Readdir => Box::new(readdir::Readdir::new(setup)?),
        Kind::OpenReadClose => Box::new(open_read_close::OpenReadClose::new(setup)?),
    })
}

/// What Linux asks for in GETATTR of a file.
fn linux_attributes() -> Bitmap {
    Bitmap::of(&[
        Attr::Type,
        Attr::Change,
        Attr::Size,
        Attr::Fsid,
        Attr::FileId,
        Attr::Mode,
        Attr::NumLinks,
        Attr::Owner,
        Attr::OwnerGroup,
        Attr::RawDev,
        Attr::SpaceUsed,
        Attr::TimeAccess,
        Attr::TimeMetadata,
        Attr::TimeModify,
        Attr::MountedOnFileId,
    ])
}

/// A path's directory and its regular file.
fn file(client: &mut Client, path: &str) -> Result<(Found, Found)> {
    let Some((directory, _)) = path.trim_end_matches('/').rsplit_once('/') else { bail!("{path}: not absolute") };
    let directory = client.walk(directory)?;
    let file = client.walk(path)?;
    if file.attributes.kind != Some(FileType::Regular) {
        bail!("{path}: not a regular file");
    }
    Ok((directory, file))
}

/// A directory and its regular files.
fn files(client: &mut Client, path: &str) -> Result<(Found, Vec<Found>)> {
    let directory = client.walk(path)?;
    if directory.attributes.kind != Some(FileType::Directory) {
        bail!("{path}: not a directory");
    }
    let mut files = client.list(&directory.handle)?;
    files.retain(|file| file.attributes.kind == Some(FileType::Regular));
    if files.is_empty() {
        bail!("{path}: no regular file in it");
    }
    Ok((directory, files))
}

/// The share of `count` things that connection `share.0` of `share.1` takes.
fn region(count: u64, share: (u64, u64)) -> std::ops::Range<u64> {
    let (index, of) = share;
    count * index / of..count * (index + 1) / of
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_cover_everything_once() {
        for (count, of) in [(512, 1), (512, 3), (7, 4), (2, 4)] {
            let all: Vec<u64> = (0..of).flat_map(|index| region(count, (index, of))).collect();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
    }
}
