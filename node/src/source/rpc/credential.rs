//! AUTH_SYS (RFC 5531 appendix A) of those for whom a source is asked.
//!
//! Owns: what it says. Never does: deciding who may.

use bytes::Bytes;
use forebay_proto::{
    rpc::{AuthSys, Credential},
    xdr::{List, Opaque},
};

use crate::source::Credentials;

/// AUTH_SYS of a user.
pub(in crate::source) fn credential(machine: &str, user: &Credentials) -> Credential {
    let groups = user.groups.iter().copied().take(16).collect();
    Credential::Sys(AuthSys {
        stamp: 0,
        machine_name: machine_name(machine),
        uid: user.uid,
        gid: user.gid,
        groups: List::new(groups).unwrap_or_default(),
    })
}

/// AUTH_SYS of whoever owns session and lease.
pub(in crate::source) fn machine_credential(machine: &str) -> Credential {
    Credential::Sys(machine_sys(machine))
}

/// The body of [`machine_credential`].
pub(in crate::source) fn machine_sys(machine: &str) -> AuthSys {
    AuthSys { stamp: 0, machine_name: machine_name(machine), uid: 0, gid: 0, groups: List::default() }
}

fn machine_name(machine: &str) -> Opaque<255> {
    Opaque::new(Bytes::copy_from_slice(machine.as_bytes())).unwrap_or_default()
}
