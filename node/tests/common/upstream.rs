//! A file server for the cache to stand in front of: a directory, asked as a source on the network would be, with
//! counters of what it was asked and switches for what can go wrong.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use forebay_node::source::{
    EntryObject, FileAttributes, NewObject, ObjectId, ReadOutcome, SOURCE_HANDLE_MAX, SeekWhat, SetAttributes,
    SourceError, SourceHandle, SpaceAttributes, XattrSet,
    local::{LocalFile, LocalSource},
    remote::{
        Changed, Committed, Data, DataRead, DirectoryChange, Health, Made, OnBehalf, Page, PageEntry, Place,
        RemoteSource, Seen, SeenObject, Want, Word, Written,
    },
};

/// What a source is asked.
#[derive(Debug)]
pub struct Upstream {
    local: LocalSource,
    /// Calls by kind.
    calls: Mutex<BTreeMap<&'static str, u64>>,
    /// Bytes of file data that left it.
    pub read_bytes: AtomicU64,
    /// Whether it answers.
    pub down: AtomicBool,
    /// How long each answer takes, in microseconds.
    pub delay_us: AtomicU64,
    /// Calls under way, and the most there were at once.
    pub under_way: AtomicU64,
    pub most_under_way: AtomicU64,
    pub late: Mutex<Option<(&'static str, Duration)>>,
    pub frozen: Mutex<Option<FileAttributes>>,
    pub no_ahead: AtomicBool,
    /// Whether its handles are as long as handles may be.
    pub long_handles: bool,
}

type Result<T> = std::result::Result<T, SourceError>;

impl Upstream {
    pub fn new(local: LocalSource) -> Arc<Self> {
        Arc::new(Self::with_handles(local, false))
    }

    pub fn with_handles(local: LocalSource, long_handles: bool) -> Self {
        Self {
            long_handles,
            local,
            calls: Mutex::default(),
            read_bytes: AtomicU64::new(0),
            down: AtomicBool::new(false),
            delay_us: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            most_under_way: AtomicU64::new(0),
            late: Mutex::default(),
            frozen: Mutex::default(),
            no_ahead: AtomicBool::new(false),
        }
    }

    /// An object's id as this source tells it: of a long handle the first byte says how much of it means something.
    pub fn told(&self, id: ObjectId) -> ObjectId {
        if !self.long_handles {
            return id;
        }
        let short = id.handle.as_bytes();
        let mut long = [0xA5; SOURCE_HANDLE_MAX];
        long[0] = u8::try_from(short.len()).unwrap();
        long[1..=short.len()].copy_from_slice(short);
        ObjectId { handle: SourceHandle::new(&long).unwrap(), ..id }
    }

    /// Calls so far, and from now on counted from zero.
    pub fn take_calls(&self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }

    /// Calls since they were last taken.
    pub fn calls(&self) -> u64 {
        self.calls.lock().unwrap().values().sum()
    }

    /// One call: counted, delayed, or not answered.
    async fn call(&self, kind: &'static str) -> Result<()> {
        *self.calls.lock().unwrap().entry(kind).or_default() += 1;
        let delay = self.delay_us.load(Ordering::Relaxed);
        if delay > 0 {
            let now = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
            self.most_under_way.fetch_max(now, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_micros(delay)).await;
            self.under_way.fetch_sub(1, Ordering::Relaxed);
        }
        if self.down.load(Ordering::Relaxed) { Err(SourceError::Unavailable) } else { Ok(()) }
    }

    /// The answer is made; it arrives late, once.
    async fn arrive(&self, kind: &'static str) {
        let late = {
            let mut late = self.late.lock().unwrap();
            late.take_if(|(of, _)| *of == kind)
        };
        if let Some((_, time)) = late {
            tokio::time::sleep(time).await;
        }
    }

    fn file(&self, id: &ObjectId) -> Result<Arc<LocalFile>> {
        if !self.long_handles {
            return self.local.resolve(id.fsid, &id.handle);
        }
        let long = id.handle.as_bytes();
        let short = long.get(1..=usize::from(long[0])).filter(|_| long.len() == SOURCE_HANDLE_MAX);
        self.local.resolve(id.fsid, &short.and_then(SourceHandle::new).ok_or(SourceError::Stale)?)
    }

    fn seen(&self, by: &OnBehalf, file: &LocalFile, want: Want) -> Result<SeenObject> {
        let mut attributes = self.local.attributes(file)?;
        if let Some(frozen) = &*self.frozen.lock().unwrap()
            && frozen.fileid == attributes.fileid
        {
            attributes.change = frozen.change;
            attributes.changed = frozen.changed;
        }
        let access = if want.access { Some(self.local.access(&by.user, file)?) } else { None };
        let readable = self.local.access(&by.user, file).is_ok_and(|may| may.read || may.execute);
        let data = if want.read > 0 && readable { self.data(file, 0, want.read as usize).ok() } else { None };
        Ok(SeenObject { id: self.told(file.id()), attributes, access, data, word: Word::Source })
    }

