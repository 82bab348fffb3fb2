//! LOCK (RFC 8881 §18.10).

use std::sync::Arc;

use forebay_proto::nfs4::{
    LimitedOpaque, LockType, StateOwner, Stateid, Status,
    ops::lock::{LockArgs, LockDenied, LockReply, Locker},
};

use super::{Context, regular};
use crate::state::{
    files::{Conflict, Denied},
    locks::{Held, LockOwner, Range},
    recovery,
};
use crate::{
    cluster::locks::{Refusal, SharedLocks},
    state::FileKey,
};

pub async fn run(cx: &mut Context<'_>, args: &LockArgs) -> LockReply<Stateid> {
    match lock(cx, args).await {
        Ok(stateid) => {
            cx.set_stateid(stateid);
            LockReply::Ok(stateid)
        }
        Err(Refused::Held(held)) => LockReply::Denied(denied(&held)),
        Err(Refused::Status(status)) => LockReply::Err(status),
    }
}

/// Why there is no lock.
enum Refused {
    Held(Held),
    Status(Status),
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// What DENIED says of the lock in the way.
pub fn denied(held: &Held) -> LockDenied {
    let owner = StateOwner {
        clientid: held.owner.client,
        owner: LimitedOpaque::new(held.owner.owner.clone()).expect("it came in under the same bound"),
    };
    let kind = if held.write { LockType::Write } else { LockType::Read };
    LockDenied { offset: held.range.first, length: held.range.wire_length(), kind, owner }
}

async fn lock(cx: &mut Context<'_>, args: &LockArgs) -> Result<Stateid, Refused> {
    let range = Range::from_wire(args.offset, args.length)?;
    let key = regular(cx.file()?)?.key();
    let client = cx.client()?.clone();
    recovery::judge(&client, args.reclaim, cx.server.in_grace())?;
    let shared = lock_for_all(cx, args, key, range).await?;
    let locked = lock_here(cx, args, key, range).await;
    if let (Err(_), Some((locks, owner))) = (&locked, shared) {
        // What the plane gave is given back; if it does not hear that now, closing the file or the client's end tells it.
        let _ = locks.unlock(key, &owner, range).await;
    }
    locked
}

/// In a cluster: takes the lock from the plane, for whom it turns out to be.
async fn lock_for_all(
    cx: &Context<'_>,
    args: &LockArgs,
    key: FileKey,
    range: Range,
) -> Result<Option<(Arc<SharedLocks>, Arc<LockOwner>)>, Refused> {
    let Some(shared) = cx.server.shared_locks().cloned() else { return Ok(None) };
    let (client, write) = (cx.client()?.id, args.kind.is_write());
    let owner = match &args.locker {
        Locker::New(new) => {
            let open = cx.real_stateid(&new.open_stateid)?;
            cx.server.files.of(key).check_lock_open(key, client, &open, write)?;
            Arc::new(LockOwner { client, owner: new.lock_owner.owner.as_bytes().clone() })
        }
        Locker::Existing(existing) => {
            let stateid = cx.real_stateid(&existing.lock_stateid)?;
            cx.server.files.of(key).lock_owner(key, client, &stateid, Some(write))?
        }
    };
    loop {
        match shared.lock(key, &owner, (range, write, args.kind.waits())).await {
            Ok(()) => return Ok(Some((shared, owner))),
            Err(Refusal::Status(status)) => return Err(status.into()),
            Err(Refusal::Shared(_)) => return Err(Status::ServerFault.into()),
            Err(Refusal::Held(held)) => {
                if !shared.expire(cx.server, held.owner.client).await {
                    return Err(if args.reclaim { Status::ReclaimConflict.into() } else { Refused::Held(held) });
                }
            }
        }
    }
}

async fn lock_here(cx: &Context<'_>, args: &LockArgs, key: FileKey, range: Range) -> Result<Stateid, Refused> {
    let (client, write) = (cx.client()?.clone(), args.kind.is_write());
    loop {
        let result = match &args.locker {
            Locker::New(new) => {
                let open = cx.real_stateid(&new.open_stateid)?;
                let owner = LockOwner { client: client.id, owner: new.lock_owner.owner.as_bytes().clone() };
                cx.server.files.of(key).lock_new(key, &open, owner, range, write)
            }
            Locker::Existing(existing) => {
                let stateid = cx.real_stateid(&existing.lock_stateid)?;
                cx.server.files.of(key).lock_more(key, client.id, &stateid, range, write)
            }
        };
        match result {
            Ok(stateid) => {
                // Freed while this call ran: nobody would free what it just got.
                if cx.server.clients.lock().owner(client.id).is_none() {
                    cx.server.free_client(client.id).await;
                    return Err(Status::BadSession.into());
                }
                return Ok(stateid);
            }
            Err(Conflict::Status(status)) => return Err(status.into()),
            Err(Conflict::Held(holder, Denied::Lock(held))) => {
                let refused = || if args.reclaim { Status::ReclaimConflict.into() } else { Refused::Held(held) };
                cx.server.conflict(holder, Status::Denied).await.map_err(|_| refused())?;
            }
            Err(Conflict::Held(_, Denied::Share)) => return Err(Status::ServerFault.into()),
        }
    }
}
