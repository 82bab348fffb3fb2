//! A tree of files in memory, and what NFSv3 procedures do to it.

use std::collections::BTreeMap;

use forebay_proto::{
    nfs3::{
        AccessOk, Call, Chain, CommitOk, CreateHow, Created, DeviceNumbers, DirOpArgs, Entry, EntryPlus, Failed, Fattr,
        FileHandle, FileType, FsInfoOk, FsStatOk, LinkWcc, LookupOk, MknodData, NfsTime, PathConfOk, ReadDirOk,
        ReadDirPlusOk, ReadLinkOk, ReadOk, RenameWcc, Reply, Sattr, SetTime, StableHow, Status, WccAttr, WccData,
        WriteOk,
    },
    xdr::Opaque,
};

pub const WRITE_VERIFIER: [u8; 8] = *b"boot one";
pub const COOKIE_VERIFIER: [u8; 8] = *b"cookies1";

#[derive(Clone, Debug)]
pub enum Content {
    File(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, u64>),
    Link(Vec<u8>),
    Fifo,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub content: Content,
    mode: u32,
    uid: u32,
    gid: u32,
    links: u32,
    accessed: NfsTime,
    modified: NfsTime,
    changed: NfsTime,
    verifier: Option<[u8; 8]>,
}

/// What the server leaves out, and how little it takes.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    pub read_max: u32,
    pub write_max: u32,
    /// READ and WRITE do at most so much, whatever FSINFO says.
    pub really: usize,
    pub post_attributes: bool,
    pub pre_attributes: bool,
    pub plus: bool,
    pub exclusive: bool,
    /// Entries in one page.
    pub page: usize,
}

/// What happens between the procedure and the taking of the attributes that go with its reply.
pub type Meanwhile = Box<dyn FnMut(&mut Tree, u32) + Send>;

pub struct Tree {
    pub nodes: BTreeMap<u64, Node>,
    pub generation: u64,
    pub manners: Manners,
    pub meanwhile: Option<Meanwhile>,
    clock: u32,
    next: u64,
}

type Wanted<T> = Result<T, Status>;
/// Cookie, name and node of some entries, and whether they are the last.
type Listed = (Vec<(u64, Vec<u8>, u64)>, bool);

impl Tree {
    pub fn new() -> Self {
        let manners = Manners {
            read_max: 1 << 20,
            write_max: 1 << 20,
            really: usize::MAX,
            post_attributes: true,
            pre_attributes: true,
            plus: true,
            exclusive: true,
            page: 1000,
        };
        let mut tree = Self { nodes: BTreeMap::new(), generation: 1, manners, meanwhile: None, clock: 0, next: 1 };
        tree.add(Content::Directory(BTreeMap::new()), &Sattr { mode: Some(0o755), ..Sattr::default() });
        tree
    }

    fn tick(&mut self) -> NfsTime {
        self.clock += 1;
        NfsTime { seconds: 1_700_000_000, nanoseconds: self.clock }
    }

    fn add(&mut self, content: Content, set: &Sattr) -> u64 {
        let now = self.tick();
        let (id, mode) = (self.next, set.mode.unwrap_or(0));
        self.next += 1;
        let node = Node {
            content,
            mode,
            uid: set.uid.unwrap_or(0),
            gid: set.gid.unwrap_or(0),
            links: 1,
            accessed: now,
            modified: now,
            changed: now,
            verifier: None,
        };
        self.nodes.insert(id, node);
        self.set(id, set);
        id
    }

    fn set(&mut self, id: u64, set: &Sattr) {
        let now = self.tick();
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.mode = set.mode.unwrap_or(node.mode);
        (node.uid, node.gid) = (set.uid.unwrap_or(node.uid), set.gid.unwrap_or(node.gid));
        if let (Some(size), Content::File(data)) = (set.size, &mut node.content) {
            data.resize(size as usize, 0);
            node.modified = now;
        }
        for (how, time) in [(set.accessed, &mut node.accessed), (set.modified, &mut node.modified)] {
            match how {
                SetTime::Leave => {}
                SetTime::ServerTime => *time = now,
                SetTime::ClientTime(to) => *time = to,
            }
        }
        node.changed = now;
    }

