//! WRITE and COMMIT.
//!
//! Owns: cutting to what the server takes, and what is told of the pieces together. Never does: telling as written what
//! comes after a gap.
//! Invariant: attributes that are told are from after the last byte that is told.

use bytes::Bytes;
use forebay_proto::nfs4::{Op, StableHow, Stateid, Status, open, ops::commit::CommitArgs};
use futures_util::{StreamExt, stream::FuturesOrdered};

use super::{
    Nfs4Source,
    data::{OPEN_TRIES, change_in, pieces},
    engine::Request,
    errors::{Failure, source_error},
    wire::{self, take},
};
use crate::source::{
    FileAttributes, ObjectId, SourceError,
    counters::Kind,
    remote::{Changed, Committed, OnBehalf, Written},
};

/// What one WRITE did.
#[derive(Debug)]
struct PieceWritten {
    count: u32,
    stable: bool,
    verifier: u64,
    before: Option<u64>,
    attributes: Option<FileAttributes>,
}

impl Nfs4Source {
    pub(super) async fn write_data(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        offset: u64,
        data: Bytes,
        stable: bool,
    ) -> Result<Written, SourceError> {
        let most = self.engine.current().await?.write_max();
        // A caller that gives more than any call may carry gets a part written, which the trait allows.
        let count = u32::try_from(data.len()).unwrap_or(1 << 30).min(1 << 30);
        let parts: Vec<_> = pieces(count, most).collect();
        let part = |(at, size): (u32, u32)| data.slice(at as usize..(at + size) as usize);
        // The last one follows the others: its attributes are those after all of them.
        let Some((last, others)) = parts.split_last() else { return Err(SourceError::Errno(libc::EINVAL)) };
        let mut writing: FuturesOrdered<_> = others
            .iter()
            .map(|(at, size)| {
                self.write_piece(by, file, offset.saturating_add((*at).into()), part((*at, *size)), stable)
            })
            .collect();
        let mut written: Option<PieceWritten> = None;
        let mut failed = None;
        let mut whole = true;
        while let Some(piece) = writing.next().await {
            // Whatever comes after a gap is written, but not told.
            match piece {
                Ok(piece) if whole => {
                    whole = piece.count == others[0].1;
                    written = Some(written.map_or_else(
                        || PieceWritten { before: None, ..no_attributes(&piece) },
                        |sum| add(sum, &piece),
                    ));
                }
                Ok(_) => {}
                Err(failure) => {
                    failed = failed.or(Some(failure));
                    whole = false;
                }
            }
        }
        if whole {
            match self.write_piece(by, file, offset.saturating_add(last.0.into()), part(*last), stable).await {
                Ok(piece) => written = Some(written.map_or_else(|| copy_of(&piece), |sum| add(sum, &piece))),
                Err(failure) => failed = Some(failure),
            }
        }
        if failed.is_some() || !whole {
            // Other pieces may have been written after the one whose attributes these are.
            written = written.map(|sum| PieceWritten { before: None, attributes: None, ..sum });
        }
        match (written, failed) {
            (Some(written), _) => self.told_written(by, file, written).await,
            (None, failed) => Err(failed.map_or(SourceError::Errno(libc::EIO), SourceError::from)),
        }
    }

    async fn told_written(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        written: PieceWritten,
    ) -> Result<Written, SourceError> {
        let PieceWritten { count, stable, verifier, before, attributes } = written;
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => self.attributes_by_handle(by, file).await?,
        };
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
    ) -> Result<PieceWritten, Failure> {
        let key = Self::key(by, file, open::ACCESS_WRITE);
        let mut stateid = self.first_stateid(&key).await?;
        let mut tries = 0;
        let mut sum: Option<PieceWritten> = None;
        loop {
            let done = sum.as_ref().map_or(0, |sum| sum.count);
            let rest = data.slice(done as usize..);
            match self.write_once(by, file, stateid, offset.saturating_add(done.into()), rest, stable).await {
                Ok(piece) => {
                    // Between two calls others may write: what was before the first says nothing about them.
                    let total = sum
                        .take()
                        .map_or_else(|| copy_of(&piece), |sum| PieceWritten { before: None, ..add(sum, &piece) });
                    if total.count as usize >= data.len() || piece.count == 0 {
                        return Ok(total);
                    }
                    sum = Some(total);
                }
                Err(failure) if tries < OPEN_TRIES => {
                    tries += 1;
                    match (self.other_stateid(&key, stateid, failure).await, sum.take()) {
                        (Ok(other), before) => (stateid, sum) = (other, before),
                        (Err(_), Some(sum)) => return Ok(PieceWritten { before: None, attributes: None, ..sum }),
                        (Err(failure), None) => return Err(failure),
                    }
                }
                Err(failure) => {
                    return sum.map(|sum| PieceWritten { before: None, attributes: None, ..sum }).ok_or(failure);
                }
            }
        }
    }

    async fn write_once(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        stateid: Stateid,
        offset: u64,
        data: Bytes,
        stable: bool,
    ) -> Result<PieceWritten, Failure> {
        let length = data.len();
        let ops = vec![
            wire::putfh(&file.handle),
            wire::getattr(wire::CHANGE),
            wire::write(stateid, offset, data, stable),
            wire::getattr(wire::OBJECT),
        ];
        let request = Request { payload: length, ..Request::changing(&self.engine, Kind::Write, by, ops, 2) };
        let mut results = self.engine.call(request).await?;
        take!(results, PutFh)?;
        let before = change_in(&take!(results, GetAttr)?);
        let ok = take!(results, Write)?;
        if ok.count == 0 && length > 0 {
            return Err(Status::Io.into());
        }
        let count = ok.count.min(u32::try_from(length).unwrap_or(u32::MAX));
        self.engine.counters.written(count as usize);
        let attributes = match take!(results, GetAttr) {
            Ok(told) => self.attributes_of(&told).await.ok(),
            Err(_) => None,
        };
        let before = before.filter(|_| !results.resent);
        let verifier = u64::from_be_bytes(ok.verifier);
        Ok(PieceWritten { count, stable: ok.committed == StableHow::FileSync, verifier, before, attributes })
    }

    pub(super) async fn commit_data(&self, by: &OnBehalf, file: &ObjectId) -> Result<Committed, SourceError> {
        let commit = Op::Commit(CommitArgs { offset: 0, count: 0 });
        let ops = vec![wire::putfh(&file.handle), commit, wire::getattr(wire::OBJECT)];
        let mut results = self.engine.call(Request::changing(&self.engine, Kind::Commit, by, ops, 1)).await?;
        take!(results, PutFh).map_err(source_error)?;
        let verifier = u64::from_be_bytes(take!(results, Commit).map_err(source_error)?);
        let attributes = self.attributes_after(&mut results, by, file).await?;
        Ok(Committed { verifier, attributes })
    }
}

fn copy_of(piece: &PieceWritten) -> PieceWritten {
    PieceWritten { attributes: piece.attributes.clone(), ..*piece }
}

fn no_attributes(piece: &PieceWritten) -> PieceWritten {
    PieceWritten { attributes: None, ..*piece }
}

/// One piece after another. Two verifiers mean that the first may be lost: its verifier is told, which no COMMIT will
/// give any more.
fn add(sum: PieceWritten, piece: &PieceWritten) -> PieceWritten {
    PieceWritten {
        count: sum.count + piece.count,
        stable: sum.stable && piece.stable,
        verifier: sum.verifier,
        before: sum.before,
        attributes: piece.attributes.clone(),
    }
}
