//! Client records: EXCHANGE_ID and CREATE_SESSION's half that concerns the client (RFC 8881 §18.35, §18.36).
//!
//! Invariants: at most one confirmed and one unconfirmed record per client owner; a clientid is never given twice.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use forebay_meta::state::{self as plane, ClientRecord, Home};
use forebay_proto::nfs4::{
    ClientId, SessionId, Status, Verifier, exchange_id,
    ops::create_session::{CreateSessionArgs, CreateSessionOk},
};

use super::Now;

/// Most clients at once; each confirmed one costs about a kilobyte and one line of the journal.
const CLIENTS_MAX: usize = 100_000;

/// Sessions of one client; Linux makes one, however many connections it has.
const SESSIONS_PER_CLIENT_MAX: usize = 64;

/// Who a client says it is: what must be equal for one caller to touch another's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientPrincipal {
    /// RPC flavour.
    pub flavor: u32,
    /// uid of AUTH_SYS, 0 without.
    pub uid: u32,
}

impl ClientPrincipal {
    /// As it is on record.
    fn to_bytes(self) -> [u8; 8] {
        (u64::from(self.flavor) << 32 | u64::from(self.uid)).to_be_bytes()
    }
}

/// What operations of a session need of its client without looking it up.
#[derive(Debug)]
pub struct ClientShared {
    /// The clientid.
    pub id: ClientId,
    renewed: AtomicU64,
    reclaim_complete: AtomicBool,
    /// May reclaim: it was on record when this process began.
    pub may_reclaim: bool,
}

impl ClientShared {
    /// The lease begins anew.
    pub fn renew(&self, now: Now) {
        self.renewed.store(now.0, Ordering::Relaxed);
    }

    /// When the lease began.
    pub fn renewed(&self) -> Now {
        Now(self.renewed.load(Ordering::Relaxed))
    }

    /// RECLAIM_COMPLETE has been seen.
    pub fn reclaim_complete(&self) -> bool {
        self.reclaim_complete.load(Ordering::Acquire)
    }

    /// RECLAIM_COMPLETE; `false` if it had been seen.
    pub fn complete_reclaim(&self) -> bool {
        !self.reclaim_complete.swap(true, Ordering::AcqRel)
    }
}

#[derive(Debug)]
struct Client {
    shared: Arc<ClientShared>,
    owner: Bytes,
    verifier: Verifier,
    principal: ClientPrincipal,
    confirmed: bool,
    sequence: u32,
    replay: Option<CreateSessionOk>,
    sessions: Vec<SessionId>,
}

/// What EXCHANGE_ID says back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// The client's id.
    pub clientid: ClientId,
    /// The sequence CREATE_SESSION must carry.
    pub sequence: u32,
    /// Whether the id is confirmed already.
    pub confirmed: bool,
    /// A client that is no more: its sessions and state must be freed.
    pub removed: Option<ClientId>,
}

/// What CREATE_SESSION's arguments come to.
#[derive(Debug)]
pub enum SessionRequest {
    /// The same request again: the same reply.
    Replay(CreateSessionOk),
    /// A new session; the record to keep if this confirms the client.
    New(Option<ClientRecord>),
}

/// What [`Clients::add_session`] changed.
#[derive(Debug)]
pub struct SessionAdded {
    /// The client, for the session to renew.
    pub client: Arc<ClientShared>,
    /// The client's former self, which this one replaces: its sessions and state must be freed.
    pub replaced: Option<ClientId>,
}

/// All clients of this node.
#[derive(Debug)]
pub struct Clients {
    epoch: u32,
    next: u32,
    clients: HashMap<ClientId, Client>,
    confirmed: HashMap<Bytes, ClientId>,
    unconfirmed: HashMap<Bytes, ClientId>,
}

impl Clients {
    /// No clients; ids carry `epoch`, which no earlier process had.
    pub fn new(epoch: u32) -> Self {
        Self { epoch, next: 0, clients: HashMap::new(), confirmed: HashMap::new(), unconfirmed: HashMap::new() }
    }

