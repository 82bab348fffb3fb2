//! Which operation runs what: one row each.

use forebay_proto::nfs4::{Op, OpReply, Status};

use crate::ops::{self, Context};

/// Runs one operation.
pub async fn run(cx: &mut Context<'_>, op: Op) -> OpReply {
    match op {
        Op::Access(args) => OpReply::Access(ops::access::run(cx, &args).await),
        Op::Close(args) => OpReply::Close(ops::close::run(cx, &args).await),
        Op::Commit(args) => OpReply::Commit(ops::commit::run(cx, &args).await),
        Op::Create(args) => OpReply::Create(ops::create::run(cx, &args).await),
        Op::GetAttr(args) => OpReply::GetAttr(ops::getattr::run(cx, &args).await),
        Op::GetFh(()) => OpReply::GetFh(ops::getfh::run(cx).await),
        Op::Link(args) => OpReply::Link(ops::link::run(cx, &args).await),
        Op::Lock(args) => OpReply::Lock(ops::lock::run(cx, &args).await),
        Op::LockT(args) => OpReply::LockT(ops::lockt::run(cx, &args).await),
        Op::LockU(args) => OpReply::LockU(ops::locku::run(cx, &args).await),
        Op::Lookup(args) => OpReply::Lookup(ops::lookup::run(cx, &args).await),
        Op::LookupP(()) => OpReply::LookupP(ops::lookup::parent(cx).await),
        Op::NVerify(args) => OpReply::NVerify(ops::verify::nverify(cx, &args).await),
        Op::Open(args) => OpReply::Open(ops::open::run(cx, args).await),
        Op::OpenDowngrade(args) => OpReply::OpenDowngrade(ops::open_downgrade::run(cx, &args).await),
        Op::PutFh(args) => OpReply::PutFh(ops::putfh::run(cx, &args).await),
        Op::PutPubFh(()) => OpReply::PutPubFh(ops::putfh::root(cx).await),
        Op::PutRootFh(()) => OpReply::PutRootFh(ops::putfh::root(cx).await),
        Op::Read(args) => OpReply::Read(ops::read::run(cx, &args).await),
        Op::ReadDir(args) => OpReply::ReadDir(ops::readdir::run(cx, &args).await),
        Op::ReadLink(()) => OpReply::ReadLink(ops::readlink::run(cx).await),
        Op::Remove(args) => OpReply::Remove(ops::remove::run(cx, &args).await),
        Op::Rename(args) => OpReply::Rename(ops::rename::run(cx, &args).await),
        Op::RestoreFh(()) => OpReply::RestoreFh(cx.restore()),
        Op::SaveFh(()) => OpReply::SaveFh(cx.save()),
        Op::SecInfo(args) => OpReply::SecInfo(ops::secinfo::run(cx, &args).await),
        Op::SecInfoNoName(args) => OpReply::SecInfoNoName(ops::secinfo::no_name(cx, &args).await),
        Op::SetAttr(args) => OpReply::SetAttr(ops::setattr::run(cx, &args).await),
        Op::Verify(args) => OpReply::Verify(ops::verify::verify(cx, &args).await),
        Op::Write(args) => OpReply::Write(ops::write::run(cx, args).await),
        op => sessions_and_later(cx, op).await,
    }
}

async fn sessions_and_later(cx: &mut Context<'_>, op: Op) -> OpReply {
    match op {
        Op::ExchangeId(args) => OpReply::ExchangeId(ops::exchange_id::run(cx, &args).await),
        Op::CreateSession(args) => OpReply::CreateSession(ops::create_session::run(cx, &args).await),
        Op::BindConnToSession(args) => OpReply::BindConnToSession(ops::session::bind(cx, &args)),
        Op::BackchannelCtl(args) => OpReply::BackchannelCtl(ops::session::backchannel(cx, &args)),
        Op::DestroySession(args) => OpReply::DestroySession(ops::session::destroy(cx, &args)),
        Op::DestroyClientid(args) => OpReply::DestroyClientid(ops::session::destroy_client(cx, &args).await),
        Op::ReclaimComplete(args) => OpReply::ReclaimComplete(ops::session::reclaim_complete(cx, &args).await),
        Op::FreeStateid(args) => OpReply::FreeStateid(ops::stateids::free(cx, &args)),
        Op::TestStateid(args) => OpReply::TestStateid(ops::stateids::test(cx, &args)),
        Op::Allocate(args) => OpReply::Allocate(ops::allocate::run(cx, &args, false).await),
        Op::Deallocate(args) => OpReply::Deallocate(ops::allocate::run(cx, &args, true).await),
        Op::Copy(args) => OpReply::Copy(ops::copy::run(cx, &args).await),
        Op::IoAdvise(args) => OpReply::IoAdvise(ops::io_advise::run(cx, &args).await),
        Op::ReadPlus(args) => OpReply::ReadPlus(ops::read_plus::run(cx, &args).await),
        Op::Seek(args) => OpReply::Seek(ops::seek::run(cx, &args).await),
        Op::GetXattr(args) => OpReply::GetXattr(ops::xattr::get(cx, &args).await),
        Op::SetXattr(args) => OpReply::SetXattr(ops::xattr::set(cx, &args).await),
        Op::ListXattrs(args) => OpReply::ListXattrs(ops::xattr::list(cx, &args).await),
        Op::RemoveXattr(args) => OpReply::RemoveXattr(ops::xattr::remove(cx, &args).await),
        // SEQUENCE is the frame's own; anywhere but first it is out of place.
        Op::Sequence(_) => OpReply::Sequence(Err(Status::SequencePos)),
        // Delegations, layouts, named attributes and SSV are not served.
        other => OpReply::failed(other.number(), Status::NotSupp),
    }
}

/// Bytes that the result of an operation takes at most, where it is known before it runs; the rest is checked after.
/// An operation that changes something must not run if its result would not fit.
pub fn result_bound(op: &Op) -> usize {
    match op {
        // Status and number, two change_infos, a stateid, three bitmap words, a DENIED owner.
        Op::Open(_) => 160,
        Op::Create(_) | Op::Rename(_) | Op::Remove(_) | Op::Link(_) => 64,
        Op::Lock(_) => 128,
        Op::Write(_) | Op::SetAttr(_) | Op::LockU(_) | Op::Close(_) | Op::OpenDowngrade(_) | Op::Copy(_) => 64,
        Op::SetXattr(_) | Op::RemoveXattr(_) => 32,
        _ => 8,
    }
}
