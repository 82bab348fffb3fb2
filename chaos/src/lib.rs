//! Forebay's lab. It owns what tests need from a machine: a network of their own, real Linux kernel clients in it, and servers to try.
//!
//! It never measures speed, and never touches a process, an interface or a mount that it did not make.

pub mod lab;
