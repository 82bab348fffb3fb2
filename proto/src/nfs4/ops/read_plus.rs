//! READ_PLUS (RFC 7862 §15.10).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    limits::{LONG_LIST_MAX, RECORD_PAYLOAD_MAX},
    xdr::{List, Opaque, xdr_struct, xdr_union},
};

xdr_struct! { pub struct DataContent { offset: u64, data: Opaque<RECORD_PAYLOAD_MAX> } }
xdr_struct! { pub struct HoleContent { offset: u64, length: u64 } }
xdr_union! {
    /// `read_plus_content`.
    pub enum ReadPlusContent { 0 => Data(DataContent), 1 => Hole(HoleContent) }
}
xdr_struct! { pub struct ReadPlusOk { eof: bool, contents: List<ReadPlusContent, LONG_LIST_MAX> } }

impl ReadPlusOk {
    /// Bytes of file data in the reply.
    pub fn data_bytes(&self) -> u64 {
        let bytes = |content: &ReadPlusContent| match content {
            ReadPlusContent::Data(data) => data.data.len() as u64,
            ReadPlusContent::Hole(_) => 0,
        };
        self.contents.iter().map(bytes).sum()
    }
}
