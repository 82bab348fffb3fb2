//! WRITE, COMMIT and SETATTR.
//!
//! Owns: cutting to what the server takes, and what is told of the pieces together. Never does: telling as written what
//! comes after a gap.
//! Invariants: attributes that are told are from after the last byte that is told; what was before a change is told only
//! if the change was sent once, since a server may have run it twice.

use bytes::Bytes;
use forebay_proto::{
    nfs3::{Commit, CommitArgs, Fattr, Sattr, SetAttr, SetAttrArgs, StableHow, WccData, Write, WriteArgs},
    xdr::Opaque,
};
use futures_util::{StreamExt, stream::FuturesOrdered};

use super::{Nfs3Source, attributes, engine::Request, errors::source_error, look::filehandle};
use crate::source::{
    ObjectId, SetAttributes, SourceError,
    counters::Kind,
    remote::{Changed, Committed, OnBehalf, Written},
    rpc::pieces::pieces,
};

/// Bytes of one call at most: a caller that gives more gets a part written.
const WRITE_MAX: u32 = 1 << 30;

/// What one or several WRITEs did.
#[derive(Clone, Copy, Debug)]
struct Piece {
    count: u32,
    stable: bool,
    verifier: u64,
    before: Option<u64>,
    after: Option<Fattr>,
}

impl Piece {
    /// One after another. Two verifiers mean that the first may be lost: its verifier is told, which no COMMIT will give
    /// any more.
    fn and(self, next: Self) -> Self {
        Self { count: self.count + next.count, stable: self.stable && next.stable, after: next.after, ..self }
    }
}

impl Nfs3Source {
    pub(super) async fn write_data(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        offset: u64,
        data: Bytes,
        stable: bool,
    ) -> Result<Written, SourceError> {
        let most = self.engine.facts().await?.write_max;
        let count = u32::try_from(data.len()).unwrap_or(WRITE_MAX).min(WRITE_MAX);
        let parts: Vec<_> = pieces(count, most).collect();
        // The last one follows the others: its attributes are those after all of them.
        let Some((last, others)) = parts.split_last() else { return Err(SourceError::Errno(libc::EINVAL)) };
        let write = |(at, size): (u32, u32)| {
            let part = data.slice(at as usize..(at + size) as usize);
            self.write_piece(by, file, offset.saturating_add(at.into()), part, stable)
        };
        let mut writing: FuturesOrdered<_> = others.iter().map(|part| write(*part)).collect();
        let (mut written, mut failed, mut place): (Option<Piece>, _, _) = (None, None, 0);
        while let Some(piece) = writing.next().await {
            match piece {
                // Whatever comes after a gap is written, but not told.
                Ok(piece) if failed.is_none() => {
                    if piece.count < others[place].1 {
                        failed = Some(SourceError::Errno(libc::EIO));
                    }
                    // With others beside it, what was before is not before all of them.
                    written = Some(written.map_or(Piece { before: None, ..piece }, |sum| sum.and(piece)));
                }
                Ok(_) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
            place += 1;
        }
        if failed.is_none() {
            match write(*last).await {
                Ok(piece) => written = Some(written.map_or(piece, |sum| sum.and(piece))),
                Err(error) => failed = Some(error),
            }
        }
        let Some(written) = written else { return Err(failed.unwrap_or(SourceError::Errno(libc::EIO))) };
        // A later piece that failed may have been written all the same, after these attributes were taken.
        let after = written.after.filter(|_| failed.is_none());
        let attributes = self.or_getattr(by, &file.handle, after).await?;
        let Piece { count, stable, verifier, before, .. } = written;
        Ok(Written { count, stable, verifier, changed: Changed { before, attributes } })
    }

    /// All of one piece, unless the server stops in between.
    async fn write_piece(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        offset: u64,
        data: Bytes,
        stable: bool,
    ) -> Result<Piece, SourceError> {
        let mut sum: Option<Piece> = None;
        loop {
            let done = sum.map_or(0, |sum| sum.count);
            let rest = data.slice(done as usize..);
            match (self.write_once(by, file, offset.saturating_add(done.into()), rest, stable).await, sum) {
                (Ok(piece), before) => {
                    let total = before.map_or(piece, |sum| Piece { before: None, ..sum.and(piece) });
                    if total.count as usize >= data.len() {
                        return Ok(total);
                    }
                    sum = Some(total);
                }
                (Err(_), Some(sum)) => return Ok(Piece { before: None, after: None, ..sum }),
                (Err(error), None) => return Err(error),
            }
        }
    }

    async fn write_once(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        offset: u64,
        data: Bytes,
        stable: bool,
    ) -> Result<Piece, SourceError> {
        let length = u32::try_from(data.len()).expect("pieces are cut to what a call may carry");
        let request = Request { payload: data.len(), ahead: false, ..Request::new(&self.engine, Kind::Write, by) };
        let arguments = WriteArgs {
            file: filehandle(&file.handle)?,
            offset,
            count: length,
            stable: if stable { StableHow::FileSync } else { StableHow::Unstable },
            data: Opaque::new(data).expect("pieces are cut to what a call may carry"),
        };
        let told = self.engine.call::<Write>(&request, &arguments).await?;
        let ok = told.reply.map_err(|failed| source_error(failed.status))?;
        if ok.count == 0 && length > 0 {
            return Err(SourceError::Errno(libc::EIO));
        }
        let count = ok.count.min(length);
        self.engine.counters.written(count as usize);
        if let Some(after) = &ok.file.after {
            self.engine.known.note(&file.handle, after);
        }
        Ok(Piece {
            count,
            stable: ok.committed == StableHow::FileSync,
            verifier: u64::from_be_bytes(ok.verifier),
            before: attributes::before(&ok.file).filter(|_| !told.resent),
            after: ok.file.after,
        })
    }

    pub(super) async fn commit_data(&self, by: &OnBehalf, file: &ObjectId) -> Result<Committed, SourceError> {
        let request = Request { ahead: false, ..Request::new(&self.engine, Kind::Commit, by) };
        let arguments = CommitArgs { file: filehandle(&file.handle)?, offset: 0, count: 0 };
        let told = self.engine.call::<Commit>(&request, &arguments).await?;
        let ok = told.reply.map_err(|failed| source_error(failed.status))?;
        let attributes = self.or_getattr(by, &file.handle, ok.file.after).await?;
        Ok(Committed { verifier: u64::from_be_bytes(ok.verifier), attributes })
    }

    pub(super) async fn set_attributes_of(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        set: &SetAttributes,
    ) -> Result<Changed, SourceError> {
        let (wcc, resent) = self.setattr(by, file, attributes::to_set(set)?).await?;
        let attributes = self.or_getattr(by, &file.handle, wcc.after).await?;
        Ok(Changed { before: attributes::before(&wcc).filter(|_| !resent), attributes })
    }

    /// SETATTR, and whether it was sent more than once.
    pub(super) async fn setattr(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        set: Sattr,
    ) -> Result<(WccData, bool), SourceError> {
        let request = Request { ahead: false, ..Request::new(&self.engine, Kind::SetAttr, by) };
        let arguments = SetAttrArgs { file: filehandle(&file.handle)?, attributes: set, guard: None };
        let told = self.engine.call::<SetAttr>(&request, &arguments).await?;
        match told.reply {
            Ok(wcc) => Ok((wcc, told.resent)),
            Err(failed) => Err(source_error(failed.status)),
        }
    }
}
