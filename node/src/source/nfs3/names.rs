//! New objects: CREATE, MKDIR, SYMLINK, MKNOD. What moves, links and removes names is in `remove`.
//!
//! Owns: telling a name that was taken from one that we had taken ourselves before. Never does: such guesses for a call
//! that was sent once.
//! Invariant: what was sent more than once is told as done only where the source shows that it is.

use bytes::Bytes;
use forebay_proto::{
    nfs3::{
        Create, CreateArgs, CreateHow, Created, DeviceData, DeviceNumbers, Mkdir, MkdirArgs, Mknod, MknodArgs,
        MknodData, Outcome, Sattr, SetTime as WireSetTime, Status, Symlink, SymlinkArgs, WccData,
    },
    xdr::Opaque,
};

use super::{
    Nfs3Source, attributes,
    engine::{Request, Told},
    errors::source_error,
    look,
};
use crate::source::{
    FileAttributes, FileKind, NewObject, ObjectId, SetAttributes, SetTime, SourceError, SourceHandle, Time,
    counters::Kind,
    remote::{DirectoryChange, Made, OnBehalf, Place, SeenObject, Want, Word},
};

/// Permissions where none are given: NFSv3 leaves them to the client, and some servers make files that nobody may open.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

impl Nfs3Source {
    pub(super) async fn create_file(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        exclusive: bool,
        set: &SetAttributes,
    ) -> Result<Made, SourceError> {
        if exclusive && let Some(made) = self.create_exclusive(by, dir, name, set).await? {
            return Ok(made);
        }
        // The access time takes the place of a verifier: nobody else gives a file this one.
        let mark = if set.accessed.is_none() { Some(mark()) } else { None };
        let wanted = SetAttributes {
            accessed: set.accessed.or(mark.map(SetTime::To)),
            mode: set.mode.or(Some(FILE_MODE)),
            ..set.clone()
        };
        let arguments =
            CreateArgs { place: look::at(dir, name)?, how: CreateHow::Guarded(attributes::to_set(&wanted)?) };
        let told = self.engine.call::<Create>(&self.making(by, Kind::Create), &arguments).await?;
        let resent = told.resent;
        match told.reply {
            Ok(created) => self.made(by, dir, name, created).await,
            Err(failed) if failed.status == Status::Exist && resent => {
                let made = self.found(by, dir, name, false).await?;
                let object = &made.object.attributes;
                let ours = object.kind == FileKind::Regular && mark == Some(object.accessed);
                if ours || !exclusive { Ok(Made { created: ours, ..made }) } else { Err(source_error(Status::Exist)) }
            }
            Err(failed) => {
                let taken = matches!(failed.status, Status::Exist | Status::IsDir);
                if exclusive || !taken {
                    return Err(source_error(if taken { Status::Exist } else { failed.status }));
                }
                self.found(by, dir, name, false).await
            }
        }
    }

    /// EXCLUSIVE: repeated with its verifier, whoever it is repeated to, it finds the file that it made. `None` if the
    /// server has no such thing. Servers keep the verifier in the times, so these are set with the other attributes.
    async fn create_exclusive(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        set: &SetAttributes,
    ) -> Result<Option<Made>, SourceError> {
        let mut wanted = attributes::to_set(set)?;
        wanted.mode = wanted.mode.or(Some(FILE_MODE));
        for time in [&mut wanted.accessed, &mut wanted.modified] {
            if *time == WireSetTime::Leave {
                *time = WireSetTime::ServerTime;
            }
        }
        let verifier = uuid::Uuid::new_v4().as_u64_pair().0.to_be_bytes();
        let arguments = CreateArgs { place: look::at(dir, name)?, how: CreateHow::Exclusive(verifier) };
        let told = self.engine.call::<Create>(&self.making(by, Kind::Create), &arguments).await?;
        let created = match told.reply {
            Ok(created) => created,
            Err(failed) if failed.status == Status::NotSupp => return Ok(None),
            Err(failed) => return Err(source_error(failed.status)),
        };
        let mut made = self.made(by, dir, name, created).await?;
        let (wcc, _) = self.setattr(by, &made.object.id, wanted).await?;
        made.object.attributes = self.or_getattr(by, &made.object.id.handle, wcc.after).await?;
        Ok(Some(made))
    }

