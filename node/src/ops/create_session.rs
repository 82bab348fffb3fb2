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
        match recorded {
            Reply::Refused(why) => {
                tracing::error!(why, "a client is not recorded, so it gets no session");
                return Err(Status::NoSpc);
            }
            // A newer incarnation of the same client was faster.
            Reply::Absent => return Err(Status::StaleClientid),
            _ => {}
        }
    }
    let reply = CreateSessionOk {
        session: server.fresh_session(args.clientid),
        sequence: args.sequence,
        flags: args.flags & create_session::CONN_BACK_CHAN,
        fore: fore.clone(),
        back,
    };
    let added = {
        // Both tables at once: a client that is freed in between would leave its session behind.
        let mut clients = server.clients.lock();
        let added = clients.add_session(&reply, args.clientid, server.now());
        if let Ok(added) = &added {
            let client = added.client.clone();
            server.sessions.insert(Arc::new(Session::new(reply.session, client, fore, args.callback_program)));
        }
        added.map_err(|status| (status, clients.owner(args.clientid).is_none()))
    };
    let replaced = match added {
        Ok(added) => added.replaced,
        Err((status, gone)) => {
            // It went while it was put on record, and nobody would take it off again.
            if gone {
                server.free_client(args.clientid).await;
            }
            return Err(status);
        }
    };
    if let Some(replaced) = replaced {
        server.free_client(replaced).await;
    }
    Ok(reply)
}
