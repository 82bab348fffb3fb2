//! Source handles that do not fit into ours: registered in few commands, once, before a client sees them.

use forebay_proto::nfs4::{Attr, FileHandle, Status};

use crate::common::{Lab, Running, done, ops::*, status};

const NAMES: usize = 10_000;

/// Lists a directory with handles, a page after the other; returns the handles.
async fn handles(running: &Running) -> Vec<FileHandle> {
    let session = running.client("lister").await;
    let (mut cookie, mut verifier, mut handles) = (0, [0; 8], Vec::new());
    loop {
        let page = readdir(cookie, verifier, 131_072, &[Attr::FileHandle, Attr::FileId]);
        let page = value!(done(&session, at_then("data", [page])).await, ReadDir);
        for entry in page.entries.iter() {
            let told = forebay_proto::nfs4::Attributes::from_fattr(&entry.attributes).unwrap();
            handles.push(told.filehandle.expect("each entry has its handle"));
            cookie = entry.cookie;
        }
        if page.eof {
            return handles;
        }
        verifier = page.verifier;
    }
}

#[tokio::test]
async fn a_long_listing_takes_few_commands_and_none_after_a_restart() {
    let lab = Lab::default();
    for number in 0..NAMES {
        std::fs::write(lab.path(&format!("{number:05}")), "").unwrap();
    }
    let running = lab.start().await;
    let told = handles(&running).await;
    assert_eq!(told.len(), NAMES);
    assert!(told.iter().all(|handle| handle.len() <= 64), "ours are short, whatever the source's are");
    let proposals = running.server.namespace.handle_proposals();
    println!("{proposals} commands for {NAMES} handles");
    assert!(proposals <= 5, "{proposals} commands");
    running.stop().await;

    let running = lab.start().await;
    let session = running.client("a").await;
    for handle in [&told[0], &told[NAMES / 2], &told[NAMES - 1]] {
        assert_eq!(status(&session, [putfh(handle), getattr(&[Attr::Size])]).await, Status::Ok, "it outlives the node");
    }
    assert_eq!(handles(&running).await, told, "handles never change");
    assert_eq!(running.server.namespace.handle_proposals(), 0, "the plane knew them all");
}