    /// EXCHANGE_ID, all cases of RFC 8881 §18.35.4. `has_state` tells whether a client holds opens or locks,
    /// `may_reclaim` whether this owner is on record from before this process.
    pub fn exchange_id(
        &mut self,
        request: ExchangeRequest<'_>,
        has_state: impl FnOnce(ClientId) -> bool,
        lease_ms: u64,
        now: Now,
    ) -> Result<Exchanged, Status> {
        let known = self.confirmed.get(request.owner).and_then(|id| self.clients.get(id));
        let update = request.flags & exchange_id::UPD_CONFIRMED_REC_A != 0;
        let mut removed = None;
        match known {
            None if update => return Err(Status::NoEnt),
            None => {}
            Some(client) if update => {
                return match client {
                    c if c.verifier != request.verifier => Err(Status::NotSame),
                    c if c.principal != request.principal => Err(Status::Perm),
                    c => Ok(exchanged(c)),
                };
            }
            Some(client) if client.principal != request.principal => {
                let id = client.shared.id;
                let expired = now.since(client.shared.renewed()) > lease_ms;
                if !expired && (!client.sessions.is_empty() || has_state(id)) {
                    return Err(Status::ClidInUse);
                }
                removed = Some(id);
            }
            Some(client) if client.verifier == request.verifier => {
                let reply = exchanged(client);
                client.shared.renew(now);
                self.drop_unconfirmed(request.owner);
                return Ok(reply);
            }
            // The client restarted: its old self stays until CREATE_SESSION confirms the new one.
            Some(_) => {}
        }
        if let Some(id) = removed {
            self.remove(id);
        }
        self.insert(request, now).map(|reply| Exchanged { removed, ..reply })
    }

    fn insert(&mut self, request: ExchangeRequest<'_>, now: Now) -> Result<Exchanged, Status> {
        self.drop_unconfirmed(request.owner);
        if self.clients.len() >= CLIENTS_MAX {
            return Err(Status::Delay);
        }
        let id = ClientId(u64::from(self.epoch) << 32 | u64::from(self.next));
        self.next = self.next.checked_add(1).ok_or(Status::ServerFault)?;
        // The key is copied: the request's bytes would keep the whole record it came in alive.
        let owner = Bytes::copy_from_slice(request.owner);
        let shared = ClientShared {
            id,
            renewed: AtomicU64::new(now.0),
            reclaim_complete: AtomicBool::new(false),
            may_reclaim: request.may_reclaim,
        };
        let client = Client {
            shared: Arc::new(shared),
            owner: owner.clone(),
            verifier: request.verifier,
            principal: request.principal,
            confirmed: false,
            sequence: 0,
            replay: None,
            sessions: Vec::new(),
        };
        let reply = exchanged(&client);
        self.clients.insert(id, client);
        self.unconfirmed.insert(owner, id);
        Ok(reply)
    }

    fn drop_unconfirmed(&mut self, owner: &[u8]) {
        if let Some(id) = self.unconfirmed.remove(owner) {
            self.clients.remove(&id);
        }
    }

    /// Judges CREATE_SESSION without changing anything (RFC 8881 §18.36.4, phases 1 to 3).
    pub fn judge_session(
        &self,
        request: &CreateSessionArgs,
        principal: ClientPrincipal,
        home: Home,
    ) -> Result<SessionRequest, Status> {
        let client = self.clients.get(&request.clientid).ok_or(Status::StaleClientid)?;
        if request.sequence == client.sequence {
            return client.replay.clone().map(SessionRequest::Replay).ok_or(Status::SeqMisordered);
        }
        if request.sequence != client.sequence.wrapping_add(1) {
            return Err(Status::SeqMisordered);
        }
        if client.sessions.len() >= SESSIONS_PER_CLIENT_MAX {
            return Err(Status::NoSpc);
        }
        if client.confirmed {
            return Ok(SessionRequest::New(None));
        }
        if client.principal != principal {
            return Err(Status::ClidInUse);
        }
        Ok(SessionRequest::New(Some(ClientRecord {
            owner: plane::Bytes(client.owner.to_vec()),
            clientid: client.shared.id.0,
            verifier: client.verifier,
            principal: plane::Bytes(principal.to_bytes().to_vec()),
            home,
            sequence: request.sequence,
            reclaim_until_ms: None,
        })))
    }

