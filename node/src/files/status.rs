//! A source's refusals in NFS's words (RFC 8881 §15.1).

use forebay_proto::nfs4::Status;

use crate::source::SourceError;

impl From<SourceError> for Status {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Stale => Self::Stale,
            SourceError::BadHandle => Self::BadHandle,
            SourceError::NoHandle => Self::NotSupp,
            SourceError::Unavailable => Self::Delay,
            SourceError::BadCookie => Self::NotSame,
            SourceError::Errno(errno) => from_errno(errno),
        }
    }
}

fn from_errno(errno: i32) -> Status {
    match errno {
        libc::EPERM => Status::Perm,
        libc::ENOENT => Status::NoEnt,
        libc::ENXIO | libc::ENODEV => Status::Nxio,
        libc::EACCES => Status::Access,
        libc::EEXIST => Status::Exist,
        libc::EXDEV => Status::Xdev,
        libc::ENOTDIR => Status::NotDir,
        libc::EISDIR => Status::IsDir,
        libc::EINVAL | libc::EOVERFLOW => Status::Inval,
        libc::EFBIG => Status::Fbig,
        libc::ENOSPC => Status::NoSpc,
        libc::EROFS => Status::Rofs,
        libc::EMLINK => Status::Mlink,
        libc::ENAMETOOLONG => Status::NameTooLong,
        libc::ENOTEMPTY => Status::NotEmpty,
        libc::EDQUOT => Status::Dquot,
        libc::ESTALE => Status::Stale,
        libc::ELOOP => Status::Symlink,
        libc::EOPNOTSUPP | libc::ENOSYS => Status::NotSupp,
        libc::ENODATA => Status::NoXattr,
        libc::E2BIG | libc::ERANGE => Status::Xattr2Big,
        // A mount point or a program that runs: as if somebody had it open.
        libc::EBUSY | libc::ETXTBSY => Status::FileOpen,
        // We are short of something that comes back: the client tries again.
        libc::EAGAIN | libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EINTR => Status::Delay,
        _ => {
            tracing::warn!(errno, "the source failed; clients see NFS4ERR_IO");
            Status::Io
        }
    }
}
