//! What is at a place: LOOKUP, then ACCESS and READ side by side.
//!
//! Owns: which calls it takes, and what is told when some of them fail. Never does: listing.
//! Invariant: a directory's attributes are from before the name was looked up; see `steady`.

use bytes::Bytes;
use forebay_proto::{
    nfs3::{self, AccessArgs, DirOpArgs, Fattr, FileHandle, Filename, FsStat, GetAttr, Lookup, ReadLink, Status},
    xdr::Opaque,
};
use futures_util::{StreamExt, future::join, stream::FuturesOrdered};

use super::{
    Nfs3Source, attributes,
    engine::Request,
    errors::source_error,
    steady::{Steady, same},
};
use crate::source::{
    AccessMask, FileAttributes, FileKind, ObjectId, SourceError, SourceFsid, SourceHandle, SpaceAttributes,
    counters::Kind,
    remote::{DataRead, OnBehalf, Place, Seen, SeenObject, Want, Word},
};

/// Places of one call that are looked at together: far more than slots, so that these are always in use.
const TOGETHER: usize = 1024;

/// A handle as it goes over the wire: one that NFSv3 cannot have given is none.
pub(super) fn filehandle(handle: &SourceHandle) -> Result<FileHandle, SourceError> {
    FileHandle::new(Bytes::copy_from_slice(handle.as_bytes())).ok_or(SourceError::BadHandle)
}

/// A handle out of a reply.
pub(super) fn handle(handle: &FileHandle) -> Result<SourceHandle, SourceError> {
    SourceHandle::new(handle).filter(|handle| !handle.as_bytes().is_empty()).ok_or(SourceError::Errno(libc::EIO))
}

/// A name as it goes over the wire; ENAMETOOLONG for what no server takes.
pub(super) fn filename(name: &[u8]) -> Result<Filename, SourceError> {
    Opaque::new(Bytes::copy_from_slice(name)).ok_or(SourceError::Errno(libc::ENAMETOOLONG))
}

/// A name in a directory.
pub(super) fn at(directory: &ObjectId, name: &[u8]) -> Result<DirOpArgs, SourceError> {
    Ok(DirOpArgs { directory: filehandle(&directory.handle)?, name: filename(name)? })
}

/// What LOOKUP found: a handle, and attributes if they came along.
type Found = (SourceHandle, Option<Fattr>);

impl Nfs3Source {
    /// The source told these attributes: they are remembered, and told in our words.
    pub(super) fn told(&self, handle: &SourceHandle, told: &Fattr) -> FileAttributes {
        self.engine.known.note(handle, told);
        attributes::object(told)
    }

    /// GETATTR.
    pub(super) async fn getattr(&self, by: &OnBehalf, handle: &SourceHandle) -> Result<Fattr, SourceError> {
        let request = Request::new(&self.engine, Kind::GetAttr, by);
        let told = self.engine.call::<GetAttr>(&request, &filehandle(handle)?).await?;
        let told = told.reply.map_err(|failed| source_error(failed.status))?;
        self.engine.known.note(handle, &told);
        Ok(told)
    }

    /// Attributes that came along, or else asked for.
    pub(super) async fn or_getattr(
        &self,
        by: &OnBehalf,
        handle: &SourceHandle,
        told: Option<Fattr>,
    ) -> Result<FileAttributes, SourceError> {
        match told {
            Some(told) => Ok(self.told(handle, &told)),
            None => Ok(attributes::object(&self.getattr(by, handle).await?)),
        }
    }

