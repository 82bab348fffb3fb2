//! Operations and results of callbacks.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_proto_fuzz::properties::callbacks(data));
