//! READDIR with what LOOKUP would have told of each entry.
//!
//! Owns: one page of a directory. Never does: reading on by itself.

use bytes::Bytes;
use forebay_proto::nfs4::{
    Attributes, Op, Status,
    ops::readdir::{Entry, ReadDirArgs},
};

use super::{
    Nfs4Source, attributes,
    engine::Request,
    errors::source_error,
    wire::{self, take},
};
use crate::source::{
    ObjectId, SourceError,
    counters::Kind,
    remote::{OnBehalf, Page, PageEntry, SeenObject, Word},
};

/// Below this not even one entry with all its attributes is sure to fit.
const LEAST: u32 = 2048;

impl Nfs4Source {
    pub(super) async fn page(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        cookie: u64,
        verifier: u64,
        bytes: u32,
    ) -> Result<Page, SourceError> {
        let most = u32::try_from(self.engine.current().await?.reply_room().saturating_sub(1024)).unwrap_or(u32::MAX);
        let mut wanted = bytes.clamp(LEAST.min(most), most.max(1));
        loop {
            let args = ReadDirArgs {
                cookie,
                verifier: verifier.to_be_bytes(),
                // A hint for names and cookies alone, which are the smaller part of what is asked for.
                directory_count: wanted,
                max_count: wanted,
                attributes: wire::ENTRY,
            };
            let ops = vec![wire::putfh(&dir.handle), wire::getattr(wire::OBJECT), Op::ReadDir(args)];
            let payload = wanted as usize;
            let request = Request { payload, ..Request::asking(&self.engine, Kind::ReadDir, by, ops) };
            let mut results = self.engine.call(request).await?;
            take!(results, PutFh).map_err(source_error)?;
            let told = take!(results, GetAttr).map_err(source_error)?;
            let directory = self.attributes_of(&told).await.map_err(source_error)?;
            let read = match take!(results, ReadDir) {
                Err(Status::TooSmall) if wanted < most => {
                    wanted = wanted.saturating_mul(4).min(most);
                    continue;
                }
                read => read.map_err(source_error)?,
            };
            let mut entries = Vec::with_capacity(read.entries.len());
            for entry in read.entries {
                entries.push(self.entry(entry).await);
            }
            let (verifier, eof) = (u64::from_be_bytes(read.verifier), read.eof);
            return Ok(Page { directory, verifier, entries, eof, directory_word: Word::Source, fresh: true });
        }
    }

    async fn entry(&self, entry: Entry) -> PageEntry {
        let object = self.entry_object(&entry).await.map_err(source_error);
        PageEntry { cookie: entry.cookie, name: Bytes::copy_from_slice(&entry.name), object }
    }

    async fn entry_object(&self, entry: &Entry) -> Result<SeenObject, Status> {
        let told = Attributes::from_fattr(&entry.attributes)?;
        if let Some(status) = told.rdattr_error.filter(|status| *status != Status::Ok) {
            return Err(status);
        }
        let handle = wire::handle(told.filehandle.as_ref().ok_or(Status::ServerFault)?)?;
        let attributes = attributes::told(&self.engine.identities, &told).await?;
        let id = ObjectId { fsid: attributes.fsid, handle };
        Ok(SeenObject { id, attributes, access: None, data: None, word: Word::Source })
    }
}
