//! What a real NFSv3 server was asked and said (`testdata/golden3`): every record decodes to its end and encodes to the same
//! bytes, and holds what was done.
#![allow(clippy::unwrap_used, reason = "in a test, failing where one stands is what is wanted")]

use std::{collections::BTreeMap, path::Path};

use bytes::{Bytes, BytesMut};
use forebay_proto::{
    limits::RECORD_MAX,
    nfs3::{
        self, Answer, Call, CreateHow, FileType, NfsTime, Null, Procedure, Reply, SetTime, StableHow, Status,
        call_record, mount, portmap,
    },
    rpc::{self, Credential, RecordReader, ReplyHeader},
    xdr::{Reader, Writer},
};

/// A call's header and arguments, a reply's header and results.
struct Pair {
    call: rpc::Call,
    call_record: Bytes,
    reply: rpc::Reply,
    reply_record: Bytes,
}

#[test]
fn every_record_decodes_to_its_end_and_encodes_to_the_same_bytes() {
    let files = golden();
    assert!(files.len() > 30, "{} files", files.len());
    for (name, pair) in files {
        let header = &pair.call.header;
        let (mut call, mut reply) = (Writer::new(), Writer::new());
        header.encode(&mut call);
        assert_eq!(pair.reply.xid, header.xid, "{name}");
        assert_eq!(pair.reply.header, ReplyHeader::Accepted(rpc::AcceptStatus::Success), "{name}");
        pair.reply.header.encode(pair.reply.xid, &mut reply);
        let (mut arguments, mut results) = (pair.call.arguments.clone(), pair.reply.results.clone());
        macro_rules! both {
            ($module:path) => {{
                use $module as program;
                let decoded = program::Call::decode(header.procedure, &mut arguments).expect(&name).expect(&name);
                decoded.encode(&mut call);
                assert_eq!(decoded.number(), header.procedure);
                program::Reply::decode(header.procedure, &mut results).expect(&name).expect(&name).encode(&mut reply);
            }};
        }
        match (header.program, header.version) {
            (nfs3::PROGRAM, nfs3::VERSION) => both!(nfs3),
            (mount::PROGRAM, mount::VERSION) => both!(mount),
            (portmap::PROGRAM, portmap::VERSION) => both!(portmap),
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!((arguments.remaining(), results.remaining()), (0, 0), "{name}");
        assert_eq!(call.finish().to_bytes(), pair.call_record, "the call of {name}");
        assert_eq!(reply.finish().to_bytes(), pair.reply_record, "the reply of {name}");
    }
}

#[test]
fn every_procedure_of_nfs_is_there_and_refusals_are_what_their_names_say() {
    let mut seen = std::collections::BTreeSet::new();
    for (name, pair) in golden() {
        if pair.call.header.program != nfs3::PROGRAM {
            continue;
        }
        seen.insert(pair.call.header.procedure);
        let status = match nfs(&name).1 {
            Reply::Null(()) => Status::Ok,
            Reply::GetAttr(reply) => reply.status(),
            Reply::Lookup(reply) => reply.status(),
            Reply::Access(reply) => reply.status(),
            Reply::Read(reply) => reply.status(),
            Reply::Create(reply) => reply.status(),
            Reply::Remove(reply) | Reply::Rmdir(reply) | Reply::SetAttr(reply) => reply.status(),
            _ => Status::from(pair.reply.results.clone().u32().unwrap()),
        };
        let expected = name.split_once('-').map_or(0, |(_, status)| status.parse().unwrap());
        assert_eq!(status, Status::from(expected), "{name}");
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), nfs3::PROCEDURES);
}

