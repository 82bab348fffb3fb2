//! What a real Linux kernel said and was told (`testdata/golden`): every record decodes to its end and encodes to the
//! same bytes, and the operations hold what was done.
#![allow(clippy::unwrap_used, reason = "in a test, failing where one stands is what is wanted")]

use std::{collections::BTreeMap, path::Path};

use bytes::{Bytes, BytesMut};
use forebay_proto::{
    limits::RECORD_MAX,
    nfs4::{
        Attr, Attributes, CompoundHeader, LockType, Op, OpReply, PROC_COMPOUND, PROGRAM, ReplyHeader, StableHow,
        Status, VERSION,
        attr::Principal,
        ops::{
            create::CreateType,
            lock::{LockReply, Locker},
            open::{CreateHow, OpenClaim, OpenHow},
            seek::SeekContent,
            setxattr::SetXattrOption,
        },
    },
    rpc::{AcceptStatus, Call, Credential, RecordReader, Reply, ReplyHeader as RpcReply},
    xdr::{Reader, Writer, Xdr},
};

/// A call and its reply, taken apart.
struct Pair {
    minor_version: u32,
    ops: Vec<Op>,
    replies: Vec<OpReply>,
}

#[test]
fn what_linux_sends_and_is_sent_decodes_to_its_end_and_encodes_to_the_same_bytes() {
    let files = golden();
    assert!(files.len() > 60, "{} files", files.len());
    for (name, bytes) in &files {
        let (call, reply) = records(bytes);
        let (header, ops) = call_parts(&call);
        let mut writer = Writer::new();
        let rpc = Call::decode(Reader::new(call.clone())).unwrap().header;
        assert_eq!((rpc.program, rpc.version, rpc.procedure), (PROGRAM, VERSION, PROC_COMPOUND), "{name}");
        assert!(matches!(&rpc.credential, Credential::Sys(sys) if sys.uid == 0), "{name}");
        rpc.encode(&mut writer);
        header.encode(&mut writer);
        ops.iter().for_each(|op| op.encode(&mut writer));
        assert_eq!(writer.finish().to_bytes(), call, "the call of {name}");

        let (rpc, header, replies) = reply_parts(&reply);
        assert_eq!(rpc.header, RpcReply::Accepted(AcceptStatus::Success), "{name}");
        let mut writer = Writer::new();
        rpc.header.encode(rpc.xid, &mut writer);
        header.encode(&mut writer);
        replies.iter().for_each(|reply| reply.encode(&mut writer));
        assert_eq!(writer.finish().to_bytes(), reply, "the reply of {name}");
        for (op, reply) in ops.iter().zip(&replies) {
            assert_eq!(op.number() as u32, reply.number(), "{name}");
        }
    }
}

