//! RENAME (RFC 8881 §18.26): from the saved filehandle's directory to the current one's.
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    nfs4::{ChangeInfo, Component},
    xdr::xdr_struct,
};

xdr_struct! { pub struct RenameArgs { old_name: Component, new_name: Component } }
xdr_struct! { pub struct RenameOk { source: ChangeInfo, target: ChangeInfo } }
