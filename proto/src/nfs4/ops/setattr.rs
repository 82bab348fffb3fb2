//! SETATTR (RFC 8881 §18.30).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    nfs4::{Bitmap, Fattr, Stateid, Status},
    xdr::xdr_struct,
};

xdr_struct! { pub struct SetAttrArgs { stateid: Stateid, attributes: Fattr } }
xdr_struct! {
    /// The result: what was set is told even when something failed.
    pub struct SetAttrReply { status: Status, attributes_set: Bitmap }
}
impl SetAttrReply {
    pub fn status(&self) -> Status {
        self.status
    }
}
