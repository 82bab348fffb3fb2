//! Attributes of a node (RFC 8881 §5): which are served, and their values.

use forebay_proto::{
    limits::IO_MAX,
    nfs4::{Attr, Attributes, Bitmap, DeviceNumbers, FileType, Fsid, NfsTime, Status, attr::Principal},
};

use super::{Caller, FileNode, Namespace, Node, names::NAME_MAX};
use crate::source::{FileAttributes, FileKind, ObjectId, SetAttributes, SetTime, SpaceAttributes, Time};

/// What GETATTR can tell.
pub const READABLE: Bitmap = Bitmap::of(&[
    Attr::SupportedAttrs,
    Attr::Type,
    Attr::FhExpireType,
    Attr::Change,
    Attr::Size,
    Attr::LinkSupport,
    Attr::SymlinkSupport,
    Attr::NamedAttr,
    Attr::Fsid,
    Attr::UniqueHandles,
    Attr::LeaseTime,
    Attr::RdattrError,
    Attr::AclSupport,
    Attr::CanSetTime,
    Attr::CaseInsensitive,
    Attr::CasePreserving,
    Attr::ChownRestricted,
    Attr::FileHandle,
    Attr::FileId,
    Attr::FilesAvail,
    Attr::FilesFree,
    Attr::FilesTotal,
    Attr::Homogeneous,
    Attr::MaxFileSize,
    Attr::MaxLink,
    Attr::MaxName,
    Attr::MaxRead,
    Attr::MaxWrite,
    Attr::Mode,
    Attr::NoTrunc,
    Attr::NumLinks,
    Attr::Owner,
    Attr::OwnerGroup,
    Attr::RawDev,
    Attr::SpaceAvail,
    Attr::SpaceFree,
    Attr::SpaceTotal,
    Attr::SpaceUsed,
    Attr::TimeAccess,
    Attr::TimeCreate,
    Attr::TimeDelta,
    Attr::TimeMetadata,
    Attr::TimeModify,
    Attr::MountedOnFileId,
    Attr::SuppattrExclcreat,
    Attr::ChangeAttrType,
    Attr::XattrSupport,
]);

/// What SETATTR can set and nobody can read.
const WRITE_ONLY: Bitmap = Bitmap::of(&[Attr::TimeAccessSet, Attr::TimeModifySet, Attr::ModeSetMasked]);

/// What SETATTR can set.
pub const WRITABLE: Bitmap =
    Bitmap::of(&[Attr::Size, Attr::Mode, Attr::Owner, Attr::OwnerGroup]).union_const(WRITE_ONLY);

/// `supported_attrs`.
pub const SUPPORTED: Bitmap = READABLE.union_const(WRITE_ONLY);

/// What EXCLUSIVE4_1 can set: the times hold its verifier, so they cannot.
const EXCLUSIVE: Bitmap = Bitmap::of(&[Attr::Size, Attr::Mode, Attr::Owner, Attr::OwnerGroup, Attr::ModeSetMasked]);

/// Attributes that only a `statvfs` can tell.
const SPACE: Bitmap = Bitmap::of(&[
    Attr::FilesAvail,
    Attr::FilesFree,
    Attr::FilesTotal,
    Attr::SpaceAvail,
    Attr::SpaceFree,
    Attr::SpaceTotal,
    Attr::MaxName,
]);

/// What READDIR knows from the directory alone.
pub const FROM_DIRECTORY: Bitmap = Bitmap::of(&[Attr::RdattrError]);

/// RFC 7862 §12.2.3: `NFS4_CHANGE_TYPE_IS_UNDEFINED`.
const CHANGE_IS_UNDEFINED: u32 = 4;

/// The attributes of `node` that `mask` asks for.
pub async fn of_node(
    namespace: &Namespace,
    node: &Node,
    mask: &Bitmap,
    lease_seconds: u32,
    caller: &Caller,
) -> Result<Attributes, Status> {
    let file = match node {
        Node::Pseudo(place) => return of_pseudo(namespace, *place, mask, lease_seconds),
        Node::File(file) => file,
    };
    let told = file.attributes(caller).await?;
    let space = if wants_space(mask) { Some(file.space(caller).await?) } else { None };
    of_file(namespace, file, (&told, space), mask, lease_seconds)
}

/// The attributes of a pseudo directory that `mask` asks for.
pub fn of_pseudo(namespace: &Namespace, place: usize, mask: &Bitmap, lease_seconds: u32) -> Result<Attributes, Status> {
    let mut attributes = common(mask, lease_seconds);
    if mask.has(Attr::FileHandle) {
        attributes.filehandle = Some(namespace.handle(&Node::Pseudo(place))?);
    }
    pseudo(namespace, place, &mut attributes);
    Ok(attributes)
}

