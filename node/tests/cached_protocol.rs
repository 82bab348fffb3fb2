//! The protocol's rules once more, of a server that has everything from a source on the network, through the cache.
//! Its handles are 128 bytes long, so all that clients hold are keys into the plane's table.
#![allow(clippy::unwrap_used, reason = "in a test, failing where one stands is what is wanted")]

#[path = "common/mod.rs"]
#[macro_use]
mod common;

#[path = "protocol/access.rs"]
mod access;
#[path = "protocol/attributes.rs"]
mod attributes;
#[path = "protocol/channels.rs"]
mod channels;
#[path = "protocol/clients.rs"]
mod clients;
#[path = "protocol/compound.rs"]
mod compound;
#[path = "protocol/data.rs"]
mod data;
#[path = "protocol/exclusive.rs"]
mod exclusive;
#[path = "protocol/exports.rs"]
mod exports;
#[path = "protocol/grace.rs"]
mod grace;
#[path = "protocol/handles.rs"]
mod handles;
#[path = "protocol/leases.rs"]
mod leases;
#[path = "protocol/listing.rs"]
mod listing;
#[path = "protocol/locks.rs"]
mod locks;
#[path = "protocol/long_handles.rs"]
mod long_handles;
#[path = "protocol/names.rs"]
mod names;
#[path = "protocol/opens.rs"]
mod opens;
#[path = "protocol/slots.rs"]
mod slots;
#[path = "protocol/stateids.rs"]
mod stateids;
#[path = "protocol/versions.rs"]
mod versions;
