//! VERIFY (RFC 8881 §18.31) and NVERIFY (§18.15): compares as the wire does, byte by byte.

use forebay_proto::nfs4::{Attr, Attributes, Status, ops::verify::VerifyArgs};

use super::Context;
use crate::files::attributes;

pub async fn run(cx: &Context<'_>, args: &VerifyArgs) -> Result<bool, Status> {
    let mask = args.attributes.mask;
    if mask.has(Attr::RdattrError) || mask.has(Attr::TimeAccessSet) || mask.has(Attr::TimeModifySet) {
        return Err(Status::Inval);
    }
    if !mask.is_subset_of(&attributes::READABLE) {
        return Err(Status::AttrNotSupp);
    }
    // Reading the values proves that they are well-formed; comparing them needs only the bytes.
    Attributes::from_fattr(&args.attributes)?;
    let told =
        attributes::of_node(&cx.server.namespace, cx.current()?, &mask, cx.server.lease_seconds(), cx.caller).await?;
    Ok(told.to_fattr(&mask) == args.attributes)
}

/// VERIFY: goes on if they are the same.
pub async fn verify(cx: &Context<'_>, args: &VerifyArgs) -> Result<(), Status> {
    if run(cx, args).await? { Ok(()) } else { Err(Status::NotSame) }
}

/// NVERIFY: goes on if they are not.
pub async fn nverify(cx: &Context<'_>, args: &VerifyArgs) -> Result<(), Status> {
    if run(cx, args).await? { Err(Status::Same) } else { Ok(()) }
}
