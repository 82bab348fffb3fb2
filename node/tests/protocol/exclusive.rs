//! EXCLUSIVE4 and EXCLUSIVE4_1: the same request again finds the file it made, another one does not (§18.16.3).

use forebay_proto::nfs4::{Attr, Attributes, Op, Status, attr::Principal, attr::SetTime};

use crate::common::{Lab, done, ops::*, status};

type Make = fn(&str, [u8; 8]) -> Op;

fn plain(file: &str, verifier: [u8; 8]) -> Op {
    exclusive("o", file, verifier)
}

fn with_attributes(file: &str, verifier: [u8; 8]) -> Op {
    exclusive41("o", file, verifier, &mode(0o640))
}

#[tokio::test]
async fn the_same_verifier_finds_the_file_and_another_does_not_also_after_a_restart() {
    let lab = Lab::default();
    let makers: [(&str, Make); 2] = [("four", plain), ("four-one", with_attributes)];
    let mut running = lab.start().await;
    for (file, make) in makers {
        let session = running.client("a").await;
        let verifier = *b"\xff\x01\x02\x03\xfc\x05\x06\x07";
        done(&session, at_then("data", [make(file, verifier)])).await;
        for restarted in [false, true] {
            let session = running.client("a").await;
            let again = at_then("data", [make(file, verifier), getfh()]);
            assert_eq!(status(&session, again).await, Status::Ok, "{file} {restarted}");
            let other = at_then("data", [make(file, *b"another!")]);
            assert_eq!(status(&session, other).await, Status::Exist, "{file} {restarted}");
            drop(session);
            if !restarted {
                running.stop().await;
                running = lab.start().await;
                while running.server.in_grace() {
                    drop(running.client("a").await);
                }
            }
        }
    }
}

#[tokio::test]
async fn a_file_made_otherwise_is_never_taken_for_ones_own() {
    let lab = Lab::default();
    std::fs::write(lab.path("file"), "").unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    for make in [plain as Make, with_attributes] {
        for verifier in [[0; 8], *b"verifier"] {
            assert_eq!(status(&session, at_then("data", [make("file", verifier)])).await, Status::Exist);
        }
    }
}

#[tokio::test]
async fn exclusive_create_sets_what_it_may_and_the_times_hold_the_verifier() {
    let lab = Lab::default();
    let running = lab.start().await;
    let session = running.client("a").await;
    let opened = value!(done(&session, at_then("data", [with_attributes("f", *b"verifier")])).await, Open);
    assert!(opened.attributes_set.has(Attr::Mode), "{opened:?}");
    let supported = getattr(&[Attr::SuppattrExclcreat, Attr::Mode]);
    let told = value!(done(&session, at_then("data/f", [supported])).await, GetAttr);
    let told = Attributes::from_fattr(&told).unwrap();
    assert_eq!(told.mode, Some(0o640));
    let may = told.suppattr_exclcreat.unwrap();
    assert!(may.has(Attr::Mode) && !may.has(Attr::TimeAccessSet) && !may.has(Attr::TimeModifySet));
    let times = Attributes { time_modify_set: Some(SetTime::ServerTime), ..mode(0o600) };
    assert_eq!(status(&session, at_then("data", [exclusive41("o", "g", [1; 8], &times)])).await, Status::Inval);
    assert!(!lab.path("g").exists());
    let owner = Attributes { owner: Some(Principal::Id(0)), ..mode(0o600) };
    done(&session, at_then("data", [exclusive41("o", "h", [1; 8], &owner)])).await;
}
