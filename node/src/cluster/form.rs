//! The binary form of what nodes say to each other: a version, then postcard.
//!
//! Invariant: bytes from a peer are a whole value or none; nothing may be left over.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

/// The form. A node that does not know it refuses.
const VERSION: u8 = 1;

/// A value's bytes.
pub fn encode(value: &impl Serialize) -> Bytes {
    let bytes = postcard::to_extend(value, vec![VERSION]);
    bytes.expect("our own types have a binary form, and memory grows").into()
}

/// What [`encode`] made; `None` if it is none, or longer than `longest`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], longest: usize) -> Option<T> {
    let (&version, value) = bytes.split_first()?;
    if version != VERSION || bytes.len() > longest {
        return None;
    }
    match postcard::take_from_bytes(value) {
        Ok((value, [])) => Some(value),
        _ => None,
    }
}
