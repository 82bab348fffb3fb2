//! Who calls: AUTH_NONE and AUTH_SYS (RFC 5531 §8.2, appendix A).

use bytes::Bytes;

use crate::{
    limits::{AUTH_BODY_MAX, AUTH_SYS_GROUPS_MAX},
    xdr::{List, Opaque, Reader, Writer, Xdr, XdrError, xdr_struct},
};

/// Flavour numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthFlavor(pub u32);

impl AuthFlavor {
    /// No identity.
    pub const NONE: Self = Self(0);
    /// uid, gid and groups as the client says.
    pub const SYS: Self = Self(1);
    /// Kerberos and kin.
    pub const RPCSEC_GSS: Self = Self(6);
}

xdr_struct! {
    /// The body of AUTH_SYS.
    pub struct AuthSys {
        /// Arbitrary; Linux sends its boot time.
        stamp: u32,
        /// The client's host name.
        machine_name: Opaque<255>,
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
        /// Further groups.
        groups: List<u32, AUTH_SYS_GROUPS_MAX>,
    }
}

/// A call's credential, parsed as far as we know its flavour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// No identity.
    None,
    /// AUTH_SYS.
    Sys(AuthSys),
    /// A flavour that is not served; its body is kept.
    Other(AuthFlavor, Bytes),
}

impl Credential {
    /// Flavour number on the wire.
    pub fn flavor(&self) -> AuthFlavor {
        match self {
            Self::None => AuthFlavor::NONE,
            Self::Sys(_) => AuthFlavor::SYS,
            Self::Other(flavor, _) => *flavor,
        }
    }
}

impl Xdr for Credential {
    fn encode(&self, writer: &mut Writer) {
        writer.u32(self.flavor().0);
        match self {
            Self::None => writer.opaque(&[]),
            Self::Sys(sys) => writer.opaque(&sys.to_bytes()),
            Self::Other(_, body) => writer.opaque(body),
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        let flavor = AuthFlavor(reader.u32()?);
        let body = reader.opaque(AUTH_BODY_MAX)?;
        match flavor {
            AuthFlavor::NONE => Ok(Self::None),
            AuthFlavor::SYS => AuthSys::from_bytes(body).map(Self::Sys),
            _ => Ok(Self::Other(flavor, body)),
        }
    }
}
