//! Filehandles (design §2): what a client holds, at most 64 bytes, with a keyed MAC.
//!
//! Layout: version, kind, fsid index (4 bytes), what the kind says, MAC (8 bytes, SipHash-2-4).

use bytes::{BufMut, Bytes, BytesMut};
use forebay_meta::state::HandleKey;
use forebay_proto::nfs4::{FileHandle, Status};
use siphasher::sip::SipHasher24;

use crate::source::SourceHandle;

/// Longest handle we give: NFSv3 data servers could not carry more.
pub const WIRE_MAX: usize = 64;
const VERSION: u8 = 1;
const HEADER: usize = 6;
const MAC: usize = 8;
const KIND_PSEUDO: u8 = 0;
const KIND_INLINE: u8 = 1;
const KIND_TABLE: u8 = 2;

/// Longest source handle that fits into ours.
pub const INLINE_MAX: usize = WIRE_MAX - HEADER - MAC;

/// What a handle says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A directory of the pseudo file system, by its id.
    Pseudo(u64),
    /// An object: fsid index and the source's handle.
    Inline(u32, SourceHandle),
    /// An object: fsid index and the key of the source's handle in the plane's table.
    Table(u32, HandleKey),
}

/// Makes and checks handles.
#[derive(Debug)]
pub struct HandleCodec {
    hasher: SipHasher24,
}

impl HandleCodec {
    /// With the cluster's key.
    pub fn new(key: &[u8; 16]) -> Self {
        Self { hasher: SipHasher24::new_with_key(key) }
    }

    /// `None` if the source's handle is too long for ours.
    pub fn encode(&self, parsed: &Parsed) -> Option<FileHandle> {
        let mut bytes = BytesMut::with_capacity(WIRE_MAX);
        bytes.put_u8(VERSION);
        match parsed {
            Parsed::Pseudo(id) => {
                bytes.put_u8(KIND_PSEUDO);
                bytes.put_u32(0);
                bytes.put_u64(*id);
            }
            Parsed::Inline(fsid, handle) => {
                bytes.put_u8(KIND_INLINE);
                bytes.put_u32(*fsid);
                bytes.put_slice(handle.as_bytes());
            }
            Parsed::Table(fsid, key) => {
                bytes.put_u8(KIND_TABLE);
                bytes.put_u32(*fsid);
                bytes.put_slice(key);
            }
        }
        if bytes.len() + MAC > WIRE_MAX {
            return None;
        }
        bytes.put_u64(self.hasher.hash(&bytes));
        FileHandle::new(bytes.freeze())
    }

    /// BADHANDLE for anything this key did not make.
    pub fn decode(&self, handle: &Bytes) -> Result<Parsed, Status> {
        let (body, mac) = handle.len().checked_sub(MAC).map(|end| handle.split_at(end)).ok_or(Status::BadHandle)?;
        let genuine = mac == self.hasher.hash(body).to_be_bytes();
        let (header, rest) = body.split_at_checked(HEADER).ok_or(Status::BadHandle)?;
        let fsid = u32::from_be_bytes([header[2], header[3], header[4], header[5]]);
        match (genuine, header[0], header[1]) {
            (true, VERSION, KIND_PSEUDO) => rest.try_into().map(u64::from_be_bytes).ok().map(Parsed::Pseudo),
            (true, VERSION, KIND_INLINE) => SourceHandle::new(rest).map(|handle| Parsed::Inline(fsid, handle)),
            (true, VERSION, KIND_TABLE) => rest.try_into().ok().map(|key| Parsed::Table(fsid, key)),
            _ => None,
        }
        .ok_or(Status::BadHandle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_with_any_bit_changed_or_any_byte_cut_is_bad() {
        let codec = HandleCodec::new(&[9; 16]);
        let inline = Parsed::Inline(3, SourceHandle::new(&[5; INLINE_MAX]).unwrap());
        for parsed in [Parsed::Pseudo(77), inline, Parsed::Table(4, [6; 16])] {
            let wire = codec.encode(&parsed).unwrap();
            assert_eq!(codec.decode(wire.as_bytes()), Ok(parsed));
            for bit in 0..wire.len() * 8 {
                let mut altered = wire.to_vec();
                altered[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(codec.decode(&altered.into()), Err(Status::BadHandle), "bit {bit}");
            }
            for length in 0..wire.len() {
                assert_eq!(codec.decode(&wire.as_bytes().slice(..length)), Err(Status::BadHandle));
            }
            let other = HandleCodec::new(&[8; 16]);
            assert_eq!(other.decode(wire.as_bytes()), Err(Status::BadHandle), "another cluster's handle");
        }
        let long = Parsed::Inline(1, SourceHandle::new(&[1; INLINE_MAX + 1]).unwrap());
        assert!(codec.encode(&long).is_none());
    }
}
