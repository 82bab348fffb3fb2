//! Call and reply headers (RFC 5531 §9).

use super::{AuthFlavor, Credential, RPC_VERSION};
use crate::{
    limits::AUTH_BODY_MAX,
    xdr::{Reader, Writer, Xdr, XdrError, xdr_enum},
};

xdr_enum! {
    /// What a record is.
    pub enum MessageType {
        /// A request.
        Call = 0,
        /// An answer.
        Reply = 1,
    }
}

/// Why a record is not a call that can be answered by running it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// Not even a transaction id, or a reply where a call was expected: nothing can be answered.
    #[error("not an RPC call: {0}")]
    NotACall(XdrError),
    /// An RPC version that does not exist: answered with RPC_MISMATCH.
    #[error("RPC version {version}, not 2")]
    Version {
        /// The call's transaction id.
        xid: u32,
        /// What the caller said.
        version: u32,
    },
    /// The credential is malformed: answered with AUTH_BADCRED.
    #[error("bad credential: {error}")]
    Credential {
        /// The call's transaction id.
        xid: u32,
        /// What is wrong.
        error: XdrError,
    },
}

/// Who calls what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallHeader {
    /// Transaction id, chosen by the caller.
    pub xid: u32,
    /// Program number.
    pub program: u32,
    /// Program version.
    pub version: u32,
    /// Procedure number.
    pub procedure: u32,
    /// Who calls.
    pub credential: Credential,
}

/// A call: its header, and a reader at its arguments.
#[derive(Clone, Debug)]
pub struct Call {
    /// The header.
    pub header: CallHeader,
    /// Stands at the arguments.
    pub arguments: Reader,
}

impl Call {
    /// Reads the header of a record.
    pub fn decode(mut reader: Reader) -> Result<Self, RpcError> {
        let xid = reader.u32().map_err(RpcError::NotACall)?;
        match MessageType::decode(&mut reader).map_err(RpcError::NotACall)? {
            MessageType::Call => {}
            MessageType::Reply => return Err(RpcError::NotACall(XdrError::BadValue { name: "call", value: 1 })),
        }
        let version = reader.u32().map_err(RpcError::NotACall)?;
        if version != RPC_VERSION {
            return Err(RpcError::Version { xid, version });
        }
        Self::body(xid, reader).map_err(|error| RpcError::Credential { xid, error })
    }

    fn body(xid: u32, mut reader: Reader) -> Result<Self, XdrError> {
        let (program, version, procedure) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let credential = Credential::decode(&mut reader)?;
        let _verifier_flavor = reader.u32()?;
        reader.opaque(AUTH_BODY_MAX)?;
        Ok(Self { header: CallHeader { xid, program, version, procedure, credential }, arguments: reader })
    }
}

impl CallHeader {
    /// Appends the header; the arguments follow.
    pub fn encode(&self, writer: &mut Writer) {
        writer.u32(self.xid);
        MessageType::Call.encode(writer);
        writer.u32(RPC_VERSION);
        writer.u32(self.program);
        writer.u32(self.version);
        writer.u32(self.procedure);
        self.credential.encode(writer);
        Credential::None.encode(writer);
    }
}

/// Why a call that was understood was not run (RFC 5531 §9, `accept_stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptStatus {
    /// Results follow.
    Success,
    /// No such program here.
    ProgramUnavailable,
    /// The program is here in other versions.
    ProgramMismatch {
        /// Lowest version served.
        low: u32,
        /// Highest version served.
        high: u32,
    },
    /// No such procedure.
    ProcedureUnavailable,
    /// The arguments cannot be decoded.
    GarbageArguments,
    /// We failed.
    SystemError,
}

/// Why a caller is not who it says (RFC 5531 §9, `auth_stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthStatus(pub u32);

impl AuthStatus {
    /// Bad credential.
    pub const BAD_CREDENTIAL: Self = Self(1);
    /// Flavour too weak for this server.
    pub const TOO_WEAK: Self = Self(5);
}

/// The header of an answer; results follow only [`AcceptStatus::Success`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHeader {
    /// The call was understood.
    Accepted(AcceptStatus),
    /// An RPC version that is not served.
    RpcMismatch,
    /// The credential is not accepted.
    AuthError(AuthStatus),
}

/// An answer: its header, and a reader at its results.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Transaction id of the call.
    pub xid: u32,
    /// What became of the call.
    pub header: ReplyHeader,
    /// Stands at the results.
    pub results: Reader,
}

impl ReplyHeader {
    /// Appends the header for the call `xid`.
    pub fn encode(self, xid: u32, writer: &mut Writer) {
        writer.u32(xid);
        MessageType::Reply.encode(writer);
        match self {
            Self::Accepted(status) => {
                writer.u32(0);
                Credential::None.encode(writer);
                status.encode(writer);
            }
            Self::RpcMismatch => [1, 0, RPC_VERSION, RPC_VERSION].into_iter().for_each(|word| writer.u32(word)),
            Self::AuthError(AuthStatus(status)) => [1, 1, status].into_iter().for_each(|word| writer.u32(word)),
        }
    }
}