    fn data(&self, file: &LocalFile, offset: u64, count: usize) -> Result<Data> {
        let mut buffer = BytesMut::with_capacity(count);
        match self.local.read(file, offset, count, &mut buffer, false)? {
            ReadOutcome::Done { eof, bytes } => {
                self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                Ok(Data { bytes: Bytes::copy_from_slice(&buffer), eof })
            }
            ReadOutcome::WouldBlock => Err(SourceError::Unavailable),
        }
    }

    fn look_at(&self, by: &OnBehalf, place: &Place, want: Want) -> Result<Seen> {
        match place {
            Place::Object(id) => {
                let object = self.file(id).and_then(|file| self.seen(by, &file, want));
                Ok(Seen { directory: None, directory_word: Word::Source, object })
            }
            Place::Name(id, name) => {
                let dir = self.file(id)?;
                let directory = Some(self.local.attributes(&dir)?);
                let found = self.local.lookup(&by.user, &dir, name);
                Ok(Seen {
                    directory,
                    directory_word: Word::Source,
                    object: found.and_then(|file| self.seen(by, &file, want)),
                })
            }
        }
    }

    fn changed<T>(&self, file: &LocalFile, change: impl FnOnce() -> Result<T>) -> Result<(T, Changed)> {
        let before = Some(self.local.attributes(file)?.change);
        let done = change()?;
        Ok((done, Changed { before, attributes: self.local.attributes(file)? }))
    }

    fn directory_changed<T>(
        &self,
        dir: &LocalFile,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<(T, DirectoryChange)> {
        let before = self.local.attributes(dir)?.change;
        let done = change()?;
        let after = self.local.attributes(dir)?;
        Ok((done, DirectoryChange { atomic: true, before, after: after.change, attributes: Some(after) }))
    }
}

#[async_trait]
impl RemoteSource for Upstream {
    fn health(&self) -> Health {
        if self.down.load(Ordering::Relaxed) { Health::Down } else { Health::Up }
    }

    fn has_xattrs(&self) -> bool {
        true
    }

    async fn root(&self, by: &OnBehalf) -> Result<SeenObject> {
        self.call("root").await?;
        self.seen(by, &self.local.root(), Want::default())
    }

    async fn look(&self, by: &OnBehalf, place: &Place, want: Want) -> Result<Seen> {
        let kind = match place {
            Place::Object(_) if want == Want::default() => "getattr",
            Place::Object(_) => "look",
            Place::Name(..) => "lookup",
        };
        self.call(kind).await?;
        let seen = self.look_at(by, place, want);
        self.arrive(kind).await;
        seen
    }

    async fn look_many(&self, by: &OnBehalf, places: &[Place], want: Want) -> Result<Vec<Result<Seen>>> {
        self.call("look_many").await?;
        Ok(places.iter().map(|place| self.look_at(by, place, want)).collect())
    }

    async fn parent(&self, by: &OnBehalf, dir: &ObjectId) -> Result<SeenObject> {
        self.call("parent").await?;
        let parent = self.local.parent(&by.user, &*self.file(dir)?)?.ok_or(SourceError::Errno(libc::ENOENT))?;
        self.seen(by, &parent, Want::default())
    }

    async fn read(&self, _by: &OnBehalf, file: &ObjectId, offset: u64, count: u32) -> Result<DataRead> {
        self.call("read").await?;
        if _by.purpose == forebay_node::source::remote::Purpose::Ahead && self.no_ahead.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            return Err(SourceError::Unavailable);
        }
        let file = self.file(file)?;
        let attributes = self.local.attributes(&file)?;
        Ok(DataRead { attributes, data: self.data(&file, offset, count as usize)? })
    }

    async fn write(&self, by: &OnBehalf, file: &ObjectId, offset: u64, data: Bytes, stable: bool) -> Result<Written> {
        self.call("write").await?;
        let file = self.file(file)?;
        let write = || self.local.write(&by.user, &file, offset, &data, stable);
        let (count, changed) = self.changed(&file, write)?;
        Ok(Written { count: u32::try_from(count).unwrap(), stable, verifier: 7, changed })
    }

    async fn commit(&self, _by: &OnBehalf, file: &ObjectId) -> Result<Committed> {
        self.call("commit").await?;
        let file = self.file(file)?;
        self.local.commit(&file)?;
        Ok(Committed { verifier: 7, attributes: self.local.attributes(&file)? })
    }

    async fn set_attributes(&self, by: &OnBehalf, file: &ObjectId, set: &SetAttributes) -> Result<Changed> {
        self.call("setattr").await?;
        let file = self.file(file)?;
        Ok(self.changed(&file, || self.local.set_attributes(&by.user, &file, set, true))?.1)
    }

    async fn create(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        exclusive: bool,
        set: &SetAttributes,
    ) -> Result<Made> {
        self.call("create").await?;
        let dir = self.file(dir)?;
        let mode = set.mode.unwrap_or(0o644);
        let make = || self.local.create(&by.user, &dir, name, mode, exclusive, set);
        let ((file, created), directory) = self.directory_changed(&dir, make)?;
        Ok(Made { object: self.seen(by, &file, Want::default())?, created, directory })
    }

