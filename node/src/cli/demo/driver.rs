//! What the demo's client does: writes, reads and lists, and looks at every byte.

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use forebay_proto::{
    limits::IO_MAX,
    nfs4::{
        Attr, Attributes, Bitmap, Component, FileHandle, LimitedOpaque, Op, OpReply, StableHow, StateOwner, Stateid,
        open,
        ops::{
            close::CloseArgs,
            commit::CommitArgs,
            lookup::LookupArgs,
            open::{CreateHow, OpenArgs, OpenClaim, OpenHow},
            putfh::PutFhArgs,
            read::ReadArgs,
            readdir::ReadDirArgs,
            write::WriteArgs,
        },
    },
    xdr::Opaque,
};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::client::{Session, SessionOptions};

/// Calls under way at once.
const DEPTH: usize = 16;
/// Bytes of a small file.
pub(super) const SMALL_FILE: usize = 4096;

/// Bytes that tell where they belong: a wrong block cannot pass for a right one.
pub(super) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    for (place, word) in bytes.chunks_exact_mut(8).zip(0..) {
        place.copy_from_slice(&pattern_word(seed, word));
    }
    bytes
}

fn pattern_word(seed: u64, word: u64) -> [u8; 8] {
    (seed << 24 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()
}

/// Whether `data` is the pattern of `seed` from word `first` on.
pub(super) fn is_pattern(data: &[u8], seed: u64, first: u64) -> bool {
    data.chunks_exact(8).zip(first..).all(|(bytes, word)| bytes == pattern_word(seed, word))
}

/// An open file.
pub(super) struct Opened {
    handle: FileHandle,
    stateid: Stateid,
}

/// A session with the server that is shown.
pub(super) struct Driver {
    session: Session,
    chunk: u32,
}

impl Driver {
    /// Connects.
    pub(super) async fn connect(server: std::net::SocketAddr) -> anyhow::Result<Self> {
        Self::connect_as(server, "forebay-demo").await
    }

    /// One of several clients.
    pub(super) async fn connect_as(server: std::net::SocketAddr, owner: &str) -> anyhow::Result<Self> {
        let session = Session::open(&SessionOptions::new(server, owner, 0, 0)).await?;
        Ok(Self { session, chunk: IO_MAX })
    }

    /// Says good-bye.
    pub(super) async fn leave(self) -> anyhow::Result<()> {
        Ok(self.session.close().await?)
    }

    /// The filehandle of a path.
    pub(super) async fn handle(&self, path: &[&[u8]]) -> anyhow::Result<FileHandle> {
        let mut ops = vec![Op::PutRootFh(())];
        ops.extend(path.iter().map(|name| lookup(name)));
        ops.push(Op::GetFh(()));
        match self.session.call(ops).await?.pop() {
            Some(OpReply::GetFh(Ok(found))) => Ok(found.handle),
            other => anyhow::bail!("GETFH gave {other:?}"),
        }
    }

    /// Opens a file by name, or makes it.
    pub(super) async fn open(&self, directory: &FileHandle, name: &[u8], create: bool) -> anyhow::Result<Opened> {
        let attributes = Attributes { mode: Some(0o644), ..Attributes::default() };
        let fattr = attributes.to_fattr(&Bitmap::of(&[Attr::Mode]));
        let how = if create { OpenHow::Create(CreateHow::Unchecked(fattr)) } else { OpenHow::NoCreate };
        let share_access = if create { open::ACCESS_BOTH } else { open::ACCESS_READ };
        let owner =
            StateOwner { clientid: self.session.clientid, owner: LimitedOpaque::new("demo").unwrap_or_default() };
        let claim = OpenClaim::Null(component(name));
        let open = OpenArgs { seqid: 0, share_access, share_deny: 0, owner, how, claim };
        let replies = self.session.call(vec![put(directory), Op::Open(open), Op::GetFh(())]).await?;
        match replies.as_slice() {
            [_, OpReply::Open(Ok(opened)), OpReply::GetFh(Ok(found))] => {
                Ok(Opened { handle: found.handle.clone(), stateid: opened.stateid })
            }
            other => anyhow::bail!("OPEN gave {other:?}"),
        }
    }

    /// Closes it.
    pub(super) async fn close(&self, file: &Opened) -> anyhow::Result<()> {
        let close = Op::Close(CloseArgs { seqid: 0, stateid: file.stateid });
        self.session.call(vec![put(&file.handle), close]).await?;
        Ok(())
    }

    /// Writes it in order, 1 MiB a call, and commits.
    pub(super) async fn write(&self, file: &Opened, chunks: u64) -> anyhow::Result<()> {
        let calls = stream::iter(0..chunks).map(|chunk| async move {
            let data = Opaque::new(pattern(chunk, self.chunk as usize)).context("a chunk fits a call")?;
            let offset = chunk * u64::from(self.chunk);
            let write = WriteArgs { stateid: file.stateid, offset, stable: StableHow::Unstable, data };
            match self.session.call(vec![put(&file.handle), Op::Write(write)]).await?.pop() {
                Some(OpReply::Write(Ok(done))) if done.count == self.chunk => Ok(()),
                other => anyhow::bail!("WRITE gave {other:?}"),
            }
        });
        calls.buffer_unordered(DEPTH).try_collect::<()>().await?;
        let commit = Op::Commit(CommitArgs { offset: 0, count: 0 });
        self.session.call(vec![put(&file.handle), commit]).await?;
        Ok(())
    }

    async fn read_at(&self, file: &Opened, offset: u64, count: u32) -> anyhow::Result<Bytes> {
        let read = Op::Read(ReadArgs { stateid: file.stateid, offset, count });
        match self.session.call(vec![put(&file.handle), read]).await?.pop() {
            Some(OpReply::Read(Ok(read))) if read.data.len() == count as usize => Ok(read.data.into_bytes()),
            other => anyhow::bail!("READ gave {:?}", other.map(|reply| reply.status())),
        }
    }

    /// Reads it in order.
    pub(super) async fn read(&self, file: &Opened, chunks: u64) -> anyhow::Result<()> {
        let calls = stream::iter(0..chunks).map(|chunk| async move {
            let data = self.read_at(file, chunk * u64::from(self.chunk), self.chunk).await?;
            ensure!(is_pattern(&data, chunk, 0), "chunk {chunk} holds wrong bytes");
            Ok(())
        });
        calls.buffer_unordered(DEPTH).try_collect().await
    }

    /// Lists a directory of so many entries.
    pub(super) async fn list(&self, directory: &FileHandle, expected: u32) -> anyhow::Result<()> {
        let (mut cookie, mut verifier, mut found) = (0, [0; 8], 0);
        loop {
            let attributes = Bitmap::of(&[Attr::Type, Attr::Size, Attr::FileId, Attr::FileHandle, Attr::TimeModify]);
            let (directory_count, max_count) = (self.chunk / 8, self.chunk);
            let list = ReadDirArgs { cookie, verifier, directory_count, max_count, attributes };
            match self.session.call(vec![put(directory), Op::ReadDir(list)]).await?.pop() {
                Some(OpReply::ReadDir(Ok(page))) => {
                    found += page.entries.len();
                    verifier = page.verifier;
                    cookie = page.entries.last().map_or(cookie, |entry| entry.cookie);
                    if page.eof {
                        break;
                    }
                }
                other => anyhow::bail!("READDIR gave {other:?}"),
            }
        }
        ensure!(found == expected as usize, "{found} entries, expected {expected}");
        Ok(())
    }

    /// Opens, reads and closes each small file.
    pub(super) async fn read_small(&self, directory: &FileHandle, files: u32) -> anyhow::Result<()> {
        let calls = stream::iter(0..files).map(|number| async move {
            let file = self.open(directory, format!("file-{number:05}").as_bytes(), false).await?;
            let data = self.read_at(&file, 0, SMALL_FILE as u32).await?;
            ensure!(is_pattern(&data, u64::from(number), 0), "file {number} holds wrong bytes");
            self.close(&file).await
        });
        calls.buffer_unordered(DEPTH).try_collect().await
    }
}

fn component(name: &[u8]) -> Component {
    Component::new(name.to_vec()).expect("our names are short")
}

fn lookup(name: &[u8]) -> Op {
    Op::Lookup(LookupArgs { name: component(name) })
}

fn put(handle: &FileHandle) -> Op {
    Op::PutFh(PutFhArgs { handle: handle.clone() })
}
