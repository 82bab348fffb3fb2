//! OPEN_DOWNGRADE (RFC 8881 §18.18).

use forebay_proto::nfs4::{Stateid, Status, open, ops::open_downgrade::OpenDowngradeArgs};

use super::Context;

pub fn run(cx: &mut Context<'_>, args: &OpenDowngradeArgs) -> Result<Stateid, Status> {
    let stateid = cx.real_stateid(&args.stateid)?;
    let access = args.share_access & !open::WANT_DELEG_MASK;
    if !(1..=3).contains(&access) || args.share_deny > 3 {
        return Err(Status::Inval);
    }
    let key = cx.file()?.key();
    let client = cx.client()?.id;
    let stateid = cx.server.files.of(key).downgrade(key, client, &stateid, access, args.share_deny)?;
    cx.set_stateid(stateid);
    Ok(stateid)
}
