//! What nodes, files and their contents are called, on the wire and on the ring.
//!
//! Owns: the names. Never does: decide where anything is ([`super::ring`] does).
//! Invariant: a name is a number of fixed width; nothing about it depends on the machine.

use serde::{Deserialize, Serialize};

use crate::xdr::{Reader, Writer, Xdr, XdrError, xdr_struct};

/// Bytes of a file that have one owner: large enough that a sequential reader seldom changes peers, small enough that a
/// large file is served by all nodes.
pub const STRIPE_BYTES: u64 = 64 << 20;

/// A node. Never used again, even if a machine comes back without its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u64);

/// Counts the states of the ring; the next membership has the next number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RingEpoch(pub u64);

/// The cluster's UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub [u8; 16]);

/// A state of a file's content: it is never given to another state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub [u8; 16]);

/// A part of a file of [`STRIPE_BYTES`], from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stripe(pub u32);

xdr_struct! {
    /// A file, the same on every node for ever.
    #[derive(Copy, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    pub struct FileKey {
        /// The file system's index in the cluster's table.
        fsid: u32,
        /// The file's number in it.
        fileid: u64,
    }
}

impl FileKey {
    /// The name as one number, as the cache keys chunks: no two files have the same.
    pub fn to_u128(self) -> u128 {
        (u128::from(self.fsid) << 64) | u128::from(self.fileid)
    }

    /// The name that 96 bits of a digest make.
    pub fn of_digest(digest: u128) -> Self {
        let low = digest & (u128::MAX >> 32);
        Self::from_u128(low).expect("96 bits are a name")
    }

    /// The inverse of [`FileKey::to_u128`], if the number is such a name.
    pub fn from_u128(number: u128) -> Option<Self> {
        let fsid = u32::try_from(number >> 64).ok()?;
        let fileid = u64::try_from(number & u128::from(u64::MAX)).expect("64 bits are left");
        Some(Self { fsid, fileid })
    }
}

impl Version {
    /// The version of a content whose name has 64 bits.
    pub fn from_content(content: u64) -> Self {
        Self(u128::from(content).to_be_bytes())
    }

    /// The content's name, if it has no more than 64 bits.
    pub fn content(self) -> Option<u64> {
        u64::try_from(u128::from_be_bytes(self.0)).ok()
    }
}

impl Stripe {
    /// The stripe that `offset` is in. Counts around after 2³² of them (256 PiB), which moves ownership and harms nothing.
    pub fn of(offset: u64) -> Self {
        Self(u32::try_from((offset / STRIPE_BYTES) & u64::from(u32::MAX)).expect("masked to 32 bits"))
    }
}

/// How much of the ring a node takes, relative to the others. [`Weight::STANDARD`] is what a node of the cluster's
/// usual size has; the scale is fixed once per cluster, since another scale would move nearly everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u32);

impl Weight {
    /// The smallest: a sixty-fourth of a usual node.
    pub const MIN: Self = Self(1);
    /// A usual node's.
    pub const STANDARD: Self = Self(64);
    /// The largest: sixteen usual nodes. A larger one would be the whole cluster's bottleneck.
    pub const MAX: Self = Self(1024);

    /// `None` outside of [`Weight::MIN`] to [`Weight::MAX`].
    pub fn new(weight: u32) -> Option<Self> {
        (Self::MIN.0..=Self::MAX.0).contains(&weight).then_some(Self(weight))
    }

    /// The weight of a node with a cache of `bytes` where a usual one has `standard_bytes`, rounded to what can be told.
    pub fn of_cache(bytes: u64, standard_bytes: u64) -> Self {
        let standard = u128::from(standard_bytes.max(1));
        let units = (u128::from(bytes) * u128::from(Self::STANDARD.0) + standard / 2) / standard;
        Self(u32::try_from(units).unwrap_or(u32::MAX).clamp(Self::MIN.0, Self::MAX.0))
    }

    /// As a number.
    pub fn units(self) -> u32 {
        self.0
    }
}

impl Xdr for Weight {
    fn encode(&self, writer: &mut Writer) {
        writer.u32(self.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
        let value = reader.u32()?;
        Self::new(value).ok_or(XdrError::BadValue { name: "Weight", value })
    }
}

/// A newtype goes over the wire as what is in it.
macro_rules! transparent {
    ($($name:ident),*) => { $(
        impl Xdr for $name {
            fn encode(&self, writer: &mut Writer) {
                self.0.encode(writer);
            }
            fn decode(reader: &mut Reader) -> Result<Self, XdrError> {
                Xdr::decode(reader).map(Self)
            }
        }
    )* };
}

transparent!(NodeId, RingEpoch, ClusterId, Version, Stripe);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_cache_come_back() {
        for key in [FileKey { fsid: 0, fileid: 0 }, FileKey { fsid: u32::MAX, fileid: u64::MAX }] {
            assert_eq!(FileKey::from_u128(key.to_u128()), Some(key));
        }
        assert_eq!(FileKey::from_u128(1 << 96), None);
        assert_eq!(FileKey::of_digest((5 << 96) | 7), FileKey { fsid: 0, fileid: 7 });
        assert_eq!(Version::from_content(u64::MAX).content(), Some(u64::MAX));
        assert_eq!(Version([1; 16]).content(), None);
    }

    #[test]
    fn stripes_begin_where_they_should() {
        let stripes = [(0, 0), (STRIPE_BYTES - 1, 0), (STRIPE_BYTES, 1), (u64::MAX, u32::MAX)];
        stripes.into_iter().for_each(|(offset, stripe)| assert_eq!(Stripe::of(offset), Stripe(stripe)));
    }

    #[test]
    fn weights_follow_the_cache_within_their_bounds() {
        let tib = 1_u64 << 40;
        let cases = [(0, 1), (tib, 64), (tib / 2, 32), (3 * tib, 192), (tib / 64 / 3, 1), (u64::MAX, 1024)];
        cases.into_iter().for_each(|(bytes, units)| assert_eq!(Weight::of_cache(bytes, tib).units(), units));
        assert_eq!(Weight::of_cache(1, 0), Weight::STANDARD);
        assert_eq!((Weight::new(0), Weight::new(1025)), (None, None));
    }
}
