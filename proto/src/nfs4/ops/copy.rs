//! COPY (RFC 7862 §15.2).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    limits::SHORT_LIST_MAX,
    nfs4::{LimitedOpaque, StableHow, Stateid, Status, Verifier},
    xdr::{List, Reader, Writer, Xdr, XdrError, xdr_struct, xdr_union},
};

xdr_struct! { pub struct NetworkAddress { network: LimitedOpaque, address: LimitedOpaque } }
xdr_union! {
    /// `netloc4`.
    pub enum SourceServer { 1 => Name(LimitedOpaque), 2 => Url(LimitedOpaque), 3 => Address(NetworkAddress) }
}
xdr_struct! {
    pub struct CopyArgs {
        source_stateid: Stateid,
        target_stateid: Stateid,
        source_offset: u64,
        target_offset: u64,
        count: u64,
        consecutive: bool,
        synchronous: bool,
        source_servers: List<SourceServer, SHORT_LIST_MAX>,
    }
}
xdr_struct! {
    /// `write_response4`.
    pub struct WriteResponse { callback_id: List<Stateid, 1>, count: u64, committed: StableHow, verifier: Verifier }
}
xdr_struct! {
    /// `copy_requirements4`.
    #[derive(Copy)]
    pub struct CopyRequirements { consecutive: bool, synchronous: bool }
}
xdr_struct! { pub struct CopyOk { response: WriteResponse, requirements: CopyRequirements } }
/// OFFLOAD_NO_REQS has a body: what the server could do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyReply {
    Ok(CopyOk),
    NoRequirements(CopyRequirements),
    Err(Status),
}

impl CopyReply {
    pub fn status(&self) -> Status {
        match self {
            Self::Ok(_) => Status::Ok,
            Self::NoRequirements(_) => Status::OffloadNoReqs,
            Self::Err(status) => *status,
        }
    }
}

impl Xdr for CopyReply {
    fn encode(&self, writer: &mut Writer) {
        self.status().encode(writer);
        match self {
            Self::Ok(body) => body.encode(writer),
            Self::NoRequirements(requirements) => requirements.encode(writer),
            Self::Err(_) => {}
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        Ok(match Status::decode(reader)? {
            Status::Ok => Self::Ok(Xdr::decode(reader)?),
            Status::OffloadNoReqs => Self::NoRequirements(Xdr::decode(reader)?),
            status => Self::Err(status),
        })
    }
}
