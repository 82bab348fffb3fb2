//! An export: a source under a name, who may use it, and as whom.

use std::{net::IpAddr, sync::Arc};

use forebay_proto::{nfs4::Status, rpc};
use ipnet::IpNet;

use crate::source::{Credentials, Source};

/// "nobody" everywhere.
pub const ANONYMOUS: u32 = 65_534;

/// Whose identity is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Squash {
    /// root's: uid 0 and gid 0 become anonymous.
    #[default]
    Root,
    /// Nobody's: clients are trusted with root.
    None,
    /// Everybody's.
    All,
}

/// What an export allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportOptions {
    /// Refuse all changes with ROFS.
    pub read_only: bool,
    /// Answer a change of names or attributes only once it is on disk, as RFC 8881 §18 wants it.
    pub sync: bool,
    /// Whose identity is taken away.
    pub squash: Squash,
    /// uid of the anonymous.
    pub anonymous_uid: u32,
    /// gid of the anonymous.
    pub anonymous_gid: u32,
    /// Handles are keys into the plane's table even where the source's would fit.
    pub table_handles: bool,
    /// Clients that see the export; none means all.
    pub clients: Vec<IpNet>,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            sync: true,
            squash: Squash::Root,
            anonymous_uid: ANONYMOUS,
            anonymous_gid: ANONYMOUS,
            table_handles: false,
            clients: Vec::new(),
        }
    }
}

/// Who calls, before any export has its say.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Where the call comes from.
    pub address: IpAddr,
    /// The RPC credential.
    pub credential: rpc::Credential,
}

/// A source under a name.
#[derive(Debug)]
pub struct Export {
    /// `/name`, as in the pseudo file system.
    pub name: String,
    /// The source's URL: what fsid indices are remembered by.
    pub url: String,
    /// What is allowed.
    pub options: ExportOptions,
    /// Where the files are.
    pub source: Source,
}

impl Export {
    /// Whether a client sees the export at all.
    pub fn admits(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.options.clients.is_empty() || self.options.clients.iter().any(|net| net.contains(&address))
    }

    /// The user that operations are done as.
    pub fn credentials(&self, caller: &Caller) -> Credentials {
        let options = &self.options;
        let anonymous =
            || Credentials { uid: options.anonymous_uid, gid: options.anonymous_gid, groups: Arc::from([]) };
        let rpc::Credential::Sys(sys) = &caller.credential else { return anonymous() };
        match options.squash {
            Squash::All => anonymous(),
            Squash::None => Credentials { uid: sys.uid, gid: sys.gid, groups: Arc::from(&*sys.groups) },
            Squash::Root => {
                let group = |gid: u32| if gid == 0 { options.anonymous_gid } else { gid };
                let groups = sys.groups.iter().copied().map(group).collect();
                let uid = if sys.uid == 0 { options.anonymous_uid } else { sys.uid };
                Credentials { uid, gid: group(sys.gid), groups }
            }
        }
    }

    /// ROFS if changes are refused.
    pub fn writable(&self) -> Result<(), Status> {
        if self.options.read_only { Err(Status::Rofs) } else { Ok(()) }
    }
}
