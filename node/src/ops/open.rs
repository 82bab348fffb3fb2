//! OPEN (RFC 8881 §18.16).

use forebay_proto::nfs4::{
    Attr, Attributes, Bitmap, ChangeInfo, Fattr, Stateid, Status, Verifier, open,
    ops::open::{CreateHow, NoDelegation, OpenArgs, OpenClaim, OpenDelegation, OpenHow, OpenOk},
};

use super::{Context, authorize, durable, regular};
use crate::{
    cluster::locks::{Refusal, SharedLocks},
    files::{FileNode, Node, attributes, names},
    source::{SetAttributes, SetTime, Time},
    state::{
        FileKey,
        files::{Conflict, Denied, OpenRequest, ShareBits},
        recovery,
    },
};

/// Tries to get an open past clients whose leases are over: each try frees one.
const EXPIRY_TRIES: usize = 64;

/// A file found or made, and what that changed.
struct Found {
    node: FileNode,
    /// The directory that got a new name.
    changed: Option<FileNode>,
    created: bool,
    change: ChangeInfo,
    attributes_set: Bitmap,
    truncate: bool,
}

pub async fn run(cx: &mut Context<'_>, args: OpenArgs) -> Result<OpenOk, Status> {
    let access = args.share_access & 3;
    let known = open::ACCESS_BOTH
        | open::WANT_DELEG_MASK
        | open::WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL
        | open::WANT_PUSH_DELEG_WHEN_UNCONTENDED;
    if access == 0 || args.share_access & !known != 0 || args.share_deny > 3 {
        return Err(Status::Inval);
    }
    let client = cx.client()?.clone();
    let reclaim = matches!(args.claim, OpenClaim::Previous(_));
    recovery::judge(&client, reclaim, cx.server.in_grace())?;
    let found = find(cx, &args).await?;
    let node = &found.node;
    if access & open::ACCESS_WRITE != 0 {
        node.export.writable()?;
    }
    if let Some(directory) = &found.changed {
        durable(cx, [directory]).await?;
    }
    let credentials = cx.credentials(node);
    if !found.created {
        // Who reclaims had the file open already, maybe with a mode that did not bind its owner then.
        if !reclaim || node.attributes(cx.caller).await?.uid != credentials.uid {
            permit(cx, node, access).await?;
        }
    }
    let writes = access & open::ACCESS_WRITE != 0;
    if found.truncate && !writes {
        // Cutting the file is a write that the open itself does not ask for.
        authorize(cx, node, &Stateid::ANONYMOUS, open::ACCESS_WRITE).await?;
    }
    let owner = args.owner.owner.as_bytes().clone();
    let request = OpenRequest { client: client.id, owner, access, deny: args.share_deny, uid: credentials.uid };
    let stateid = reserve(cx, node, request).await.map_err(|status| match status {
        Status::ShareDenied if reclaim => Status::ReclaimConflict,
        status => status,
    })?;
    if found.truncate {
        let truncate = SetAttributes { size: Some(0), ..SetAttributes::default() };
        if let Err(error) = node.set_attributes(cx.caller, &truncate, writes).await {
            // Only what this OPEN opened is taken back: an open the owner had before stays.
            let key = found.node.key();
            if stateid.seqid == 1 {
                cx.server.files.of(key).close(key, client.id, &stateid)?;
            }
            return Err(error);
        }
    }
    let (change, attributes_set) = (found.change, found.attributes_set);
    cx.set_current(Node::File(found.node));
    cx.set_stateid(stateid);
    let flags = open::RESULT_LOCKTYPE_POSIX;
    Ok(OpenOk { stateid, change, flags, attributes_set, delegation: no_delegation(args.share_access) })
}

/// There are no delegations yet; a client that said what it wants is told why (RFC 8881 §18.16.3).
fn no_delegation(share_access: u32) -> OpenDelegation {
    match share_access & open::WANT_DELEG_MASK {
        0 => OpenDelegation::None,
        open::WANT_NO_DELEG => OpenDelegation::NoneExtended(NoDelegation::NotWanted),
        open::WANT_CANCEL => OpenDelegation::NoneExtended(NoDelegation::Cancelled),
        _ => OpenDelegation::NoneExtended(NoDelegation::Resource(false)),
    }
}

