//! SETXATTR (RFC 8276 §8.4.2).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    limits::RECORD_PAYLOAD_MAX,
    nfs4::Component,
    xdr::{Opaque, xdr_enum, xdr_struct},
};

xdr_enum! {
    /// `setxattr_option4`.
    pub enum SetXattrOption { Either = 0, Create = 1, Replace = 2 }
}
xdr_struct! { pub struct SetXattrArgs { option: SetXattrOption, name: Component, value: Opaque<RECORD_PAYLOAD_MAX> } }
