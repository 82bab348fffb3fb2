//! Operations in few words.

use bytes::Bytes;
use forebay_proto::nfs4::{
    Attr, Attributes, Bitmap, ClientId, Component, Fattr, FileHandle, LockType, Op, StableHow, StateOwner, Stateid,
    Verifier,
    ops::{
        access::AccessArgs,
        allocate::AllocateArgs,
        close::CloseArgs,
        copy::CopyArgs,
        create::{CreateArgs, CreateType},
        free_stateid::FreeStateidArgs,
        getattr::GetAttrArgs,
        getxattr::GetXattrArgs,
        link::LinkArgs,
        listxattrs::ListXattrsArgs,
        lock::{ExistingLockOwner, LockArgs, Locker, OpenToLockOwner},
        lockt::LockTArgs,
        locku::LockUArgs,
        lookup::LookupArgs,
        open::{CreateHow, ExclusiveCreate, OpenArgs, OpenClaim, OpenHow},
        open_downgrade::OpenDowngradeArgs,
        putfh::PutFhArgs,
        read::ReadArgs,
        readdir::ReadDirArgs,
        reclaim_complete::ReclaimCompleteArgs,
        remove::RemoveArgs,
        removexattr::RemoveXattrArgs,
        rename::RenameArgs,
        secinfo::SecInfoArgs,
        seek::{SeekArgs, SeekContent},
        setattr::SetAttrArgs,
        setxattr::{SetXattrArgs, SetXattrOption},
        test_stateid::TestStateidArgs,
        write::WriteArgs,
    },
};
use forebay_proto::xdr::{List, Opaque};

/// Access and deny bits.
pub const READ: u32 = 1;
pub const WRITE: u32 = 2;
pub const BOTH: u32 = 3;

pub fn name(name: impl AsRef<[u8]>) -> Component {
    Component::new(Bytes::copy_from_slice(name.as_ref())).unwrap()
}

/// PUTROOTFH and a LOOKUP for each part of a path.
pub fn at(path: &str) -> Vec<Op> {
    let parts = path.split('/').filter(|part| !part.is_empty()).map(lookup);
    std::iter::once(Op::PutRootFh(())).chain(parts).collect()
}

/// [`at`] and what is to be done there.
pub fn at_then(path: &str, ops: impl IntoIterator<Item = Op>) -> Vec<Op> {
    at(path).into_iter().chain(ops).collect()
}

pub fn lookup(part: impl AsRef<[u8]>) -> Op {
    Op::Lookup(LookupArgs { name: name(part) })
}

pub fn putfh(handle: &FileHandle) -> Op {
    Op::PutFh(PutFhArgs { handle: handle.clone() })
}

pub fn getfh() -> Op {
    Op::GetFh(())
}

pub fn getattr(attrs: &[Attr]) -> Op {
    Op::GetAttr(GetAttrArgs { attributes: Bitmap::of(attrs) })
}

pub fn access(access: u32) -> Op {
    Op::Access(AccessArgs { access })
}

/// A list of attributes on the wire.
pub fn fattr(attributes: &Attributes) -> Fattr {
    attributes.to_fattr(&Attributes::NAMED)
}

pub fn mode(mode: u32) -> Attributes {
    Attributes { mode: Some(mode), ..Attributes::default() }
}

pub fn size(size: u64) -> Attributes {
    Attributes { size: Some(size), ..Attributes::default() }
}

pub fn setattr(stateid: Stateid, attributes: &Attributes) -> Op {
    Op::SetAttr(SetAttrArgs { stateid, attributes: fattr(attributes) })
}

pub fn owner(owner: &str) -> StateOwner {
    // RFC 8881 §18.16.3: the server goes by the session's client, whatever is written here.
    StateOwner { clientid: ClientId(0), owner: Opaque::new(Bytes::copy_from_slice(owner.as_bytes())).unwrap() }
}

fn open_args(who: &str, share_access: u32, share_deny: u32, how: OpenHow, claim: OpenClaim) -> Op {
    Op::Open(OpenArgs { seqid: 0, share_access, share_deny, owner: owner(who), how, claim })
}

/// OPEN of a name that is there.
pub fn open(who: &str, file: &str, access: u32, deny: u32) -> Op {
    open_args(who, access, deny, OpenHow::NoCreate, OpenClaim::Null(name(file)))
}

/// OPEN that makes the file if it is not there, with mode 0644.
pub fn create(who: &str, file: &str, access: u32) -> Op {
    create_how(who, file, access, CreateHow::Unchecked(fattr(&mode(0o644))))
}

pub fn create_how(who: &str, file: &str, access: u32, how: CreateHow) -> Op {
    open_args(who, access, 0, OpenHow::Create(how), OpenClaim::Null(name(file)))
}

pub fn guarded(who: &str, file: &str) -> Op {
    create_how(who, file, BOTH, CreateHow::Guarded(fattr(&mode(0o644))))
}

pub fn exclusive(who: &str, file: &str, verifier: Verifier) -> Op {
    create_how(who, file, BOTH, CreateHow::Exclusive(verifier))
}

pub fn exclusive41(who: &str, file: &str, verifier: Verifier, attributes: &Attributes) -> Op {
    create_how(who, file, BOTH, CreateHow::Exclusive41(ExclusiveCreate { verifier, attributes: fattr(attributes) }))
}

/// OPEN of the current filehandle.
pub fn open_fh(who: &str, access: u32, deny: u32) -> Op {
    open_args(who, access, deny, OpenHow::NoCreate, OpenClaim::FileHandle)
}

