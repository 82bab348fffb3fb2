//! ACCESS (RFC 8881 §18.1).

use forebay_proto::nfs4::{
    Status, access,
    ops::access::{AccessArgs, AccessOk},
};

use super::Context;
use crate::{files::Node, source::FileKind};

pub async fn run(cx: &Context<'_>, args: &AccessArgs) -> Result<AccessOk, Status> {
    let every = access::READ | access::LOOKUP | access::MODIFY | access::EXTEND | access::DELETE | access::EXECUTE;
    let xattr = access::XATTR_READ | access::XATTR_WRITE | access::XATTR_LIST;
    let known = if cx.minor_version >= 2 { every | xattr } else { every };
    if args.access & !(every | xattr) != 0 {
        return Err(Status::Inval);
    }
    let node = match cx.current()? {
        Node::Pseudo(_) => {
            let granted = (access::READ | access::LOOKUP) & args.access;
            return Ok(AccessOk { supported: args.access & known, access: granted });
        }
        Node::File(node) => node,
    };
    let may = node.access(cx.caller).await?;
    let directory = node.kind() == FileKind::Directory;
    // DELETE asks about an entry's removal, EXECUTE and LOOKUP exclude each other: RFC 8881 §18.1.3.
    let supported = args.access & known & !if directory { access::EXECUTE } else { access::LOOKUP | access::DELETE };
    let mut granted = 0;
    if may.read {
        granted |= access::READ | access::XATTR_READ | access::XATTR_LIST;
    }
    if may.execute {
        granted |= access::LOOKUP | access::EXECUTE;
    }
    if may.write && node.export.writable().is_ok() {
        granted |= access::MODIFY | access::EXTEND | access::DELETE | access::XATTR_WRITE;
    }
    Ok(AccessOk { supported, access: granted & supported })
}
