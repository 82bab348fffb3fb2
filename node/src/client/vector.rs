//! Many small files in one round trip.
//!
//! Owns: the public face of reading, writing and looking by path, many at a time. Never does: caching.
//! Invariants: answers are in the order of what was asked; one item's failure is its own.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use crate::source::{
    Credentials, FileAttributes, ObjectId, SourceError,
    counters::SourceCounters,
    nfs4::{
        Nfs4Options, Nfs4Source, components,
        paths::{Action, Item, Outcome},
    },
    remote::{Data, Health, OnBehalf, Purpose, RemoteSource},
};

/// How long a server may take until it is used for the first time.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);

/// What to read. The file ends where it ends: fewer bytes than asked for come with `eof`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadAt {
    /// From the exported directory on, parts separated by slashes.
    pub path: String,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub count: u32,
}

/// What to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteAt {
    /// From the exported directory on, parts separated by slashes.
    pub path: String,
    /// First byte.
    pub offset: u64,
    /// The bytes.
    pub data: Bytes,
    /// Make the file with this mode if it is not there.
    pub create: Option<u32>,
    /// On stable storage before the answer.
    pub sync: bool,
}

/// What became of a [`WriteAt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WroteAt {
    /// All bytes that were given.
    pub count: u32,
    /// They are on stable storage.
    pub stable: bool,
}

/// A client that packs many small requests into as few COMPOUNDs as the server's limits allow: 20 files of 4 KiB are
/// read in one round trip from a server that takes 256 operations at a time, as Forebay does, and in about nine from
/// one that takes eight. What does not fit is split; several COMPOUNDs are under way at once.
///
/// ```no_run
/// use bytes::Bytes;
/// use forebay_node::{
///     client::{ReadAt, VectorClient, WriteAt},
///     source::Credentials,
/// };
///
/// # async fn example() -> Result<(), forebay_node::source::SourceError> {
/// let user = Credentials { uid: 1000, gid: 1000, groups: [].into() };
/// let client = VectorClient::connect("nfs.example.org", 2049, "/data", user).await?;
///
/// let files: Vec<_> =
///     (0..20).map(|number| ReadAt { path: format!("set/{number}.bin"), offset: 0, count: 4096 }).collect();
/// for (file, read) in files.iter().zip(client.readv(&files).await?) {
///     match read {
///         Ok(data) => println!("{}: {} bytes", file.path, data.bytes.len()),
///         Err(error) => println!("{}: {error}", file.path),
///     }
/// }
///
/// let new = WriteAt {
///     path: "set/new".into(),
///     offset: 0,
///     data: Bytes::from_static(b"hello"),
///     create: Some(0o644),
///     sync: true,
/// };
/// assert_eq!(client.writev(&[new]).await?[0]?.count, 5);
/// client.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct VectorClient {
    source: Arc<Nfs4Source>,
    root: ObjectId,
    by: OnBehalf,
}

impl VectorClient {
    /// Connects to an exported directory as a user.
    ///
    /// # Errors
    /// [`SourceError::Unavailable`] if the server does not answer in 15 seconds; what the server says of the path.
    pub async fn connect(host: &str, port: u16, export: &str, user: Credentials) -> Result<Self, SourceError> {
        let owner = format!("forebay vector client {}", uuid::Uuid::new_v4());
        Self::with(Nfs4Options { connections: 2, ..Nfs4Options::new(host, port, export, owner) }, user).await
    }

    /// As [`VectorClient::connect`] with everything said.
    ///
    /// # Errors
    /// As there.
    pub async fn with(options: Nfs4Options, user: Credentials) -> Result<Self, SourceError> {
        let counters = SourceCounters::new(format!("nfs://{}:{}{}", options.host, options.port, options.path));
        let source = Nfs4Source::connect(options, Arc::new(counters));
        let by = OnBehalf { user, purpose: Purpose::Client };
        let reaching = async {
            while source.health() == Health::Down {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            source.root(&by).await
        };
        let root = tokio::time::timeout(CONNECT_LIMIT, reaching).await.unwrap_or(Err(SourceError::Unavailable))?.id;
        Ok(Self { source, root, by })
    }

    /// Counters of what was sent.
    pub fn counters(&self) -> &Arc<SourceCounters> {
        self.source.counters()
    }

    /// Reads many places.
    ///
    /// # Errors
    /// Of the whole, only when the server does not answer; each place has its own.
    pub async fn readv(&self, reads: &[ReadAt]) -> Result<Vec<Result<Data, SourceError>>, SourceError> {
        let items = reads.iter().map(|read| item(&read.path, Action::Read { offset: read.offset, count: read.count }));
        let done = self.asking(&items.collect::<Vec<_>>()).await?;
        Ok(done
            .into_iter()
            .map(|answer| {
                answer.and_then(|outcome| match outcome {
                    Outcome::Data(data) => Ok(data),
                    _ => Err(SourceError::Errno(libc::EIO)),
                })
            })
            .collect())
    }

    /// Attributes of many paths.
    ///
    /// # Errors
    /// As [`VectorClient::readv`].
    pub async fn getattrsv(&self, paths: &[&str]) -> Result<Vec<Result<FileAttributes, SourceError>>, SourceError> {
        let items: Vec<_> = paths.iter().map(|path| item(path, Action::Attributes)).collect();
        let done = self.asking(&items).await?;
        Ok(done
            .into_iter()
            .map(|answer| {
                answer.and_then(|outcome| match outcome {
                    Outcome::Attributes(attributes) => Ok(*attributes),
                    _ => Err(SourceError::Errno(libc::EIO)),
                })
            })
            .collect())
    }

    /// Writes many places. Waits for a server that does not answer, for as long as that takes. Two writes of one call to
    /// the same bytes happen in any order.
    ///
    /// # Errors
    /// As [`VectorClient::readv`].
    pub async fn writev(&self, writes: &[WriteAt]) -> Result<Vec<Result<WroteAt, SourceError>>, SourceError> {
        let action = |write: &WriteAt| Action::Write {
            offset: write.offset,
            data: write.data.clone(),
            create: write.create,
            sync: write.sync,
        };
        let items: Vec<_> = writes.iter().map(|write| item(&write.path, action(write))).collect();
        let done = self.source.run_items(&self.by, &self.root, &items).await?;
        Ok(done
            .into_iter()
            .map(|answer| {
                answer.and_then(|outcome| match outcome {
                    Outcome::Written { count, stable } => Ok(WroteAt { count, stable }),
                    _ => Err(SourceError::Errno(libc::EIO)),
                })
            })
            .collect())
    }

    async fn asking(&self, items: &[Item]) -> Result<Vec<Result<Outcome, SourceError>>, SourceError> {
        self.source.within_deadline(self.source.run_items(&self.by, &self.root, items)).await
    }

    /// Gives back what the server keeps for this client.
    pub async fn close(&self) {
        self.source.close().await;
    }
}

fn item(path: &str, action: Action) -> Item {
    let mut parent: Vec<Bytes> =
        components(path).into_iter().map(|part| Bytes::copy_from_slice(part.as_bytes())).collect();
    let name = parent.pop();
    Item { parent, name, action }
}
