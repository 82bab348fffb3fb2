//! Extended attributes (RFC 8276 §8.4), the `user` namespace.

use forebay_proto::{
    limits::XATTR_VALUE_MAX,
    nfs4::{
        ChangeInfo, Component, Status,
        ops::{
            getxattr::{GetXattrArgs, GetXattrOk},
            listxattrs::{ListXattrsArgs, ListXattrsOk},
            removexattr::RemoveXattrArgs,
            setxattr::{SetXattrArgs, SetXattrOption},
        },
    },
    xdr::{List, Opaque},
};

use super::{Context, durable};
use crate::{
    files::{FileNode, Node},
    source::XattrSet,
};

/// Names longer than any Linux xattr name without its `user.`.
const XATTR_NAME_MAX: usize = 255 - 5;

fn judge_name(name: &[u8]) -> Result<&[u8], Status> {
    match name {
        [] => Err(Status::Inval),
        _ if name.contains(&0) || std::str::from_utf8(name).is_err() => Err(Status::Inval),
        _ if name.len() > XATTR_NAME_MAX => Err(Status::NameTooLong),
        _ => Ok(name),
    }
}

fn object<'a>(cx: &'a Context<'_>) -> Result<&'a FileNode, Status> {
    match cx.current()? {
        Node::File(node) => Ok(node),
        Node::Pseudo(_) => Err(Status::NoXattr),
    }
}

/// GETXATTR.
pub async fn get(cx: &Context<'_>, args: &GetXattrArgs) -> Result<GetXattrOk, Status> {
    let node = object(cx)?;
    let name = judge_name(&args.name)?;
    let value = node.xattr_get(cx.caller, name).await?;
    if value.len() > cx.payload_room() as usize {
        return Err(Status::RepTooBig);
    }
    Ok(GetXattrOk { value: Opaque::new(value).ok_or(Status::Xattr2Big)? })
}

/// SETXATTR.
pub async fn set(cx: &Context<'_>, args: &SetXattrArgs) -> Result<ChangeInfo, Status> {
    let Node::File(node) = cx.current()? else { return Err(Status::Rofs) };
    node.export.writable()?;
    let name = judge_name(&args.name)?;
    if args.value.len() > XATTR_VALUE_MAX {
        return Err(Status::Xattr2Big);
    }
    let how = match args.option {
        SetXattrOption::Either => XattrSet::Either,
        SetXattrOption::Create => XattrSet::Create,
        SetXattrOption::Replace => XattrSet::Replace,
    };
    let set = node.xattr_set(cx.caller, name, args.value.as_bytes(), how).await;
    let change = set.map_err(|error| match Status::from(error) {
        // A file system that has no room left for names and values of one inode says ENOSPC.
        Status::NoSpc => Status::Xattr2Big,
        status => status,
    })?;
    durable(cx, [node]).await?;
    Ok(change)
}

/// REMOVEXATTR.
pub async fn remove(cx: &Context<'_>, args: &RemoveXattrArgs) -> Result<ChangeInfo, Status> {
    let Node::File(node) = cx.current()? else { return Err(Status::Rofs) };
    node.export.writable()?;
    let name = judge_name(&args.name)?;
    let change = node.xattr_remove(cx.caller, name).await?;
    durable(cx, [node]).await?;
    Ok(change)
}

/// LISTXATTRS: the cookie is how many names were told before.
pub async fn list(cx: &Context<'_>, args: &ListXattrsArgs) -> Result<ListXattrsOk, Status> {
    let names = match cx.current()? {
        Node::Pseudo(_) => Vec::new(),
        Node::File(node) => {
            let mut names = node.xattr_list(cx.caller).await?;
            names.sort_unstable();
            names
        }
    };
    let told = usize::try_from(args.cookie).ok().filter(|told| *told <= names.len()).ok_or(Status::BadCookie)?;
    // Cookie, count and eof stand around the names.
    let mut room = (args.max_count.min(cx.payload_room()) as usize).checked_sub(16).ok_or(Status::TooSmall)?;
    let mut fits = Vec::new();
    for name in &names[told..] {
        let Some(left) = room.checked_sub(4 + name.len().next_multiple_of(4)) else { break };
        room = left;
        fits.push(Component::new(name.clone()).ok_or(Status::ServerFault)?);
    }
    let next = told + fits.len();
    if fits.is_empty() && next < names.len() {
        return Err(Status::TooSmall);
    }
    let eof = next == names.len();
    Ok(ListXattrsOk { cookie: next as u64, names: List::new(fits).ok_or(Status::ServerFault)?, eof })
}
