//! NFS status codes in a source's words.
//!
//! Owns: the table from `nfsstat4` to [`SourceError`]. Never does: retries.

use forebay_proto::nfs4::Status;

use crate::source::SourceError;

/// Why something inside did not go well: what the server said of an operation, or why it could not be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// An operation's status.
    Status(Status),
    /// No answer.
    Source(SourceError),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

impl From<Failure> for SourceError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Status(status) => source_error(status),
            Failure::Source(error) => error,
        }
    }
}

/// Whether the server wants the same again later.
pub(super) fn is_later(status: Status) -> bool {
    matches!(status, Status::Delay | Status::Grace | Status::LayoutTryLater)
}

/// Whether a stateid was refused, so that opening the file (again) may help.
pub(super) fn refuses_stateid(status: Status) -> bool {
    matches!(
        status,
        Status::BadStateid
            | Status::StaleStateid
            | Status::OldStateid
            | Status::OpenMode
            | Status::Expired
            | Status::AdminRevoked
            | Status::DelegRevoked
            | Status::Locked
    )
}

/// What a refusal means to whoever asked.
pub(super) fn source_error(status: Status) -> SourceError {
    let errno = match status {
        Status::Stale | Status::FhExpired => return SourceError::Stale,
        Status::BadHandle | Status::NoFileHandle => return SourceError::BadHandle,
        Status::BadCookie | Status::NotSame => return SourceError::BadCookie,
        Status::Delay | Status::Grace => return SourceError::Unavailable,
        Status::Moved => {
            tracing::warn!("the source says that a file system has moved; following it is not supported");
            return SourceError::Unavailable;
        }
        Status::NotSupp | Status::AttrNotSupp | Status::OpIllegal | Status::UnionNotSupp => libc::EOPNOTSUPP,
        Status::Perm => libc::EPERM,
        Status::NoEnt => libc::ENOENT,
        Status::Nxio => libc::ENXIO,
        Status::Access | Status::WrongSec | Status::WrongCred => libc::EACCES,
        Status::Exist => libc::EEXIST,
        Status::Xdev | Status::WrongLfs => libc::EXDEV,
        Status::NotDir => libc::ENOTDIR,
        Status::IsDir => libc::EISDIR,
        Status::Symlink => libc::ELOOP,
        Status::Inval
        | Status::BadType
        | Status::WrongType
        | Status::BadOwner
        | Status::BadChar
        | Status::BadName
        | Status::TooSmall
        | Status::BadRange => libc::EINVAL,
        Status::Fbig => libc::EFBIG,
        Status::NoSpc => libc::ENOSPC,
        Status::Rofs => libc::EROFS,
        Status::Mlink => libc::EMLINK,
        Status::NameTooLong => libc::ENAMETOOLONG,
        Status::NotEmpty => libc::ENOTEMPTY,
        Status::Dquot => libc::EDQUOT,
        Status::Locked | Status::ShareDenied | Status::FileOpen | Status::Denied => libc::EBUSY,
        Status::NoXattr => libc::ENODATA,
        Status::Xattr2Big => libc::E2BIG,
        Status::Resource => libc::ENOMEM,
        Status::Io => libc::EIO,
        other => {
            tracing::warn!(status = other.name(), number = other.number(), "unexpected answer of the source");
            libc::EIO
        }
    };
    SourceError::Errno(errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_source_says_comes_back_out_of_our_own_front_as_it_was() {
        for status in [
            Status::Perm,
            Status::NoEnt,
            Status::Access,
            Status::Exist,
            Status::Xdev,
            Status::NotDir,
            Status::IsDir,
            Status::Inval,
            Status::Fbig,
            Status::NoSpc,
            Status::Rofs,
            Status::Mlink,
            Status::NameTooLong,
            Status::NotEmpty,
            Status::Dquot,
            Status::Stale,
            Status::BadHandle,
            Status::NotSupp,
            Status::Symlink,
            Status::NoXattr,
            Status::Xattr2Big,
            Status::FileOpen,
            Status::Io,
        ] {
            assert_eq!(Status::from(source_error(status)), status);
        }
    }
}
