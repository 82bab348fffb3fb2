//! What must hold for any bytes that a client calls a filehandle. Runs under `cargo test` and under libFuzzer
//! (`proto/fuzz`), which includes this file.

use bytes::Bytes;
use forebay_node::{
    files::handle::{HandleCodec, Parsed},
    source::SourceHandle,
};

/// Bytes that were not made with the key are refused; what is made of them comes back, and not with any bit changed.
pub fn filehandle(data: &[u8]) {
    let codec = HandleCodec::new(b"a fixed test key");
    if let Ok(parsed) = codec.decode(&Bytes::copy_from_slice(data)) {
        let again = codec.encode(&parsed).expect("what was decoded encodes");
        assert_eq!(again.as_bytes(), data);
    }
    let Some((number, rest)) = data.split_first_chunk::<8>() else { return };
    let number = u64::from_be_bytes(*number);
    let inline = SourceHandle::new(rest).map(|handle| Parsed::Inline((number >> 32) as u32, handle));
    for parsed in [Some(Parsed::Pseudo(number)), inline].into_iter().flatten() {
        let Some(wire) = codec.encode(&parsed) else { continue };
        assert_eq!(codec.decode(wire.as_bytes()), Ok(parsed));
        let bit = number as usize % (wire.len() * 8);
        let mut altered = wire.to_vec();
        altered[bit / 8] ^= 1 << (bit % 8);
        assert!(codec.decode(&altered.into()).is_err(), "bit {bit}");
    }
}
