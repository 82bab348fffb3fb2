//! OPEN, share reservations, OPEN_DOWNGRADE, CLOSE (§9.7, §18.2, §18.16, §18.18).

use forebay_proto::nfs4::{Op, Stateid, Status, ops::create::CreateType, ops::open::CreateHow};

use crate::common::{Lab, done, ops::*, run, status};

/// Access and deny of two owners: they exclude each other where one wants what the other denies.
#[tokio::test]
async fn shares_exclude_what_they_deny_within_a_client_and_between_clients() {
    let lab = Lab::default();
    std::fs::write(lab.path("file"), "x").unwrap();
    let running = lab.start().await;
    let (one, other) = (running.client("one").await, running.client("other").await);
    for first in 0..12 {
        let (access, deny) = (first / 4 + 1, first % 4);
        let opened = value!(done(&one, at_then("data", [open("a", "file", access, deny)])).await, Open);
        for second in 0..12 {
            let (access2, deny2) = (second / 4 + 1, second % 4);
            let excluded = access2 & deny != 0 || deny2 & access != 0;
            let expected = if excluded { Status::ShareDenied } else { Status::Ok };
            for client in [&one, &other] {
                let replies = run(client, at_then("data", [open("b", "file", access2, deny2)])).await;
                let found = replies.last().unwrap().status();
                assert_eq!(found, expected, "{access}/{deny}, then {access2}/{deny2}");
                if found == Status::Ok {
                    let stateid = value!(replies, Open).stateid;
                    done(client, at_then("data/file", [close(stateid)])).await;
                }
            }
        }
        done(&one, at_then("data/file", [close(opened.stateid)])).await;
    }
    assert_eq!(running.server.files.counts(), (0, 0));
}

#[tokio::test]
async fn an_anonymous_read_or_write_is_locked_out_by_a_deny_mode_and_a_bypass_read_is_not() {
    let lab = Lab::default();
    std::fs::write(lab.path("file"), "x").unwrap();
    let running = lab.start().await;
    let (one, other) = (running.client("one").await, running.client("other").await);
    done(&one, at_then("data", [open("a", "file", READ, BOTH)])).await;
    for (op, expected) in [
        (read(Stateid::ANONYMOUS, 0, 1), Status::Locked),
        (write(Stateid::ANONYMOUS, 0, "y"), Status::Locked),
        (setattr(Stateid::ANONYMOUS, &size(0)), Status::Locked),
        (read(Stateid::READ_BYPASS, 0, 1), Status::Ok),
        (write(Stateid::READ_BYPASS, 0, "y"), Status::Locked),
    ] {
        assert_eq!(status(&other, at_then("data/file", [op.clone()])).await, expected, "{op:?}");
    }
}

#[tokio::test]
async fn an_owners_opens_of_one_file_are_one_state_that_grows_and_shrinks() {
    let lab = Lab::default();
    std::fs::write(lab.path("file"), "x").unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    let read_only = value!(done(&session, at_then("data", [open("o", "file", READ, 0)])).await, Open).stateid;
    let both = value!(done(&session, at_then("data", [open("o", "file", BOTH, WRITE)])).await, Open).stateid;
    assert_eq!((read_only.other, read_only.seqid, both.seqid), (both.other, 1, 2));
    let at_file = |op| at_then("data/file", [op]);
    for (op, expected) in [
        (downgrade(read_only, READ, 0), Status::OldStateid),
        (downgrade(both, 0, 0), Status::Inval),
        (downgrade(both, READ, 4), Status::Inval),
        // Never opened so.
        (downgrade(both, WRITE, 0), Status::Inval),
        (downgrade(both, READ, READ), Status::Inval),
        (write(both, 0, "y"), Status::Ok),
    ] {
        assert_eq!(status(&session, at_file(op.clone())).await, expected, "{op:?}");
    }
    let down = value!(done(&session, at_file(downgrade(both, READ, 0))).await, OpenDowngrade);
    assert_eq!((down.other, down.seqid), (both.other, 3));
    assert_eq!(status(&session, at_file(write(down, 0, "y"))).await, Status::OpenMode);
    assert_eq!(status(&session, at_file(downgrade(down, BOTH, WRITE))).await, Status::Inval, "up is for OPEN");
    assert_eq!(status(&session, at_file(close(both))).await, Status::OldStateid);
    assert_eq!(value!(done(&session, at_file(close(down))).await, Close), Stateid::INVALID);
    assert_eq!(status(&session, at_file(close(down))).await, Status::BadStateid);
}

