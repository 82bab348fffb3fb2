//! READDIR (§18.23): cookies, limits, what changes meanwhile.

use std::collections::HashSet;

use forebay_node::client::Session;
use forebay_proto::nfs4::{Attr, Attributes, Status, Verifier};

use crate::common::{Lab, done, ops::*, status, trusting};

/// All names, in calls of `max` bytes; `between` is done between two calls.
async fn list(session: &Session, max: u32, mut between: impl FnMut(usize)) -> Vec<String> {
    let (mut names, mut cookie, mut verifier) = (Vec::new(), 0, Verifier::default());
    for call in 0.. {
        let listed =
            value!(done(session, at_then("data", [readdir(cookie, verifier, max, &[Attr::FileId])])).await, ReadDir);
        for entry in &listed.entries {
            assert!(entry.cookie > 2, "0 to 2 mean something else");
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        }
        if listed.eof {
            break;
        }
        (cookie, verifier) = (listed.entries.last().expect("progress").cookie, listed.verifier);
        between(call);
    }
    names
}

#[tokio::test]
async fn every_entry_comes_once_whatever_the_size_of_a_call() {
    let lab = Lab::default();
    let all: HashSet<String> = (0..300).map(|number| format!("file-{number}-{}", "x".repeat(number % 40))).collect();
    all.iter().for_each(|name| std::fs::write(lab.path(name), "").unwrap());
    let running = lab.start().await;
    let session = running.client("a").await;
    for max in [160, 512, 4096, 1 << 20] {
        let names = list(&session, max, |_| {}).await;
        assert_eq!(names.len(), all.len(), "{max}");
        assert_eq!(names.into_iter().collect::<HashSet<_>>(), all, "{max}");
    }
}

#[tokio::test]
async fn what_stays_is_listed_once_while_others_come_and_go() {
    let lab = Lab::default();
    let stays: HashSet<String> = (0..200).map(|number| format!("stays-{number}")).collect();
    stays.iter().for_each(|name| std::fs::write(lab.path(name), "").unwrap());
    (0..200).for_each(|number| std::fs::write(lab.path(&format!("goes-{number}")), "").unwrap());
    let running = lab.start().await;
    let session = running.client("a").await;
    let names = list(&session, 700, |call| {
        let _ = std::fs::remove_file(lab.path(&format!("goes-{call}")));
        let _ = std::fs::remove_file(lab.path(&format!("goes-{}", 199 - call)));
        std::fs::write(lab.path(&format!("comes-{call}")), "").unwrap();
    })
    .await;
    let unique: HashSet<_> = names.iter().cloned().collect();
    assert_eq!(unique.len(), names.len(), "nothing twice");
    assert!(stays.is_subset(&unique), "nothing that stays is missed");
}

#[tokio::test]
async fn wrong_cookies_verifiers_and_sizes_are_told() {
    let lab = Lab::default();
    std::fs::write(lab.path("a-file-of-a-name"), "").unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    let first = value!(done(&session, at_then("data", [readdir(0, [0; 8], 4096, &[])])).await, ReadDir);
    let (cookie, verifier) = (first.entries[0].cookie, first.verifier);
    for (op, expected) in [
        (readdir(1, verifier, 4096, &[]), Status::BadCookie),
        (readdir(2, verifier, 4096, &[]), Status::BadCookie),
        (readdir(cookie, [9; 8], 4096, &[]), Status::NotSame),
        (readdir(cookie, verifier, 4096, &[]), Status::Ok),
        (readdir(0, [0; 8], 0, &[]), Status::TooSmall),
        (readdir(0, [0; 8], 15, &[]), Status::TooSmall),
        (readdir(0, [0; 8], 40, &[]), Status::TooSmall),
        (readdir(0, [0; 8], 4096, &[Attr::TimeAccessSet]), Status::Inval),
    ] {
        assert_eq!(status(&session, at_then("data", [op.clone()])).await, expected, "{op:?}");
    }
    let at_file = at_then("data/a-file-of-a-name", [readdir(0, [0; 8], 4096, &[])]);
    assert_eq!(status(&session, at_file).await, Status::NotDir);
}

#[tokio::test]
async fn no_reply_is_longer_than_asked() {
    let lab = Lab::default();
    (0..100).for_each(|number| std::fs::write(lab.path(&format!("f{number}")), "").unwrap());
    let running = lab.start().await;
    let session = running.client("a").await;
    let attrs = [Attr::Type, Attr::Size, Attr::FileHandle, Attr::Owner, Attr::TimeModify];
    for max in (200..2000).step_by(97) {
        let listed = value!(done(&session, at_then("data", [readdir(0, [0; 8], max, &attrs)])).await, ReadDir);
        let bytes = forebay_proto::xdr::Xdr::to_bytes(&listed).len();
        assert!(bytes <= max as usize, "{bytes} for {max}");
        assert!(bytes + 220 > max as usize || listed.eof, "{bytes} for {max}: more would have fitted");
    }
}

#[tokio::test]
async fn the_pseudo_file_system_lists_what_a_client_may_see() {
    let hidden = forebay_node::files::ExportOptions { clients: vec!["192.0.2.0/24".parse().unwrap()], ..trusting() };
    let lab = Lab::new(vec![("/a", trusting()), ("/deep/b", trusting()), ("/hidden", hidden)]);
    let running = lab.start().await;
    let session = running.client("a").await;
    let attrs = [Attr::Type, Attr::FileId, Attr::MountedOnFileId, Attr::RdattrError];
    let listed = value!(done(&session, at_then("", [readdir(0, [0; 8], 4096, &attrs)])).await, ReadDir);
    let names: Vec<_> = listed.entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect();
    assert_eq!((names, listed.eof), (vec!["a".to_owned(), "deep".to_owned()], true));
    for entry in &listed.entries {
        let told = Attributes::from_fattr(&entry.attributes).unwrap();
        assert_eq!((told.kind, told.rdattr_error), (Some(forebay_proto::nfs4::FileType::Directory), Some(Status::Ok)));
        // As a client sees it that stats the directory before it crosses into it.
        let inside = at_then(std::str::from_utf8(&entry.name).unwrap(), [getattr(&[Attr::MountedOnFileId])]);
        let inside = Attributes::from_fattr(&value!(done(&session, inside).await, GetAttr)).unwrap();
        assert_eq!(told.mounted_on_fileid, inside.mounted_on_fileid);
    }
}
