//! READ.
//!
//! Owns: cutting to what the server takes, and putting together what it gave. Never does: telling attributes from after
//! the data; see `steady`.

use bytes::{Bytes, BytesMut};
use forebay_proto::nfs3::{Fattr, Read, ReadArgs};
use futures_util::{StreamExt, stream::FuturesOrdered};

use super::{
    Nfs3Source, attributes,
    engine::Request,
    errors::source_error,
    look::filehandle,
    steady::{Steady, same},
};
use crate::source::{
    ObjectId, SourceError, SourceHandle,
    counters::Kind,
    remote::{Data, DataRead, OnBehalf},
    rpc::pieces::pieces,
};

/// What is read at once, and how.
#[derive(Clone, Copy, Debug)]
struct Range<'a> {
    handle: &'a SourceHandle,
    offset: u64,
    count: u32,
    /// JUKEBOX is waited out.
    patient: bool,
    /// What the file was before.
    before: Fattr,
}

/// Some data, and whether the file was all the time what it was before.
#[derive(Debug)]
struct Piece {
    bytes: Bytes,
    eof: bool,
    /// The last attributes that came along.
    after: Option<Fattr>,
    steady: bool,
}

impl Nfs3Source {
    pub(super) async fn read_data(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        offset: u64,
        count: u32,
    ) -> Result<DataRead, SourceError> {
        self.read_steady(by, &file.handle, offset, count, true).await
    }

    /// Reads, again if need be, until the attributes are those of the data or from before it.
    pub(super) async fn read_steady(
        &self,
        by: &OnBehalf,
        handle: &SourceHandle,
        offset: u64,
        count: u32,
        patient: bool,
    ) -> Result<DataRead, SourceError> {
        let most = self.engine.facts().await?.read_max;
        let mut steady = Steady::new(self.engine.known.of(handle));
        loop {
            let before = match steady.before() {
                Some(before) => before,
                None => self.getattr(by, handle).await.inspect(|told| steady.told(*told))?,
            };
            let range = Range { handle, offset, count, patient, before };
            let Piece { bytes, eof, after, steady: unchanged } = self.read_range(by, range, most).await?;
            if let Some(told) = steady.judge(after, unchanged) {
                self.engine.counters.read(bytes.len());
                return Ok(DataRead { attributes: attributes::object(&told), data: Data { bytes, eof } });
            }
            self.engine.counters.retried(Kind::Read);
        }
    }

    /// All of a range, in pieces side by side.
    async fn read_range(&self, by: &OnBehalf, range: Range<'_>, most: u32) -> Result<Piece, SourceError> {
        if range.count <= most {
            return self.read_piece(by, range).await;
        }
        let parts: Vec<_> = pieces(range.count, most).collect();
        let mut reading: FuturesOrdered<_> = parts
            .iter()
            .map(|(at, size)| {
                let offset = range.offset.saturating_add((*at).into());
                self.read_piece(by, Range { offset, count: *size, ..range })
            })
            .collect();
        let mut bytes = BytesMut::with_capacity(range.count as usize);
        let (mut eof, mut after, mut steady) = (false, None, true);
        let mut place = 0;
        while let Some(piece) = reading.next().await {
            let piece = piece?;
            bytes.extend_from_slice(&piece.bytes);
            (eof, after, steady) = (piece.eof, piece.after, steady && piece.steady);
            if eof || piece.bytes.len() < parts[place].1 as usize {
                break;
            }
            place += 1;
        }
        Ok(Piece { bytes: bytes.freeze(), eof, after, steady })
    }

    /// As many bytes as asked for, unless the file ends, however little the server gives at a time.
    async fn read_piece(&self, by: &OnBehalf, range: Range<'_>) -> Result<Piece, SourceError> {
        let mut piece = self.read_once(by, range).await?;
        let mut all = BytesMut::new();
        while !piece.eof && piece.bytes.len() < range.count as usize {
            if all.is_empty() {
                all.extend_from_slice(&piece.bytes);
            }
            let have = all.len() as u32;
            let offset = range.offset.saturating_add(have.into());
            let more = self.read_once(by, Range { offset, count: range.count - have, ..range }).await?;
            if more.bytes.is_empty() && !more.eof {
                // No byte and not the end: asked again for ever it would say the same.
                return Err(SourceError::Errno(libc::EIO));
            }
            all.extend_from_slice(&more.bytes);
            let steady = piece.steady && more.steady;
            // A copy only while there is more to come.
            let bytes = if more.eof || all.len() >= range.count as usize { all.split().freeze() } else { Bytes::new() };
            piece = Piece { bytes, steady, ..more };
        }
        Ok(piece)
    }

    async fn read_once(&self, by: &OnBehalf, range: Range<'_>) -> Result<Piece, SourceError> {
        let Range { handle, offset, count, patient, before } = range;
        let payload = count as usize;
        let request = Request { payload, patient, ..Request::new(&self.engine, Kind::Read, by) };
        let arguments = ReadArgs { file: filehandle(handle)?, offset, count };
        let mut told = self.engine.call::<Read>(&request, &arguments).await?;
        let ok = match &mut told.reply {
            Ok(ok) => ok,
            Err(failed) => return Err(source_error(failed.status)),
        };
        let (after, eof) = (ok.attributes, ok.eof);
        let mut bytes = std::mem::take(&mut ok.data).into_bytes();
        bytes.truncate(count as usize);
        if let Some(after) = &after {
            self.engine.known.note(handle, after);
        }
        let steady = after.is_some_and(|after| same(&after, &before));
        Ok(Piece { bytes: told.own(bytes), eof, after, steady })
    }
}
