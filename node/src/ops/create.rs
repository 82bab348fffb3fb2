//! CREATE (RFC 8881 §18.4): anything but a regular file.

use forebay_proto::nfs4::{
    Attributes, Status,
    ops::create::{CreateArgs, CreateOk, CreateType},
};

use super::{Context, durable};
use crate::{
    files::{Node, attributes, names},
    source::NewObject,
};

pub async fn run(cx: &mut Context<'_>, args: &CreateArgs) -> Result<CreateOk, Status> {
    let name = names::new(&args.name)?;
    let directory = cx.directory_to_change()?.clone();
    let object = new_object(&args.kind)?;
    let wanted = Attributes::from_fattr(&args.attributes)?;
    let set = attributes::to_set(&wanted, 0)?;
    let mode = set.mode.unwrap_or(if matches!(object, NewObject::Directory) { 0o755 } else { 0o644 });
    let (file, change) = directory.make(cx.caller, name, &object, mode, &set).await?;
    durable(cx, [&directory]).await?;
    let node = cx.server.namespace.node(&directory.export, file).await?;
    cx.set_current(Node::File(node));
    Ok(CreateOk { change, attributes_set: attributes::set_mask(&wanted) })
}

fn new_object(kind: &CreateType) -> Result<NewObject, Status> {
    Ok(match kind {
        CreateType::Directory => NewObject::Directory,
        CreateType::Fifo => NewObject::Fifo,
        CreateType::Socket => NewObject::Socket,
        CreateType::BlockDevice(device) => NewObject::BlockDevice { major: device.major, minor: device.minor },
        CreateType::CharDevice(device) => NewObject::CharDevice { major: device.major, minor: device.minor },
        CreateType::Symlink(target) if target.is_empty() || target.contains(&0) => return Err(Status::Inval),
        CreateType::Symlink(target) if target.len() > LINK_TARGET_MAX => return Err(Status::NameTooLong),
        CreateType::Symlink(target) => NewObject::Symlink { target: target.as_bytes().clone() },
        CreateType::Other(_) => return Err(Status::BadType),
    })
}

/// Linux's PATH_MAX without the final NUL.
const LINK_TARGET_MAX: usize = 4095;
