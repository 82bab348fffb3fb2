//! How a node gets into a cluster, and how a cluster begins.
//!
//! Owns: what a node keeps of its membership, the proofs that strangers give each other, the rule by which one of several nodes that start
//! together begins the cluster. Never does: Raft, serving.
//!
//! Invariants:
//! * The token never crosses the wire: both ends prove that they know it by a code over what only this connection's ends know, so a proof
//!   is worth nothing anywhere else.
//! * Nobody begins a cluster without the promise of so many others that no second one can have as many. A promise is on disk before it is
//!   given, and is taken back only by whom it was given to.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_meta::{
    Command, Plane, Reply,
    state::{Bytes as Stored, NodeDescription, NodeId},
};
use forebay_proto::cluster::ClusterId;
use parking_lot::Mutex;
use ring::hmac;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    form::{decode, encode},
    transport::{BINDING_BYTES, Door, Knocking, Proof},
};
use crate::peer::{ClusterAuthority, IdentityError, NodeKey, PeerIdentity, Refused};

/// The shortest token: shorter ones can be guessed by who has heard one proof.
pub const TOKEN_MIN: usize = 16;
/// The authority's key and certificate among the plane's secrets.
pub const AUTHORITY_KEY: &str = "authority.key";
/// Its certificate.
pub const AUTHORITY_CERTIFICATE: &str = "authority.certificate";
/// How long a question to a stranger may take.
const ASK: Duration = Duration::from_secs(3);
/// Letting somebody in takes commands.
const JOIN: Duration = Duration::from_secs(15);
/// Between two rounds.
const ROUND: Duration = Duration::from_millis(300);
/// Nodes that are asked in one round.
const SEEDS_MAX: usize = 256;
/// Longest message of a stranger.
const KNOCK_MAX: usize = 8 << 10;

type Code = [u8; 32];
/// A node that has no number yet: a digest of its public key.
type Instance = [u8; 16];

/// Why a node is in no cluster.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// What it keeps cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// What it keeps makes no sense.
    #[error("{0}: {1}")]
    Damaged(PathBuf, String),
    /// It is another cluster's.
    #[error("{path} is of cluster {found}; this node is told to be of {wanted}. Give it another data directory")]
    OtherCluster {
        /// The file.
        path: PathBuf,
        /// As it says.
        found: String,
        /// As asked for.
        wanted: String,
    },
    /// The data directory is that of a node on its own.
    #[error(
        "{0} was used by a node on its own; a node of a cluster needs another data directory (what clients know of the old one they must mount anew)"
    )]
    Alone(PathBuf),
    /// Keys or certificates.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// What a node keeps of its membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The cluster's name.
    pub name: String,
    /// Its UUID.
    pub cluster: uuid::Uuid,
    /// This node.
    pub node: u64,
    /// The authority's certificate.
    pub authority: Vec<u8>,
    /// This node's.
    pub certificate: Vec<u8>,
    /// This node began the cluster, with the authority's key, until the plane has it.
    pub begins_with: Option<Vec<u8>>,
    /// Where other nodes were when it was let in.
    pub known: BTreeMap<u64, String>,
}

impl Membership {
    /// Who it is, for TLS.
    ///
    /// # Errors
    /// What it keeps does not belong together.
    pub fn identity(&self, key: &NodeKey) -> Result<PeerIdentity, IdentityError> {
        let cluster = ClusterId(self.cluster.into_bytes());
        PeerIdentity::mutual(cluster, NodeId(self.node), &self.authority, &self.certificate, key)
    }
}

/// A node's files.
#[derive(Clone, Debug)]
pub struct Files {
    directory: PathBuf,
}

