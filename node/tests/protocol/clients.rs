//! EXCHANGE_ID in all its cases, CREATE_SESSION's replay, what ends sessions and clients (§18.34 to §18.37, §18.50).

use forebay_node::client::Connection;
use forebay_proto::{
    nfs4::{
        ClientId, LimitedOpaque, Op, OpReply, SessionId, Status, exchange_id as flags,
        ops::{
            backchannel_ctl::{BackchannelCtlArgs, CallbackSecurity, GssCallbackHandles},
            bind_conn_to_session::{BindConnArgs, ChannelFromClient, ChannelFromServer},
            create_session::CreateSessionOk,
            destroy_clientid::DestroyClientidArgs,
            destroy_session::DestroySessionArgs,
            exchange_id::{ClientOwner, ExchangeIdArgs, ExchangeIdOk, ProtectOps, StateProtectArgs},
        },
    },
    xdr::List,
};

use super::{
    channels::{channel, create_session},
    slots::sequence,
};
use crate::common::{Lab, ops::*, run, status};

pub fn exchange_id(owner: &str, verifier: u8, flags: u32) -> Op {
    Op::ExchangeId(exchange_args(owner, verifier, flags))
}

fn exchange_args(owner: &str, verifier: u8, flags: u32) -> ExchangeIdArgs {
    let owner = LimitedOpaque::new(owner.to_owned().into_bytes()).unwrap();
    let owner = ClientOwner { verifier: [verifier; 8], owner };
    ExchangeIdArgs { owner, flags, state_protect: StateProtectArgs::None, implementation: List::default() }
}

async fn one(connection: &Connection, op: Op) -> OpReply {
    connection.compound(2, &[op]).await.unwrap().1.remove(0)
}

async fn exchanged(connection: &Connection, owner: &str, verifier: u8, flags: u32) -> Result<ExchangeIdOk, Status> {
    match one(connection, exchange_id(owner, verifier, flags)).await {
        OpReply::ExchangeId(result) => result,
        other => panic!("{other:?}"),
    }
}

async fn session_of(connection: &Connection, exchanged: &ExchangeIdOk) -> CreateSessionOk {
    value!([one(connection, create_session(exchanged.clientid, exchanged.sequence, channel())).await], CreateSession)
}

fn destroy_session(session: SessionId) -> Op {
    Op::DestroySession(DestroySessionArgs { session })
}

fn destroy_clientid(clientid: ClientId) -> Op {
    Op::DestroyClientid(DestroyClientidArgs { clientid })
}

/// §18.35.4, by the RFC's numbers.
#[tokio::test]
async fn exchange_id_tells_new_known_restarted_and_foreign_clients_apart() {
    let lab = Lab::default();
    let running = lab.start().await;
    let (root, user) = (running.connection(0).await, running.connection(1000).await);
    let update = flags::UPD_CONFIRMED_REC_A;
    // 1: new. 4: asked again before it is confirmed, and it is another id.
    let first = exchanged(&root, "c", 1, 0).await.unwrap();
    let second = exchanged(&root, "c", 1, 0).await.unwrap();
    assert_ne!(first.clientid, second.clientid);
    assert_eq!(second.flags & flags::CONFIRMED_R, 0);
    let gone = one(&root, create_session(first.clientid, first.sequence, channel())).await;
    assert_eq!(gone.status(), Status::StaleClientid, "the unconfirmed record was replaced");
    // 7: an update of what is not confirmed.
    assert_eq!(exchanged(&root, "c", 1, update).await, Err(Status::NoEnt));
    let session = session_of(&root, &second).await;
    // 2: known.
    let known = exchanged(&root, "c", 1, 0).await.unwrap();
    assert_eq!((known.clientid, known.flags & flags::CONFIRMED_R), (second.clientid, flags::CONFIRMED_R));
    // 3: somebody else's name, while its owner has a session.
    assert_eq!(exchanged(&user, "c", 1, 0).await, Err(Status::ClidInUse));
    assert_eq!(exchanged(&user, "c", 2, 0).await, Err(Status::ClidInUse));
    // 6, 8, 9: updates.
    assert_eq!(exchanged(&root, "c", 1, update).await.unwrap().clientid, second.clientid);
    assert_eq!(exchanged(&root, "c", 2, update).await, Err(Status::NotSame));
    assert_eq!(exchanged(&user, "c", 1, update).await, Err(Status::Perm));
    // 5: the client restarted. Its old self works until the new one is confirmed.
    let restarted = exchanged(&root, "c", 2, 0).await.unwrap();
    assert_eq!(restarted.flags & flags::CONFIRMED_R, 0);
    assert_eq!(one(&root, sequence(session.session, 0, 1, false)).await.status(), Status::Ok);
    let fresh = session_of(&root, &restarted).await;
    assert_eq!(one(&root, sequence(session.session, 0, 2, false)).await.status(), Status::BadSession);
    assert_eq!(one(&root, sequence(fresh.session, 0, 1, false)).await.status(), Status::Ok);
    // 3 again: without sessions and state the name is free for another.
    assert_eq!(one(&root, destroy_session(fresh.session)).await.status(), Status::Ok);
    assert_ne!(exchanged(&user, "c", 1, 0).await.unwrap().clientid, restarted.clientid);
}

