//! The Forebay node: an NFSv4.1/4.2 server over sources.
//!
//! From bytes to files: [`front`] cuts streams into COMPOUNDs and runs [`ops`], which ask [`state`] whether they may and
//! [`files`] for what they act on, which is in a [`source`].

pub mod admin;
pub mod cache;
pub mod cli;
pub mod client;
pub mod cluster;
pub mod config;
pub mod files;
pub mod front;
pub mod ops;
pub mod peer;
pub mod ring;
pub mod run;
pub mod server;
pub mod source;
pub mod state;