#[tokio::test]
async fn only_regular_files_are_opened() {
    let lab = Lab::default();
    std::fs::create_dir(lab.path("directory")).unwrap();
    std::os::unix::fs::symlink("file", lab.path("link")).unwrap();
    let running = lab.start().await;
    let session = running.client("a").await;
    done(&session, at_then("data", [make(CreateType::Fifo, "fifo")])).await;
    for (file, expected) in [
        ("directory", Status::IsDir),
        ("link", Status::Symlink),
        ("fifo", Status::WrongType),
        ("nothing", Status::NoEnt),
    ] {
        assert_eq!(status(&session, at_then("data", [open("o", file, READ, 0)])).await, expected, "{file}");
        if file != "nothing" {
            let by_handle = at_then(&format!("data/{file}"), [open_fh("o", READ, 0)]);
            assert_eq!(status(&session, by_handle).await, expected, "{file} by handle");
            let made = status(&session, at_then("data", [create("o", file, READ)])).await;
            assert!(made == expected || made == Status::Exist, "creating {file}: {made:?}");
        }
    }
    assert_eq!(status(&session, at_then("data/fifo", [lookup("x")])).await, Status::NotDir);
    assert_eq!(status(&session, at_then("data/link", [lookup("x")])).await, Status::Symlink);
    for bad in [0, 4, 7] {
        assert_eq!(status(&session, at_then("data", [open("o", "x", bad, 0)])).await, Status::Inval, "access {bad}");
    }
    assert_eq!(status(&session, at_then("data", [open("o", "x", READ, 4)])).await, Status::Inval);
    assert_eq!(running.server.files.counts(), (0, 0));
}

#[tokio::test]
async fn unchecked_finds_guarded_refuses_and_both_make() {
    let lab = Lab::default();
    let running = lab.start().await;
    let session = running.client("a").await;
    assert_eq!(status(&session, at_then("data", [guarded("o", "file")])).await, Status::Ok);
    assert_eq!(status(&session, at_then("data", [guarded("o", "file")])).await, Status::Exist);
    std::fs::write(lab.path("file"), "content").unwrap();
    let found = value!(done(&session, at_then("data", [create("o", "file", BOTH)])).await, Open);
    assert!(found.attributes_set.is_empty(), "the mode of what is there stays");
    assert_eq!(std::fs::read(lab.path("file")).unwrap(), b"content");
    let truncate = CreateHow::Unchecked(fattr(&size(0)));
    done(&session, at_then("data", [create_how("o", "file", BOTH, truncate)])).await;
    assert_eq!(std::fs::read(lab.path("file")).unwrap(), b"");
}

#[tokio::test]
async fn a_file_without_a_name_works_until_its_last_close() {
    let lab = Lab::default();
    let running = lab.start().await;
    let session = running.client("a").await;
    for (file, unlink) in [("one", remove("one")), ("two", rename("other", "two"))] {
        std::fs::write(lab.path("other"), "").unwrap();
        let replies = done(&session, at_then("data", [create("o", file, BOTH), getfh()])).await;
        let (stateid, handle) = (value!(replies, Open).stateid, value!(replies, GetFh).handle);
        done(&session, at_then("data", [Op::SaveFh(()), unlink])).await;
        done(&session, [putfh(&handle), write(stateid, 0, "still")]).await;
        let replies = done(&session, [putfh(&handle), read(stateid, 0, 9)]).await;
        assert_eq!(&value!(replies, Read).data[..], b"still");
        done(&session, [putfh(&handle), close(stateid)]).await;
        running.server.tick().await;
        assert_eq!(status(&session, [putfh(&handle), getattr(&[])]).await, Status::Stale, "{file}");
    }
}