#[tokio::test]
async fn exchange_id_refuses_flags_and_protection_that_do_not_exist_here() {
    let running = Lab::default().start().await;
    let connection = running.connection(0).await;
    for (minor, flag) in (0..64).map(|row| (row / 32 + 1, 1_u32 << (row % 32))) {
        let known = flag & flags::ARGUMENT_MASK != 0;
        let expected = match flag {
            flags::UPD_CONFIRMED_REC_A => Status::NoEnt,
            _ if known => Status::Ok,
            _ => Status::Inval,
        };
        let found = connection.compound(minor, &[exchange_id("f", 1, flag)]).await.unwrap().0;
        assert_eq!(found, expected, "{flag:#x} of minor version {minor}");
    }
    let none = forebay_proto::nfs4::Bitmap::EMPTY;
    let protect = StateProtectArgs::MachineCredential(ProtectOps { must_enforce: none, must_allow: none });
    let args = ExchangeIdArgs { state_protect: protect, ..exchange_args("f", 1, 0) };
    assert_eq!(one(&connection, Op::ExchangeId(args)).await.status(), Status::Inval);
}

#[tokio::test]
async fn create_session_is_replayed_and_its_sequence_kept() {
    let running = Lab::default().start().await;
    let connection = running.connection(0).await;
    let client = exchanged(&connection, "c", 1, 0).await.unwrap();
    let create = |sequence| create_session(client.clientid, sequence, channel());
    let first = client.sequence;
    assert_eq!(one(&connection, create(first - 1)).await.status(), Status::SeqMisordered, "nothing to repeat yet");
    assert_eq!(one(&connection, create(first + 1)).await.status(), Status::SeqMisordered);
    let made = one(&connection, create(first)).await;
    assert_eq!(one(&connection, create(first)).await, made);
    assert_eq!(running.server.sessions.len(), 1, "one session");
    assert_eq!(one(&connection, create(first + 2)).await.status(), Status::SeqMisordered);
    let next = one(&connection, create(first + 1)).await;
    assert_eq!((next.status(), running.server.sessions.len()), (Status::Ok, 2));
    assert_eq!(one(&connection, create(first)).await.status(), Status::SeqMisordered, "only the last is repeated");
    assert_eq!(one(&connection, create_session(ClientId(77), 1, channel())).await.status(), Status::StaleClientid);
}

#[tokio::test]
async fn a_session_is_confirmed_only_by_the_one_who_asked_for_the_client() {
    let running = Lab::default().start().await;
    let (root, user) = (running.connection(0).await, running.connection(1000).await);
    let client = exchanged(&root, "c", 1, 0).await.unwrap();
    let create = create_session(client.clientid, client.sequence, channel());
    assert_eq!(one(&user, create.clone()).await.status(), Status::ClidInUse);
    assert_eq!(one(&root, create).await.status(), Status::Ok);
}

