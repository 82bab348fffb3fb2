//! What the operations of one COMPOUND share: filehandles, stateids, who calls (RFC 8881 §16.2.3).

use std::sync::Arc;

use forebay_proto::nfs4::{Stateid, Status};
use forebay_proto::rpc;

use super::directory_of;
use crate::{
    files::{Caller, FileNode, Node, Squash},
    server::Server,
    source::Credentials,
    state::{
        clients::{ClientPrincipal, ClientShared},
        sessions::Session,
    },
};

/// The state of a COMPOUND between two operations.
#[derive(Debug)]
pub struct Context<'a> {
    /// The server.
    pub server: &'a Arc<Server>,
    /// Who calls.
    pub caller: &'a Caller,
    /// 1 or 2.
    pub minor_version: u32,
    /// The session, after SEQUENCE.
    pub session: Option<Arc<Session>>,
    /// The slot, after SEQUENCE.
    pub slot: u32,
    /// This operation is the last.
    pub last: bool,
    /// Bytes the reply may still grow by.
    pub room: usize,
    current: Option<Node>,
    current_stateid: Option<Stateid>,
    saved: Option<(Node, Option<Stateid>)>,
}

impl<'a> Context<'a> {
    /// Before the first operation.
    pub fn new(server: &'a Arc<Server>, caller: &'a Caller, minor_version: u32) -> Self {
        let (session, current, current_stateid, saved) = (None, None, None, None);
        Self { server, caller, minor_version, session, slot: 0, last: false, room: 0, current, current_stateid, saved }
    }

    /// The current filehandle.
    pub fn current(&self) -> Result<&Node, Status> {
        self.current.as_ref().ok_or(Status::NoFileHandle)
    }

    /// The current filehandle, if it is an object of an export.
    pub fn file(&self) -> Result<&FileNode, Status> {
        match self.current()? {
            Node::File(node) => Ok(node),
            Node::Pseudo(_) => Err(Status::IsDir),
        }
    }

    /// The current filehandle, if it is a directory.
    pub fn directory(&self) -> Result<&Node, Status> {
        directory_of(self.current()?)
    }

    /// The current filehandle, if it is a directory that may be changed.
    pub fn directory_to_change(&self) -> Result<&FileNode, Status> {
        match self.directory()? {
            Node::File(node) => node.export.writable().map(|()| node),
            Node::Pseudo(_) => Err(Status::Rofs),
        }
    }

    /// Another current filehandle; the current stateid goes with the old one.
    pub fn set_current(&mut self, node: Node) {
        self.current = Some(node);
        self.current_stateid = None;
    }

    /// No current filehandle any more.
    pub fn clear_current(&mut self) {
        self.current = None;
        self.current_stateid = None;
    }

    /// The saved filehandle.
    pub fn saved(&self) -> Result<&Node, Status> {
        self.saved.as_ref().map(|(node, _)| node).ok_or(Status::NoFileHandle)
    }

    /// SAVEFH (RFC 8881 §18.28).
    pub fn save(&mut self) -> Result<(), Status> {
        self.saved = Some((self.current()?.clone(), self.current_stateid));
        Ok(())
    }

    /// RESTOREFH (RFC 8881 §18.27).
    pub fn restore(&mut self) -> Result<(), Status> {
        let (node, stateid) = self.saved.clone().ok_or(Status::NoFileHandle)?;
        (self.current, self.current_stateid) = (Some(node), stateid);
        Ok(())
    }

    /// The stateid that later operations mean by the current one.
    pub fn set_stateid(&mut self, stateid: Stateid) {
        self.current_stateid = Some(stateid);
    }

    /// What a stateid stands for: the current one is filled in, the invalid one refused.
    pub fn stateid(&self, stateid: &Stateid) -> Result<Stateid, Status> {
        match *stateid {
            Stateid::CURRENT => self.current_stateid.filter(|s| *s != Stateid::INVALID).ok_or(Status::BadStateid),
            Stateid::INVALID => Err(Status::BadStateid),
            other => Ok(other),
        }
    }

    /// A stateid that must be an open's or a lock's.
    pub fn real_stateid(&self, stateid: &Stateid) -> Result<Stateid, Status> {
        match self.stateid(stateid)? {
            Stateid::ANONYMOUS | Stateid::READ_BYPASS => Err(Status::BadStateid),
            real => Ok(real),
        }
    }

    /// The session; operations that need one come only after SEQUENCE.
    pub fn session(&self) -> Result<&Arc<Session>, Status> {
        self.session.as_ref().ok_or(Status::OpNotInSession)
    }

    /// The client of the session.
    pub fn client(&self) -> Result<&Arc<ClientShared>, Status> {
        self.session().map(|session| &session.client)
    }

    /// Who calls, as client records know it.
    pub fn principal(&self) -> ClientPrincipal {
        let uid = if let rpc::Credential::Sys(sys) = &self.caller.credential { sys.uid } else { 0 };
        ClientPrincipal { flavor: self.caller.credential.flavor().0, uid }
    }

    /// The user that operations on `node` are done as.
    pub fn credentials(&self, node: &FileNode) -> Credentials {
        node.export.credentials(self.caller)
    }

    /// The uid alone, which costs no allocation.
    pub fn uid(&self, node: &FileNode) -> u32 {
        let options = &node.export.options;
        match &self.caller.credential {
            rpc::Credential::Sys(sys) if options.squash == Squash::None => sys.uid,
            rpc::Credential::Sys(sys) if options.squash == Squash::Root && sys.uid != 0 => sys.uid,
            _ => options.anonymous_uid,
        }
    }

    /// Bytes of payload that still fit the reply, less what stands around them.
    pub fn payload_room(&self) -> u32 {
        const AROUND: usize = 64;
        u32::try_from(self.room.saturating_sub(AROUND)).unwrap_or(u32::MAX)
    }
}
