//! What else concerns sessions and clients: BIND_CONN_TO_SESSION, BACKCHANNEL_CTL, DESTROY_SESSION, DESTROY_CLIENTID,
//! RECLAIM_COMPLETE (RFC 8881 §18.34, §18.33, §18.37, §18.50, §18.51).

use std::sync::atomic::Ordering;

use forebay_proto::nfs4::{
    Status,
    ops::{
        backchannel_ctl::{BackchannelCtlArgs, CallbackSecurity},
        bind_conn_to_session::{BindConnArgs, BindConnOk, ChannelFromClient, ChannelFromServer},
        destroy_clientid::DestroyClientidArgs,
        destroy_session::DestroySessionArgs,
        reclaim_complete::ReclaimCompleteArgs,
    },
};

use super::Context;

/// BIND_CONN_TO_SESSION. A connection needs no binding for calls (SP4_NONE); for callbacks it is granted as asked.
pub fn bind(cx: &Context<'_>, args: &BindConnArgs) -> Result<BindConnOk, Status> {
    let session = cx.server.sessions.find(&args.session)?;
    session.client.renew(cx.server.now());
    let direction = match args.direction {
        ChannelFromClient::Fore => ChannelFromServer::Fore,
        ChannelFromClient::Back => ChannelFromServer::Back,
        ChannelFromClient::ForeOrBoth | ChannelFromClient::BackOrBoth => ChannelFromServer::Both,
    };
    Ok(BindConnOk { session: args.session, direction, use_rdma: false })
}

/// BACKCHANNEL_CTL.
pub fn backchannel(cx: &Context<'_>, args: &BackchannelCtlArgs) -> Result<(), Status> {
    let usable = |security: &CallbackSecurity| !matches!(security, CallbackSecurity::Gss(_));
    if !args.security.iter().any(usable) {
        return Err(Status::Inval);
    }
    cx.session()?.callback_program.store(args.program, Ordering::Relaxed);
    Ok(())
}

/// DESTROY_SESSION.
pub fn destroy(cx: &Context<'_>, args: &DestroySessionArgs) -> Result<(), Status> {
    let own = cx.session.as_ref().is_some_and(|session| session.id == args.session);
    if own && !cx.last {
        return Err(Status::NotOnlyOp);
    }
    let session = cx.server.sessions.find(&args.session)?;
    // Calls that still run would answer into a session that is no more.
    if session.busy(own.then_some(cx.slot)) {
        return Err(Status::Delay);
    }
    cx.server.sessions.remove(&args.session).ok_or(Status::BadSession)?;
    cx.server.clients.lock().forget_session(session.client.id, session.id);
    Ok(())
}

/// DESTROY_CLIENTID.
pub async fn destroy_client(cx: &Context<'_>, args: &DestroyClientidArgs) -> Result<(), Status> {
    let has_state = cx.server.files.has_state(args.clientid);
    let owner = {
        let mut clients = cx.server.clients.lock();
        let owner = clients.owner(args.clientid).cloned();
        clients.destroy(args.clientid, has_state)?;
        owner
    };
    cx.server.free_client(args.clientid).await;
    if let Some(owner) = owner {
        cx.server.reclaim_done(&owner).await;
    }
    Ok(())
}

/// RECLAIM_COMPLETE.
pub async fn reclaim_complete(cx: &Context<'_>, args: &ReclaimCompleteArgs) -> Result<(), Status> {
    let client = cx.client()?;
    if args.one_fs {
        // About a file system that moved here; none does.
        return cx.current().map(drop);
    }
    if !client.complete_reclaim() {
        return Err(Status::CompleteAlready);
    }
    let owner = cx.server.clients.lock().owner(client.id).cloned();
    if let Some(owner) = owner {
        cx.server.reclaim_done(&owner).await;
    }
    Ok(())
}