    /// The session was made: confirms the client and keeps the reply for a replay. Call after
    /// [`Clients::judge_session`] said `New`; another thread may have been faster, so it is judged once more.
    pub fn add_session(
        &mut self,
        reply: &CreateSessionOk,
        clientid: ClientId,
        now: Now,
    ) -> Result<SessionAdded, Status> {
        let client = self.clients.get_mut(&clientid).ok_or(Status::StaleClientid)?;
        if reply.sequence != client.sequence.wrapping_add(1) {
            return Err(Status::Delay);
        }
        client.sequence = reply.sequence;
        client.replay = Some(reply.clone());
        client.sessions.push(reply.session);
        client.shared.renew(now);
        let shared = client.shared.clone();
        let mut replaced = None;
        if !client.confirmed {
            client.confirmed = true;
            let owner = client.owner.clone();
            self.unconfirmed.remove(&owner);
            replaced = self.confirmed.insert(owner, clientid).filter(|old| *old != clientid);
            if let Some(old) = replaced {
                self.clients.remove(&old);
            }
        }
        Ok(SessionAdded { client: shared, replaced })
    }

    /// DESTROY_CLIENTID's judgement; the caller frees nothing unless this is `Ok`.
    pub fn destroy(&mut self, id: ClientId, has_state: bool) -> Result<(), Status> {
        let client = self.clients.get(&id).ok_or(Status::StaleClientid)?;
        if has_state || !client.sessions.is_empty() {
            return Err(Status::ClientidBusy);
        }
        self.remove(id);
        Ok(())
    }

    /// The session is gone.
    pub fn forget_session(&mut self, id: ClientId, session: SessionId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.sessions.retain(|known| *known != session);
        }
    }

    /// How many sessions a client has.
    pub fn session_count(&self, id: ClientId) -> usize {
        self.clients.get(&id).map_or(0, |client| client.sessions.len())
    }

    /// The owner string of a client.
    pub fn owner(&self, id: ClientId) -> Option<&Bytes> {
        self.clients.get(&id).map(|client| &client.owner)
    }

    /// Forgets a client; the caller frees its sessions and state.
    pub fn remove(&mut self, id: ClientId) -> bool {
        let Some(client) = self.clients.remove(&id) else { return false };
        for index in [&mut self.confirmed, &mut self.unconfirmed] {
            if index.get(&client.owner) == Some(&id) {
                index.remove(&client.owner);
            }
        }
        true
    }

    /// Forgets clients that never made a session and whose lease is over: they hold nothing.
    pub fn drop_stale_unconfirmed(&mut self, lease_ms: u64, now: Now) {
        let stale = |client: &Client| !client.confirmed && now.since(client.shared.renewed()) > lease_ms;
        let unconfirmed = &mut self.unconfirmed;
        self.clients.retain(|id, client| {
            let goes = stale(client);
            if goes && unconfirmed.get(&client.owner) == Some(id) {
                unconfirmed.remove(&client.owner);
            }
            !goes
        });
    }

    /// Clients whose lease is over.
    pub fn expired(&self, lease_ms: u64, now: Now) -> Vec<ClientId> {
        let over = |client: &&Client| now.since(client.shared.renewed()) > lease_ms;
        self.clients.values().filter(over).map(|client| client.shared.id).collect()
    }

    /// Whether this client's lease is over, or the client unknown.
    pub fn is_expired(&self, id: ClientId, lease_ms: u64, now: Now) -> bool {
        self.clients.get(&id).is_none_or(|client| now.since(client.shared.renewed()) > lease_ms)
    }

    /// Known clients: confirmed, unconfirmed.
    pub fn counts(&self) -> (usize, usize) {
        (self.confirmed.len(), self.unconfirmed.len())
    }
}

/// EXCHANGE_ID, as far as the table cares.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeRequest<'a> {
    /// `co_ownerid`.
    pub owner: &'a [u8],
    /// `co_verifier`.
    pub verifier: Verifier,
    /// Who calls.
    pub principal: ClientPrincipal,
    /// `eia_flags`.
    pub flags: u32,
    /// On record from before this process, with this verifier.
    pub may_reclaim: bool,
}

fn exchanged(client: &Client) -> Exchanged {
    Exchanged {
        clientid: client.shared.id,
        sequence: client.sequence.wrapping_add(1),
        confirmed: client.confirmed,
        removed: None,
    }
}
