//! BACKCHANNEL_CTL (RFC 8881 §18.33).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    limits::SHORT_LIST_MAX,
    nfs4::Blob,
    rpc::{AuthFlavor, AuthSys},
    xdr::{List, Reader, Writer, Xdr, XdrError, xdr_struct},
};

xdr_struct! {
    /// `gss_cb_handles4`.
    pub struct GssCallbackHandles { service: u32, from_server: Blob, from_client: Blob }
}
/// `callback_sec_parms4`: with which identity the server may call back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallbackSecurity {
    None,
    Sys(AuthSys),
    Gss(GssCallbackHandles),
}

impl Xdr for CallbackSecurity {
    fn encode(&self, writer: &mut Writer) {
        match self {
            Self::None => writer.u32(AuthFlavor::NONE.0),
            Self::Sys(sys) => {
                writer.u32(AuthFlavor::SYS.0);
                sys.encode(writer);
            }
            Self::Gss(handles) => {
                writer.u32(AuthFlavor::RPCSEC_GSS.0);
                handles.encode(writer);
            }
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        match AuthFlavor(reader.u32()?) {
            AuthFlavor::NONE => Ok(Self::None),
            AuthFlavor::SYS => Xdr::decode(reader).map(Self::Sys),
            AuthFlavor::RPCSEC_GSS => Xdr::decode(reader).map(Self::Gss),
            AuthFlavor(value) => Err(XdrError::BadValue { name: "callback_sec_parms4", value }),
        }
    }
}
xdr_struct! { pub struct BackchannelCtlArgs { program: u32, security: List<CallbackSecurity, SHORT_LIST_MAX> } }
