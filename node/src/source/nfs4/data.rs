//! Data of files: READ, SETATTR, SEEK, ALLOCATE, DEALLOCATE. WRITE and COMMIT are in `write`.
//!
//! Owns: cutting to what the server takes, putting together what it gave, stateids where the anonymous one does not do.
//! Invariant: attributes that come with data are from before every byte of it.

use bytes::BytesMut;
use forebay_proto::nfs4::{
    Attributes, Op, OpReply, Stateid, Status, open,
    ops::{
        allocate::AllocateArgs,
        seek::{SeekArgs, SeekContent},
    },
};
use futures_util::{StreamExt, stream::FuturesOrdered};

pub(super) use crate::source::rpc::pieces::pieces;

use super::{
    Nfs4Source, Optional, attributes,
    engine::Request,
    errors::{Failure, refuses_stateid, source_error},
    opens::Key,
    wire::{self, Results, take},
};
use crate::source::{
    FileAttributes, ObjectId, SeekWhat, SetAttributes, SourceError,
    counters::Kind,
    remote::{Changed, Data, DataRead, OnBehalf},
};

/// A file is opened, and opened again, at most so often for one call.
pub(super) const OPEN_TRIES: usize = 3;

impl Nfs4Source {
    pub(super) fn key(by: &OnBehalf, file: &ObjectId, access: u32) -> Key {
        Key { file: *file, user: by.user.clone(), access }
    }

    /// What to begin with: a kept open, or none where that may do.
    pub(super) async fn first_stateid(&self, key: &Key) -> Result<Stateid, Failure> {
        if self.engine.options.anonymous {
            return Ok(self.engine.opens.stateid(key));
        }
        self.kept_stateid(key).await
    }

    /// A kept open, made if there is none.
    async fn kept_stateid(&self, key: &Key) -> Result<Stateid, Failure> {
        match self.engine.opens.stateid(key) {
            Stateid::ANONYMOUS => self.engine.opens.open(&self.engine, key, Stateid::ANONYMOUS).await,
            kept => Ok(kept),
        }
    }

    /// Another stateid if `failure` says that this one does not do; else the failure.
    pub(super) async fn other_stateid(&self, key: &Key, used: Stateid, failure: Failure) -> Result<Stateid, Failure> {
        match failure {
            Failure::Status(status) if refuses_stateid(status) => self.engine.opens.open(&self.engine, key, used).await,
            failure => Err(failure),
        }
    }

    pub(super) async fn read_data(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        offset: u64,
        count: u32,
    ) -> Result<DataRead, SourceError> {
        let most = self.engine.current().await?.read_max();
        if count <= most {
            return Ok(self.read_piece(by, file, offset, count).await?);
        }
        let parts: Vec<_> = pieces(count, most).collect();
        let mut reading: FuturesOrdered<_> = parts
            .iter()
            .map(|(at, size)| self.read_piece(by, file, offset.saturating_add((*at).into()), *size))
            .collect();
        let mut read = Vec::with_capacity(parts.len());
        while let Some(piece) = reading.next().await {
            let piece = piece?;
            let last = piece.data.eof;
            read.push(piece);
            if last {
                break;
            }
        }
        drop(reading);
        // A piece that saw another version may have been read before the first one's attributes were taken: read now,
        // it cannot be.
        let change = read[0].attributes.change;
        for (place, piece) in read.iter_mut().enumerate() {
            if piece.attributes.change != change {
                let (at, size) = parts[place];
                *piece = self.read_piece(by, file, offset.saturating_add(at.into()), size).await?;
            }
        }
        Ok(join(read, &parts))
    }

