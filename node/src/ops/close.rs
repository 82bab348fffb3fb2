//! CLOSE (RFC 8881 §18.2): the stateid that comes back is the one that is never valid.

use forebay_proto::nfs4::{Stateid, Status, ops::close::CloseArgs};

use super::Context;
use crate::files::node::blocking;

pub async fn run(cx: &mut Context<'_>, args: &CloseArgs) -> Result<Stateid, Status> {
    let stateid = cx.real_stateid(&args.stateid)?;
    let key = cx.file()?.key();
    let client = cx.client()?.id;
    if let Some(shared) = cx.server.shared_locks() {
        let (owner, deny, lockers) = cx.server.files.of(key).of_open(key, client, &stateid)?;
        for locker in lockers {
            shared.release_owner(key, &locker).await?;
        }
        if deny != 0 {
            shared.unreserve(key, client, &owner).await?;
        }
    }
    let kept = cx.server.files.of(key).close(key, client, &stateid)?;
    if kept.is_some() {
        // The last open of a file without names: its blocks are freed now.
        blocking(move || drop(kept)).await?;
    }
    cx.set_stateid(Stateid::INVALID);
    Ok(Stateid::INVALID)
}
