//! Attributes of a source in our words, and ours in the source's.
//!
//! Owns: what stands in for attributes that a source does not have. Never does: guessing type, change, size or identity.

use forebay_proto::nfs4::{
    Attributes, DeviceNumbers, Fattr, FileType, Fsid, NfsTime, Status,
    attr::{Principal, SetTime as WireSetTime},
};

use super::identity::{Identities, Table};
use crate::source::{FileAttributes, FileKind, SetAttributes, SetTime, SourceFsid, SpaceAttributes, Time};

/// 64 bits of a file system's 128: a hash, since servers put what tells them apart in either half.
pub(super) fn fsid(fsid: Fsid) -> SourceFsid {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&fsid.major.to_be_bytes());
    bytes[8..].copy_from_slice(&fsid.minor.to_be_bytes());
    SourceFsid(xxhash_rust::xxh3::xxh3_64(&bytes))
}

/// Decodes attributes of an object.
pub(super) async fn object(identities: &Identities, fattr: &Fattr) -> Result<FileAttributes, Status> {
    told(identities, &Attributes::from_fattr(fattr)?).await
}

/// Attributes of an object from those that were told.
pub(super) async fn told(identities: &Identities, told: &Attributes) -> Result<FileAttributes, Status> {
    // Without these there is nothing to cache by; every server must have them (RFC 8881 §5.6).
    let required = (told.kind, told.change, told.size, told.fsid);
    let (Some(kind), Some(change), Some(size), Some(fs)) = required else { return Err(Status::ServerFault) };
    let uid = identities.number(Table::Users, told.owner.as_ref()).await;
    let gid = identities.number(Table::Groups, told.owner_group.as_ref()).await;
    let changed = told.time_metadata.or(told.time_modify).unwrap_or_default();
    let modified = told.time_modify.unwrap_or(changed);
    let fileid = told.fileid.unwrap_or(0);
    let device = told.raw_dev.unwrap_or(DeviceNumbers { major: 0, minor: 0 });
    Ok(FileAttributes {
        fsid: fsid(fs),
        fileid,
        mounted_on_fileid: told.mounted_on_fileid.unwrap_or(fileid),
        kind: kind_of(kind),
        mode: told.mode.unwrap_or(if kind == FileType::Directory { 0o755 } else { 0o644 }) & 0o7777,
        links: told.num_links.unwrap_or(1),
        uid,
        gid,
        size,
        space_used: told.space_used.unwrap_or(size),
        device: (device.major, device.minor),
        accessed: time(told.time_access.unwrap_or(modified)),
        modified: time(modified),
        changed: time(changed),
        created: told.time_create.map(time),
        change,
    })
}

/// Decodes attributes of a file system.
pub(super) fn space(fattr: &Fattr) -> Result<SpaceAttributes, Status> {
    let told = Attributes::from_fattr(fattr)?;
    let free = told.space_free.or(told.space_avail).unwrap_or(0);
    let files_free = told.files_free.or(told.files_avail).unwrap_or(0);
    Ok(SpaceAttributes {
        space_total: told.space_total.unwrap_or(0),
        space_free: free,
        space_available: told.space_avail.unwrap_or(free),
        files_total: told.files_total.unwrap_or(0),
        files_free,
        name_max: told.max_name.unwrap_or(255),
    })
}

/// What is to be set, as it goes over the wire.
pub(super) fn to_set(set: &SetAttributes) -> Attributes {
    Attributes {
        size: set.size,
        mode: set.mode,
        owner: set.uid.map(Principal::Id),
        owner_group: set.gid.map(Principal::Id),
        time_access_set: set.accessed.map(set_time),
        time_modify_set: set.modified.map(set_time),
        ..Attributes::default()
    }
}

fn set_time(time: SetTime) -> WireSetTime {
    match time {
        SetTime::Now => WireSetTime::ServerTime,
        SetTime::To(time) => WireSetTime::ClientTime(NfsTime { seconds: time.seconds, nanoseconds: time.nanoseconds }),
    }
}

fn time(time: NfsTime) -> Time {
    Time { seconds: time.seconds, nanoseconds: time.nanoseconds.min(999_999_999) }
}

fn kind_of(kind: FileType) -> FileKind {
    match kind {
        FileType::Regular | FileType::NamedAttribute => FileKind::Regular,
        FileType::Directory | FileType::AttributeDirectory => FileKind::Directory,
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

    fn least() -> Attributes {
        Attributes {
            kind: Some(FileType::Regular),
            change: Some(9),
            size: Some(10),
            fsid: Some(Fsid { major: 1, minor: 2 }),
            ..Attributes::default()
        }
    }

    #[tokio::test]
    async fn what_a_source_does_not_have_has_a_stand_in_and_what_it_must_have_does_not() {
        let identities = Identities::default();
        let fattr = Attributes { fileid: Some(7), ..least() }.to_fattr(&Attributes::NAMED);
        let found = object(&identities, &fattr).await.unwrap();
        assert_eq!((found.mounted_on_fileid, found.space_used, found.created, found.uid), (7, 10, None, 65_534));
        for without in [
            Attributes { kind: None, ..least() },
            Attributes { change: None, ..least() },
            Attributes { size: None, ..least() },
            Attributes { fsid: None, ..least() },
        ] {
            assert_eq!(told(&identities, &without).await, Err(Status::ServerFault));
        }
    }

    #[test]
    fn file_systems_that_differ_in_either_half_differ() {
        let all = [(0, 0), (0, 1), (1, 0), (1, 1), (u64::MAX, 0), (0, u64::MAX), (2, 1), (1, 2)];
        let folded: std::collections::HashSet<_> =
            all.iter().map(|&(major, minor)| fsid(Fsid { major, minor })).collect();
        assert_eq!(folded.len(), all.len());
    }
}
