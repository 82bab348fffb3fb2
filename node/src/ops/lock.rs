//! LOCK (RFC 8881 §18.10).

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
    let write = args.kind.is_write();
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
