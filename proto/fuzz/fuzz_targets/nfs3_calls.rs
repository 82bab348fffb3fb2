//! Arguments of every procedure of NFSv3, MOUNT and the port mapper.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_proto_fuzz::properties::nfs3_calls(data));
