//! Extended attributes (RFC 8276).
//!
//! Owns: asking for them where the source has them. Never does: the `user.` prefix, which the protocol leaves out.

use bytes::Bytes;
use forebay_proto::{
    nfs4::{
        Op, Status,
        ops::{
            getxattr::GetXattrArgs,
            listxattrs::ListXattrsArgs,
            removexattr::RemoveXattrArgs,
            setxattr::{SetXattrArgs, SetXattrOption},
        },
    },
    xdr::Opaque,
};

use super::{
    Nfs4Source, Optional,
    engine::Request,
    errors::source_error,
    wire::{self, take},
};
use crate::source::{
    ObjectId, SourceError, XattrSet,
    counters::Kind,
    remote::{Changed, OnBehalf},
};

/// Names of one object at most: what Linux lists at most, in the shortest names there are.
const NAMES_MAX: usize = 32_768;

impl Nfs4Source {
    pub(super) async fn xattr_value(&self, by: &OnBehalf, file: &ObjectId, name: &[u8]) -> Result<Bytes, SourceError> {
        self.has(file, Optional::Xattr).await?;
        let ops = vec![wire::putfh(&file.handle), Op::GetXattr(GetXattrArgs { name: wire::component(name)? })];
        let mut results = self.engine.call(Request::asking(&self.engine, Kind::Xattr, by, ops)).await?;
        take!(results, PutFh).map_err(source_error)?;
        match take!(results, GetXattr) {
            Ok(ok) => Ok(Bytes::copy_from_slice(&ok.value)),
            Err(status) => Err(self.lacks(file, Optional::Xattr, status)),
        }
    }

    pub(super) async fn xattr_names(&self, by: &OnBehalf, file: &ObjectId) -> Result<Vec<Bytes>, SourceError> {
        self.has(file, Optional::Xattr).await?;
        let room = u32::try_from(self.engine.current().await?.reply_room()).unwrap_or(u32::MAX);
        let max_count = room.saturating_sub(512).min(64 << 10);
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let ops = vec![wire::putfh(&file.handle), Op::ListXattrs(ListXattrsArgs { cookie, max_count })];
            let mut results = self.engine.call(Request::asking(&self.engine, Kind::Xattr, by, ops)).await?;
            take!(results, PutFh).map_err(source_error)?;
            let ok = match take!(results, ListXattrs) {
                Ok(ok) => ok,
                Err(status) => return Err(self.lacks(file, Optional::Xattr, status)),
            };
            names.extend(ok.names.iter().map(|name| Bytes::copy_from_slice(name)));
            if ok.eof {
                return Ok(names);
            }
            if ok.names.is_empty() || ok.cookie == cookie || names.len() > NAMES_MAX {
                return Err(SourceError::Errno(libc::EIO));
            }
            cookie = ok.cookie;
        }
    }

    pub(super) async fn xattr_put(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        name: &[u8],
        value: &Bytes,
        how: XattrSet,
    ) -> Result<Changed, SourceError> {
        self.has(file, Optional::Xattr).await?;
        let option = match how {
            XattrSet::Either => SetXattrOption::Either,
            XattrSet::Create => SetXattrOption::Create,
            XattrSet::Replace => SetXattrOption::Replace,
        };
        if value.len() > self.engine.current().await?.request_room() {
            return Err(SourceError::Errno(libc::E2BIG));
        }
        let value = Opaque::new(value.clone()).ok_or(SourceError::Errno(libc::E2BIG))?;
        let set = Op::SetXattr(SetXattrArgs { option, name: wire::component(name)?, value: value.clone() });
        let ops = vec![wire::putfh(&file.handle), set, wire::getattr(wire::OBJECT)];
        let mut results = self.engine.call(Request::changing(&self.engine, Kind::Xattr, by, ops, 1)).await?;
        take!(results, PutFh).map_err(source_error)?;
        let before = match take!(results, SetXattr) {
            Ok(info) => Some(info.before).filter(|_| info.atomic),
            Err(Status::Exist) if results.resent && self.xattr_value(by, file, name).await? == value.as_bytes() => None,
            Err(status) => return Err(self.lacks(file, Optional::Xattr, status)),
        };
        let attributes = self.attributes_after(&mut results, by, file).await?;
        Ok(Changed { before, attributes })
    }

    pub(super) async fn xattr_delete(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        name: &[u8],
    ) -> Result<Changed, SourceError> {
        self.has(file, Optional::Xattr).await?;
        let remove = Op::RemoveXattr(RemoveXattrArgs { name: wire::component(name)? });
        let ops = vec![wire::putfh(&file.handle), remove, wire::getattr(wire::OBJECT)];
        let mut results = self.engine.call(Request::changing(&self.engine, Kind::Xattr, by, ops, 1)).await?;
        take!(results, PutFh).map_err(source_error)?;
        let before = match take!(results, RemoveXattr) {
            Ok(info) => Some(info.before).filter(|_| info.atomic),
            Err(Status::NoXattr) if results.resent => None,
            Err(status) => return Err(self.lacks(file, Optional::Xattr, status)),
        };
        let attributes = self.attributes_after(&mut results, by, file).await?;
        Ok(Changed { before, attributes })
    }
}