    /// The handle of a node.
    pub fn handle(&self, id: u64) -> FileHandle {
        let mut bytes = self.generation.to_be_bytes().to_vec();
        bytes.extend_from_slice(&id.to_be_bytes());
        FileHandle::new(bytes).unwrap()
    }

    fn id(&self, handle: &FileHandle) -> Wanted<u64> {
        let bytes: &[u8; 16] = handle.as_bytes().as_ref().try_into().map_err(|_| Status::BadHandle)?;
        let (generation, id) = bytes.split_at(8);
        let id = u64::from_be_bytes(id.try_into().unwrap());
        let known = generation == self.generation.to_be_bytes() && self.nodes.contains_key(&id);
        if known { Ok(id) } else { Err(Status::Stale) }
    }

    fn directory(&mut self, id: u64) -> Wanted<&mut BTreeMap<Vec<u8>, u64>> {
        match self.nodes.get_mut(&id).map(|node| &mut node.content) {
            Some(Content::Directory(names)) => Ok(names),
            _ => Err(Status::NotDir),
        }
    }

    pub fn fattr(&self, id: u64) -> Option<Fattr> {
        let node = self.nodes.get(&id)?;
        let (kind, size) = match &node.content {
            Content::File(data) => (FileType::Regular, data.len() as u64),
            Content::Directory(names) => (FileType::Directory, names.len() as u64),
            Content::Link(text) => (FileType::Symlink, text.len() as u64),
            Content::Fifo => (FileType::Fifo, 0),
        };
        Some(Fattr {
            kind,
            mode: node.mode,
            links: node.links,
            uid: node.uid,
            gid: node.gid,
            size,
            used: size,
            device: DeviceNumbers::default(),
            fsid: 77,
            fileid: id,
            accessed: node.accessed,
            modified: node.modified,
            changed: node.changed,
        })
    }

    fn post(&self, id: Wanted<u64>) -> Option<Fattr> {
        if self.manners.post_attributes { self.fattr(id.ok()?) } else { None }
    }

    fn pre(&self, id: Wanted<u64>) -> Option<WccAttr> {
        let told = self.fattr(id.ok()?).filter(|_| self.manners.pre_attributes)?;
        Some(WccAttr { size: told.size, modified: told.modified, changed: told.changed })
    }

    /// Another client's doing: a file's data.
    pub fn overwrite(&mut self, id: u64, data: &[u8]) {
        let now = self.tick();
        let node = self.nodes.get_mut(&id).unwrap();
        (node.content, node.modified, node.changed) = (Content::File(data.to_vec()), now, now);
    }

    /// Another client's doing: a new file in the root.
    pub fn put(&mut self, name: &str, data: &[u8]) -> u64 {
        self.enter(1, name.as_bytes(), Content::File(data.to_vec()), &Sattr { mode: Some(0o644), ..Sattr::default() })
            .unwrap()
    }

    pub fn named(&self, name: &str) -> Option<u64> {
        match &self.nodes[&1].content {
            Content::Directory(names) => names.get(name.as_bytes()).copied(),
            _ => None,
        }
    }

    fn touch(&mut self, id: u64) {
        let now = self.tick();
        let node = self.nodes.get_mut(&id).unwrap();
        (node.modified, node.changed) = (now, now);
    }

    fn enter(&mut self, dir: u64, name: &[u8], content: Content, set: &Sattr) -> Wanted<u64> {
        if self.directory(dir)?.contains_key(name) {
            return Err(Status::Exist);
        }
        let id = self.add(content, set);
        self.directory(dir)?.insert(name.to_vec(), id);
        self.touch(dir);
        Ok(id)
    }

    fn lookup(&mut self, at: &DirOpArgs) -> Wanted<u64> {
        let dir = self.id(&at.directory)?;
        if &at.name[..] == b".." {
            return Ok(1);
        }
        self.directory(dir)?.get(&at.name[..]).copied().ok_or(Status::NoEnt)
    }

    fn meanwhile(&mut self, procedure: u32) {
        if let Some(mut happens) = self.meanwhile.take() {
            happens(self, procedure);
            self.meanwhile = Some(happens);
        }
    }

