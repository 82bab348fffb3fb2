//! Changes of names: OPEN that creates, CREATE, LINK, REMOVE, RENAME.
//!
//! Owns: telling a change that was refused from one that we had made ourselves before. Never does: such guesses for a
//! call that was sent once.
//! Invariant: what was sent more than once is told as done only where the source shows that it is.

use forebay_proto::{
    nfs4::{
        Attr, Attributes, Bitmap, ChangeInfo, DeviceNumbers, Fattr, Op, Stateid, Status,
        attr::SetTime as WireSetTime,
        open,
        ops::{
            close::CloseArgs,
            create::{CreateArgs, CreateType},
            link::LinkArgs,
            open::{CreateHow, ExclusiveCreate, OpenArgs, OpenClaim, OpenHow, OpenOk},
            remove::RemoveArgs,
            rename::RenameArgs,
        },
    },
    xdr::Opaque,
};

use super::{
    Nfs4Source, attributes,
    engine::Request,
    errors::source_error,
    opens,
    wire::{self, Results, take},
};
use crate::source::{
    FileAttributes, FileKind, NewObject, ObjectId, SetAttributes, SetTime, SourceError, Time,
    counters::Kind,
    remote::{DirectoryChange, Made, OnBehalf, Place, SeenObject, Want, Word},
};

/// How a regular file is made.
struct Creation {
    how: CreateHow,
    /// What is set after the creation, if anything.
    after: Option<Fattr>,
    /// The access time that only this creation gives a file.
    mark: Option<Time>,
}