/// What is known of an operation's arguments and result from what the client was told to do.
type Known = (&'static str, fn(&Op, &OpReply) -> bool);

/// For an operation that both minor versions have, the row is for both.
const KNOWN: &[Known] = &[
    ("ACCESS", |op, reply| match (op, reply) {
        (Op::Access(args), OpReply::Access(Ok(told))) => args.access != 0 && told.access & !told.supported == 0,
        _ => false,
    }),
    ("ALLOCATE", |op, _| matches!(op, Op::Allocate(args) if (args.offset, args.length) == (0, 8192))),
    ("CLOSE", |op, _| matches!(op, Op::Close(args) if args.stateid.other != [0; 12])),
    ("COPY", |op, reply| match (op, reply) {
        (Op::Copy(args), reply) => args.source_servers.is_empty() && reply.status() == Status::Ok,
        _ => false,
    }),
    ("CREATE", |op, _| match op {
        Op::Create(args) => match &args.kind {
            CreateType::Directory => &args.name[..] == b"d",
            CreateType::Symlink(target) => (&args.name[..], &target[..]) == (b"s", b"f"),
            kind => *kind == CreateType::Fifo && &args.name[..] == b"p",
        },
        _ => false,
    }),
    ("CREATE_SESSION", |op, reply| match (op, reply) {
        (Op::CreateSession(args), OpReply::CreateSession(Ok(told))) => {
            args.sequence == told.sequence && told.fore.max_operations <= args.fore.max_operations
        }
        _ => false,
    }),
    ("DEALLOCATE", |op, _| matches!(op, Op::Deallocate(args) if (args.offset, args.length) == (0, 4096))),
    ("EXCHANGE_ID", |op, reply| match (op, reply) {
        (Op::ExchangeId(args), OpReply::ExchangeId(Ok(told))) => {
            args.owner.owner.starts_with(b"Linux NFSv4.") && told.implementation[0].name.starts_with(b"forebay")
        }
        _ => false,
    }),
    ("GETATTR", |op, reply| match (op, reply) {
        (Op::GetAttr(args), OpReply::GetAttr(Ok(told))) => {
            told.mask.is_subset_of(&args.attributes) && Attributes::from_fattr(told).is_ok()
        }
        _ => false,
    }),
    ("GETFH", |_, reply| matches!(reply, OpReply::GetFh(Ok(told)) if told.handle.len() <= 64)),
    ("GETXATTR", |op, reply| match (op, reply) {
        (Op::GetXattr(args), OpReply::GetXattr(Ok(told))) => (&args.name[..], &told.value[..]) == (b"one", b"value"),
        _ => false,
    }),
    ("LINK", |op, _| matches!(op, Op::Link(args) if &args.name[..] == b"h")),
    ("LISTXATTRS", |_, reply| match reply {
        OpReply::ListXattrs(Ok(told)) => told.eof && told.names.iter().all(|name| &name[..] == b"one"),
        _ => false,
    }),
    ("LOCK", |op, reply| match (op, reply) {
        (Op::Lock(args), OpReply::Lock(LockReply::Ok(told))) => {
            let new = matches!(&args.locker, Locker::New(_));
            let write = matches!(args.kind, LockType::Write | LockType::WriteWait);
            new && write && (args.offset, args.length) == (0, 10) && told.seqid == 1
        }
        _ => false,
    }),
    ("LOCKT", |op, _| matches!(op, Op::LockT(args) if (args.offset, args.length) == (50, 5))),
    ("LOCKU", |op, _| matches!(op, Op::LockU(args) if args.offset == 0)),
    ("LOOKUP", |op, _| matches!(op, Op::Lookup(args) if !args.name.is_empty())),
    ("OPEN", |op, reply| match (op, reply) {
        (Op::Open(args), OpReply::Open(Ok(told))) => {
            let named = matches!(&args.claim, OpenClaim::Null(_) | OpenClaim::FileHandle);
            let made = matches!(
                &args.how,
                OpenHow::NoCreate | OpenHow::Create(CreateHow::Exclusive41(_) | CreateHow::Unchecked(_))
            );
            named && made && told.stateid.seqid > 0
        }
        _ => false,
    }),
    ("OPEN_DOWNGRADE", |op, _| matches!(op, Op::OpenDowngrade(args) if args.share_access & 3 != 3)),
    ("READ", |_, reply| matches!(reply, OpReply::Read(Ok(told)) if told.eof && told.data.len() < 4096)),
    ("READDIR", |_, reply| match reply {
        OpReply::ReadDir(Ok(told)) => {
            told.entries.iter().all(|entry| Attributes::from_fattr(&entry.attributes).is_ok())
        }
        _ => false,
    }),
    ("READLINK", |_, reply| matches!(reply, OpReply::ReadLink(Ok(told)) if &told.target[..] == b"f")),
    ("RECLAIM_COMPLETE", |op, _| matches!(op, Op::ReclaimComplete(args) if !args.one_fs)),
    ("REMOVE", |op, _| matches!(op, Op::Remove(args) if args.name.len() < 5)),
    ("REMOVEXATTR", |op, _| matches!(op, Op::RemoveXattr(args) if &args.name[..] == b"one")),
    ("RENAME", |op, _| match op {
        Op::Rename(args) => (&args.old_name[..], &args.new_name[..]) == (b"h", b"m"),
        _ => false,
    }),
    ("SECINFO_NO_NAME", |_, reply| matches!(reply, OpReply::SecInfoNoName(Ok(told)) if !told.flavors.is_empty())),
    ("SEEK", |op, _| matches!(op, Op::Seek(args) if matches!(args.what, SeekContent::Data | SeekContent::Hole))),
    ("SEQUENCE", |op, reply| match (op, reply) {
        (Op::Sequence(args), OpReply::Sequence(Ok(told))) => {
            (args.session, args.sequence, args.slot) == (told.session, told.sequence, told.slot)
        }
        _ => false,
    }),
    ("SETATTR", |op, reply| match (op, reply) {
        (Op::SetAttr(args), OpReply::SetAttr(told)) => {
            Attributes::from_fattr(&args.attributes).is_ok() && told.attributes_set == args.attributes.mask
        }
        _ => false,
    }),
    ("SETXATTR", |op, _| match op {
        Op::SetXattr(args) => args.option == SetXattrOption::Either && &args.value[..] == b"value",
        _ => false,
    }),
    ("WRITE", |op, reply| match (op, reply) {
        (Op::Write(args), OpReply::Write(Ok(told))) => {
            args.data.len() == told.count as usize && told.committed >= StableHow::Unstable
        }
        _ => false,
    }),
];

#[test]
fn operations_hold_what_the_client_was_told_to_do() {
    let mut seen = BTreeMap::new();
    for (file, bytes) in golden() {
        let (version, operation) = file.split_once('-').unwrap();
        let pair = take_apart(&bytes);
        assert_eq!(format!("4.{}", pair.minor_version), version);
        let found = pair.ops.iter().zip(&pair.replies).find(|(op, _)| op.number().name() == operation);
        let (op, reply) = found.unwrap_or_else(|| panic!("no {operation} in {file}"));
        if let Some((name, holds)) = KNOWN.iter().find(|(name, _)| *name == operation) {
            assert!(holds(op, reply), "{file}: {op:?} {reply:?}");
            *seen.entry(name).or_insert(0) += 1;
        }
    }
    for (name, _) in KNOWN {
        assert!(seen.contains_key(name), "no golden {name}");
    }
}

#[test]
fn owners_in_attributes_are_digits() {
    let owners = golden().into_values().flat_map(|bytes| take_apart(&bytes).replies).filter_map(|reply| match reply {
        OpReply::GetAttr(Ok(told)) if told.mask.has(Attr::Owner) => Attributes::from_fattr(&told).unwrap().owner,
        _ => None,
    });
    let owners: Vec<_> = owners.collect();
    assert!(!owners.is_empty() && owners.iter().all(|owner| *owner == Principal::Id(0)), "{owners:?}");
}

fn golden() -> BTreeMap<String, Bytes> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden");
    let paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let golden = paths.filter(|path| path.extension().is_some_and(|extension| extension == "bin"));
    let name = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
    golden.map(|path| (name(&path), std::fs::read(&path).unwrap().into())).collect()
}

