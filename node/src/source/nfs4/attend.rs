//! Looks after a session: its connections, its lease, what the server's flags ask for.
//!
//! Owns: the tasks that run as long as a session does. Never does: making sessions.
//! Invariant: when it returns, its tasks have ended, unless the source is closed.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use forebay_proto::nfs4::{
    Op, Status,
    ops::bind_conn_to_session::{BindConnArgs, ChannelFromClient},
    sequence_status,
};
use tokio::time::{sleep, timeout};

use super::{
    connect::{ConnectError, PAUSE_MAX, PAUSE_MIN, dial, jittered, one, reclaim_complete},
    engine::{Engine, Request},
    link::Link,
    session::Session,
};
use crate::source::counters::Kind;

/// A flag of the server that stays up is looked at this often.
const FLAG_PAUSE: Duration = Duration::from_secs(5);

/// Looks after a session until it is lost.
pub(super) async fn attend(engine: &Arc<Engine>, session: &Arc<Session>) {
    let keepers: Vec<_> = (0..engine.options.connections.clamp(1, 16))
        .map(|place| tokio::spawn(keep_link(engine.clone(), session.clone(), place)))
        .collect();
    tokio::select! {
        () = renew(engine, session) => {}
        () = heed_flags(engine, session) => {}
        () = session.dead.cancelled() => {}
        () = engine.closed.cancelled() => {}
    }
    if !engine.closed.is_cancelled() {
        session.kill();
        for keeper in keepers {
            let _ = keeper.await;
        }
    }
}

/// Keeps one of a session's connections standing.
async fn keep_link(engine: Arc<Engine>, session: Arc<Session>, place: usize) {
    let mut pause = PAUSE_MIN;
    let mut standing = session.links().into_iter().next().filter(|_| place == 0);
    while !session.dead.is_cancelled() {
        let mut useful = true;
        if let Some(link) = standing.take() {
            engine.counters.connected();
            let begun = Instant::now();
            tokio::select! {
                () = link.closed.cancelled() => {}
                () = session.dead.cancelled() => {}
            }
            engine.counters.disconnected();
            useful = link.has_answered() || begun.elapsed() > PAUSE_MAX;
        }
        if useful {
            standing = dial_into(&engine, &session, place).await;
        }
        if let Some(link) = &standing {
            pause = if link.has_answered() { PAUSE_MIN } else { pause };
            continue;
        }
        // It was not to be had, or taken and closed without a word.
        if !session.links().iter().any(|link| link.has_answered()) && !session.dead.is_cancelled() {
            engine.set_down(true);
        }
        tokio::select! {
            () = sleep(jittered(pause)) => {}
            () = session.dead.cancelled() => {}
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Makes a connection and puts it in its place, once.
async fn dial_into(engine: &Arc<Engine>, session: &Arc<Session>, place: usize) -> Option<Arc<Link>> {
    let peer = session.links().first().map(|link| link.peer);
    let dialled = tokio::select! {
        dialled = dial(engine, peer) => dialled,
        () = session.dead.cancelled() => return None,
    };
    match dialled {
        // The first one carries the back channel too; the others are bound by use (RFC 8881 §2.10.3.1).
        Ok(link) if place > 0 || bind(engine, session, &link, true).await => {
            session.install(place, &link);
            return Some(link);
        }
        Ok(link) => link.closed.cancel(),
        Err(error) => tracing::debug!(%error, place, "no connection to the source"),
    }
    None
}

/// BIND_CONN_TO_SESSION; whether the connection may be used. That the session is gone is noted.
pub(super) async fn bind(engine: &Engine, session: &Arc<Session>, link: &Link, back: bool) -> bool {
    let direction = if back { ChannelFromClient::ForeOrBoth } else { ChannelFromClient::Fore };
    let op = Op::BindConnToSession(BindConnArgs { session: session.id, direction, use_rdma: false });
    match one(engine, link, session.minor_version, op).await {
        Ok(_) => true,
        Err(ConnectError::Status { status: Status::BadSession | Status::DeadSession, .. }) => {
            engine.lost(session);
            false
        }
        Err(ConnectError::Status { status, .. }) => {
            tracing::debug!(status = status.name(), "BIND_CONN_TO_SESSION was refused");
            true
        }
        Err(_) => false,
    }
}

/// Renews the lease when nothing else does (RFC 8881 §8.3).
async fn renew(engine: &Arc<Engine>, session: &Arc<Session>) {
    let third = Duration::from_secs(u64::from(session.facts.lock().lease)) / 3;
    let period = third.max(Duration::from_millis(300));
    loop {
        // A source that is down is asked more often, so that it is known to be up again.
        let wait = if engine.is_down() { Duration::from_millis(500) } else { period.saturating_sub(engine.idle_for()) };
        sleep(wait.max(Duration::from_millis(50))).await;
        if engine.idle_for() < period && !engine.is_down() {
            continue;
        }
        let request = Request::machine(engine, Kind::Session, Vec::new());
        if timeout(engine.options.call_timeout, engine.call_in(session, request)).await.is_ok_and(|done| done.is_err())
        {
            return;
        }
    }
}

/// Does what SEQUENCE's status flags ask for.
async fn heed_flags(engine: &Arc<Engine>, session: &Arc<Session>) {
    use sequence_status as flag;
    loop {
        engine.flagged.notified().await;
        let flags = engine.flags.swap(0, Ordering::Relaxed) as u32;
        if flags & flag::RESTART_RECLAIM_NEEDED != 0 {
            engine.opens.reclaim(engine, session).await;
            if let Err(error) = reclaim_complete(engine, session).await {
                tracing::warn!(%error, "after the source's restart");
            }
        }
        let revoked = flag::EXPIRED_ALL_STATE_REVOKED
            | flag::EXPIRED_SOME_STATE_REVOKED
            | flag::ADMIN_STATE_REVOKED
            | flag::RECALLABLE_STATE_REVOKED;
        if flags & revoked != 0 {
            engine.opens.free_revoked(engine, session).await;
        }
        let path = flag::CB_PATH_DOWN | flag::CB_PATH_DOWN_SESSION | flag::BACKCHANNEL_FAULT;
        if flags & path != 0
            && let Some(link) = session.links().first()
        {
            bind(engine, session, link, true).await;
        }
        sleep(FLAG_PAUSE).await;
    }
}
