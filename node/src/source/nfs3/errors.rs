//! NFSv3 status codes in a source's words.
//!
//! Owns: the table from `nfsstat3` to [`SourceError`]. Never does: retries.

use forebay_proto::nfs3::Status;

use crate::source::SourceError;

/// What a refusal means to whoever asked.
pub(super) fn source_error(status: Status) -> SourceError {
    let errno = match status {
        Status::Stale => return SourceError::Stale,
        Status::BadHandle => return SourceError::BadHandle,
        Status::BadCookie => return SourceError::BadCookie,
        Status::Jukebox => return SourceError::Unavailable,
        Status::NotSupp => libc::EOPNOTSUPP,
        Status::Perm => libc::EPERM,
        Status::NoEnt => libc::ENOENT,
        Status::Nxio | Status::NoDev => libc::ENXIO,
        Status::Access => libc::EACCES,
        Status::Exist => libc::EEXIST,
        Status::Xdev => libc::EXDEV,
        Status::NotDir => libc::ENOTDIR,
        Status::IsDir => libc::EISDIR,
        Status::Inval | Status::BadType | Status::TooSmall => libc::EINVAL,
        Status::Fbig => libc::EFBIG,
        Status::NoSpc => libc::ENOSPC,
        Status::Rofs => libc::EROFS,
        Status::Mlink => libc::EMLINK,
        Status::NameTooLong => libc::ENAMETOOLONG,
        Status::NotEmpty => libc::ENOTEMPTY,
        Status::Dquot => libc::EDQUOT,
        Status::Io | Status::ServerFault => libc::EIO,
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
        for (status, front) in [
            (Status::Perm, "PERM"),
            (Status::NoEnt, "NOENT"),
            (Status::Access, "ACCESS"),
            (Status::Exist, "EXIST"),
            (Status::Xdev, "XDEV"),
            (Status::NotDir, "NOTDIR"),
            (Status::IsDir, "ISDIR"),
            (Status::Inval, "INVAL"),
            (Status::NoSpc, "NOSPC"),
            (Status::Rofs, "ROFS"),
            (Status::NameTooLong, "NAMETOOLONG"),
            (Status::NotEmpty, "NOTEMPTY"),
            (Status::Dquot, "DQUOT"),
            (Status::Stale, "STALE"),
            (Status::BadHandle, "BADHANDLE"),
            (Status::BadCookie, "NOT_SAME"),
            (Status::Jukebox, "DELAY"),
            (Status::NotSupp, "NOTSUPP"),
            (Status::Io, "IO"),
            (Status::Unknown(4711), "IO"),
        ] {
            assert_eq!(forebay_proto::nfs4::Status::from(source_error(status)).name(), front, "{status:?}");
        }
    }
}
