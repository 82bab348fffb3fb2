//! Headers of replies.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_proto_fuzz::properties::rpc_reply(data));
