//! Two nodes and real sockets between them: what peers promise each other, and what becomes of those that break it.
#![allow(clippy::unwrap_used, reason = "in a test, failing where one stands is what is wanted")]

mod asking;
mod common;
mod forged;
mod greeting;
mod hostile;
mod killed;
mod losing;
mod pressure;
