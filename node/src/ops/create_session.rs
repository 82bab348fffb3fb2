//! CREATE_SESSION (RFC 8881 §18.36).

use std::sync::Arc;

use forebay_meta::{Command, Reply};
use forebay_proto::nfs4::{
    Status, create_session,
    ops::create_session::{CreateSessionArgs, CreateSessionOk},
};

use super::Context;
use crate::state::{
    clients::SessionRequest,
    sessions::{Session, negotiate},
};

pub async fn run(cx: &Context<'_>, args: &CreateSessionArgs) -> Result<CreateSessionOk, Status> {
    let known = create_session::PERSIST | create_session::CONN_BACK_CHAN | create_session::CONN_RDMA;
    let server = cx.server;
    let judged = server.clients.lock().judge_session(args, cx.principal(), server.home())?;
    let record = match judged {
        SessionRequest::Replay(reply) => return Ok(reply),
        SessionRequest::New(record) => record,
    };
    if args.flags & !known != 0 {
        return Err(Status::Inval);
    }
    let (fore, back) = negotiate(args, server.channel_limits())?;
    if let Some(record) = record {
        // On disk before the client is told: after a crash in between it may reclaim.
        let recorded = server.plane.propose(Command::RecordClient(record)).await.map_err(|error| {
            tracing::error!(%error, "a client cannot be recorded; it is told to try again");
            Status::Delay
        })?;
        if let Reply::Refused(why) = recorded {
            tracing::error!(why, "a client is not recorded, so it gets no session");
            return Err(Status::NoSpc);
        }
    }
    let reply = CreateSessionOk {
        session: server.fresh_session(args.clientid),
        sequence: args.sequence,
        flags: args.flags & create_session::CONN_BACK_CHAN,
        fore: fore.clone(),
        back,
    };
    let replaced = {
        // Both tables at once: a client that is freed in between would leave its session behind.
        let mut clients = server.clients.lock();
        let added = clients.add_session(&reply, args.clientid, server.now())?;
        server.sessions.insert(Arc::new(Session::new(reply.session, added.client, fore, args.callback_program)));
        added.replaced
    };
    if let Some(replaced) = replaced {
        server.free_client(replaced).await;
    }
    Ok(reply)
}
