//! LOCKU (RFC 8881 §18.12).

use forebay_proto::nfs4::{Stateid, Status, ops::locku::LockUArgs};

use super::Context;
use crate::state::locks::Range;

pub async fn run(cx: &mut Context<'_>, args: &LockUArgs) -> Result<Stateid, Status> {
    let range = Range::from_wire(args.offset, args.length)?;
    let stateid = cx.real_stateid(&args.stateid)?;
    let key = cx.file()?.key();
    let client = cx.client()?.id;
    if let Some(shared) = cx.server.shared_locks() {
        let owner = cx.server.files.of(key).lock_owner(key, client, &stateid, None)?;
        shared.unlock(key, &owner, range).await?;
    }
    let stateid = cx.server.files.of(key).unlock(key, client, &stateid, range)?;
    cx.set_stateid(stateid);
    Ok(stateid)
}