    /// LOOKUP: what the directory was before, and what has the name.
    async fn lookup(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<(FileAttributes, Result<Found, SourceError>), SourceError> {
        let (request, arguments) = (Request::new(&self.engine, Kind::Lookup, by), at(dir, name)?);
        let mut steady = Steady::new(self.engine.known.of(&dir.handle));
        loop {
            let before = match steady.before() {
                Some(before) => before,
                None => self.getattr(by, &dir.handle).await.inspect(|told| steady.told(*told))?,
            };
            let told = self.engine.call::<Lookup>(&request, &arguments).await?;
            let (after, found) = match told.reply {
                Ok(ok) => (ok.directory, handle(&ok.file).map(|handle| (handle, ok.attributes))),
                // These are about the directory.
                Err(failed) if matches!(failed.status, Status::Stale | Status::BadHandle | Status::Jukebox) => {
                    return Err(source_error(failed.status));
                }
                Err(failed) => (failed.told, Err(source_error(failed.status))),
            };
            if let Ok((handle, Some(told))) = &found {
                self.engine.known.note(handle, told);
            }
            if let Some(after) = &after {
                self.engine.known.note(&dir.handle, after);
            }
            let unchanged = after.is_some_and(|after| same(&after, &before));
            if let Some(told) = steady.judge(after, unchanged) {
                return Ok((attributes::object(&told), found));
            }
        }
    }

    /// ACCESS: attributes if they came along, and what was granted.
    async fn access(&self, by: &OnBehalf, handle: &SourceHandle) -> Result<(Option<Fattr>, u32), SourceError> {
        let request = Request::new(&self.engine, Kind::Access, by);
        let arguments = AccessArgs { file: filehandle(handle)?, access: attributes::ALL_ACCESS };
        let told = self.engine.call::<nfs3::Access>(&request, &arguments).await?;
        let ok = told.reply.map_err(|failed| source_error(failed.status))?;
        if let Some(told) = &ok.attributes {
            self.engine.known.note(handle, told);
        }
        Ok((ok.attributes, ok.access))
    }

    pub(super) async fn look_at(&self, by: &OnBehalf, place: &Place, want: Want) -> Result<Seen, SourceError> {
        match place {
            Place::Object(id) => {
                let object = self.object_by_handle(by, id, want).await;
                match object {
                    Err(SourceError::Unavailable) => Err(SourceError::Unavailable),
                    object => Ok(Seen { directory: None, directory_word: Word::Source, object }),
                }
            }
            Place::Name(dir, name) => {
                let (directory, found) = self.lookup(by, dir, name).await?;
                let object = match found {
                    Ok(found) => self.object_found(by, found, want).await,
                    Err(error) => Err(error),
                };
                if object == Err(SourceError::Unavailable) {
                    return Err(SourceError::Unavailable);
                }
                Ok(Seen { directory: Some(directory), directory_word: Word::Source, object })
            }
        }
    }

    /// What a handle names. What it was when it was last told says whether READ may go along at once.
    async fn object_by_handle(&self, by: &OnBehalf, id: &ObjectId, want: Want) -> Result<SeenObject, SourceError> {
        let regular = |told: &Fattr| told.kind == nfs3::FileType::Regular;
        let remembered = self.engine.known.of(&id.handle).filter(regular).is_some();
        let early = if remembered { want.read } else { 0 };
        let asking = async {
            if !want.access {
                return Ok((self.getattr(by, &id.handle).await?, None));
            }
            let (told, granted) = self.access(by, &id.handle).await?;
            let told = match told {
                Some(told) => told,
                None => self.getattr(by, &id.handle).await?,
            };
            Ok::<_, SourceError>((told, Some(granted)))
        };
        let (told, mut read) = join(asking, self.first_bytes(by, &id.handle, early)).await;
        let (told, granted) = told?;
        if want.read > 0 && early == 0 && regular(&told) {
            read = self.first_bytes(by, &id.handle, want.read).await;
        }
        self.put_together(id.handle, attributes::object(&told), granted, read)
    }

    /// What LOOKUP found, with what else is wanted.
    async fn object_found(&self, by: &OnBehalf, (handle, told): Found, want: Want) -> Result<SeenObject, SourceError> {
        let attributes = self.or_getattr(by, &handle, told).await?;
        let read = if attributes.kind == FileKind::Regular { want.read } else { 0 };
        let access = async { if want.access { self.access(by, &handle).await.map(Some) } else { Ok(None) } };
        let (granted, read) = join(access, self.first_bytes(by, &handle, read)).await;
        let granted = match granted {
            Ok(granted) => granted.map(|(_, granted)| granted),
            Err(SourceError::Unavailable) => return Err(SourceError::Unavailable),
            // The object was seen; what may be done with it is not known.
            Err(_) => None,
        };
        self.put_together(handle, attributes, granted, read)
    }

    /// The attributes that came with data are the ones to tell, since they are as old as it at least.
    fn put_together(
        &self,
        handle: SourceHandle,
        told: FileAttributes,
        granted: Option<u32>,
        read: Option<DataRead>,
    ) -> Result<SeenObject, SourceError> {
        let (attributes, data) = match read {
            Some(read) => (read.attributes, Some(read.data)),
            None => (told, None),
        };
        let access: Option<AccessMask> = granted.map(|granted| attributes::access_mask(attributes.kind, granted));
        Ok(SeenObject { id: ObjectId { fsid: attributes.fsid, handle }, attributes, access, data, word: Word::Source })
    }

    /// The first bytes of a file, if they can be had without waiting for a tape.
    async fn first_bytes(&self, by: &OnBehalf, handle: &SourceHandle, wanted: u32) -> Option<DataRead> {
        if wanted == 0 {
            return None;
        }
        let most = self.engine.facts().await.ok()?.read_max;
        self.read_steady(by, handle, 0, wanted.min(most), false).await.ok()
    }

    pub(super) async fn look_at_many(
        &self,
        by: &OnBehalf,
        places: &[Place],
        want: Want,
    ) -> Result<Vec<Result<Seen, SourceError>>, SourceError> {
        self.know_directories(by, places).await;
        let mut seen = Vec::with_capacity(places.len());
        for some in places.chunks(TOGETHER) {
            let looking: FuturesOrdered<_> = some.iter().map(|place| self.look_at(by, place, want)).collect();
            seen.extend(looking.collect::<Vec<_>>().await);
        }
        Ok(seen)
    }

    /// One GETATTR for each directory that nothing is known of, not one for each of its names.
    async fn know_directories(&self, by: &OnBehalf, places: &[Place]) {
        let mut unknown: Vec<SourceHandle> = Vec::new();
        for place in places {
            if let Place::Name(dir, _) = place
                && unknown.last() != Some(&dir.handle)
                && self.engine.known.of(&dir.handle).is_none()
                && !unknown.contains(&dir.handle)
            {
                unknown.push(dir.handle);
            }
        }
        // Those that fail are asked again, and told, by each of their names.
        let asking: FuturesOrdered<_> = unknown.iter().map(|handle| self.getattr(by, handle)).collect();
        asking.collect::<Vec<_>>().await;
    }

    /// The directory that MOUNT gave, mounted again if its handle has turned stale.
    pub(super) async fn root_object(&self, by: &OnBehalf) -> Result<SeenObject, SourceError> {
        let mut again = true;
        loop {
            let root = self.engine.mounted().await?;
            let id = ObjectId { fsid: SourceFsid(0), handle: root.handle };
            match self.object_by_handle(by, &id, Want { access: true, read: 0, open: false }).await {
                Err(SourceError::Stale | SourceError::BadHandle) if std::mem::take(&mut again) => {
                    self.engine.stale_root(root.number);
                }
                seen => return seen,
            }
        }
    }

    pub(super) async fn parent_of(&self, by: &OnBehalf, dir: &ObjectId) -> Result<SeenObject, SourceError> {
        let (_, found) = self.lookup(by, dir, b"..").await?;
        self.object_found(by, found?, Want { access: true, read: 0, open: false }).await
    }

    pub(super) async fn link_text(&self, by: &OnBehalf, link: &ObjectId) -> Result<Bytes, SourceError> {
        let request = Request::new(&self.engine, Kind::ReadLink, by);
        let told = self.engine.call::<ReadLink>(&request, &filehandle(&link.handle)?).await?;
        let ok = told.reply.map_err(|failed| source_error(failed.status))?;
        Ok(Bytes::copy_from_slice(&ok.target))
    }

    pub(super) async fn space_of(&self, by: &OnBehalf, object: &ObjectId) -> Result<SpaceAttributes, SourceError> {
        let name_max = self.engine.facts().await?.name_max;
        let request = Request::new(&self.engine, Kind::Space, by);
        let told = self.engine.call::<FsStat>(&request, &filehandle(&object.handle)?).await?;
        let ok = told.reply.map_err(|failed| source_error(failed.status))?;
        Ok(SpaceAttributes {
            space_total: ok.total_bytes,
            space_free: ok.free_bytes,
            space_available: ok.available_bytes,
            files_total: ok.total_files,
            files_free: ok.free_files,
            name_max,
        })
    }
}