impl Files {
    /// In the data directory.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn open(data_dir: &Path) -> Result<Self, EnterError> {
        use std::os::unix::fs::DirBuilderExt;
        let directory = data_dir.join("cluster");
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.map_err(|error| EnterError::Io { path: directory.clone(), error })?;
        Ok(Self { directory })
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, EnterError> {
        let path = self.directory.join(name);
        match fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(value) => Ok(Some(value)),
                Err(error) => Err(EnterError::Damaged(path, error.to_string())),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(EnterError::Io { path, error }),
        }
    }

    /// Whole or not at all, and for nobody else to read.
    fn write(&self, name: &str, value: &impl Serialize) -> Result<(), EnterError> {
        let path = self.directory.join(name);
        let written = || {
            use std::{io::Write, os::unix::fs::OpenOptionsExt};
            let new = self.directory.join(format!("{name}.new"));
            let mut file = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
            file.write_all(&serde_json::to_vec_pretty(value).map_err(io::Error::other)?)?;
            file.sync_all()?;
            fs::rename(new, &path)?;
            fs::File::open(&self.directory)?.sync_all()
        };
        written().map_err(|error| EnterError::Io { path: path.clone(), error })
    }

    /// The node's key; a new one the first time.
    ///
    /// # Errors
    /// It cannot be read or kept.
    pub fn key(&self) -> Result<NodeKey, EnterError> {
        if let Some(key) = self.read::<Vec<u8>>("node.key")? {
            return Ok(NodeKey::restore(&key)?);
        }
        let key = NodeKey::create()?;
        self.write("node.key", &key.secret_key())?;
        Ok(key)
    }

    /// The membership, if there is one.
    ///
    /// # Errors
    /// It is damaged, or of another cluster.
    pub fn membership(&self, name: &str) -> Result<Option<Membership>, EnterError> {
        let found: Option<Membership> = self.read("member.json")?;
        match found {
            Some(found) if found.name != name => {
                let path = self.directory.join("member.json");
                Err(EnterError::OtherCluster { path, found: found.name, wanted: name.to_owned() })
            }
            found => Ok(found),
        }
    }

    /// Keeps it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep(&self, membership: &Membership) -> Result<(), EnterError> {
        self.write("member.json", membership)
    }

    fn promise(&self) -> Result<Option<Instance>, EnterError> {
        Ok(self.read::<Option<Instance>>("promise.json")?.flatten())
    }

    fn keep_promise(&self, founder: Option<Instance>) -> Result<(), EnterError> {
        self.write("promise.json", &founder)
    }
}