    pub(super) async fn make_object(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        object: &NewObject,
        set: &SetAttributes,
    ) -> Result<Made, SourceError> {
        let (place, mut attributes) = (look::at(dir, name)?, attributes::to_set(set)?);
        let request = self.making(by, Kind::Make);
        let told: Told<Outcome<Created, WccData>> = match object {
            NewObject::Directory => {
                attributes.mode = attributes.mode.or(Some(DIRECTORY_MODE));
                self.engine.call::<Mkdir>(&request, &MkdirArgs { place, attributes }).await?
            }
            NewObject::Symlink { target } => {
                let target = Opaque::new(target.clone()).ok_or(SourceError::Errno(libc::ENAMETOOLONG))?;
                self.engine.call::<Symlink>(&request, &SymlinkArgs { place, attributes, target }).await?
            }
            special => {
                attributes.mode = attributes.mode.or(Some(FILE_MODE));
                let what = node(special, attributes);
                self.engine.call::<Mknod>(&request, &MknodArgs { place, what }).await?
            }
        };
        match told.reply {
            Ok(created) => self.made(by, dir, name, created).await,
            Err(failed) if failed.status == Status::Exist && told.resent => {
                self.made_before(by, dir, name, object).await
            }
            Err(failed) => Err(source_error(failed.status)),
        }
    }

    /// It was sent twice and the name is taken: by us, if what is there is what we wanted to make.
    async fn made_before(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        object: &NewObject,
    ) -> Result<Made, SourceError> {
        let made = self.found(by, dir, name, true).await?;
        let FileAttributes { kind, device, .. } = made.object.attributes;
        let ours = match object {
            NewObject::Directory => kind == FileKind::Directory,
            NewObject::Symlink { target } => {
                kind == FileKind::Symlink && self.link_text(by, &made.object.id).await? == *target
            }
            NewObject::Fifo => kind == FileKind::Fifo,
            NewObject::Socket => kind == FileKind::Socket,
            NewObject::BlockDevice { major, minor } => kind == FileKind::BlockDevice && device == (*major, *minor),
            NewObject::CharDevice { major, minor } => kind == FileKind::CharDevice && device == (*major, *minor),
        };
        if ours { Ok(made) } else { Err(source_error(Status::Exist)) }
    }

    /// A request that changes something: somebody waits for it, whatever else is said.
    pub(super) fn making(&self, by: &OnBehalf, kind: Kind) -> Request {
        Request { ahead: false, ..Request::new(&self.engine, kind, by) }
    }

    /// What was made, as its reply tells; looked up where the reply does not say what it is.
    async fn made(&self, by: &OnBehalf, dir: &ObjectId, name: &[u8], told: Created) -> Result<Made, SourceError> {
        let directory = self.change_of(by, dir, &told.directory).await?;
        let Some(file) = told.file else {
            return Ok(Made { directory, ..self.found(by, dir, name, true).await? });
        };
        let handle: SourceHandle = look::handle(&file)?;
        let attributes = self.or_getattr(by, &handle, told.attributes).await?;
        let id = ObjectId { fsid: attributes.fsid, handle };
        Ok(Made {
            object: SeenObject { id, attributes, access: None, data: None, word: Word::Source },
            created: true,
            directory,
        })
    }

    /// What has the name; what that did to the directory is not known, so what it is now is told.
    pub(super) async fn found(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        created: bool,
    ) -> Result<Made, SourceError> {
        let place = Place::Name(*dir, Bytes::copy_from_slice(name));
        let seen = self.look_at(by, &place, Want::default()).await?;
        Ok(Made { object: seen.object?, created, directory: unknown(seen.directory) })
    }

    /// What a change did to a directory.
    pub(super) async fn change_of(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        wcc: &WccData,
    ) -> Result<DirectoryChange, SourceError> {
        let attributes = self.or_getattr(by, &dir.handle, wcc.after).await?;
        match (attributes::before(wcc), wcc.after) {
            // With a clock too coarse to tell the two apart, another's change could not be told from none either.
            (Some(before), Some(_)) if before != attributes.change => {
                let after = attributes.change;
                Ok(DirectoryChange { atomic: true, before, after, attributes: Some(attributes) })
            }
            _ => Ok(unknown(Some(attributes))),
        }
    }
}

/// A change that we know of, but not what it was: whoever keeps the directory must not connect before and after.
pub(super) fn unknown(attributes: Option<FileAttributes>) -> DirectoryChange {
    let after = attributes.as_ref().map_or(0, |attributes| attributes.change);
    DirectoryChange { atomic: false, before: after, after, attributes }
}

/// Now, with nanoseconds that nobody else chooses.
fn mark() -> Time {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(now.as_secs()).unwrap_or(0);
    Time { seconds, nanoseconds: (uuid::Uuid::new_v4().as_u128() % 1_000_000_000) as u32 }
}

/// What MKNOD makes; what it does not make is never asked of it.
fn node(object: &NewObject, attributes: Sattr) -> MknodData {
    let device = |major: u32, minor: u32| DeviceData { attributes, numbers: DeviceNumbers { major, minor } };
    match object {
        NewObject::BlockDevice { major, minor } => MknodData::BlockDevice(device(*major, *minor)),
        NewObject::CharDevice { major, minor } => MknodData::CharDevice(device(*major, *minor)),
        NewObject::Socket => MknodData::Socket(attributes),
        NewObject::Fifo | NewObject::Directory | NewObject::Symlink { .. } => MknodData::Fifo(attributes),
    }
}