async fn reserve(cx: &Context<'_>, node: &FileNode, request: OpenRequest) -> Result<Stateid, Status> {
    let key = node.key();
    let shared = cx.server.shared_locks();
    for _ in 0..EXPIRY_TRIES {
        let denying = match shared {
            Some(shared) => reserve_for_all(cx, shared, key, &request).await?,
            None => None,
        };
        let result = {
            let mut files = cx.server.files.of(key);
            // Under the table's lock: who denies and asks this node afterwards finds the open.
            let denied = shared.and_then(|shared| shared.denies(key, request.client, &request.owner, request.access));
            match denied {
                Some(holder) => Err(Conflict::Held(holder, Denied::Share)),
                None => files.open(key, request.clone()),
            }
        };
        if let (Some(before), Err(_), Some(shared)) = (denying, &result, shared) {
            restore(shared, key, &request, before).await?;
        }
        match result {
            Ok(stateid) => {
                // Freed while this call ran: nobody would free what it just got.
                if cx.server.clients.lock().owner(request.client).is_none() {
                    cx.server.free_client(request.client).await;
                    return Err(Status::BadSession);
                }
                return Ok(stateid);
            }
            Err(Conflict::Status(status)) => return Err(status),
            Err(Conflict::Held(holder, _)) => cx.server.conflict(holder, Status::ShareDenied).await?,
        }
    }
    Err(Status::Delay)
}

/// In a cluster: an open that denies something, by what it asks for or by what its owner has already, is made known to all first.
async fn reserve_for_all(
    cx: &Context<'_>,
    shared: &SharedLocks,
    key: FileKey,
    request: &OpenRequest,
) -> Result<Option<(ShareBits, ShareBits)>, Status> {
    let (access, deny) = cx.server.files.of(key).open_bits(key, request.client, &request.owner);
    let (all_access, all_deny) = (access | request.access, deny | request.deny);
    if all_deny == 0 {
        return Ok(None);
    }
    match shared.reserve(key, (request.client, &request.owner), (all_access, all_deny)).await {
        Ok(()) => Ok(Some((access, deny))),
        Err(Refusal::Status(status)) => Err(status),
        Err(Refusal::Held(_)) => Err(Status::ServerFault),
        Err(Refusal::Shared(holder)) => {
            restore(shared, key, request, (access, deny)).await?;
            if shared.expire(cx.server, holder).await { Err(Status::Delay) } else { Err(Status::ShareDenied) }
        }
    }
}

/// What the owner's open denied before goes on being denied, and no more.
async fn restore(
    shared: &SharedLocks,
    key: FileKey,
    request: &OpenRequest,
    (access, deny): (ShareBits, ShareBits),
) -> Result<(), Status> {
    if deny == 0 {
        return shared.unreserve(key, request.client, &request.owner).await;
    }
    let before = shared.reserve(key, (request.client, &request.owner), (access, deny)).await;
    before.map_err(|_| Status::Delay)
}

/// As with open(2), but that a program that may only be run may be read: the client must load it.
async fn permit(cx: &Context<'_>, node: &FileNode, access: u32) -> Result<(), Status> {
    let may = node.access(cx.caller).await?;
    let read = access & open::ACCESS_READ == 0 || may.read || (may.execute && access == open::ACCESS_READ);
    let write = access & open::ACCESS_WRITE == 0 || may.write;
    if read && write { Ok(()) } else { Err(Status::Access) }
}

async fn find(cx: &Context<'_>, args: &OpenArgs) -> Result<Found, Status> {
    match &args.claim {
        OpenClaim::Null(name) => {
            let name = names::existing(name)?;
            match &args.how {
                OpenHow::NoCreate => by_name(cx, name).await,
                OpenHow::Create(how) => create(cx, names::new(name)?, how).await,
            }
        }
        OpenClaim::FileHandle | OpenClaim::Previous(_) => {
            if args.how != OpenHow::NoCreate {
                return Err(Status::Inval);
            }
            let node = regular(cx.file()?)?.clone();
            node.refresh_to_open(cx.caller).await?;
            Ok(unchanged(node, ChangeInfo::default()))
        }
        // No delegation was ever given, so there is none to claim.
        OpenClaim::DelegateCurrent(_) | OpenClaim::DelegateCurrentFileHandle(_) => Err(Status::BadStateid),
        OpenClaim::DelegatePrevious(_) | OpenClaim::DelegatePreviousFileHandle => Err(Status::ReclaimBad),
    }
}

