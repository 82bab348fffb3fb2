//! A blocking NFSv4.1 client for set-up: makes a session, finds files, opens them; then gives its socket away.
//!
//! One call at a time, on slot 0. Never used while something is measured.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, anyhow, bail};
use forebay_proto::{
    limits::IO_MAX,
    nfs4::{
        Attr, Attributes, Bitmap, ClientId, Component, CompoundHeader, FileHandle, LimitedOpaque, Op, OpReply,
        PROC_COMPOUND, PROGRAM, SessionId, StateOwner, Stateid, Status, VERSION, open,
        ops::{
            close::CloseArgs,
            create_session::{ChannelAttributes, CreateSessionArgs},
            destroy_clientid::DestroyClientidArgs,
            destroy_session::DestroySessionArgs,
            exchange_id::{ClientOwner, ExchangeIdArgs, StateProtectArgs},
            getattr::GetAttrArgs,
            lookup::LookupArgs,
            open::{OpenArgs, OpenClaim, OpenHow},
            putfh::PutFhArgs,
            readdir::ReadDirArgs,
            reclaim_complete::ReclaimCompleteArgs,
            sequence::SequenceArgs,
        },
    },
    rpc::{AuthSys, CallHeader, Credential, marker},
    xdr::{List, Opaque, Writer, Xdr},
};

use crate::wire::{decode, failure};

/// The minor version spoken: Linux's first choice.
pub const MINOR_VERSION: u32 = 2;
/// How long a reply may take before the server counts as dead.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Room for a COMPOUND around a full payload.
const FRAME: u32 = 4096;

/// A file or directory as set-up finds it.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its name in its directory.
    pub name: Component,
    /// Its handle.
    pub handle: FileHandle,
    /// Its attributes, those of [`found_attributes`].
    pub attributes: Attributes,
}

/// What set-up asks about each file.
fn found_attributes() -> Bitmap {
    Bitmap::of(&[Attr::Type, Attr::Size, Attr::FileHandle, Attr::FileId])
}

/// A session on one connection.
#[derive(Debug)]
pub struct Client {
    socket: TcpStream,
    /// Who calls: root.
    pub credential: Credential,
    /// The client's id, as open-owners carry it.
    pub clientid: ClientId,
    /// The session's id.
    pub session: SessionId,
    /// Slots that the server gave.
    pub slots: u32,
    /// The sequence that slot 0 used last.
    pub sequence: u32,
    xid: u32,
}

impl Client {
    /// Connects and makes a session with up to `slots` slots for the client called `owner`.
    pub fn connect(server: SocketAddr, owner: &str, slots: u32) -> Result<Self> {
        let socket = TcpStream::connect(server).with_context(|| format!("connecting to {server}"))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let machine_name = Opaque::new("forebay-benches").unwrap_or_default();
        let sys = AuthSys { stamp: 0, machine_name, uid: 0, gid: 0, groups: List::default() };
        let mut client = Self {
            socket,
            credential: Credential::Sys(sys),
            clientid: ClientId(0),
            session: SessionId([0; 16]),
            slots,
            sequence: 0,
            xid: 1,
        };
        client.make_session(owner)?;
        Ok(client)
    }

