//! What becomes of a client that is silent for longer than its lease: nothing, until somebody wants what it holds (§8.3).

use std::time::Duration;

use forebay_node::client::Session;
use forebay_proto::nfs4::{LockType, Op, Stateid, Status};

use super::stateids::value_of_lock;
use crate::common::{Lab, Running, done, ops::*, status};

/// Leases of these tests: short, and silence is twice as long.
const LEASE: Duration = Duration::from_millis(300);

async fn silence() {
    tokio::time::sleep(LEASE * 2).await;
}

struct Held {
    running: Running,
    holder: Session,
    open: Stateid,
    lock: Stateid,
}

/// A client with an open that denies writing, and a lock.
async fn held(lab: &Lab) -> Held {
    let running = lab.start().await;
    let holder = running.client("holder").await;
    done(&holder, at_then("data", [create("o", "file", BOTH)])).await;
    let open = value!(done(&holder, at_then("data", [open("o", "file", BOTH, WRITE)])).await, Open).stateid;
    let lock = at_then("data/file", [lock(open, "p", LockType::Write, 0, 10)]);
    let lock = value_of_lock(&done(&holder, lock).await);
    Held { running, holder, open, lock }
}

#[tokio::test]
async fn an_expired_client_keeps_all_until_somebody_conflicts() {
    let lab = Lab::default().lease(LEASE);
    let held = held(&lab).await;
    silence().await;
    held.running.server.tick().await;
    // Others come and go without touching what it holds.
    let other = held.running.client("other").await;
    done(&other, at_then("data", [create("o", "elsewhere", BOTH)])).await;
    done(&other, at_then("data", [open("o", "file", READ, 0)])).await;
    assert_eq!(status(&held.holder, at_then("data/file", [read(held.lock, 0, 1)])).await, Status::Ok);
    assert_eq!(status(&held.holder, at_then("data/file", [write(held.open, 0, "x")])).await, Status::Ok);
    // That renewed it: now it is not expired, and a conflict is one.
    assert_eq!(status(&other, at_then("data", [open("o", "file", WRITE, 0)])).await, Status::ShareDenied);
}

#[tokio::test]
async fn a_conflict_ends_an_expired_client() {
    type Wanting = (&'static str, fn() -> Vec<Op>);
    let wanting: [Wanting; 5] = [
        ("open", || at_then("data", [open("o", "file", WRITE, 0)])),
        ("write", || at_then("data/file", [write(Stateid::ANONYMOUS, 0, "mine now")])),
        ("truncate", || at_then("data/file", [setattr(Stateid::ANONYMOUS, &size(0))])),
        ("lockt", || at_then("data/file", [lockt("q", LockType::Read, 0, 1)])),
        ("lock", || {
            let now = Stateid::CURRENT;
            at_then("data", [open("o", "file", READ, 0), lock(now, "q", LockType::Read, 0, 1)])
        }),
    ];
    for (what, ops) in wanting {
        let lab = Lab::default().lease(LEASE);
        let held = held(&lab).await;
        let other = held.running.client("other").await;
        assert_ne!(status(&other, ops()).await, Status::Ok, "{what} while the holder lives");
        silence().await;
        assert_eq!(status(&other, ops()).await, Status::Ok, "{what} after the lease");
        assert_eq!(status(&held.holder, at_then("data/file", [read(held.lock, 0, 1)])).await, Status::BadSession);
        // It comes back as a new client, and its stateids are gone.
        let again = held.running.client("holder").await;
        assert_ne!(again.clientid, held.holder.clientid);
        assert_eq!(status(&again, at_then("data/file", [read(held.open, 0, 1)])).await, Status::BadStateid);
    }
}

#[tokio::test]
async fn an_expired_client_without_state_is_forgotten() {
    let lab = Lab::default().lease(LEASE);
    let held = held(&lab).await;
    let idle = held.running.client("idle").await;
    silence().await;
    held.running.server.tick().await;
    assert_eq!(status(&idle, [Op::PutRootFh(())]).await, Status::BadSession);
    assert_eq!(status(&held.holder, [Op::PutRootFh(())]).await, Status::Ok);
    assert_eq!(held.running.server.sessions.len(), 1);
}

#[tokio::test]
async fn any_sequence_renews_the_lease() {
    let lab = Lab::default().lease(LEASE);
    let held = held(&lab).await;
    let other = held.running.client("other").await;
    for _ in 0..6 {
        tokio::time::sleep(LEASE / 3).await;
        done(&held.holder, []).await;
    }
    assert_eq!(status(&other, at_then("data", [open("o", "file", WRITE, 0)])).await, Status::ShareDenied);
}