/// What is said at the door.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Knock {
    code: Code,
    says: Says,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Says {
    /// Who are you?
    Hello,
    /// I want to begin the cluster.
    Promise { founder: Instance },
    /// I do not begin it now.
    Release { founder: Instance },
    /// Let me in.
    Join { key: Vec<u8>, description: NodeDescription },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Answered {
    code: Code,
    told: Told,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Told {
    /// Of no cluster yet, and how many nodes are to begin one.
    Outside { instance: Instance, expect: Option<u32> },
    /// Of the cluster.
    Member,
    /// To a promise or a release.
    Promised(bool),
    /// To whom is let in.
    Admitted { cluster: [u8; 16], node: u64, authority: Vec<u8>, certificate: Vec<u8>, known: BTreeMap<u64, String> },
    /// Not now.
    NotNow(String),
}

/// The cluster's token and name, which both ends must have.
#[derive(Clone)]
pub struct Token {
    key: hmac::Key,
    name: String,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Token {
    /// Of a cluster with this name.
    pub fn new(token: &[u8], name: &str) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, token), name: name.to_owned() }
    }

    /// What somebody says first who knows the token, on the connection with this binding.
    pub fn hello(&self, binding: &[u8; BINDING_BYTES]) -> Bytes {
        encode(&Knock { code: self.code("stranger", binding), says: Says::Hello })
    }

    fn message(&self, side: &str, binding: &[u8; BINDING_BYTES]) -> Vec<u8> {
        [b"forebay enter v1 ", side.as_bytes(), &[0], self.name.as_bytes(), &[0], binding].concat()
    }

    fn code(&self, side: &str, binding: &[u8; BINDING_BYTES]) -> Code {
        let tag = hmac::sign(&self.key, &self.message(side, binding));
        tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    fn is_right(&self, side: &str, binding: &[u8; BINDING_BYTES], code: &Code) -> bool {
        hmac::verify(&self.key, &self.message(side, binding), code).is_ok()
    }
}

/// The door of one node.
pub struct Gate {
    token: Token,
    files: Files,
    instance: Instance,
    expect: Option<u32>,
    promised: Mutex<Option<Instance>>,
    member: OnceLock<(Plane, Membership)>,
}

impl Gate {
    /// Of a node that is in no cluster, as far as this process knows yet.
    ///
    /// # Errors
    /// What it keeps cannot be read.
    pub fn new(token: Token, files: Files, key: &NodeKey, expect: Option<u32>) -> Result<Arc<Self>, EnterError> {
        let promised = Mutex::new(files.promise()?);
        let digest = ring::digest::digest(&ring::digest::SHA256, key.public_key());
        let instance = digest.as_ref()[..16].try_into().expect("SHA-256 has more");
        Ok(Arc::new(Self { token, files, instance, expect, promised, member: OnceLock::new() }))
    }

    /// From now on it lets others in.
    pub fn open(&self, plane: Plane, membership: Membership) {
        // Once in the life of a process.
        let _ = self.member.set((plane, membership));
    }

    fn promise(&self, founder: Instance) -> bool {
        let mut promised = self.promised.lock();
        if promised.is_some_and(|known| known != founder) {
            return false;
        }
        let kept = self.files.keep_promise(Some(founder));
        if let Err(error) = &kept {
            tracing::error!(%error, "a promise cannot be kept, so it is not given");
            return false;
        }
        *promised = Some(founder);
        true
    }

    fn release(&self, founder: Instance) -> bool {
        let mut promised = self.promised.lock();
        if *promised == Some(founder) && self.files.keep_promise(None).is_ok() {
            *promised = None;
        }
        promised.is_none()
    }

    async fn admit(&self, key: Vec<u8>, description: NodeDescription) -> Told {
        let Some((plane, membership)) = self.member.get() else {
            return Told::NotNow("this node is in no cluster yet".into());
        };
        let admitted = admit(plane, membership, key, description).await;
        admitted.unwrap_or_else(|why| {
            tracing::warn!(why, "a node that may come in cannot be let in now");
            Told::NotNow(why)
        })
    }
}

async fn admit(
    plane: &Plane,
    membership: &Membership,
    key: Vec<u8>,
    description: NodeDescription,
) -> Result<Told, String> {
    let secrets = plane.read_linearizable(|state| {
        let secret = |name| state.secrets.secret(name).map(<[u8]>::to_vec);
        Some((secret(AUTHORITY_KEY)?, secret(AUTHORITY_CERTIFICATE)?))
    });
    let secrets = secrets.await.map_err(|error| error.to_string())?;
    let (secret, certificate) = secrets.ok_or("the plane has no authority yet")?;
    let cluster = ClusterId(membership.cluster.into_bytes());
    let authority = ClusterAuthority::restore(cluster, &secret, &certificate).map_err(|error| error.to_string())?;
    let propose = async |command| plane.propose(command).await.map_err(|error| error.to_string());
    let node = match propose(Command::AdmitNode { key: Stored(key.clone()) }).await? {
        Reply::Node(node) => node,
        other => return Err(format!("{other:?}")),
    };
    let certificate = authority.issue(node, &key, SystemTime::now()).map_err(|error| error.to_string())?;
    match propose(Command::Join { node, description: description.clone() }).await? {
        Reply::Done => {}
        other => return Err(format!("{other:?}")),
    }
    let known = plane
        .read(|state| state.nodes.iter().map(|(node, record)| (node.0, record.description.control.clone())).collect());
    tracing::info!(node = node.0, address = description.control, "a node is let in");
    Ok(Told::Admitted {
        cluster: cluster.0,
        node: node.0,
        authority: authority.certificate().to_vec(),
        certificate,
        known,
    })
}

#[async_trait]
impl Door for Gate {
    async fn knock(&self, proof: &Proof, message: Bytes) -> Result<Bytes, Refused> {
        let knock: Knock = decode(&message, KNOCK_MAX).ok_or(Refused::Protocol)?;
        if !self.token.is_right("stranger", &proof.binding, &knock.code) {
            return Err(Refused::Token);
        }
        let is_member = self.member.get().is_some();
        let told = match knock.says {
            Says::Join { key, description } => self.admit(key, description).await,
            _ if is_member => Told::Member,
            Says::Hello => Told::Outside { instance: self.instance, expect: self.expect },
            Says::Promise { founder } => Told::Promised(self.promise(founder)),
            Says::Release { founder } => Told::Promised(!self.release(founder)),
        };
        Ok(encode(&Answered { code: self.token.code("door", &proof.binding), told }))
    }
}

async fn ask(token: &Token, address: SocketAddr, says: Says, within: Duration) -> Result<Told, String> {
    let mut knocking = tokio::time::timeout(within, Knocking::at(address)).await.map_err(|_| "no answer in time")??;
    let knock = Knock { code: token.code("stranger", &knocking.binding), says };
    let answer = knocking.ask(encode(&knock), within).await?;
    let answered: Answered = decode(&answer, KNOCK_MAX).ok_or("the answer is none")?;
    if !token.is_right("door", &knocking.binding, &answered.code) {
        return Err("it does not know this cluster's token".into());
    }
    Ok(answered.told)
}

/// Gets into the cluster, however long it takes.
pub struct Entering<'a> {
    /// The cluster's.
    pub token: Token,
    /// `HOST:PORT`, where others may be.
    pub seeds: Vec<String>,
    /// How many nodes begin the cluster together.
    pub expect: Option<u32>,
    /// What this node tells of itself.
    pub description: NodeDescription,
    /// Its door.
    pub gate: &'a Gate,
    /// Its key.
    pub key: &'a NodeKey,
    /// Its files.
    pub files: &'a Files,
}