fn records(bytes: &Bytes) -> (Bytes, Bytes) {
    let (mut reader, mut input) = (RecordReader::new(RECORD_MAX), BytesMut::from(&bytes[..]));
    let mut next = || reader.next_record(&mut input).unwrap().expect("a record");
    let pair = (next(), next());
    assert!(input.is_empty(), "two records and no more");
    pair
}

fn take_apart(bytes: &Bytes) -> Pair {
    let (call, reply) = records(bytes);
    let (header, ops) = call_parts(&call);
    Pair { minor_version: header.minor_version, ops, replies: reply_parts(&reply).2 }
}

fn call_parts(record: &Bytes) -> (CompoundHeader, Vec<Op>) {
    let mut arguments = Call::decode(Reader::new(record.clone())).unwrap().arguments;
    let header = CompoundHeader::decode(&mut arguments).unwrap();
    let ops = (0..header.operations).map(|_| Op::decode(&mut arguments).unwrap()).collect();
    arguments.finish().unwrap();
    (header, ops)
}

fn reply_parts(record: &Bytes) -> (Reply, ReplyHeader, Vec<OpReply>) {
    let mut reply = Reply::decode(Reader::new(record.clone())).unwrap();
    let (header, replies) = ReplyHeader::decode_all(&mut reply.results).unwrap();
    reply.results.finish().unwrap();
    (reply, header, replies)
}
