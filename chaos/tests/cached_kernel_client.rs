//! The same checks by a real Linux kernel once more, of a Forebay that has all its files from another file server and caches them.

#[path = "kernel_client.rs"]
mod checks;
