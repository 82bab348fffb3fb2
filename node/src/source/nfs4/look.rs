//! What is at a place: LOOKUP, attributes, access and first data in one COMPOUND.
//!
//! Owns: the shape of those COMPOUNDs and of their results. Never does: several places at once; see `look_many`.
//! Invariant: READ comes last, so that its failure spoils nothing else.

use forebay_proto::nfs4::{Attr, Bitmap, Op, OpReply, Stateid, Status, ops::readlink::ReadLinkOk};

use super::{
    Nfs4Source, attributes, components,
    engine::Request,
    errors::{Failure, source_error},
    wire::{self, Results, take},
};
use crate::source::{
    FileAttributes, ObjectId, SourceError, SourceHandle, SpaceAttributes,
    counters::Kind,
    remote::{Data, OnBehalf, Place, Seen, SeenObject, Want, Word},
};

/// What `statvfs` is made of.
const SPACE: Bitmap = Bitmap::of(&[
    Attr::FilesAvail,
    Attr::FilesFree,
    Attr::FilesTotal,
    Attr::MaxName,
    Attr::SpaceAvail,
    Attr::SpaceFree,
    Attr::SpaceTotal,
]);

/// Appends what is asked of the current filehandle.
pub(super) fn ask_of_current(ops: &mut Vec<Op>, named: bool, access: bool, read: u32) {
    if named {
        ops.push(wire::getfh());
    }
    ops.push(wire::getattr(wire::OBJECT));
    if access {
        ops.push(wire::all_access());
    }
    if read > 0 {
        ops.push(wire::read(Stateid::ANONYMOUS, 0, read));
    }
}

impl Nfs4Source {
    /// Decodes attributes.
    pub(super) async fn attributes_of(&self, fattr: &forebay_proto::nfs4::Fattr) -> Result<FileAttributes, Status> {
        attributes::object(&self.engine.identities, fattr).await
    }

    /// Takes what [`ask_of_current`] asked for: the object, and the status of what failed after its attributes.
    pub(super) async fn object_from(
        &self,
        results: &mut Results,
        known: Option<&SourceHandle>,
        access: bool,
        read: u32,
    ) -> Result<(SeenObject, Option<Status>), Status> {
        let handle = match known {
            Some(handle) => *handle,
            None => wire::handle(&take!(results, GetFh)?.handle)?,
        };
        let told = take!(results, GetAttr)?;
        let attributes = self.attributes_of(&told).await?;
        let id = ObjectId { fsid: attributes.fsid, handle };
        let mut seen = SeenObject { id, attributes, access: None, data: None, word: Word::Source };
        if access {
            match take!(results, Access) {
                Ok(granted) => seen.access = Some(wire::access_mask(seen.attributes.kind, granted.access)),
                Err(status) => return Ok((seen, Some(status))),
            }
        }
        if read > 0 {
            match take!(results, Read) {
                Ok(ok) => {
                    let bytes = results.own(ok.data.into_bytes());
                    self.engine.counters.read(bytes.len());
                    seen.data = Some(Data { bytes, eof: ok.eof });
                }
                Err(status) => return Ok((seen, Some(status))),
            }
        }
        Ok((seen, None))
    }

    pub(super) async fn look_at(&self, by: &OnBehalf, place: &Place, want: Want) -> Result<Seen, SourceError> {
        let read = self.first_bytes(want.read).await?;
        match place {
            Place::Object(id) => {
                let mut ops = vec![wire::putfh(&id.handle)];
                ask_of_current(&mut ops, false, want.access, read);
                let mut results = self.engine.call(self.looking(by, ops, read)).await?;
                let object = match take!(results, PutFh) {
                    Ok(()) => self.object_from(&mut results, Some(&id.handle), want.access, read).await,
                    Err(status) => Err(status),
                };
                Ok(Seen {
                    directory: None,
                    directory_word: Word::Source,
                    object: object.map(|(seen, _)| seen).map_err(source_error),
                })
            }
            Place::Name(dir, name) => {
                let mut ops = vec![wire::putfh(&dir.handle), wire::getattr(wire::OBJECT), wire::lookup(name)?];
                ask_of_current(&mut ops, true, want.access, read);
                let mut results = self.engine.call(self.looking(by, ops, read)).await?;
                take!(results, PutFh).map_err(source_error)?;
                let told = take!(results, GetAttr).map_err(source_error)?;
                let directory = Some(self.attributes_of(&told).await.map_err(source_error)?);
                let object = match take!(results, Lookup) {
                    Ok(()) => self.object_from(&mut results, None, want.access, read).await,
                    Err(status) => Err(status),
                };
                Ok(Seen {
                    directory,
                    directory_word: Word::Source,
                    object: object.map(|(seen, _)| seen).map_err(source_error),
                })
            }
        }
    }

