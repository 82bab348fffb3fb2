//! The same checks by a real Linux kernel, of one node of a cluster of three, which owns a third of what it serves: the rest it asks the others.
//! In each test the client's node has another place among them.

#[path = "kernel_client.rs"]
#[allow(dead_code, reason = "the checks are shared with other suites")]
mod checks;