#[test]
fn records_hold_what_was_done() {
    let (Call::GetAttr(_), Reply::GetAttr(Ok(root))) = nfs("GETATTR") else { panic!() };
    assert_eq!((root.kind, root.uid), (FileType::Directory, 0));
    let (Call::Lookup(args), Reply::Lookup(Ok(found))) = nfs("LOOKUP") else { panic!() };
    assert!(!args.name.is_empty() && found.file.len() <= 64 && found.directory.is_some());
    let (Call::Write(args), Reply::Write(Ok(wrote))) = nfs("WRITE") else { panic!() };
    assert_eq!((args.offset, args.count, &args.data[..], args.stable), (0, 5, &b"hello"[..], StableHow::FileSync));
    assert_eq!((wrote.count, wrote.committed, wrote.file.after.unwrap().size), (5, StableHow::FileSync, 5));
    let (Call::Read(args), Reply::Read(Ok(read))) = nfs("READ") else { panic!() };
    assert_eq!((args.offset, args.count), (1, 100));
    assert_eq!((read.count, read.eof, &read.data[..]), (4, true, &b"ello"[..]));
    let (Call::SetAttr(args), Reply::SetAttr(Err(failed))) = nfs("SETATTR-10002") else { panic!() };
    assert_eq!(args.guard, Some(NfsTime { seconds: 5, nanoseconds: 6 }));
    assert_eq!((args.attributes.accessed, args.attributes.modified), (SetTime::ServerTime, SetTime::ServerTime));
    assert_eq!(failed.status, Status::NotSync);
    let (Call::Create(args), Reply::Create(Ok(_))) = nfs("CREATE") else { panic!() };
    assert!(matches!(args.how, CreateHow::Exclusive(_) | CreateHow::Guarded(_)));
    let (Call::Symlink(args), Reply::Symlink(Ok(made))) = nfs("SYMLINK") else { panic!() };
    assert_eq!((&args.target[..], made.attributes.unwrap().kind), (&b"a/b"[..], FileType::Symlink));
    let (Call::ReadLink(_), Reply::ReadLink(Ok(link))) = nfs("READLINK") else { panic!() };
    assert_eq!(&link.target[..], b"a/b");
    let (Call::Rename(args), Reply::Rename(Ok(wcc))) = nfs("RENAME") else { panic!() };
    assert_eq!((&args.from.name[..], &args.to.name[..]), (&b"link"[..], &b"moved"[..]));
    assert!(wcc.from.before.unwrap().changed <= wcc.from.after.unwrap().changed);
    let (Call::ReadDirPlus(_), Reply::ReadDirPlus(Ok(page))) = nfs("READDIRPLUS") else { panic!() };
    let whole = page.entries.0.iter().filter(|entry| entry.attributes.is_some() && entry.file.is_some());
    assert!(whole.count() > 5 && page.directory.is_some());
    let (Call::ReadDir(args), Reply::ReadDir(Ok(page))) = nfs("READDIR") else { panic!() };
    assert_eq!((args.cookie, args.count), (0, 4096));
    assert!(page.entries.0.iter().any(|entry| &entry.name[..] == b"."));
    let (Call::FsInfo(_), Reply::FsInfo(Ok(info))) = nfs("FSINFO") else { panic!() };
    assert!(info.read_max >= 1 << 20 && info.write_max >= 1 << 20);
}

#[test]
fn mount_and_the_port_mapper_hold_what_was_asked() {
    let files = golden();
    let pair = &files["MOUNT-MNT"];
    let Some(Ok(mount::Call::Mnt(path))) = mount::Call::decode(1, &mut pair.call.arguments.clone()) else { panic!() };
    let Some(Ok(mount::Reply::Mnt(Ok(told)))) = mount::Reply::decode(1, &mut pair.reply.results.clone()) else {
        panic!()
    };
    assert_eq!(&path[..], b"/srv");
    assert!(!told.root.is_empty() && told.flavors.contains(&1));
    let exports = mount::Reply::decode(5, &mut files["MOUNT-EXPORT"].reply.results.clone());
    let Some(Ok(mount::Reply::Export(exports))) = exports else { panic!() };
    assert!(exports.0.iter().any(|export| &export.path[..] == b"/srv"));
    let pair = &files["PORTMAP-GETPORT"];
    let Some(Ok(portmap::Call::GetPort(asked))) = portmap::Call::decode(3, &mut pair.call.arguments.clone()) else {
        panic!()
    };
    let Some(Ok(portmap::Reply::GetPort(port))) = portmap::Reply::decode(3, &mut pair.reply.results.clone()) else {
        panic!()
    };
    assert_eq!((asked.protocol, port), (portmap::TCP, if asked.program == nfs3::PROGRAM { 12_049 } else { 12_048 }));
}

#[test]
fn a_call_is_the_header_and_the_arguments() {
    let pair = &golden()["NULL"];
    let header = &pair.call.header;
    assert!(matches!(header.credential, Credential::Sys(_)));
    assert_eq!(call_record::<Null>(header.xid, &header.credential, &()).to_bytes(), pair.call_record);
    assert_eq!((Null::PROGRAM, Null::VERSION, Null::NUMBER, Null::NAME), (100_003, 3, 0, "NULL"));
}

fn nfs(name: &str) -> (Call, Reply) {
    let pair = &golden()[name];
    let procedure = pair.call.header.procedure;
    let call = Call::decode(procedure, &mut pair.call.arguments.clone()).unwrap().unwrap();
    (call, Reply::decode(procedure, &mut pair.reply.results.clone()).unwrap().unwrap())
}

fn golden() -> BTreeMap<String, Pair> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden3");
    let paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let golden = paths.filter(|path| path.extension().is_some_and(|extension| extension == "bin"));
    golden
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let (mut reader, mut input) =
                (RecordReader::new(RECORD_MAX), BytesMut::from(&std::fs::read(&path).unwrap()[..]));
            let mut next = || reader.next_record(&mut input).unwrap().expect("a record");
            let (call_record, reply_record) = (next(), next());
            assert!(input.is_empty(), "two records and no more");
            let call = rpc::Call::decode(Reader::new(call_record.clone())).unwrap();
            let reply = rpc::Reply::decode(Reader::new(reply_record.clone())).unwrap();
            (name, Pair { call, call_record, reply, reply_record })
        })
        .collect()
}