    fn looking(&self, by: &OnBehalf, ops: Vec<Op>, read: u32) -> Request {
        // A READ that must wait is not waited for.
        let essential = ops.len() - usize::from(read > 0);
        Request { essential, payload: read as usize, ..Request::asking(&self.engine, Kind::Look, by, ops) }
    }

    /// How much of the first `wanted` bytes fits one reply.
    async fn first_bytes(&self, wanted: u32) -> Result<u32, SourceError> {
        if wanted == 0 { Ok(0) } else { Ok(wanted.min(self.engine.current().await?.read_max())) }
    }

    /// The object a handle names, with its attributes.
    pub(super) async fn attributes_by_handle(&self, by: &OnBehalf, id: &ObjectId) -> Result<FileAttributes, Failure> {
        let ops = vec![wire::putfh(&id.handle), wire::getattr(wire::OBJECT)];
        let mut results = self.engine.call(Request::asking(&self.engine, Kind::GetAttr, by, ops)).await?;
        take!(results, PutFh)?;
        let told = take!(results, GetAttr)?;
        Ok(self.attributes_of(&told).await?)
    }

    /// The directory that the source's path names, from the server's root on.
    pub(super) async fn walk(&self, by: &OnBehalf) -> Result<SeenObject, SourceError> {
        let room = self.engine.current().await?.operations().saturating_sub(4).max(1);
        let parts = components(&self.engine.options.path);
        let mut here: Option<SourceHandle> = None;
        // As many names at a time as the server takes; without any name once, for the root itself.
        let mut steps: Vec<&[&str]> = parts.chunks(room).collect();
        if steps.is_empty() {
            steps.push(&[]);
        }
        let mut found = None;
        for step in steps {
            let mut ops = vec![here.as_ref().map_or(Op::PutRootFh(()), wire::putfh)];
            for part in step {
                ops.push(wire::lookup(part.as_bytes())?);
            }
            ask_of_current(&mut ops, true, true, 0);
            let mut results = self.engine.call(Request::asking(&self.engine, Kind::Lookup, by, ops)).await?;
            for _ in 0..=step.len() {
                match results.next().map(|reply: OpReply| reply.status()) {
                    Some(Status::Ok) => {}
                    Some(status) => return Err(source_error(status)),
                    None => return Err(source_error(Status::ServerFault)),
                }
            }
            let (seen, _) = self.object_from(&mut results, None, true, 0).await.map_err(source_error)?;
            here = Some(seen.id.handle);
            found = Some(seen);
        }
        found.ok_or(SourceError::NoHandle)
    }

    pub(super) async fn parent_of(&self, by: &OnBehalf, dir: &ObjectId) -> Result<SeenObject, SourceError> {
        let mut ops = vec![wire::putfh(&dir.handle), Op::LookupP(())];
        ask_of_current(&mut ops, true, true, 0);
        let mut results = self.engine.call(Request::asking(&self.engine, Kind::Lookup, by, ops)).await?;
        take!(results, PutFh).map_err(source_error)?;
        take!(results, LookupP).map_err(source_error)?;
        let (seen, _) = self.object_from(&mut results, None, true, 0).await.map_err(source_error)?;
        Ok(seen)
    }

    pub(super) async fn link_text(&self, by: &OnBehalf, link: &ObjectId) -> Result<bytes::Bytes, SourceError> {
        let ops = vec![wire::putfh(&link.handle), Op::ReadLink(())];
        let mut results = self.engine.call(Request::asking(&self.engine, Kind::ReadLink, by, ops)).await?;
        take!(results, PutFh).map_err(source_error)?;
        let ReadLinkOk { target } = take!(results, ReadLink).map_err(source_error)?;
        Ok(bytes::Bytes::copy_from_slice(&target))
    }

    pub(super) async fn space_of(&self, by: &OnBehalf, object: &ObjectId) -> Result<SpaceAttributes, SourceError> {
        let ops = vec![wire::putfh(&object.handle), wire::getattr(SPACE)];
        let mut results = self.engine.call(Request::asking(&self.engine, Kind::Space, by, ops)).await?;
        take!(results, PutFh).map_err(source_error)?;
        take!(results, GetAttr).and_then(|fattr| attributes::space(&fattr)).map_err(source_error)
    }
}
