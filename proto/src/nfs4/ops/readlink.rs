//! READLINK (RFC 8881 §18.24): no arguments.
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    limits::LINK_TEXT_MAX,
    xdr::{Opaque, xdr_struct},
};

xdr_struct! { pub struct ReadLinkOk { target: Opaque<LINK_TEXT_MAX> } }