#[tokio::test]
async fn sessions_and_clients_go_when_nothing_is_left_in_them() {
    let running = Lab::default().start().await;
    let session = running.client("c").await;
    let other = running.connection(0).await;
    let open = value!(run(&session, at_then("data", [create("o", "file", BOTH)])).await, Open).stateid;
    assert_eq!(one(&other, destroy_clientid(session.clientid)).await.status(), Status::ClientidBusy);
    assert_eq!(one(&other, destroy_clientid(ClientId(5))).await.status(), Status::StaleClientid);
    assert_eq!(status(&session, [destroy_session(session.id), getfh()]).await, Status::NotOnlyOp);
    assert_eq!(one(&other, destroy_session(session.id)).await.status(), Status::Ok);
    assert_eq!(one(&other, destroy_session(session.id)).await.status(), Status::BadSession);
    assert_eq!(one(&other, destroy_clientid(session.clientid)).await.status(), Status::ClientidBusy, "an open is left");
    // The same client comes back on a new session and finds its open.
    let again = running.client("c").await;
    assert_eq!(again.clientid, session.clientid);
    assert_eq!(status(&again, at_then("data/file", [close(open)])).await, Status::Ok);
    let id = again.clientid;
    again.close().await.unwrap();
    assert_eq!(one(&other, destroy_clientid(id)).await.status(), Status::StaleClientid);
    assert_eq!(running.server.clients.lock().counts(), (0, 0));
}

#[tokio::test]
async fn a_session_can_destroy_itself_as_its_last_operation() {
    let running = Lab::default().start().await;
    let session = running.client("c").await;
    assert_eq!(status(&session, [destroy_session(session.id)]).await, Status::Ok);
    assert_eq!(status(&session, []).await, Status::BadSession);
}

#[tokio::test]
async fn connections_are_bound_as_asked_and_alone() {
    let running = Lab::default().start().await;
    let session = running.client("c").await;
    let other = running.connection(0).await;
    let bind = |session, direction| Op::BindConnToSession(BindConnArgs { session, direction, use_rdma: false });
    for (asked, granted) in [
        (ChannelFromClient::Fore, ChannelFromServer::Fore),
        (ChannelFromClient::Back, ChannelFromServer::Back),
        (ChannelFromClient::ForeOrBoth, ChannelFromServer::Both),
        (ChannelFromClient::BackOrBoth, ChannelFromServer::Both),
    ] {
        let bound = value!([one(&other, bind(session.id, asked)).await], BindConnToSession);
        assert_eq!((bound.session, bound.direction, bound.use_rdma), (session.id, granted, false));
    }
    let unknown = one(&other, bind(SessionId([1; 16]), ChannelFromClient::Fore)).await;
    assert_eq!(unknown.status(), Status::BadSession);
    let not_alone = [bind(session.id, ChannelFromClient::Fore), Op::PutRootFh(())];
    assert_eq!(other.compound(2, &not_alone).await.unwrap().0, Status::NotOnlyOp);
    assert_eq!(status(&session, [bind(session.id, ChannelFromClient::Fore)]).await, Status::NotOnlyOp);
}

#[tokio::test]
async fn a_back_channel_needs_a_flavour_that_is_served() {
    let running = Lab::default().start().await;
    let session = running.client("c").await;
    let control = |security: Vec<_>| {
        Op::BackchannelCtl(BackchannelCtlArgs { program: 1, security: List::new(security).unwrap() })
    };
    let gss = GssCallbackHandles { service: 1, from_server: Default::default(), from_client: Default::default() };
    assert_eq!(status(&session, [control(vec![CallbackSecurity::None])]).await, Status::Ok);
    assert_eq!(status(&session, [control(vec![])]).await, Status::Inval);
    assert_eq!(status(&session, [control(vec![CallbackSecurity::Gss(gss)])]).await, Status::Inval);
}

#[tokio::test]
async fn reclaim_complete_is_said_once_and_before_anything_is_opened() {
    let running = Lab::default().start().await;
    let options = forebay_node::client::SessionOptions { reclaim_complete: false, ..running.options("c", 0) };
    let session = forebay_node::client::Session::open(&options).await.unwrap();
    assert_eq!(status(&session, at_then("data", [create("o", "f", READ)])).await, Status::Grace);
    assert_eq!(status(&session, [reclaim_complete()]).await, Status::Ok);
    assert_eq!(status(&session, [reclaim_complete()]).await, Status::CompleteAlready);
    assert_eq!(status(&session, at_then("data", [create("o", "f", READ)])).await, Status::Ok);
}
