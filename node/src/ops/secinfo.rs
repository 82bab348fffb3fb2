//! SECINFO (RFC 8881 §18.29) and SECINFO_NO_NAME (§18.45): AUTH_SYS, and AUTH_NONE as the anonymous.

use forebay_proto::{
    nfs4::{
        Status,
        ops::secinfo::{SecInfo, SecInfoArgs, SecInfoNoNameArgs, SecInfoOk, SecInfoStyle},
    },
    rpc::AuthFlavor,
    xdr::List,
};

use super::Context;
use crate::files::names;

pub async fn run(cx: &mut Context<'_>, args: &SecInfoArgs) -> Result<SecInfoOk, Status> {
    let name = names::existing(&args.name)?;
    let node = cx.directory()?;
    cx.server.namespace.lookup(node, name, cx.caller).await.map_err(|status| names::missing(name, status))?;
    Ok(flavors(cx))
}

/// SECINFO_NO_NAME.
pub async fn no_name(cx: &mut Context<'_>, args: &SecInfoNoNameArgs) -> Result<SecInfoOk, Status> {
    match args.style {
        SecInfoStyle::CurrentFh => drop(cx.current()?),
        SecInfoStyle::Parent => drop(cx.server.namespace.parent(cx.directory()?, cx.caller).await?),
    }
    Ok(flavors(cx))
}

fn flavors(cx: &mut Context<'_>) -> SecInfoOk {
    // RFC 8881 §2.6.3.1.1.8: a reply with flavours consumes the current filehandle.
    cx.clear_current();
    let flavors = vec![SecInfo::Flavor(AuthFlavor::SYS.0), SecInfo::Flavor(AuthFlavor::NONE.0)];
    SecInfoOk { flavors: List::new(flavors).expect("two is few") }
}
