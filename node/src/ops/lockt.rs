//! LOCKT (RFC 8881 §18.11).

use forebay_proto::nfs4::{
    Status,
    ops::{lock::LockReply, lockt::LockTArgs},
};

use super::{Context, regular};
use crate::state::locks::{Held, LockOwner, Range};

pub async fn run(cx: &Context<'_>, args: &LockTArgs) -> LockReply<()> {
    match test(cx, args).await {
        Ok(None) => LockReply::Ok(()),
        Ok(Some(held)) => LockReply::Denied(super::lock::denied(&held)),
        Err(status) => LockReply::Err(status),
    }
}

async fn test(cx: &Context<'_>, args: &LockTArgs) -> Result<Option<Held>, Status> {
    let range = Range::from_wire(args.offset, args.length)?;
    let key = regular(cx.file()?)?.key();
    if cx.server.in_grace() {
        return Err(Status::Grace);
    }
    let owner = LockOwner { client: cx.client()?.id, owner: args.owner.owner.as_bytes().clone() };
    if let Some(shared) = cx.server.shared_locks() {
        loop {
            let held = shared.test(key, &owner, range, args.kind.is_write()).await?;
            match held {
                Some(held) if shared.expire(cx.server, held.owner.client).await => {}
                other => return Ok(other),
            }
        }
    }
    loop {
        let held = cx.server.files.of(key).test_lock(key, &owner, range, args.kind.is_write());
        match held {
            Some(held) if cx.server.expire_if_over(held.owner.client).await => {}
            other => return Ok(other),
        }
    }
}