    async fn make(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        object: &NewObject,
        set: &SetAttributes,
    ) -> Result<Made> {
        self.call("make").await?;
        let dir = self.file(dir)?;
        let mode = set.mode.unwrap_or(0o755);
        let make = || self.local.make(&by.user, &dir, name, object, mode, set);
        let (file, directory) = self.directory_changed(&dir, make)?;
        Ok(Made { object: self.seen(by, &file, Want::default())?, created: true, directory })
    }

    async fn link(&self, by: &OnBehalf, file: &ObjectId, dir: &ObjectId, name: &[u8]) -> Result<DirectoryChange> {
        self.call("link").await?;
        let (file, dir) = (self.file(file)?, self.file(dir)?);
        Ok(self.directory_changed(&dir, || self.local.link(&by.user, &file, &dir, name))?.1)
    }

    async fn remove(&self, by: &OnBehalf, dir: &ObjectId, name: &[u8]) -> Result<DirectoryChange> {
        self.call("remove").await?;
        let dir = self.file(dir)?;
        Ok(self.directory_changed(&dir, || self.local.remove(&by.user, &dir, name))?.1)
    }

    async fn rename(
        &self,
        by: &OnBehalf,
        from: (&ObjectId, &[u8]),
        to: (&ObjectId, &[u8]),
    ) -> Result<(DirectoryChange, DirectoryChange)> {
        self.call("rename").await?;
        let (from_dir, to_dir) = (self.file(from.0)?, self.file(to.0)?);
        let ((_, to), from) = self.directory_changed(&from_dir, || {
            self.directory_changed(&to_dir, || self.local.rename(&by.user, &from_dir, from.1, &to_dir, to.1))
        })?;
        Ok((from, to))
    }

    async fn read_link(&self, _by: &OnBehalf, link: &ObjectId) -> Result<Bytes> {
        self.call("readlink").await?;
        self.local.read_link(&*self.file(link)?)
    }

    async fn read_directory(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        cookie: u64,
        _verifier: u64,
        bytes: u32,
    ) -> Result<Page> {
        self.call("readdir").await?;
        let dir = self.file(dir)?;
        let directory = self.local.attributes(&dir)?;
        let most = (bytes / 256).max(1) as usize;
        let mut entries = Vec::new();
        let eof = self.local.read_directory(&by.user, &dir, cookie, most, true, &mut |entry| {
            let object = match entry.file.unwrap() {
                Ok(EntryObject::Open(file)) => self.seen(by, &file, Want::default()),
                Ok(EntryObject::Told { id, attributes }) => {
                    Ok(SeenObject { id: self.told(id), attributes, access: None, data: None, word: Word::Source })
                }
                Err(error) => Err(error),
            };
            entries.push(PageEntry { cookie: entry.cookie, name: entry.name, object });
            ControlFlow::Continue(())
        })?;
        self.arrive("readdir").await;
        Ok(Page { directory, verifier: 0, entries, eof, directory_word: Word::Source, fresh: true })
    }

    async fn space(&self, _by: &OnBehalf, object: &ObjectId) -> Result<SpaceAttributes> {
        self.call("space").await?;
        self.local.space(&*self.file(object)?)
    }

    async fn seek(&self, _by: &OnBehalf, file: &ObjectId, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        self.call("seek").await?;
        self.local.seek(&*self.file(file)?, offset, what)
    }

    async fn allocate(&self, by: &OnBehalf, file: &ObjectId, offset: u64, length: u64, punch: bool) -> Result<Changed> {
        self.call("allocate").await?;
        let file = self.file(file)?;
        let allocate = || match punch {
            true => self.local.deallocate(&by.user, &file, offset, length),
            false => self.local.allocate(&by.user, &file, offset, length),
        };
        Ok(self.changed(&file, allocate)?.1)
    }

    async fn xattr_get(&self, by: &OnBehalf, file: &ObjectId, name: &[u8]) -> Result<Bytes> {
        self.call("getxattr").await?;
        self.local.xattr_get(&by.user, &*self.file(file)?, name)
    }

    async fn xattr_list(&self, by: &OnBehalf, file: &ObjectId) -> Result<Vec<Bytes>> {
        self.call("listxattrs").await?;
        self.local.xattr_list(&by.user, &*self.file(file)?)
    }

    async fn xattr_set(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        name: &[u8],
        value: &Bytes,
        how: XattrSet,
    ) -> Result<Changed> {
        self.call("setxattr").await?;
        let file = self.file(file)?;
        Ok(self.changed(&file, || self.local.xattr_set(&by.user, &file, name, value, how))?.1)
    }

    async fn xattr_remove(&self, by: &OnBehalf, file: &ObjectId, name: &[u8]) -> Result<Changed> {
        self.call("removexattr").await?;
        let file = self.file(file)?;
        Ok(self.changed(&file, || self.local.xattr_remove(&by.user, &file, name))?.1)
    }
}

/// Attributes of a file behind the cache, for those who change it there.
pub fn attributes_of(upstream: &Upstream, id: &ObjectId) -> FileAttributes {
    upstream.local.attributes(&upstream.file(id).unwrap()).unwrap()
}
