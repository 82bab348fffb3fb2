//! The frame of COMPOUND (RFC 8881 §16.2): what stands before the operations and before their results.

use super::Status;
use crate::{
    limits::OPAQUE_LIMIT,
    xdr::{Opaque, Reader, Xdr, XdrError, xdr_struct},
};

xdr_struct! {
    /// `COMPOUND4args` up to the operations, which follow one by one.
    pub struct CompoundHeader {
        /// Carried back in the reply; a client's note to itself.
        tag: Opaque<OPAQUE_LIMIT>,
        /// 1 or 2.
        minor_version: u32,
        /// How many operations follow.
        operations: u32,
    }
}

xdr_struct! {
    /// `COMPOUND4res` up to the results, which follow one by one.
    pub struct ReplyHeader {
        /// The last result's status.
        status: Status,
        /// As it was sent.
        tag: Opaque<OPAQUE_LIMIT>,
        /// How many results follow.
        results: u32,
    }
}

impl ReplyHeader {
    /// Reads the whole reply: header and results.
    pub fn decode_all(reader: &mut Reader) -> Result<(Self, Vec<super::OpReply>), XdrError> {
        let header = Self::decode(reader)?;
        let mut replies = Vec::with_capacity((header.results as usize).min(reader.remaining() / 8));
        for _ in 0..header.results {
            replies.push(super::OpReply::decode(reader)?);
        }
        Ok((header, replies))
    }
}
