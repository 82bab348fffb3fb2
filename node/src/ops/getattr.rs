//! GETATTR (RFC 8881 §18.7).

use forebay_proto::nfs4::{Attr, Bitmap, Fattr, Status, ops::getattr::GetAttrArgs};

use super::Context;
use crate::files::attributes;

pub async fn run(cx: &Context<'_>, args: &GetAttrArgs) -> Result<Fattr, Status> {
    // Attributes that can only be set are an error to ask for; unknown ones are left out of the reply.
    let write_only = Bitmap::of(&[Attr::TimeAccessSet, Attr::TimeModifySet]);
    if !args.attributes.intersection(&write_only).is_empty() {
        return Err(Status::Inval);
    }
    let mask = args.attributes.intersection(&attributes::READABLE);
    let told =
        attributes::of_node(&cx.server.namespace, cx.current()?, &mask, cx.server.lease_seconds(), cx.caller).await?;
    if mask.has(Attr::FileHandle) {
        cx.server.namespace.handles_registered().await?;
    }
    Ok(told.to_fattr(&mask))
}