impl Nfs4Source {
    pub(super) async fn create_file(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        exclusive: bool,
        set: &SetAttributes,
    ) -> Result<Made, SourceError> {
        let session = self.engine.current().await?;
        let creation = creation(&session.facts.lock().exclusive, set);
        let (after, mark) = (creation.after.is_some(), creation.mark);
        // With the directory's own attributes if there is room for three more.
        let whole = session.has_room(9);
        let ops = creating(by, dir, name, creation, whole)?;
        let place = ops.iter().position(|op| matches!(op, Op::Open(_))).unwrap_or(0);
        let request = Request::changing(&self.engine, Kind::Create, by, ops, place);
        let mut results = self.engine.call(request).await?;
        take!(results, PutFh).map_err(source_error)?;
        if whole {
            take!(results, SaveFh).map_err(source_error)?;
        }
        match take!(results, Open) {
            Ok(opened) => self.created(by, dir, name, opened, after, whole, results).await,
            Err(Status::Exist) if results.resent => self.created_before(by, dir, name, mark, exclusive).await,
            Err(status) => {
                let taken = matches!(status, Status::Exist | Status::IsDir | Status::Symlink | Status::WrongType);
                if exclusive || !taken {
                    return Err(source_error(if taken { Status::Exist } else { status }));
                }
                self.found(by, dir, name, false).await
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one reply")]
    async fn created(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        opened: OpenOk,
        after: bool,
        whole: bool,
        mut results: Results,
    ) -> Result<Made, SourceError> {
        let Ok(handle) = take!(results, GetFh).and_then(|ok| wire::handle(&ok.handle)) else {
            // It is there, and nothing more is known: looking at it tells.
            return self.found(by, dir, name, true).await;
        };
        opens::return_delegation(&self.engine, &handle, &opened);
        if after {
            let status = results.next().map_or(Status::ServerFault, |reply| reply.status());
            if status != Status::Ok {
                opens::close_left_open(&self.engine, &handle, &opened, None);
                return Err(source_error(status));
            }
        }
        let told = match take!(results, GetAttr) {
            Ok(fattr) => self.attributes_of(&fattr).await.ok(),
            Err(_) => None,
        };
        opens::close_left_open(&self.engine, &handle, &opened, results.next());
        let mut directory = change(opened.change);
        if whole && take!(results, RestoreFh).is_ok() {
            directory.attributes = self.directory_after(&mut results).await;
        }
        let attributes = match told {
            Some(attributes) => attributes,
            None => return Ok(Made { directory, ..self.found(by, dir, name, true).await? }),
        };
        let id = ObjectId { fsid: attributes.fsid, handle };
        Ok(Made {
            object: SeenObject { id, attributes, access: None, data: None, word: Word::Source },
            created: true,
            directory,
        })
    }

    /// OPEN was sent twice and the name is taken: by us, if the file bears our mark.
    async fn created_before(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        mark: Option<Time>,
        exclusive: bool,
    ) -> Result<Made, SourceError> {
        let made = self.found(by, dir, name, false).await?;
        let ours = made.object.attributes.kind == FileKind::Regular && mark == Some(made.object.attributes.accessed);
        if ours || !exclusive { Ok(Made { created: ours, ..made }) } else { Err(source_error(Status::Exist)) }
    }

    /// What has the name already; what that did to the directory is not known, so what it is now is told.
    async fn found(&self, by: &OnBehalf, dir: &ObjectId, name: &[u8], created: bool) -> Result<Made, SourceError> {
        let place = Place::Name(*dir, bytes::Bytes::copy_from_slice(name));
        let seen = self.look_at(by, &place, Want::default()).await?;
        let directory = unknown(seen.directory);
        Ok(Made { object: seen.object?, created, directory })
    }

    async fn directory_after(&self, results: &mut Results) -> Option<FileAttributes> {
        let told = take!(results, GetAttr).ok()?;
        self.attributes_of(&told).await.ok()
    }

    pub(super) async fn make_object(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        object: &NewObject,
        set: &SetAttributes,
    ) -> Result<Made, SourceError> {
        let whole = self.engine.current().await?.has_room(7);
        let attributes = attributes::to_set(set).to_fattr(&Attributes::NAMED);
        let create = Op::Create(CreateArgs { kind: create_type(object)?, name: wire::component(name)?, attributes });
        let mut ops = vec![wire::putfh(&dir.handle)];
        ops.extend(whole.then_some(Op::SaveFh(())));
        let place = ops.len();
        ops.extend([create, wire::getfh(), wire::getattr(wire::OBJECT)]);
        if whole {
            ops.extend([Op::RestoreFh(()), wire::getattr(wire::OBJECT)]);
        }
        let request = Request::changing(&self.engine, Kind::Make, by, ops, place);
        let mut results = self.engine.call(request).await?;
        take!(results, PutFh).map_err(source_error)?;
        if whole {
            take!(results, SaveFh).map_err(source_error)?;
        }
        let made = match take!(results, Create) {
            Ok(made) => made,
            Err(Status::Exist) if results.resent => return self.made_before(by, dir, name, object).await,
            Err(status) => return Err(source_error(status)),
        };
        let Ok((seen, None)) = self.object_from(&mut results, None, false, 0).await else {
            return Ok(Made { directory: change(made.change), ..self.found(by, dir, name, true).await? });
        };
        let mut directory = change(made.change);
        if whole && take!(results, RestoreFh).is_ok() {
            directory.attributes = self.directory_after(&mut results).await;
        }
        Ok(Made { object: seen, created: true, directory })
    }

    /// CREATE was sent twice and the name is taken: by us, if what is there is what we wanted to make.
    async fn made_before(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        object: &NewObject,
    ) -> Result<Made, SourceError> {
        let made = self.found(by, dir, name, true).await?;
        let kind = made.object.attributes.kind;
        let ours = match object {
            NewObject::Directory => kind == FileKind::Directory,
            NewObject::Symlink { target } => {
                kind == FileKind::Symlink && self.link_text(by, &made.object.id).await? == *target
            }
            NewObject::Fifo => kind == FileKind::Fifo,
            NewObject::Socket => kind == FileKind::Socket,
            NewObject::BlockDevice { .. } => kind == FileKind::BlockDevice,
            NewObject::CharDevice { .. } => kind == FileKind::CharDevice,
        };
        if ours { Ok(made) } else { Err(source_error(Status::Exist)) }
    }

    pub(super) async fn link_name(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<DirectoryChange, SourceError> {
        let link = Op::Link(LinkArgs { name: wire::component(name)? });
        let (saved, here) = (wire::putfh(&file.handle), wire::putfh(&dir.handle));
        let ops = vec![saved, Op::SaveFh(()), here, link, wire::getattr(wire::OBJECT)];
        let mut results = self.engine.call(Request::changing(&self.engine, Kind::Link, by, ops, 3)).await?;
        take!(results, PutFh).map_err(source_error)?;
        take!(results, SaveFh).map_err(source_error)?;
        take!(results, PutFh).map_err(source_error)?;
        match take!(results, Link) {
            Ok(info) => Ok(DirectoryChange { attributes: self.directory_after(&mut results).await, ..change(info) }),
            Err(Status::Exist) if results.resent => {
                let made = self.found(by, dir, name, true).await?;
                if made.object.id == *file { Ok(made.directory) } else { Err(source_error(Status::Exist)) }
            }
            Err(status) => Err(source_error(status)),
        }
    }

    pub(super) async fn remove_name(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<DirectoryChange, SourceError> {
        let remove = Op::Remove(RemoveArgs { name: wire::component(name)? });
        let ops = vec![wire::putfh(&dir.handle), remove, wire::getattr(wire::OBJECT)];
        let mut results = self.engine.call(Request::changing(&self.engine, Kind::Remove, by, ops, 1)).await?;
        take!(results, PutFh).map_err(source_error)?;
        match take!(results, Remove) {
            Ok(info) => Ok(DirectoryChange { attributes: self.directory_after(&mut results).await, ..change(info) }),
            Err(Status::NoEnt) if results.resent => Ok(unknown(Some(self.attributes_by_handle(by, dir).await?))),
            Err(status) => Err(source_error(status)),
        }
    }

    pub(super) async fn rename_name(
        &self,
        by: &OnBehalf,
        from: (&ObjectId, &[u8]),
        to: (&ObjectId, &[u8]),
    ) -> Result<(DirectoryChange, DirectoryChange), SourceError> {
        let rename = RenameArgs { old_name: wire::component(from.1)?, new_name: wire::component(to.1)? };
        let ops = vec![
            wire::putfh(&from.0.handle),
            Op::SaveFh(()),
            wire::putfh(&to.0.handle),
            Op::Rename(rename),
            wire::getattr(wire::OBJECT),
            Op::RestoreFh(()),
            wire::getattr(wire::OBJECT),
        ];
        let mut results = self.engine.call(Request::changing(&self.engine, Kind::Rename, by, ops, 3)).await?;
        take!(results, PutFh).map_err(source_error)?;
        take!(results, SaveFh).map_err(source_error)?;
        take!(results, PutFh).map_err(source_error)?;
        match take!(results, Rename) {
            Ok(ok) => {
                let target =
                    DirectoryChange { attributes: self.directory_after(&mut results).await, ..change(ok.target) };
                let after =
                    if take!(results, RestoreFh).is_ok() { self.directory_after(&mut results).await } else { None };
                Ok((DirectoryChange { attributes: after, ..change(ok.source) }, target))
            }
            Err(Status::NoEnt) if results.resent => {
                // The old name is gone; if the new one is there, it was us.
                let target = self.found(by, to.0, to.1, true).await?.directory;
                Ok((unknown(Some(self.attributes_by_handle(by, from.0).await?)), target))
            }
            Err(status) => Err(source_error(status)),
        }
    }
}

/// EXCLUSIVE4_1 where the source can: a creation that is repeated in another session finds its own file. Since servers
/// keep its verifier in the times, which are set right afterwards, the access time takes over as the mark of the file.
fn creation(exclusive: &Bitmap, set: &SetAttributes) -> Creation {
    let mark = if set.accessed.is_none() { Some(mark()) } else { None };
    let wanted = attributes::to_set(&SetAttributes { accessed: set.accessed.or(mark.map(SetTime::To)), ..set.clone() });
    if !exclusive.has(Attr::Mode) {
        return Creation { how: CreateHow::Guarded(wanted.to_fattr(&Attributes::NAMED)), after: None, mark };
    }
    let verifier = uuid::Uuid::new_v4().as_u64_pair().0.to_be_bytes();
    let how = CreateHow::Exclusive41(ExclusiveCreate { verifier, attributes: wanted.to_fattr(exclusive) });
    let mut after = wanted;
    after.time_modify_set = after.time_modify_set.or(Some(WireSetTime::ServerTime));
    let left = after.mask().without_const(*exclusive);
    let after = Some(after.to_fattr(&left)).filter(|after| !after.mask.is_empty());
    Creation { how, after, mark }
}

/// Now, with nanoseconds that nobody else chooses.
fn mark() -> Time {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(now.as_secs()).unwrap_or(0);
    Time { seconds, nanoseconds: (uuid::Uuid::new_v4().as_u128() % 1_000_000_000) as u32 }
}

fn creating(
    by: &OnBehalf,
    dir: &ObjectId,
    name: &[u8],
    creation: Creation,
    whole: bool,
) -> Result<Vec<Op>, SourceError> {
    let mut ops = vec![wire::putfh(&dir.handle)];
    ops.extend(whole.then_some(Op::SaveFh(())));
    ops.push(Op::Open(OpenArgs {
        seqid: 0,
        share_access: open::ACCESS_WRITE | open::WANT_NO_DELEG,
        share_deny: 0,
        // Not one of the kept opens: closing this one must close none of those.
        owner: opens::owner(&by.user, open::ACCESS_BOTH),
        how: OpenHow::Create(creation.how),
        claim: OpenClaim::Null(wire::component(name)?),
    }));
    ops.push(wire::getfh());
    ops.extend(creation.after.map(|after| wire::setattr(Stateid::CURRENT, after)));
    ops.push(wire::getattr(wire::OBJECT));
    ops.push(Op::Close(CloseArgs { seqid: 0, stateid: Stateid::CURRENT }));
    if whole {
        ops.extend([Op::RestoreFh(()), wire::getattr(wire::OBJECT)]);
    }
    Ok(ops)
}

fn create_type(object: &NewObject) -> Result<CreateType, SourceError> {
    let device = |major: u32, minor: u32| DeviceNumbers { major, minor };
    Ok(match object {
        NewObject::Directory => CreateType::Directory,
        NewObject::Symlink { target } => {
            let target = Opaque::new(target.clone()).ok_or(SourceError::Errno(libc::ENAMETOOLONG))?;
            CreateType::Symlink(target)
        }
        NewObject::Fifo => CreateType::Fifo,
        NewObject::Socket => CreateType::Socket,
        NewObject::BlockDevice { major, minor } => CreateType::BlockDevice(device(*major, *minor)),
        NewObject::CharDevice { major, minor } => CreateType::CharDevice(device(*major, *minor)),
    })
}

fn change(info: ChangeInfo) -> DirectoryChange {
    DirectoryChange { atomic: info.atomic, before: info.before, after: info.after, attributes: None }
}

/// A change that we know of, but not what it was: whoever keeps the directory must not connect before and after.
fn unknown(attributes: Option<FileAttributes>) -> DirectoryChange {
    let after = attributes.as_ref().map_or(0, |attributes| attributes.change);
    DirectoryChange { atomic: false, before: after, after, attributes }
}
