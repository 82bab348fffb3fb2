//! READDIR (RFC 8881 §18.23).
#![allow(missing_docs, reason = "fields carry the RFC's meanings")]

use crate::{
    nfs4::{Bitmap, Component, Fattr, Verifier},
    xdr::{Reader, Writer, Xdr, XdrError, xdr_struct},
};

xdr_struct! {
    pub struct ReadDirArgs { cookie: u64, verifier: Verifier, directory_count: u32, max_count: u32, attributes: Bitmap }
}
xdr_struct! {
    /// `entry4`.
    pub struct Entry { cookie: u64, name: Component, attributes: Fattr }
}
/// `dirlist4` and its verifier: entries form a chain of optional items on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadDirOk {
    pub verifier: Verifier,
    pub entries: Vec<Entry>,
    pub eof: bool,
}

impl Xdr for ReadDirOk {
    fn encode(&self, writer: &mut Writer) {
        self.verifier.encode(writer);
        for entry in &self.entries {
            true.encode(writer);
            entry.encode(writer);
        }
        false.encode(writer);
        self.eof.encode(writer);
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        let verifier = Xdr::decode(reader)?;
        let mut entries = Vec::new();
        // Each entry takes at least 20 bytes of the record, so the record's bound is this list's.
        while bool::decode(reader)? {
            entries.push(Xdr::decode(reader)?);
        }
        Ok(Self { verifier, entries, eof: Xdr::decode(reader)? })
    }
}