/// The attributes of an object that `mask` asks for, out of what its source told.
pub fn of_file(
    namespace: &Namespace,
    file: &FileNode,
    (told, space): (&FileAttributes, Option<SpaceAttributes>),
    mask: &Bitmap,
    lease_seconds: u32,
) -> Result<Attributes, Status> {
    let mut attributes = common(mask, lease_seconds);
    if mask.has(Attr::FileHandle) {
        attributes.filehandle = Some(namespace.file_handle(file.fsid, file.file.handle())?);
    }
    told_by_source(namespace, file.fsid, told, &mut attributes);
    if file.file.is_root() {
        attributes.mounted_on_fileid = Some(namespace.mounted_on(&file.export));
    }
    if mask.has(Attr::XattrSupport) {
        attributes.xattr_support = Some(file.export.source.has_xattrs());
    }
    set_space(space, &mut attributes);
    Ok(attributes)
}

/// Whether `mask` asks for what only a question about the file system tells.
pub fn wants_space(mask: &Bitmap) -> bool {
    !mask.intersection(&SPACE).is_empty()
}

/// The attributes of an object on the file system with index `fsid` that a listing told of.
pub fn of_told(
    namespace: &Namespace,
    (fsid, id): (u32, &ObjectId),
    (told, space): (&FileAttributes, Option<SpaceAttributes>),
    mask: &Bitmap,
    lease_seconds: u32,
) -> Result<Attributes, Status> {
    let mut attributes = common(mask, lease_seconds);
    if mask.has(Attr::FileHandle) {
        attributes.filehandle = Some(namespace.file_handle(fsid, &id.handle)?);
    }
    told_by_source(namespace, fsid, told, &mut attributes);
    set_space(space, &mut attributes);
    Ok(attributes)
}

fn set_space(space: Option<SpaceAttributes>, attributes: &mut Attributes) {
    let Some(space) = space else { return };
    attributes.files_avail = Some(space.files_free);
    attributes.files_free = Some(space.files_free);
    attributes.files_total = Some(space.files_total);
    attributes.space_avail = Some(space.space_available);
    attributes.space_free = Some(space.space_free);
    attributes.space_total = Some(space.space_total);
    attributes.max_name = Some(space.name_max);
}

/// What is the same for every object.
fn common(mask: &Bitmap, lease_seconds: u32) -> Attributes {
    let mut attributes = Attributes { rdattr_error: Some(Status::Ok), ..Attributes::default() };
    // A client asks for these once per mount; the hot GETATTR skips them all.
    const RARE: Bitmap = READABLE.without_const(Bitmap::of(&[
        Attr::Type,
        Attr::Change,
        Attr::Size,
        Attr::Fsid,
        Attr::FileId,
        Attr::Mode,
        Attr::NumLinks,
        Attr::Owner,
        Attr::OwnerGroup,
        Attr::RawDev,
        Attr::SpaceUsed,
        Attr::TimeAccess,
        Attr::TimeMetadata,
        Attr::TimeModify,
        Attr::MountedOnFileId,
        Attr::FileHandle,
        Attr::RdattrError,
    ]));
    if mask.intersection(&RARE).is_empty() {
        return attributes;
    }
    attributes.supported_attrs = Some(SUPPORTED);
    attributes.fh_expire_type = Some(0);
    attributes.link_support = Some(true);
    attributes.symlink_support = Some(true);
    attributes.named_attr = Some(false);
    attributes.unique_handles = Some(true);
    attributes.lease_time = Some(lease_seconds);
    attributes.acl_support = Some(0);
    attributes.can_set_time = Some(true);
    attributes.case_insensitive = Some(false);
    attributes.case_preserving = Some(true);
    attributes.chown_restricted = Some(true);
    attributes.files_avail = Some(0);
    attributes.files_free = Some(0);
    attributes.files_total = Some(0);
    attributes.homogeneous = Some(true);
    attributes.max_file_size = Some(i64::MAX.cast_unsigned());
    attributes.max_link = Some(65_000);
    attributes.max_name = Some(NAME_MAX as u32);
    attributes.max_read = Some(u64::from(IO_MAX));
    attributes.max_write = Some(u64::from(IO_MAX));
    attributes.no_trunc = Some(true);
    attributes.space_avail = Some(0);
    attributes.space_free = Some(0);
    attributes.space_total = Some(0);
    attributes.time_delta = Some(NfsTime { seconds: 0, nanoseconds: 1 });
    attributes.suppattr_exclcreat = Some(EXCLUSIVE);
    attributes.change_attr_type = Some(CHANGE_IS_UNDEFINED);
    attributes.xattr_support = Some(true);
    attributes
}