    /// As many bytes as asked for, unless the file ends.
    async fn read_piece(&self, by: &OnBehalf, file: &ObjectId, offset: u64, count: u32) -> Result<DataRead, Failure> {
        let key = Self::key(by, file, open::ACCESS_READ);
        let mut stateid = self.first_stateid(&key).await?;
        let mut tries = 0;
        let mut so_far: Option<(FileAttributes, BytesMut)> = None;
        loop {
            let have = so_far.as_ref().map_or(0, |(_, bytes)| bytes.len() as u32);
            match self.read_once(by, file, stateid, offset.saturating_add(have.into()), count - have).await {
                Ok(read) => {
                    let done = read.data.eof || have + read.data.bytes.len() as u32 >= count;
                    match so_far.take() {
                        None if done => return Ok(read),
                        None => so_far = Some((read.attributes, BytesMut::from(&read.data.bytes[..]))),
                        Some((attributes, mut bytes)) => {
                            bytes.extend_from_slice(&read.data.bytes);
                            if done {
                                let data = Data { bytes: bytes.freeze(), eof: read.data.eof };
                                return Ok(DataRead { attributes, data });
                            }
                            so_far = Some((attributes, bytes));
                        }
                    }
                    if read.data.bytes.is_empty() {
                        // No byte and not the end: asked again for ever it would say the same.
                        return Err(Status::ServerFault.into());
                    }
                }
                Err(failure) if tries < OPEN_TRIES => {
                    tries += 1;
                    stateid = self.other_stateid(&key, stateid, failure).await?;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    async fn read_once(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        stateid: Stateid,
        offset: u64,
        count: u32,
    ) -> Result<DataRead, Failure> {
        let ops = vec![wire::putfh(&file.handle), wire::getattr(wire::OBJECT), wire::read(stateid, offset, count)];
        let request = Request { payload: count as usize, ..Request::asking(&self.engine, Kind::Read, by, ops) };
        let mut results = self.engine.call(request).await?;
        take!(results, PutFh)?;
        let told = take!(results, GetAttr)?;
        let ok = take!(results, Read)?;
        let attributes = self.attributes_of(&told).await?;
        let mut bytes = ok.data.into_bytes();
        bytes.truncate(count as usize);
        let bytes = results.own(bytes);
        self.engine.counters.read(bytes.len());
        Ok(DataRead { attributes, data: Data { bytes, eof: ok.eof } })
    }

    pub(super) async fn set_attributes_of(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        set: &SetAttributes,
    ) -> Result<Changed, SourceError> {
        let wanted = attributes::to_set(set).to_fattr(&Attributes::NAMED);
        let key = Self::key(by, file, open::ACCESS_WRITE);
        let sized = set.size.is_some();
        let mut stateid = if sized { self.first_stateid(&key).await? } else { Stateid::ANONYMOUS };
        for _ in 0..OPEN_TRIES {
            let ops = vec![
                wire::putfh(&file.handle),
                wire::getattr(wire::CHANGE),
                wire::setattr(stateid, wanted.clone()),
                wire::getattr(wire::OBJECT),
            ];
            let mut results = self.engine.call(Request::changing(&self.engine, Kind::SetAttr, by, ops, 2)).await?;
            take!(results, PutFh).map_err(source_error)?;
            let before = change_in(&take!(results, GetAttr).map_err(source_error)?).filter(|_| !results.resent);
            match results.next() {
                Some(OpReply::SetAttr(reply)) if reply.status == Status::Ok => {
                    let attributes = self.attributes_after(&mut results, by, file).await?;
                    return Ok(Changed { before, attributes });
                }
                Some(OpReply::SetAttr(reply)) if sized => {
                    stateid = self.other_stateid(&key, stateid, reply.status.into()).await?;
                }
                Some(reply) => return Err(source_error(reply.status())),
                None => return Err(source_error(Status::ServerFault)),
            }
        }
        Err(SourceError::Errno(libc::EIO))
    }

    /// Attributes after a change that went well: along with it, or else asked for.
    pub(super) async fn attributes_after(
        &self,
        results: &mut Results,
        by: &OnBehalf,
        file: &ObjectId,
    ) -> Result<FileAttributes, SourceError> {
        match take!(results, GetAttr) {
            Ok(told) => self.attributes_of(&told).await.map_err(source_error),
            Err(_) => Ok(self.attributes_by_handle(by, file).await?),
        }
    }

    /// Whether the session speaks minor version 2 and the source has not said that it lacks this on the file's file system.
    pub(super) async fn has(&self, file: &ObjectId, what: Optional) -> Result<(), SourceError> {
        if self.unsupported.has(file.fsid, what) || self.engine.current().await?.minor_version < 2 {
            return Err(SourceError::UNSUPPORTED);
        }
        Ok(())
    }

    /// Remembers what the source lacks.
    pub(super) fn lacks(&self, file: &ObjectId, what: Optional, status: Status) -> SourceError {
        if matches!(status, Status::NotSupp | Status::OpIllegal) {
            self.unsupported.insert(file.fsid, what);
            return SourceError::UNSUPPORTED;
        }
        source_error(status)
    }

    pub(super) async fn seek_in(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        offset: u64,
        what: SeekWhat,
    ) -> Result<Option<u64>, SourceError> {
        self.has(file, Optional::Seek).await?;
        let key = Self::key(by, file, open::ACCESS_READ);
        // Ganesha 4.3 takes the anonymous stateid here and tells a hole at 0 whatever there is.
        let mut stateid = self.kept_stateid(&key).await?;
        let content = if what == SeekWhat::Data { SeekContent::Data } else { SeekContent::Hole };
        for _ in 0..OPEN_TRIES {
            let seek = Op::Seek(SeekArgs { stateid, offset, what: content });
            let ops = vec![wire::putfh(&file.handle), seek];
            let mut results = self.engine.call(Request::asking(&self.engine, Kind::Seek, by, ops)).await?;
            take!(results, PutFh).map_err(source_error)?;
            match take!(results, Seek) {
                // RFC 7862 §15.11.3: no data follows is told by sr_eof, and a hole that is the file's end by both.
                Ok(ok) if ok.eof && what == SeekWhat::Data => return Ok(None),
                Ok(ok) => return Ok(Some(ok.offset)),
                Err(Status::Nxio) => return Ok(None),
                Err(status) if refuses_stateid(status) => {
                    stateid = self.other_stateid(&key, stateid, status.into()).await?;
                }
                Err(status) => return Err(self.lacks(file, Optional::Seek, status)),
            }
        }
        Err(SourceError::Errno(libc::EIO))
    }

    pub(super) async fn allocate_in(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        range: (u64, u64),
        punch: bool,
    ) -> Result<Changed, SourceError> {
        let optional = if punch { Optional::Deallocate } else { Optional::Allocate };
        self.has(file, optional).await?;
        let key = Self::key(by, file, open::ACCESS_WRITE);
        let mut stateid = self.first_stateid(&key).await?;
        for _ in 0..OPEN_TRIES {
            let args = AllocateArgs { stateid, offset: range.0, length: range.1 };
            let op = if punch { Op::Deallocate(args) } else { Op::Allocate(args) };
            let (handle, change) = (wire::putfh(&file.handle), wire::getattr(wire::CHANGE));
            let ops = vec![handle, change, op, wire::getattr(wire::OBJECT)];
            let mut results = self.engine.call(Request::changing(&self.engine, Kind::Allocate, by, ops, 2)).await?;
            take!(results, PutFh).map_err(source_error)?;
            let before = change_in(&take!(results, GetAttr).map_err(source_error)?).filter(|_| !results.resent);
            match results.next().map_or(Status::ServerFault, |reply| reply.status()) {
                Status::Ok => {
                    let attributes = self.attributes_after(&mut results, by, file).await?;
                    return Ok(Changed { before, attributes });
                }
                status if refuses_stateid(status) => {
                    stateid = self.other_stateid(&key, stateid, status.into()).await?;
                }
                status => return Err(self.lacks(file, optional, status)),
            }
        }
        Err(SourceError::Errno(libc::EIO))
    }
}

/// The change attribute alone.
pub(super) fn change_in(fattr: &forebay_proto::nfs4::Fattr) -> Option<u64> {
    Attributes::from_fattr(fattr).ok().and_then(|told| told.change)
}

/// Pieces in their order, up to the first that is short.
fn join(read: Vec<DataRead>, parts: &[(u32, u32)]) -> DataRead {
    let total = read.iter().map(|piece| piece.data.bytes.len()).sum();
    let attributes = read[0].attributes.clone();
    let (mut bytes, mut eof) = (BytesMut::with_capacity(total), false);
    for (piece, (_, size)) in read.into_iter().zip(parts) {
        bytes.extend_from_slice(&piece.data.bytes);
        eof = piece.data.eof;
        if eof || piece.data.bytes.len() < *size as usize {
            break;
        }
    }
    DataRead { attributes, data: Data { bytes: bytes.freeze(), eof } }
}