impl Entering<'_> {
    /// Tries until it is in. Dropping it takes nothing back.
    ///
    /// # Errors
    /// What is to be kept cannot be.
    pub async fn run(&self) -> Result<Membership, EnterError> {
        let mut said = String::new();
        loop {
            let seeds = self.resolve().await;
            let asked = seeds.iter().map(|seed| async { (*seed, ask(&self.token, *seed, Says::Hello, ASK).await) });
            let heard = futures_util::future::join_all(asked).await;
            let what = match self.step(&seeds, &heard).await? {
                Ok(membership) => return Ok(membership),
                Err(what) => what,
            };
            if what != said {
                tracing::info!(cluster = self.token.name, "{what}");
                said = what;
            }
            tokio::time::sleep(ROUND + Duration::from_millis(u64::from(self.gate.instance[0]))).await;
        }
    }

    async fn resolve(&self) -> BTreeSet<SocketAddr> {
        let mut seeds = BTreeSet::new();
        for seed in &self.seeds {
            match tokio::net::lookup_host(seed).await {
                Ok(found) => seeds.extend(found.take(SEEDS_MAX)),
                Err(error) => tracing::warn!(seed, %error, "a seed has no address"),
            }
        }
        seeds
    }

    /// One round; what is waited for, if it came to nothing.
    async fn step(
        &self,
        seeds: &BTreeSet<SocketAddr>,
        heard: &[(SocketAddr, Result<Told, String>)],
    ) -> Result<Result<Membership, String>, EnterError> {
        let member = heard.iter().find(|(_, told)| matches!(told, Ok(Told::Member)));
        if let Some((address, _)) = member {
            return self.join(*address).await;
        }
        let outside = heard.iter().filter_map(|(address, told)| match told {
            Ok(Told::Outside { instance, expect }) => Some((*instance, (*address, *expect))),
            _ => None,
        });
        let mut outside: BTreeMap<Instance, (SocketAddr, Option<u32>)> = outside.collect();
        outside.remove(&self.gate.instance);
        let Some(expect) = self.expect else {
            let why = heard.iter().find_map(|(address, told)| Some(format!("{address}: {}", told.as_ref().err()?)));
            return Ok(Err(format!(
                "waiting for a member of the cluster among the seeds ({})",
                why.unwrap_or_default()
            )));
        };
        if let Some((address, other)) = outside.values().find(|(_, other)| *other != Some(expect)) {
            let other = other.map_or("nothing".into(), |other| other.to_string());
            return Ok(Err(format!(
                "{address} expects {other} nodes to begin with and this one {expect}: all must agree"
            )));
        }
        // Another set of as many shares a node with this one, and that node gives one promise.
        let needed = (expect as usize).max(seeds.len() / 2 + 1);
        let here = outside.len() + 1;
        if here < needed {
            return Ok(Err(format!("{here} of {needed} nodes are here; the cluster begins when all are")));
        }
        if outside.keys().next().is_some_and(|first| *first < self.gate.instance) {
            return Ok(Err("another node begins the cluster".into()));
        }
        self.found(needed, &outside).await
    }

    async fn join(&self, address: SocketAddr) -> Result<Result<Membership, String>, EnterError> {
        let says = Says::Join { key: self.key.public_key().to_vec(), description: self.description.clone() };
        match ask(&self.token, address, says, JOIN).await {
            Ok(Told::Admitted { cluster, node, authority, certificate, known }) => {
                let membership = Membership {
                    name: self.token.name.clone(),
                    cluster: uuid::Uuid::from_bytes(cluster),
                    node,
                    authority,
                    certificate,
                    begins_with: None,
                    known,
                };
                // A certificate that is not ours would be noticed only later.
                membership.identity(self.key)?;
                self.files.keep(&membership)?;
                Ok(Ok(membership))
            }
            Ok(Told::NotNow(why)) => Ok(Err(format!("{address} cannot let this node in yet: {why}"))),
            Ok(_) => Ok(Err(format!("{address} does not let this node in"))),
            Err(why) => Ok(Err(format!("{address}: {why}"))),
        }
    }

    async fn found(
        &self,
        needed: usize,
        others: &BTreeMap<Instance, (SocketAddr, Option<u32>)>,
    ) -> Result<Result<Membership, String>, EnterError> {
        let founder = self.gate.instance;
        if !self.gate.promise(founder) {
            return Ok(Err("another node was promised to begin the cluster; waiting for it".into()));
        }
        let asked = others.values().map(|(address, _)| ask(&self.token, *address, Says::Promise { founder }, ASK));
        let answers = futures_util::future::join_all(asked).await;
        let promised = 1 + answers.iter().filter(|told| **told == Ok(Told::Promised(true))).count();
        if promised < needed {
            // It is certain that this node has not begun anything: the others are free again.
            let told = others.values().map(|(address, _)| ask(&self.token, *address, Says::Release { founder }, ASK));
            futures_util::future::join_all(told).await;
            self.gate.release(founder);
            return Ok(Err(format!("{promised} of {needed} nodes agree that this one begins the cluster")));
        }
        let cluster = uuid::Uuid::new_v4();
        let id = ClusterId(cluster.into_bytes());
        let authority = ClusterAuthority::create(id, SystemTime::now())?;
        let certificate = authority.issue(NodeId(1), self.key.public_key(), SystemTime::now())?;
        let membership = Membership {
            name: self.token.name.clone(),
            cluster,
            node: 1,
            authority: authority.certificate().to_vec(),
            certificate,
            begins_with: Some(authority.secret_key()),
            known: BTreeMap::new(),
        };
        self.files.keep(&membership)?;
        tracing::info!(cluster = self.token.name, id = %cluster, nodes = promised, "this node begins the cluster");
        Ok(Ok(membership))
    }
}