fn pseudo(namespace: &Namespace, place: usize, attributes: &mut Attributes) {
    let directory = namespace.pseudo(place);
    // The pseudo file system changes only with the configuration, so its times say nothing and its change is its shape.
    let never = NfsTime { seconds: 0, nanoseconds: 0 };
    let names = directory.children.iter().flat_map(|(name, _)| [&name[..], b"/"]).collect::<Vec<_>>().concat();
    attributes.kind = Some(FileType::Directory);
    attributes.change = Some(xxhash_rust::xxh3::xxh3_64(&names) | 1);
    attributes.size = Some(4096);
    attributes.fsid = Some(Fsid { major: namespace.fsid_major(), minor: 0 });
    attributes.fileid = Some(directory.id);
    attributes.mounted_on_fileid = Some(directory.id);
    attributes.mode = Some(0o555);
    attributes.num_links = Some(2 + directory.children.len() as u32);
    attributes.owner = Some(Principal::Id(0));
    attributes.owner_group = Some(Principal::Id(0));
    attributes.raw_dev = Some(DeviceNumbers { major: 0, minor: 0 });
    attributes.space_used = Some(4096);
    attributes.time_access = Some(never);
    attributes.time_create = Some(never);
    attributes.time_metadata = Some(never);
    attributes.time_modify = Some(never);
}

fn told_by_source(namespace: &Namespace, fsid: u32, told: &FileAttributes, attributes: &mut Attributes) {
    attributes.kind = Some(file_type(told.kind));
    attributes.change = Some(told.change);
    attributes.size = Some(told.size);
    attributes.fsid = Some(Fsid { major: namespace.fsid_major(), minor: u64::from(fsid) });
    attributes.fileid = Some(told.fileid);
    attributes.mounted_on_fileid = Some(told.mounted_on_fileid);
    attributes.mode = Some(told.mode);
    attributes.num_links = Some(told.links);
    attributes.owner = Some(Principal::Id(told.uid));
    attributes.owner_group = Some(Principal::Id(told.gid));
    attributes.raw_dev = Some(DeviceNumbers { major: told.device.0, minor: told.device.1 });
    attributes.space_used = Some(told.space_used);
    attributes.time_access = Some(nfs_time(told.accessed));
    attributes.time_create = told.created.map(nfs_time);
    attributes.time_metadata = Some(nfs_time(told.changed));
    attributes.time_modify = Some(nfs_time(told.modified));
}

/// `nfs_ftype4` of a kind.
pub fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::Regular,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::CharDevice => FileType::CharDevice,
    }
}

fn nfs_time(time: Time) -> NfsTime {
    NfsTime { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

/// What SETATTR, CREATE or OPEN ask to set, judged; `current_mode` counts only where bits of it are to stay (RFC 8881 §5.6, §18.30.3).
pub fn to_set(wanted: &Attributes, current_mode: u32) -> Result<SetAttributes, Status> {
    let mask = wanted.mask();
    if !mask.is_subset_of(&SUPPORTED) {
        return Err(Status::AttrNotSupp);
    }
    if !mask.is_subset_of(&WRITABLE) {
        return Err(Status::Inval);
    }
    let mode = match (wanted.mode, wanted.mode_set_masked) {
        (Some(_), Some(_)) => return Err(Status::Inval),
        (Some(mode), None) => Some(mode),
        (None, Some(masked)) => Some(current_mode & !masked.mask | masked.mode & masked.mask),
        (None, None) => None,
    };
    if mode.is_some_and(|mode| mode > 0o7777) {
        return Err(Status::Inval);
    }
    if wanted.size.is_some_and(|size| size > i64::MAX.cast_unsigned()) {
        return Err(Status::Fbig);
    }
    Ok(SetAttributes {
        size: wanted.size,
        mode,
        uid: wanted.owner.as_ref().map(id).transpose()?,
        gid: wanted.owner_group.as_ref().map(id).transpose()?,
        accessed: wanted.time_access_set.map(set_time).transpose()?,
        modified: wanted.time_modify_set.map(set_time).transpose()?,
    })
}

/// Which bits of `wanted` a successful change has set.
pub fn set_mask(wanted: &Attributes) -> Bitmap {
    wanted.mask().intersection(&WRITABLE)
}

fn id(principal: &Principal) -> Result<u32, Status> {
    match principal {
        // chown(2) takes all ones for "leave it".
        Principal::Id(id) if *id != u32::MAX => Ok(*id),
        _ => Err(Status::BadOwner),
    }
}

fn set_time(how: forebay_proto::nfs4::attr::SetTime) -> Result<SetTime, Status> {
    use forebay_proto::nfs4::attr::SetTime as Wire;
    match how {
        Wire::ServerTime => Ok(SetTime::Now),
        Wire::ClientTime(time) if time.nanoseconds < 1_000_000_000 => {
            Ok(SetTime::To(Time { seconds: time.seconds, nanoseconds: time.nanoseconds }))
        }
        Wire::ClientTime(_) => Err(Status::Inval),
    }
}
