//! SETATTR (RFC 8881 §18.30).

use forebay_proto::nfs4::{
    Attributes, Bitmap, Status, open,
    ops::setattr::{SetAttrArgs, SetAttrReply},
};

use super::{Authority, Context, authorize, durable, regular};
use crate::files::{Node, attributes};

pub async fn run(cx: &Context<'_>, args: &SetAttrArgs) -> SetAttrReply {
    match set(cx, args).await {
        Ok(attributes_set) => SetAttrReply { status: Status::Ok, attributes_set },
        Err(status) => SetAttrReply { status, attributes_set: Bitmap::EMPTY },
    }
}

async fn set(cx: &Context<'_>, args: &SetAttrArgs) -> Result<Bitmap, Status> {
    let Node::File(node) = cx.current()? else { return Err(Status::Rofs) };
    node.export.writable()?;
    let wanted = Attributes::from_fattr(&args.attributes)?;
    let mode = if wanted.mode_set_masked.is_some() { node.attributes(cx.caller).await?.mode } else { 0 };
    let set = attributes::to_set(&wanted, mode)?;
    let mut by_open = false;
    if set.size.is_some() {
        regular(node)?;
        by_open = authorize(cx, node, &args.stateid, open::ACCESS_WRITE).await? == Authority::Open;
    }
    node.set_attributes(cx.caller, &set, by_open).await?;
    durable(cx, [node]).await?;
    Ok(attributes::set_mask(&wanted))
}
