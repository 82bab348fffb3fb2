//! SECINFO (RFC 8881 §18.29) and SECINFO_NO_NAME (§18.45).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    limits::SHORT_LIST_MAX,
    nfs4::{Blob, Component},
    rpc::AuthFlavor,
    xdr::{List, Reader, Writer, Xdr, XdrError, xdr_enum, xdr_struct},
};

xdr_struct! { pub struct SecInfoArgs { name: Component } }
xdr_enum! {
    /// `secinfo_style4`.
    pub enum SecInfoStyle { CurrentFh = 0, Parent = 1 }
}
xdr_struct! { pub struct SecInfoNoNameArgs { style: SecInfoStyle } }
xdr_struct! { pub struct GssInfo { oid: Blob, qop: u32, service: u32 } }
/// `secinfo4`: a flavour; GSS says more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecInfo {
    Gss(GssInfo),
    Flavor(u32),
}

impl Xdr for SecInfo {
    fn encode(&self, writer: &mut Writer) {
        match self {
            Self::Gss(info) => {
                writer.u32(AuthFlavor::RPCSEC_GSS.0);
                info.encode(writer);
            }
            Self::Flavor(flavor) => writer.u32(*flavor),
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        match AuthFlavor(reader.u32()?) {
            AuthFlavor::RPCSEC_GSS => Xdr::decode(reader).map(Self::Gss),
            AuthFlavor(flavor) => Ok(Self::Flavor(flavor)),
        }
    }
}
xdr_struct! { pub struct SecInfoOk { flavors: List<SecInfo, SHORT_LIST_MAX> } }
