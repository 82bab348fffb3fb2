//! Arguments of every operation.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_proto_fuzz::properties::compound_arguments(data));