fn unchanged(node: FileNode, change: ChangeInfo) -> Found {
    Found { node, changed: None, created: false, change, attributes_set: Bitmap::EMPTY, truncate: false }
}

async fn by_name(cx: &Context<'_>, name: &[u8]) -> Result<Found, Status> {
    let directory = cx.directory()?;
    let namespace = &cx.server.namespace;
    let missing = |status| names::missing(name, status);
    let (found, now) = match directory {
        Node::File(directory) => {
            let found = directory.lookup_to_open(cx.caller, name).await;
            let (file, now) = found.map_err(|error| missing(error.into()))?;
            (Node::File(namespace.node(&directory.export, file).await?), now)
        }
        Node::Pseudo(_) => (namespace.lookup(directory, name, cx.caller).await.map_err(missing)?, 0),
    };
    let Node::File(node) = found else { return Err(Status::IsDir) };
    let node = regular(&node)?.clone();
    Ok(unchanged(node, ChangeInfo { atomic: false, before: now, after: now }))
}

async fn create(cx: &Context<'_>, name: &[u8], how: &CreateHow) -> Result<Found, Status> {
    let directory = cx.directory_to_change()?;
    let (fattr, verifier) = match how {
        CreateHow::Unchecked(fattr) | CreateHow::Guarded(fattr) => (fattr.clone(), None),
        CreateHow::Exclusive(verifier) => (Fattr::default(), Some(*verifier)),
        CreateHow::Exclusive41(exclusive) => (exclusive.attributes.clone(), Some(exclusive.verifier)),
    };
    let wanted = Attributes::from_fattr(&fattr)?;
    let mut set = attributes::to_set(&wanted, 0)?;
    let mut attributes_set = attributes::set_mask(&wanted);
    if let Some(verifier) = verifier {
        if set.accessed.is_some() || set.modified.is_some() {
            return Err(Status::Inval);
        }
        let (accessed, modified) = verifier_times(&verifier);
        (set.accessed, set.modified) = (Some(SetTime::To(accessed)), Some(SetTime::To(modified)));
        // The client sees that the times hold its verifier, and sets them right after.
        attributes_set.insert(Attr::TimeAccess);
        attributes_set.insert(Attr::TimeModify);
    }
    let mode = set.mode.unwrap_or(0o600);
    let guarded = matches!(how, CreateHow::Guarded(_));
    let made = directory.create(cx.caller, name, mode, guarded, &set).await?;
    let (file, created, change) = made;
    let node = cx.server.namespace.node(&directory.export, file).await?;
    regular(&node)?;
    if created {
        let changed = Some(directory.clone());
        return Ok(Found { node, changed, created, change, attributes_set, truncate: false });
    }
    match verifier {
        None => {
            let truncate = set.size == Some(0);
            let attributes_set = if truncate { Bitmap::of(&[Attr::Size]) } else { Bitmap::EMPTY };
            Ok(Found { attributes_set, truncate, ..unchanged(node, change) })
        }
        Some(verifier) => {
            let told = node.attributes(cx.caller).await?;
            // The same request again, its reply lost: the file this very client made (RFC 8881 §18.16.3).
            if (told.accessed, told.modified) != verifier_times(&verifier) || told.size != set.size.unwrap_or(0) {
                return Err(Status::Exist);
            }
            // Times can look like a verifier: of a stranger's file the permissions decide.
            let created = told.uid == cx.uid(&node);
            Ok(Found { node, changed: Some(directory.clone()), created, change, attributes_set, truncate: false })
        }
    }
}

/// Where the verifier of an exclusive create is kept: on disk in the file's times, so that it outlives us. Whole
/// seconds below 2³¹, which every file system can hold.
fn verifier_times(verifier: &Verifier) -> (Time, Time) {
    let [a, b, c, d, e, f, g, h] = *verifier;
    let seconds = |bytes| i64::from(u32::from_be_bytes(bytes) & 0x7fff_ffff);
    let time = |bytes| Time { seconds: seconds(bytes), nanoseconds: 0 };
    (time([a, b, c, d]), time([e, f, g, h]))
}
