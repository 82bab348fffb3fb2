//! Counted lists and optional items.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_proto_fuzz::properties::xdr_lists(data));
