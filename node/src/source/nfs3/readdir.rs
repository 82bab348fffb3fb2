//! READDIRPLUS, or READDIR and LOOKUPs where the server has no such thing.
//!
//! Owns: one page of a directory. Never does: reading on by itself, unless a page had nothing but `.` and `..`.
//! Invariant: the directory's attributes are from before the listing.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use forebay_proto::{
    limits::IO_MAX,
    nfs3::{
        EntryPlus, Failed, Fattr, Outcome, ReadDir, ReadDirArgs, ReadDirPlus, ReadDirPlusArgs, ReadDirPlusOk, Status,
    },
};

use super::{Nfs3Source, attributes, engine::Request, errors::source_error, look, steady::same};
use crate::source::{
    ObjectId, SourceError,
    counters::Kind,
    remote::{OnBehalf, Page, PageEntry, Place, SeenObject, Want, Word},
};

/// Below this not even one entry with all its attributes is sure to fit.
const LEAST: u32 = 2048;

/// Where to read on.
#[derive(Clone, Copy, Debug)]
struct Position {
    cookie: u64,
    verifier: u64,
    bytes: u32,
}

impl Nfs3Source {
    pub(super) async fn page(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        cookie: u64,
        verifier: u64,
        bytes: u32,
    ) -> Result<Page, SourceError> {
        let mut at = Position { cookie, verifier, bytes: bytes.clamp(LEAST, IO_MAX) };
        let mut first: Option<Fattr> = None;
        loop {
            let remembered = self.engine.known.of(&dir.handle);
            let before = match first.or(remembered) {
                Some(before) => before,
                None => self.getattr(by, &dir.handle).await?,
            };
            let ok = match self.entries(by, dir, at).await? {
                Ok(ok) => ok,
                Err(Failed { status: Status::TooSmall, .. }) if at.bytes < IO_MAX => {
                    at.bytes = at.bytes.saturating_mul(4).min(IO_MAX);
                    continue;
                }
                Err(failed) => return Err(source_error(failed.status)),
            };
            if let Some(after) = &ok.directory {
                self.engine.known.note(&dir.handle, after);
            }
            // Remembered attributes may be of long ago: they are told only if the source says the same now.
            let unchanged = ok.directory.is_some_and(|after| same(&after, &before));
            if !unchanged && first.is_none() && remembered.is_some() {
                first = Some(match ok.directory {
                    Some(after) => after,
                    None => self.getattr(by, &dir.handle).await?,
                });
                continue;
            }
            let last = ok.entries.0.last().map(|entry| entry.cookie);
            let verifier = u64::from_be_bytes(ok.verifier);
            let entries = self.told_entries(by, dir, ok.entries.0).await?;
            if entries.is_empty() && !ok.eof {
                // Nothing but `.` and `..`, or nothing at all: the caller would have no cookie to read on from.
                let next = last.filter(|next| *next != at.cookie).ok_or(SourceError::Errno(libc::EIO))?;
                (at.cookie, at.verifier, first) = (next, verifier, Some(before));
                continue;
            }
            let directory = attributes::object(&before);
            return Ok(Page { directory, verifier, entries, eof: ok.eof, directory_word: Word::Source, fresh: true });
        }
    }

    async fn entries(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        at: Position,
    ) -> Result<Outcome<ReadDirPlusOk, Option<Fattr>>, SourceError> {
        let payload = at.bytes as usize;
        let request = Request { payload, ..Request::new(&self.engine, Kind::ReadDir, by) };
        let (directory, cookie) = (look::filehandle(&dir.handle)?, at.cookie);
        let verifier = at.verifier.to_be_bytes();
        if !self.engine.no_plus.load(Ordering::Relaxed) {
            let arguments = ReadDirPlusArgs {
                directory: directory.clone(),
                cookie,
                verifier,
                // A hint for names and cookies alone, which are the smaller part of what is asked for.
                directory_count: at.bytes,
                max_count: at.bytes,
            };
            match self.engine.call::<ReadDirPlus>(&request, &arguments).await {
                Ok(told) if !matches!(&told.reply, Err(failed) if failed.status == Status::NotSupp) => {
                    return Ok(told.reply);
                }
                Ok(_) | Err(SourceError::UNSUPPORTED) => self.engine.no_plus.store(true, Ordering::Relaxed),
                Err(error) => return Err(error),
            }
        }
        let arguments = ReadDirArgs { directory, cookie, verifier, count: at.bytes.min(64 << 10) };
        let told = self.engine.call::<ReadDir>(&request, &arguments).await?;
        let bare = |entry: forebay_proto::nfs3::Entry| EntryPlus {
            fileid: entry.fileid,
            name: entry.name,
            cookie: entry.cookie,
            attributes: None,
            file: None,
        };
        Ok(told.reply.map(|ok| ReadDirPlusOk {
            directory: ok.directory,
            verifier: ok.verifier,
            entries: forebay_proto::nfs3::Chain(ok.entries.0.into_iter().map(bare).collect()),
            eof: ok.eof,
        }))
    }

    /// Entries in our words; those that came without handle or attributes are looked up, all together.
    async fn told_entries(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        entries: Vec<EntryPlus>,
    ) -> Result<Vec<PageEntry>, SourceError> {
        let named: Vec<_> = entries.into_iter().filter(|entry| !matches!(&entry.name[..], b"." | b"..")).collect();
        let mut missing = Vec::new();
        let mut told = Vec::with_capacity(named.len());
        for entry in named {
            let name = Bytes::copy_from_slice(&entry.name);
            let object = match (&entry.file, &entry.attributes) {
                (Some(file), Some(attributes)) => look::handle(file).map(|handle| {
                    let attributes = self.told(&handle, attributes);
                    SeenObject {
                        id: ObjectId { fsid: attributes.fsid, handle },
                        attributes,
                        access: None,
                        data: None,
                        word: Word::Source,
                    }
                }),
                _ => {
                    missing.push((told.len(), Place::Name(*dir, name.clone())));
                    Err(SourceError::Unavailable)
                }
            };
            told.push(PageEntry { cookie: entry.cookie, name, object });
        }
        if missing.is_empty() {
            return Ok(told);
        }
        let (indices, places): (Vec<_>, Vec<_>) = missing.into_iter().unzip();
        let seen = self.look_at_many(by, &places, Want::default()).await?;
        for (index, seen) in indices.into_iter().zip(seen) {
            told[index].object = seen.and_then(|seen| seen.object);
        }
        // What was removed since the listing is no entry any more.
        told.retain(|entry| entry.object != Err(SourceError::Errno(libc::ENOENT)));
        Ok(told)
    }
}