    /// A change of a directory with what was before and after it.
    fn changing<T>(&mut self, dir: &FileHandle, change: impl FnOnce(&mut Self) -> Wanted<T>) -> (Wanted<T>, WccData) {
        let id = self.id(dir);
        let before = self.pre(id);
        let done = id.and_then(|_| change(self));
        let after = self.post(id);
        (done, WccData { before, after })
    }

    fn create(&mut self, at: &DirOpArgs, content: Content, how: &CreateHow) -> Result<Created, Failed<WccData>> {
        let (done, directory) = self.changing(&at.directory, |tree| {
            let dir = tree.id(&at.directory)?;
            match how {
                CreateHow::Exclusive(_) if !tree.manners.exclusive => Err(Status::NotSupp),
                CreateHow::Exclusive(verifier) => match tree.lookup(at) {
                    Ok(id) if tree.nodes[&id].verifier == Some(*verifier) => Ok(id),
                    Ok(_) => Err(Status::Exist),
                    Err(_) => {
                        let id = tree.enter(dir, &at.name, content, &Sattr::default())?;
                        tree.nodes.get_mut(&id).unwrap().verifier = Some(*verifier);
                        Ok(id)
                    }
                },
                CreateHow::Guarded(set) | CreateHow::Unchecked(set) => tree.enter(dir, &at.name, content, set),
            }
        });
        match done {
            Ok(id) => Ok(Created { file: Some(self.handle(id)), attributes: self.post(Ok(id)), directory }),
            Err(status) => Err(Failed { status, told: directory }),
        }
    }

    fn remove(&mut self, at: &DirOpArgs, directory: bool) -> Result<WccData, Failed<WccData>> {
        let (done, wcc) = self.changing(&at.directory, |tree| {
            let (dir, id) = (tree.id(&at.directory)?, tree.lookup(at)?);
            match &tree.nodes[&id].content {
                Content::Directory(_) if !directory => return Err(Status::IsDir),
                Content::Directory(names) if !names.is_empty() => return Err(Status::NotEmpty),
                Content::Directory(_) => {}
                _ if directory => return Err(Status::NotDir),
                _ => {}
            }
            tree.directory(dir)?.remove(&at.name[..]);
            tree.touch(dir);
            let node = tree.nodes.get_mut(&id).unwrap();
            node.links -= 1;
            if node.links == 0 {
                tree.nodes.remove(&id);
            }
            Ok(())
        });
        done.map(|()| wcc).map_err(|status| Failed { status, told: wcc })
    }

    fn listed(&mut self, dir: &FileHandle, cookie: u64, verifier: [u8; 8]) -> Wanted<Listed> {
        if cookie != 0 && verifier != COOKIE_VERIFIER {
            return Err(Status::BadCookie);
        }
        let (id, page) = (self.id(dir)?, self.manners.page);
        let mut all = vec![(b".".to_vec(), id), (b"..".to_vec(), 1)];
        all.extend(self.directory(id)?.iter().map(|(name, id)| (name.clone(), *id)));
        let rest: Vec<_> = all.into_iter().enumerate().skip(cookie as usize).collect();
        let eof = rest.len() <= page;
        Ok((rest.into_iter().take(page).map(|(place, (name, id))| (place as u64 + 1, name, id)).collect(), eof))
    }