/// OPEN of the current filehandle that was open before the server's restart.
pub fn reclaim(who: &str, access: u32, deny: u32) -> Op {
    open_args(who, access, deny, OpenHow::NoCreate, OpenClaim::Previous(0))
}

pub fn close(stateid: Stateid) -> Op {
    Op::Close(CloseArgs { seqid: 0, stateid })
}

pub fn downgrade(stateid: Stateid, share_access: u32, share_deny: u32) -> Op {
    Op::OpenDowngrade(OpenDowngradeArgs { stateid, seqid: 0, share_access, share_deny })
}

pub fn read(stateid: Stateid, offset: u64, count: u32) -> Op {
    Op::Read(ReadArgs { stateid, offset, count })
}

pub fn read_plus(stateid: Stateid, offset: u64, count: u32) -> Op {
    Op::ReadPlus(ReadArgs { stateid, offset, count })
}

pub fn write(stateid: Stateid, offset: u64, data: impl Into<Bytes>) -> Op {
    let data = Opaque::new(data).unwrap();
    Op::Write(WriteArgs { stateid, offset, stable: StableHow::Unstable, data })
}

pub fn lock(open: Stateid, who: &str, kind: LockType, offset: u64, length: u64) -> Op {
    lock_or_reclaim(open, who, kind, offset, length, false)
}

pub fn lock_or_reclaim(open: Stateid, who: &str, kind: LockType, offset: u64, length: u64, reclaim: bool) -> Op {
    let new = OpenToLockOwner { open_seqid: 0, open_stateid: open, lock_seqid: 0, lock_owner: owner(who) };
    Op::Lock(LockArgs { kind, reclaim, offset, length, locker: Locker::New(new) })
}

pub fn lock_more(lock_stateid: Stateid, kind: LockType, offset: u64, length: u64) -> Op {
    let locker = Locker::Existing(ExistingLockOwner { lock_stateid, lock_seqid: 0 });
    Op::Lock(LockArgs { kind, reclaim: false, offset, length, locker })
}

pub fn lockt(who: &str, kind: LockType, offset: u64, length: u64) -> Op {
    Op::LockT(LockTArgs { kind, offset, length, owner: owner(who) })
}

pub fn locku(stateid: Stateid, offset: u64, length: u64) -> Op {
    Op::LockU(LockUArgs { kind: LockType::Write, seqid: 0, stateid, offset, length })
}

pub fn free_stateid(stateid: Stateid) -> Op {
    Op::FreeStateid(FreeStateidArgs { stateid })
}

pub fn test_stateids(stateids: &[Stateid]) -> Op {
    Op::TestStateid(TestStateidArgs { stateids: List::new(stateids.to_vec()).unwrap() })
}

pub fn reclaim_complete() -> Op {
    Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })
}

pub fn make(kind: CreateType, file: impl AsRef<[u8]>) -> Op {
    Op::Create(CreateArgs { kind, name: name(file), attributes: fattr(&mode(0o755)) })
}

pub fn symlink(file: &str, target: &str) -> Op {
    make(CreateType::Symlink(Opaque::new(Bytes::copy_from_slice(target.as_bytes())).unwrap()), file)
}

pub fn remove(file: impl AsRef<[u8]>) -> Op {
    Op::Remove(RemoveArgs { name: name(file) })
}

pub fn rename(old: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Op {
    Op::Rename(RenameArgs { old_name: name(old), new_name: name(new) })
}

pub fn link(file: impl AsRef<[u8]>) -> Op {
    Op::Link(LinkArgs { name: name(file) })
}

pub fn secinfo(file: impl AsRef<[u8]>) -> Op {
    Op::SecInfo(SecInfoArgs { name: name(file) })
}

pub fn readdir(cookie: u64, verifier: Verifier, max_count: u32, attrs: &[Attr]) -> Op {
    let attributes = Bitmap::of(attrs);
    Op::ReadDir(ReadDirArgs { cookie, verifier, directory_count: max_count, max_count, attributes })
}

pub fn seek(stateid: Stateid, offset: u64, what: SeekContent) -> Op {
    Op::Seek(SeekArgs { stateid, offset, what })
}

pub fn allocate(stateid: Stateid, offset: u64, length: u64) -> Op {
    Op::Allocate(AllocateArgs { stateid, offset, length })
}

pub fn deallocate(stateid: Stateid, offset: u64, length: u64) -> Op {
    Op::Deallocate(AllocateArgs { stateid, offset, length })
}

pub fn copy(source: (Stateid, u64), target: (Stateid, u64), count: u64) -> Op {
    Op::Copy(CopyArgs {
        source_stateid: source.0,
        target_stateid: target.0,
        source_offset: source.1,
        target_offset: target.1,
        count,
        consecutive: true,
        synchronous: true,
        source_servers: List::default(),
    })
}

pub fn setxattr(option: SetXattrOption, file: impl AsRef<[u8]>, value: impl Into<Bytes>) -> Op {
    Op::SetXattr(SetXattrArgs { option, name: name(file), value: Opaque::new(value).unwrap() })
}

pub fn getxattr(file: impl AsRef<[u8]>) -> Op {
    Op::GetXattr(GetXattrArgs { name: name(file) })
}

pub fn removexattr(file: impl AsRef<[u8]>) -> Op {
    Op::RemoveXattr(RemoveXattrArgs { name: name(file) })
}

pub fn listxattrs(cookie: u64, max_count: u32) -> Op {
    Op::ListXattrs(ListXattrsArgs { cookie, max_count })
}