impl AcceptStatus {
    fn encode(self, writer: &mut Writer) {
        match self {
            Self::Success => writer.u32(0),
            Self::ProgramUnavailable => writer.u32(1),
            Self::ProgramMismatch { low, high } => [2, low, high].into_iter().for_each(|word| writer.u32(word)),
            Self::ProcedureUnavailable => writer.u32(3),
            Self::GarbageArguments => writer.u32(4),
            Self::SystemError => writer.u32(5),
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        Ok(match reader.u32()? {
            0 => Self::Success,
            1 => Self::ProgramUnavailable,
            2 => Self::ProgramMismatch { low: reader.u32()?, high: reader.u32()? },
            3 => Self::ProcedureUnavailable,
            4 => Self::GarbageArguments,
            5 => Self::SystemError,
            value => return Err(XdrError::BadValue { name: "accept_stat", value }),
        })
    }
}

impl Reply {
    /// Reads the header of a record.
    pub fn decode(mut reader: Reader) -> Result<Self, XdrError> {
        let xid = reader.u32()?;
        if MessageType::decode(&mut reader)? != MessageType::Reply {
            return Err(XdrError::BadValue { name: "reply", value: 0 });
        }
        let header = match reader.u32()? {
            0 => {
                let _verifier_flavor = AuthFlavor(reader.u32()?);
                reader.opaque(AUTH_BODY_MAX)?;
                ReplyHeader::Accepted(AcceptStatus::decode(&mut reader)?)
            }
            1 => match reader.u32()? {
                0 => {
                    let _versions = (reader.u32()?, reader.u32()?);
                    ReplyHeader::RpcMismatch
                }
                1 => ReplyHeader::AuthError(AuthStatus(reader.u32()?)),
                value => return Err(XdrError::BadValue { name: "reject_stat", value }),
            },
            value => return Err(XdrError::BadValue { name: "reply_stat", value }),
        };
        Ok(Self { xid, header, results: reader })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::AuthSys;
    use crate::xdr::{List, Opaque};

    #[test]
    fn a_call_header_comes_back_as_it_was_sent() {
        let sys = AuthSys {
            stamp: 7,
            machine_name: Opaque::new("host").unwrap(),
            uid: 1000,
            gid: 100,
            groups: List::new(vec![4, 24]).unwrap(),
        };
        for credential in [Credential::None, Credential::Sys(sys)] {
            let header = CallHeader { xid: 9, program: 100_003, version: 4, procedure: 1, credential };
            let mut writer = Writer::new();
            header.encode(&mut writer);
            let call = Call::decode(Reader::new(writer.finish().to_bytes())).unwrap();
            assert_eq!((call.header, call.arguments.remaining()), (header, 0));
        }
    }

    #[test]
    fn every_reply_header_comes_back_as_it_was_sent() {
        let accepted = [
            AcceptStatus::Success,
            AcceptStatus::ProgramUnavailable,
            AcceptStatus::ProgramMismatch { low: 4, high: 4 },
            AcceptStatus::ProcedureUnavailable,
            AcceptStatus::GarbageArguments,
            AcceptStatus::SystemError,
        ]
        .map(ReplyHeader::Accepted);
        let rejected = [ReplyHeader::RpcMismatch, ReplyHeader::AuthError(AuthStatus::TOO_WEAK)];
        for header in accepted.into_iter().chain(rejected) {
            let mut writer = Writer::new();
            header.encode(3, &mut writer);
            let reply = Reply::decode(Reader::new(writer.finish().to_bytes())).unwrap();
            assert_eq!((reply.xid, reply.header, reply.results.remaining()), (3, header, 0));
        }
    }

    #[test]
    fn seventeen_groups_are_a_bad_credential_and_a_wrong_version_is_told() {
        let mut writer = Writer::new();
        [5, 0, 2, 100_003, 4, 1, 1, 4 * (4 + 18)].into_iter().for_each(|word| writer.u32(word));
        [0, 0, 0, 0, 17].into_iter().chain(0..17).for_each(|word| writer.u32(word));
        [0, 0].into_iter().for_each(|word| writer.u32(word));
        let error = Call::decode(Reader::new(writer.finish().to_bytes())).unwrap_err();
        assert!(matches!(error, RpcError::Credential { xid: 5, .. }), "{error}");
        let mut writer = Writer::new();
        [5, 0, 3].into_iter().for_each(|word| writer.u32(word));
        let error = Call::decode(Reader::new(writer.finish().to_bytes())).unwrap_err();
        assert_eq!(error, RpcError::Version { xid: 5, version: 3 });
    }
}
