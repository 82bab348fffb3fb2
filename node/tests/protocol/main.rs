//! The protocol's rules, asked of a server in this process by a client that may break them. Each test is named by the
//! rule that it proves; sections are RFC 8881's.
#![allow(clippy::unwrap_used, reason = "in a test, failing where one stands is what is wanted")]

#[path = "../common/mod.rs"]
#[macro_use]
mod common;

mod access;
mod attributes;
mod channels;
mod clients;
mod compound;
mod data;
mod exclusive;
mod exports;
mod grace;
mod handles;
mod leases;
mod listing;
mod locks;
mod names;
mod opens;
mod slots;
mod stateids;
mod versions;
