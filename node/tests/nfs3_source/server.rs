//! A server of a [`Tree`] over TCP, NFS and MOUNT on one port, that loses, stalls and delays as it is told.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use bytes::{Bytes, BytesMut};
use forebay_proto::{
    nfs3::{self, Call, Failed, Reply, Status, WccData, mount},
    rpc::{self, AcceptStatus, Credential, RecordReader, ReplyHeader, marker},
    xdr::{List, Reader, Writer},
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::tree::Tree;

/// A call as it arrived.
#[derive(Clone, Debug)]
pub struct Arrived {
    pub xid: u32,
    pub procedure: u32,
    pub uid: u32,
    pub groups: usize,
}

#[derive(Default)]
pub struct Knobs {
    /// The next call of this procedure is run, its reply is not sent and all connections are cut.
    pub lose_reply_of: Option<u32>,
    /// The next call of this procedure is run, and its reply is not sent.
    pub swallow_reply_of: Option<u32>,
    /// As many calls of a procedure are answered JUKEBOX.
    pub jukebox: HashMap<u32, usize>,
    /// Replies to transaction ids are kept, and given again.
    pub remembers: bool,
    /// MNT is refused with this.
    pub refuse_mount: Option<Status>,
    pub arrived: Vec<Arrived>,
    pub mounts: usize,
    /// The next call of this procedure is run so much later.
    pub slow: Option<(u32, std::time::Duration)>,
    kept: HashMap<u32, Bytes>,
}

pub struct Server {
    pub address: SocketAddr,
    pub tree: Arc<Mutex<Tree>>,
    pub knobs: Arc<Mutex<Knobs>>,
    stalled: watch::Sender<bool>,
    cut: watch::Sender<u64>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        self.cut.send_modify(|cut| *cut += 1);
    }
}

impl Server {
    pub async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap()).await
    }

    pub async fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tree, knobs) = (Arc::new(Mutex::new(Tree::new())), Arc::new(Mutex::new(Knobs::default())));
        let (stalled, cut) = (watch::Sender::new(false), watch::Sender::new(0));
        let task = tokio::spawn({
            let (tree, knobs, stalled, cut) = (tree.clone(), knobs.clone(), stalled.clone(), cut.clone());
            async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let serving = serve(stream, tree.clone(), knobs.clone(), stalled.subscribe(), cut.clone());
                    let mut ended = cut.subscribe();
                    tokio::spawn(async move {
                        tokio::select! {
                            _ = serving => {}
                            _ = ended.changed() => {}
                        }
                    });
                }
            }
        });
        Self { address, tree, knobs, stalled, cut, task }
    }

    /// Nothing is answered while it is.
    pub fn stall(&self, stalled: bool) {
        self.stalled.send_replace(stalled);
    }

    pub fn cut(&self) {
        self.cut.send_modify(|cut| *cut += 1);
    }

    pub fn calls_of(&self, procedure: u32) -> usize {
        self.knobs.lock().arrived.iter().filter(|call| call.procedure == procedure).count()
    }

    pub fn forget_calls(&self) {
        self.knobs.lock().arrived.clear();
    }
}

async fn serve(
    mut stream: TcpStream,
    tree: Arc<Mutex<Tree>>,
    knobs: Arc<Mutex<Knobs>>,
    mut stalled: watch::Receiver<bool>,
    cut: watch::Sender<u64>,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut records, mut input) = (RecordReader::new(2 << 20), BytesMut::new());
    loop {
        while let Some(record) = records.next_record(&mut input).unwrap() {
            let _ = stalled.wait_for(|stalled| !stalled).await;
            let procedure = rpc::Call::decode(Reader::new(record.clone())).unwrap().header.procedure;
            let slow = knobs.lock().slow.take_if(|(slow, _)| *slow == procedure);
            if let Some((_, time)) = slow {
                tokio::time::sleep(time).await;
            }
            let Some(reply) = answer(record, &tree, &knobs) else {
                cut.send_modify(|cut| *cut += 1);
                return Ok(());
            };
            if reply.is_empty() {
                continue;
            }
            stream.write_all(&[&marker(reply.len())[..], &reply].concat()).await?;
        }
        if stream.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
    }
}

/// The reply; `None` if it is to be lost with the connection, empty if it is to be lost alone.
fn answer(record: Bytes, tree: &Mutex<Tree>, knobs: &Mutex<Knobs>) -> Option<Bytes> {
    let rpc::Call { header, mut arguments } = rpc::Call::decode(Reader::new(record)).unwrap();
    let (xid, procedure) = (header.xid, header.procedure);
    let mut writer = Writer::new();
    let mut knobs = knobs.lock();
    if header.program == mount::PROGRAM {
        ReplyHeader::Accepted(AcceptStatus::Success).encode(xid, &mut writer);
        if let mount::Call::Mnt(path) = mount::Call::decode(procedure, &mut arguments).unwrap().unwrap() {
            knobs.mounts += 1;
            let refuse = knobs.refuse_mount.or((&path[..] != b"/data").then_some(Status::NoEnt));
            let told = match refuse {
                Some(status) => Err(Failed { status, told: () }),
                None => Ok(mount::MountOk { root: tree.lock().handle(1), flavors: List::new(vec![1]).unwrap() }),
            };
            mount::Reply::Mnt(told).encode(&mut writer);
        }
        return Some(writer.finish().to_bytes());
    }
    if header.program != nfs3::PROGRAM {
        ReplyHeader::Accepted(AcceptStatus::ProgramUnavailable).encode(xid, &mut writer);
        return Some(writer.finish().to_bytes());
    }
    let (uid, groups) = match &header.credential {
        Credential::Sys(sys) => (sys.uid, sys.groups.len()),
        other => panic!("{other:?}"),
    };
    knobs.arrived.push(Arrived { xid, procedure, uid, groups });
    ReplyHeader::Accepted(AcceptStatus::Success).encode(xid, &mut writer);
    let call = Call::decode(procedure, &mut arguments).unwrap().unwrap();
    arguments.finish().unwrap();
    let again = knobs.remembers.then(|| knobs.kept.get(&xid).cloned()).flatten();
    let reply = match again {
        Some(kept) => kept,
        None => {
            let tired = knobs.jukebox.get_mut(&procedure).filter(|left| **left > 0);
            let told = match tired {
                Some(left) => {
                    *left -= 1;
                    jukebox(&call)
                }
                None => tree.lock().run(&call),
            };
            told.encode(&mut writer);
            writer.finish().to_bytes()
        }
    };
    knobs.kept.insert(xid, reply.clone());
    if knobs.swallow_reply_of == Some(procedure) {
        knobs.swallow_reply_of = None;
        return Some(Bytes::new());
    }
    if knobs.lose_reply_of == Some(procedure) {
        knobs.lose_reply_of = None;
        return None;
    }
    Some(reply)
}

fn jukebox(call: &Call) -> Reply {
    let status = Status::Jukebox;
    match call {
        Call::GetAttr(_) => Reply::GetAttr(Err(Failed { status, told: () })),
        Call::Read(_) => Reply::Read(Err(Failed { status, told: None })),
        Call::Remove(_) => Reply::Remove(Err(Failed { status, told: WccData::default() })),
        other => panic!("{other:?}"),
    }
}
