//! OPEN_DOWNGRADE (RFC 8881 §18.18).

use forebay_proto::nfs4::{Stateid, Status, open, ops::open_downgrade::OpenDowngradeArgs};

use super::Context;

pub async fn run(cx: &mut Context<'_>, args: &OpenDowngradeArgs) -> Result<Stateid, Status> {
    let stateid = cx.real_stateid(&args.stateid)?;
    let access = args.share_access & !open::WANT_DELEG_MASK;
    if !(1..=3).contains(&access) || args.share_deny > 3 {
        return Err(Status::Inval);
    }
    let key = cx.file()?.key();
    let client = cx.client()?.id;
    let denied = match cx.server.shared_locks() {
        Some(shared) => {
            let (owner, deny, _) = cx.server.files.of(key).of_open(key, client, &stateid)?;
            (deny != 0).then_some((shared, owner))
        }
        None => None,
    };
    let stateid = cx.server.files.of(key).downgrade(key, client, &stateid, access, args.share_deny)?;
    if let Some((shared, owner)) = denied {
        // Fewer bits than before exclude nobody new.
        if args.share_deny == 0 {
            shared.unreserve(key, client, &owner).await?;
        } else {
            shared.reserve(key, (client, &owner), (access, args.share_deny)).await.map_err(|_| Status::Delay)?;
        }
    }
    cx.set_stateid(stateid);
    Ok(stateid)
}
