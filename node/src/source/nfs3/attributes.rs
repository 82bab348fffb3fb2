//! Attributes of a source in our words, and ours in the source's.
//!
//! Owns: what stands in for attributes that NFSv3 does not have. Never does: asking.
//! Invariant: the change attribute is made of `ctime` alone, wherever it comes from, so that those before and after a
//! change can be compared with those told at other times.

use forebay_proto::nfs3::{Fattr, FileType, NfsTime, Sattr, SetTime as WireSetTime, WccData, access};

use crate::source::{AccessMask, FileAttributes, FileKind, SetAttributes, SetTime, SourceError, SourceFsid, Time};

/// What is asked of ACCESS.
pub(super) const ALL_ACCESS: u32 =
    access::READ | access::LOOKUP | access::MODIFY | access::EXTEND | access::DELETE | access::EXECUTE;

/// The change attribute: nanoseconds since 1970. The largest that can be sent is below 2^63.
pub(super) fn change(changed: NfsTime) -> u64 {
    u64::from(changed.seconds) * 1_000_000_000 + u64::from(changed.nanoseconds)
}

/// The change attribute just before a change, where the source tells it.
pub(super) fn before(wcc: &WccData) -> Option<u64> {
    wcc.before.map(|attributes| change(attributes.changed))
}

/// Attributes of an object.
pub(super) fn object(told: &Fattr) -> FileAttributes {
    FileAttributes {
        fsid: SourceFsid(told.fsid),
        fileid: told.fileid,
        mounted_on_fileid: told.fileid,
        kind: kind(told.kind),
        mode: told.mode & 0o7777,
        links: told.links,
        uid: told.uid,
        gid: told.gid,
        size: told.size,
        space_used: told.used,
        device: (told.device.major, told.device.minor),
        accessed: time(told.accessed),
        modified: time(told.modified),
        changed: time(told.changed),
        created: None,
        change: change(told.changed),
    }
}

/// The three questions of `access(2)` from what ACCESS granted.
pub(super) fn access_mask(kind: FileKind, granted: u32) -> AccessMask {
    let execute = if kind == FileKind::Directory { access::LOOKUP } else { access::EXECUTE };
    AccessMask {
        read: granted & access::READ != 0,
        write: granted & access::MODIFY != 0,
        execute: granted & execute != 0,
    }
}

/// What is to be set, as it goes over the wire.
///
/// # Errors
/// `EINVAL` for times before 1970 or after 2106, which NFSv3 cannot say.
pub(super) fn to_set(set: &SetAttributes) -> Result<Sattr, SourceError> {
    Ok(Sattr {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        accessed: set_time(set.accessed)?,
        modified: set_time(set.modified)?,
    })
}

fn set_time(time: Option<SetTime>) -> Result<WireSetTime, SourceError> {
    Ok(match time {
        None => WireSetTime::Leave,
        Some(SetTime::Now) => WireSetTime::ServerTime,
        Some(SetTime::To(time)) => {
            let seconds = u32::try_from(time.seconds).map_err(|_| SourceError::Errno(libc::EINVAL))?;
            WireSetTime::ClientTime(NfsTime { seconds, nanoseconds: time.nanoseconds })
        }
    })
}

fn time(time: NfsTime) -> Time {
    Time { seconds: time.seconds.into(), nanoseconds: time.nanoseconds.min(999_999_999) }
}

fn kind(kind: FileType) -> FileKind {
    match kind {
        FileType::Regular => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::CharDevice => FileKind::CharDevice,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_cannot_be_said_are_refused_and_others_are_said_as_they_are() {
        let set = |seconds| SetAttributes {
            modified: Some(SetTime::To(Time { seconds, nanoseconds: 7 })),
            ..SetAttributes::default()
        };
        for seconds in [-1, 1 << 32] {
            assert_eq!(to_set(&set(seconds)), Err(SourceError::Errno(libc::EINVAL)));
        }
        let told = to_set(&set(u32::MAX.into())).unwrap();
        assert_eq!(told.modified, WireSetTime::ClientTime(NfsTime { seconds: u32::MAX, nanoseconds: 7 }));
        assert_eq!(told.accessed, WireSetTime::Leave);
    }

    #[test]
    fn the_change_attribute_grows_with_every_nanosecond_and_never_overflows() {
        let at = |seconds, nanoseconds| change(NfsTime { seconds, nanoseconds });
        assert!(at(1, 999_999_999) < at(2, 0) && at(2, 0) < at(2, 1));
        assert!(at(u32::MAX, u32::MAX) < 1 << 63);
    }
}
