//! CLOSE (RFC 8881 §18.2): the stateid that comes back is the one that is never valid.

use forebay_proto::nfs4::{Stateid, Status, ops::close::CloseArgs};

use super::Context;

pub fn run(cx: &mut Context<'_>, args: &CloseArgs) -> Result<Stateid, Status> {
    let stateid = cx.real_stateid(&args.stateid)?;
    let key = cx.file()?.key();
    let client = cx.client()?.id;
    cx.server.files.of(key).close(key, client, &stateid)?;
    cx.set_stateid(Stateid::INVALID);
    Ok(Stateid::INVALID)
}
