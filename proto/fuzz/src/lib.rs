//! The properties that the targets check; they lie where `cargo test` runs them too.

#[path = "../../../node/tests/properties/filehandle.rs"]
pub mod filehandle;
#[path = "../../tests/properties/mod.rs"]
pub mod properties;
