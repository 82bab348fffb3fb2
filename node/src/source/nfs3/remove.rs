//! Names that come, go and move: LINK, REMOVE, RMDIR, RENAME.
//!
//! Owns: the choice between REMOVE and RMDIR; telling a refusal from what we had done ourselves before. Never does: such
//! guesses for a call that was sent once.

use forebay_proto::nfs3::{Link, LinkArgs, Procedure, Remove, Rename, RenameArgs, Rmdir, Status};

use super::{Nfs3Source, errors::source_error, look, names::unknown};
use crate::source::{
    FileKind, ObjectId, SourceError,
    counters::Kind,
    remote::{DirectoryChange, OnBehalf},
};

impl Nfs3Source {
    pub(super) async fn link_name(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<DirectoryChange, SourceError> {
        let arguments = LinkArgs { file: look::filehandle(&file.handle)?, to: look::at(dir, name)? };
        let told = self.engine.call::<Link>(&self.making(by, Kind::Link), &arguments).await?;
        match told.reply {
            Ok(done) => {
                if let Some(after) = &done.attributes {
                    self.engine.known.note(&file.handle, after);
                }
                self.change_of(by, dir, &done.directory).await
            }
            Err(failed) if failed.status == Status::Exist && told.resent => {
                let made = self.found(by, dir, name, true).await?;
                // Servers may have more than one handle for an object.
                let ours = made.object.id == *file
                    || made.object.attributes.fileid == self.getattr(by, &file.handle).await?.fileid;
                if ours { Ok(made.directory) } else { Err(source_error(Status::Exist)) }
            }
            Err(failed) => Err(source_error(failed.status)),
        }
    }

    /// REMOVE, or RMDIR where the name is a directory's: most names are not, so that is found out by trying.
    pub(super) async fn remove_name(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<DirectoryChange, SourceError> {
        match self.remove_by::<Remove>(by, dir, name).await? {
            Ok(change) => Ok(change),
            Err(Status::IsDir) => self.remove_by::<Rmdir>(by, dir, name).await?.map_err(source_error),
            // What unlink(2) says of directories on one system or another.
            Err(status @ (Status::Perm | Status::Inval | Status::NotSupp | Status::Access))
                if self.is_directory(by, dir, name).await? =>
            {
                self.remove_by::<Rmdir>(by, dir, name).await?.map_err(|other| match other {
                    Status::NotDir => source_error(status),
                    other => source_error(other),
                })
            }
            Err(status) => Err(source_error(status)),
        }
    }

    async fn is_directory(&self, by: &OnBehalf, dir: &ObjectId, name: &[u8]) -> Result<bool, SourceError> {
        match self.found(by, dir, name, false).await {
            Ok(found) => Ok(found.object.attributes.kind == FileKind::Directory),
            Err(SourceError::Unavailable) => Err(SourceError::Unavailable),
            Err(_) => Ok(false),
        }
    }

    async fn remove_by<P>(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<Result<DirectoryChange, Status>, SourceError>
    where
        P: Procedure<Arguments = <Remove as Procedure>::Arguments, Reply = <Remove as Procedure>::Reply>,
    {
        let told = self.engine.call::<P>(&self.making(by, Kind::Remove), &look::at(dir, name)?).await?;
        match told.reply {
            Ok(wcc) => self.change_of(by, dir, &wcc).await.map(Ok),
            // It is gone, and it was there when the call was sent first, or was removed by somebody else: done.
            Err(failed) if failed.status == Status::NoEnt && told.resent => {
                Ok(Ok(unknown(Some(self.or_getattr(by, &dir.handle, None).await?))))
            }
            Err(failed) => Ok(Err(failed.status)),
        }
    }

    pub(super) async fn rename_name(
        &self,
        by: &OnBehalf,
        from: (&ObjectId, &[u8]),
        to: (&ObjectId, &[u8]),
    ) -> Result<(DirectoryChange, DirectoryChange), SourceError> {
        let arguments = RenameArgs { from: look::at(from.0, from.1)?, to: look::at(to.0, to.1)? };
        let told = self.engine.call::<Rename>(&self.making(by, Kind::Rename), &arguments).await?;
        match told.reply {
            Ok(wcc) => {
                let source = self.change_of(by, from.0, &wcc.from).await?;
                Ok((source, self.change_of(by, to.0, &wcc.to).await?))
            }
            Err(failed) if failed.status == Status::NoEnt && told.resent => {
                // The old name is gone; if the new one is there, it was us.
                let target = self.found(by, to.0, to.1, true).await?.directory;
                let source = unknown(Some(self.or_getattr(by, &from.0.handle, None).await?));
                Ok((source, target))
            }
            Err(failed) => Err(source_error(failed.status)),
        }
    }
}