    /// Runs a call.
    pub fn run(&mut self, call: &Call) -> Reply {
        let number = call.number();
        macro_rules! post {
            ($handle:expr, $done:expr) => {{
                let id = self.id($handle);
                let done: Wanted<_> = id.and_then(|id| $done(self, id));
                self.meanwhile(number);
                (done, self.post(id))
            }};
        }
        match call {
            Call::Null(()) => Reply::Null(()),
            Call::GetAttr(file) => {
                let told = self.id(file).map(|id| self.fattr(id).unwrap());
                Reply::GetAttr(told.map_err(|status| Failed { status, told: () }))
            }
            Call::SetAttr(args) => {
                let (done, wcc) = self.changing(&args.file, |tree| {
                    let id = tree.id(&args.file)?;
                    tree.set(id, &args.attributes);
                    Ok(())
                });
                Reply::SetAttr(done.map(|()| wcc).map_err(|status| Failed { status, told: wcc }))
            }
            Call::Lookup(at) => {
                let (found, directory) = post!(&at.directory, |tree: &mut Self, _| tree.lookup(at));
                Reply::Lookup(match found {
                    Ok(id) => Ok(LookupOk { file: self.handle(id), attributes: self.post(Ok(id)), directory }),
                    Err(status) => Err(Failed { status, told: directory }),
                })
            }
            Call::Access(args) => {
                let (done, attributes) = post!(&args.file, |_: &mut Self, _| Ok(args.access));
                let done = done.map(|access| AccessOk { attributes, access });
                Reply::Access(done.map_err(|status| Failed { status, told: attributes }))
            }
            Call::ReadLink(link) => {
                let (done, attributes) = post!(link, |tree: &mut Self, id| match &tree.nodes[&id].content {
                    Content::Link(text) => Ok(text.clone()),
                    _ => Err(Status::Inval),
                });
                let done = done.map(|text| ReadLinkOk { attributes, target: Opaque::new(text).unwrap() });
                Reply::ReadLink(done.map_err(|status| Failed { status, told: attributes }))
            }
            Call::Read(args) => {
                let (done, attributes) = post!(&args.file, |tree: &mut Self, id| match &tree.nodes[&id].content {
                    Content::File(data) => {
                        let from = (args.offset as usize).min(data.len());
                        let most = (args.count.min(tree.manners.read_max) as usize).min(tree.manners.really);
                        let to = (from + most).min(data.len());
                        Ok((data[from..to].to_vec(), to == data.len()))
                    }
                    _ => Err(Status::Inval),
                });
                Reply::Read(match done {
                    Ok((data, eof)) => {
                        Ok(ReadOk { attributes, count: data.len() as u32, eof, data: Opaque::new(data).unwrap() })
                    }
                    Err(status) => Err(Failed { status, told: attributes }),
                })
            }
            Call::Write(args) => {
                let count = args.data.len().min(self.manners.really).min(self.manners.write_max as usize);
                let (done, file) = self.changing(&args.file, |tree| {
                    let id = tree.id(&args.file)?;
                    let Content::File(data) = &mut tree.nodes.get_mut(&id).unwrap().content else {
                        return Err(Status::Inval);
                    };
                    let from = args.offset as usize;
                    data.resize(data.len().max(from + count), 0);
                    data[from..from + count].copy_from_slice(&args.data[..count]);
                    tree.touch(id);
                    Ok(())
                });
                let committed =
                    if args.stable == StableHow::Unstable { StableHow::Unstable } else { StableHow::FileSync };
                let ok = |()| WriteOk { file, count: count as u32, committed, verifier: WRITE_VERIFIER };
                Reply::Write(done.map(ok).map_err(|status| Failed { status, told: file }))
            }
            Call::Create(args) => Reply::Create(self.create(&args.place, Content::File(Vec::new()), &args.how)),
            Call::Mkdir(args) => {
                let how = CreateHow::Guarded(args.attributes);
                Reply::Mkdir(self.create(&args.place, Content::Directory(BTreeMap::new()), &how))
            }
            Call::Symlink(args) => {
                let how = CreateHow::Guarded(args.attributes);
                Reply::Symlink(self.create(&args.place, Content::Link(args.target.to_vec()), &how))
            }
            Call::Mknod(args) => Reply::Mknod(match &args.what {
                MknodData::Fifo(set) => self.create(&args.place, Content::Fifo, &CreateHow::Guarded(*set)),
                _ => Err(Failed { status: Status::BadType, told: WccData::default() }),
            }),
            Call::Remove(at) => Reply::Remove(self.remove(at, false)),
            Call::Rmdir(at) => Reply::Rmdir(self.remove(at, true)),
            Call::Rename(args) => {
                let to = self.pre(self.id(&args.to.directory));
                let (done, from) = self.changing(&args.from.directory, |tree| {
                    let (from, to) = (tree.id(&args.from.directory)?, tree.id(&args.to.directory)?);
                    let id = tree.lookup(&args.from)?;
                    tree.directory(from)?.remove(&args.from.name[..]);
                    tree.directory(to)?.insert(args.to.name.to_vec(), id);
                    [from, to].into_iter().for_each(|dir| tree.touch(dir));
                    Ok(())
                });
                let after = self.post(self.id(&args.to.directory));
                let wcc = RenameWcc { from, to: WccData { before: to, after } };
                Reply::Rename(done.map(|()| wcc).map_err(|status| Failed { status, told: wcc }))
            }
            Call::Link(args) => {
                let (done, directory) = self.changing(&args.to.directory, |tree| {
                    let (id, dir) = (tree.id(&args.file)?, tree.id(&args.to.directory)?);
                    if tree.lookup(&args.to).is_ok() {
                        return Err(Status::Exist);
                    }
                    tree.directory(dir)?.insert(args.to.name.to_vec(), id);
                    tree.nodes.get_mut(&id).unwrap().links += 1;
                    [id, dir].into_iter().for_each(|id| tree.touch(id));
                    Ok(())
                });
                let wcc = LinkWcc { attributes: self.post(self.id(&args.file)), directory };
                Reply::Link(done.map(|()| wcc).map_err(|status| Failed { status, told: wcc }))
            }
            Call::ReadDir(args) => {
                let listed = self.listed(&args.directory, args.cookie, args.verifier);
                let (listed, directory) = post!(&args.directory, |_: &mut Self, _| listed);
                let entry = |(cookie, name, fileid)| Entry { fileid, name: Opaque::new(name).unwrap(), cookie };
                let ok = |(entries, eof): (Vec<_>, bool)| ReadDirOk {
                    directory,
                    verifier: COOKIE_VERIFIER,
                    entries: Chain(entries.into_iter().map(entry).collect()),
                    eof,
                };
                Reply::ReadDir(listed.map(ok).map_err(|status| Failed { status, told: directory }))
            }
            Call::ReadDirPlus(args) => {
                let listed = match self.manners.plus {
                    true => self.listed(&args.directory, args.cookie, args.verifier),
                    false => Err(Status::NotSupp),
                };
                let (listed, directory) = post!(&args.directory, |_: &mut Self, _| listed);
                let entry = |(cookie, name, fileid)| EntryPlus {
                    fileid,
                    name: Opaque::new(name).unwrap(),
                    cookie,
                    attributes: self.post(Ok(fileid)),
                    file: Some(self.handle(fileid)),
                };
                let ok = |(entries, eof): (Vec<_>, bool)| ReadDirPlusOk {
                    directory,
                    verifier: COOKIE_VERIFIER,
                    entries: Chain(entries.into_iter().map(entry).collect()),
                    eof,
                };
                Reply::ReadDirPlus(listed.map(ok).map_err(|status| Failed { status, told: directory }))
            }
            Call::FsStat(file) => {
                let attributes = self.post(self.id(file));
                Reply::FsStat(Ok(FsStatOk {
                    attributes,
                    total_bytes: 6,
                    free_bytes: 5,
                    available_bytes: 4,
                    total_files: 3,
                    free_files: 2,
                    available_files: 1,
                    steady: 0,
                }))
            }
            Call::FsInfo(_) => Reply::FsInfo(Ok(FsInfoOk {
                attributes: None,
                read_max: self.manners.read_max,
                read_preferred: 0,
                read_multiple: 1,
                write_max: self.manners.write_max,
                write_preferred: 0,
                write_multiple: 1,
                directory_preferred: 0,
                size_max: u64::MAX,
                time_delta: NfsTime::default(),
                properties: 0,
            })),
            Call::PathConf(_) => Reply::PathConf(Ok(PathConfOk {
                attributes: None,
                link_max: 100,
                name_max: 123,
                no_truncation: true,
                chown_restricted: true,
                case_insensitive: false,
                case_preserving: true,
            })),
            Call::Commit(args) => {
                let (done, file) = self.changing(&args.file, |tree| tree.id(&args.file).map(drop));
                let ok = |()| CommitOk { file, verifier: WRITE_VERIFIER };
                Reply::Commit(done.map(ok).map_err(|status| Failed { status, told: file }))
            }
        }
    }
}