    fn make_session(&mut self, owner: &str) -> Result<()> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let owner = LimitedOpaque::new(owner.as_bytes().to_vec()).ok_or_else(|| anyhow!("owner too long"))?;
        let exchange = ExchangeIdArgs {
            owner: ClientOwner { verifier: (since.as_nanos() as u64).to_be_bytes(), owner },
            flags: 0,
            state_protect: StateProtectArgs::None,
            implementation: List::default(),
        };
        let OpReply::ExchangeId(Ok(exchanged)) = self.alone(Op::ExchangeId(exchange))? else {
            bail!("EXCHANGE_ID: not its result");
        };
        self.clientid = exchanged.clientid;
        let channel = ChannelAttributes {
            header_pad_size: 0,
            max_request_size: IO_MAX + FRAME,
            max_response_size: IO_MAX + FRAME,
            max_response_size_cached: FRAME,
            max_operations: 16,
            max_requests: self.slots,
            rdma_ird: List::default(),
        };
        let create = CreateSessionArgs {
            clientid: self.clientid,
            sequence: exchanged.sequence,
            flags: 0,
            fore: channel.clone(),
            back: ChannelAttributes { max_request_size: FRAME, max_response_size: FRAME, max_requests: 1, ..channel },
            callback_program: 0x4000_0000,
            callback_security: List::default(),
        };
        let OpReply::CreateSession(Ok(created)) = self.alone(Op::CreateSession(create))? else {
            bail!("CREATE_SESSION: not its result");
        };
        self.session = created.session;
        self.slots = created.fore.max_requests.min(self.slots);
        if created.fore.max_response_size < IO_MAX + 256 || created.fore.max_request_size < IO_MAX + 256 {
            bail!("the server does not take 1 MiB payloads: {:?}", created.fore);
        }
        self.call(vec![Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })]).map(drop)
    }

    /// A COMPOUND after SEQUENCE; the results after SEQUENCE's.
    ///
    /// # Errors
    /// When any operation fails, with its name.
    pub fn call(&mut self, ops: Vec<Op>) -> Result<Vec<OpReply>> {
        self.sequence += 1;
        let args = SequenceArgs {
            session: self.session,
            sequence: self.sequence,
            slot: 0,
            highest_slot: self.slots - 1,
            cache_this: false,
        };
        let mut all = vec![Op::Sequence(args)];
        all.extend(ops);
        let mut replies = self.compound(&all)?;
        replies.remove(0);
        Ok(replies)
    }

    fn alone(&mut self, op: Op) -> Result<OpReply> {
        self.compound(&[op])?.pop().ok_or_else(|| anyhow!("a COMPOUND without results"))
    }

    fn compound(&mut self, ops: &[Op]) -> Result<Vec<OpReply>> {
        self.xid += 1;
        let mut writer = Writer::new();
        let (xid, credential) = (self.xid, self.credential.clone());
        CallHeader { xid, program: PROGRAM, version: VERSION, procedure: PROC_COMPOUND, credential }
            .encode(&mut writer);
        let operations = u32::try_from(ops.len()).context("too many operations")?;
        CompoundHeader { tag: Opaque::default(), minor_version: MINOR_VERSION, operations }.encode(&mut writer);
        ops.iter().for_each(|op| op.encode(&mut writer));
        let record = writer.finish().to_bytes();
        self.socket.write_all(&[&marker(record.len()), &record[..]].concat())?;
        let mut head = [0; 4];
        self.socket.read_exact(&mut head).context("waiting for a reply")?;
        let length = u32::from_be_bytes(head) & 0x7fff_ffff;
        let mut reply = vec![0; length as usize];
        self.socket.read_exact(&mut reply)?;
        let (_, replies) = decode(&reply)?;
        match replies.last() {
            Some(last) if last.status() != Status::Ok => Err(failure(last)),
            Some(_) => Ok(replies),
            None => bail!("a COMPOUND without results"),
        }
    }

    /// Finds what a path names, from the pseudo-root on.
    pub fn walk(&mut self, path: &str) -> Result<Found> {
        let mut ops = vec![Op::PutRootFh(())];
        let mut name = Component::default();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            name = Component::new(part.as_bytes().to_vec()).ok_or_else(|| anyhow!("a name too long"))?;
            ops.push(Op::Lookup(LookupArgs { name: name.clone() }));
        }
        ops.push(Op::GetAttr(GetAttrArgs { attributes: found_attributes() }));
        let replies = self.call(ops).with_context(|| format!("finding {path}"))?;
        let Some(OpReply::GetAttr(Ok(fattr))) = replies.last() else { bail!("GETATTR: not its result") };
        found(name, fattr)
    }

    /// Everything in a directory.
    pub fn list(&mut self, directory: &FileHandle) -> Result<Vec<Found>> {
        let (mut cookie, mut verifier, mut all) = (0, [0; 8], Vec::new());
        loop {
            let args = ReadDirArgs {
                cookie,
                verifier,
                directory_count: 64 << 10,
                max_count: 64 << 10,
                attributes: found_attributes(),
            };
            let replies = self.call(vec![put(directory), Op::ReadDir(args)])?;
            let Some(OpReply::ReadDir(Ok(listed))) = replies.into_iter().nth(1) else {
                bail!("READDIR: not its result")
            };
            verifier = listed.verifier;
            cookie = listed.entries.last().map_or(cookie, |entry| entry.cookie);
            for entry in listed.entries {
                all.push(found(entry.name, &entry.attributes)?);
            }
            if listed.eof {
                return Ok(all);
            }
        }
    }

    /// Opens a file that exists, for what `share_access` says.
    pub fn open(&mut self, directory: &FileHandle, name: &Component, share_access: u32) -> Result<Stateid> {
        let owner = owner(self.clientid, 0xffff_ffff);
        let replies = self.call(vec![put(directory), open_op(owner, name, share_access)])?;
        match replies.get(1) {
            Some(OpReply::Open(Ok(opened))) => Ok(opened.stateid),
            _ => bail!("OPEN: not its result"),
        }
    }

    /// Closes what [`Client::open`] opened.
    pub fn close(&mut self, handle: &FileHandle, stateid: Stateid) -> Result<()> {
        self.call(vec![put(handle), Op::Close(CloseArgs { seqid: 0, stateid })]).map(drop)
    }

    /// Ends the session and the client. Everything must be closed.
    pub fn end(mut self) -> Result<()> {
        self.alone(Op::DestroySession(DestroySessionArgs { session: self.session }))?;
        self.alone(Op::DestroyClientid(DestroyClientidArgs { clientid: self.clientid })).map(drop)
    }

    /// The socket, for another to use until [`Client::end`].
    pub fn socket(&self) -> Result<socket2::Socket> {
        Ok(self.socket.try_clone()?.into())
    }
}

/// PUTFH.
pub fn put(handle: &FileHandle) -> Op {
    Op::PutFh(PutFhArgs { handle: handle.clone() })
}

/// OPEN by name of a file that exists. No delegation is wanted: none of what is measured is about them.
pub fn open_op(owner: StateOwner, name: &Component, share_access: u32) -> Op {
    Op::Open(OpenArgs {
        seqid: 0,
        share_access: share_access | open::WANT_NO_DELEG,
        share_deny: 0,
        owner,
        how: OpenHow::NoCreate,
        claim: OpenClaim::Null(name.clone()),
    })
}

/// An open-owner with a number.
pub fn owner(clientid: ClientId, number: u32) -> StateOwner {
    let owner = [&b"open id:"[..], &number.to_be_bytes()].concat();
    StateOwner { clientid, owner: LimitedOpaque::new(owner).unwrap_or_default() }
}

fn found(name: Component, fattr: &forebay_proto::nfs4::Fattr) -> Result<Found> {
    let attributes = Attributes::from_fattr(fattr).map_err(|status| anyhow!("attributes: {}", status.name()))?;
    let handle = attributes.filehandle.clone().ok_or_else(|| anyhow!("no filehandle among the attributes"))?;
    Ok(Found { name, handle, attributes })
}
