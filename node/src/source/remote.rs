//! What a source on the network can be asked: the seam between the cache and the protocol that reaches its source.
//!
//! Owns: the trait and the shapes of its answers. Never does: caching, policy, deciding who may.
//!
//! Rules for whoever implements it:
//! * Calls are made with the user's own AUTH_SYS credentials; the source judges permissions.
//! * What only asks gives up with [`SourceError::Unavailable`] after a deadline. What changes something waits until its
//!   outcome is known, through reconnects and restarts of the source, since its caller may not repeat it.
//! * Attributes that come with data were taken *before* the data was read, never after: data may be newer than the version
//!   it is kept under, but never older.
//! * Payloads in answers are allocations of their own (or nearly so): the cache keeps them and counts their length.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    AccessMask, Credentials, FileAttributes, NewObject, ObjectId, SeekWhat, SetAttributes, SourceError,
    SpaceAttributes, XattrSet,
};

/// Why a call is made: what nobody waits for is the first to be given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Purpose {
    /// A client waits for it.
    Client,
    /// Somebody may want it soon: read-ahead, warm-up.
    Ahead,
}

/// For whom a call is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OnBehalf {
    /// The user the source sees.
    pub user: Credentials,
    /// Why.
    pub purpose: Purpose,
}

/// An object, or a name that may stand for one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// By handle.
    Object(ObjectId),
    /// By name in a directory. One component, never `.` or `..`.
    Name(ObjectId, Bytes),
}

/// What to bring along in the same round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Want {
    /// What the user may do (ACCESS).
    pub access: bool,
    /// Bytes from the beginning of a regular file, 0 for none.
    pub read: u32,
    /// As fresh as an OPEN needs it: whoever answers out of what it knows must not if that is older.
    pub open: bool,
}

/// What was seen at a [`Place`].
#[derive(Clone, Debug)]
pub struct Seen {
    /// The directory's attributes from before the name was looked up, if it was looked up by name.
    pub directory: Option<FileAttributes>,
    /// Whose word on the directory that is.
    pub directory_word: Word,
    /// The object, or why there is none.
    pub object: Result<SeenObject, SourceError>,
}

/// An object with what came along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenObject {
    /// What names it.
    pub id: ObjectId,
    /// Its attributes.
    pub attributes: FileAttributes,
    /// What the user may do, if it was asked for.
    pub access: Option<AccessMask>,
    /// Data from its beginning, if it was asked for and could be read.
    pub data: Option<Data>,
    /// Whose word it is.
    pub word: Word,
}

/// Whose word attributes are, and so how far they may be believed.
#[derive(Clone, Debug, Default)]
pub enum Word {
    /// The source's own, in answer to this question.
    #[default]
    Source,
    /// Of the node that owns the object in a cluster.
    Owner(Arc<dyn OwnersWord>),
    /// Of a node that does not: that it exists and of which kind it is, and no more.
    Hearsay,
}

/// Two words are never told apart where answers are compared.
impl PartialEq for Word {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Word {}

/// What an owner says of an object besides its attributes.
pub trait OwnersWord: fmt::Debug + Send + Sync {
    /// What its data or names are kept under.
    fn content(&self) -> u64;
    /// No later change can look the same.
    fn is_settled(&self) -> bool;
    /// For how long the owner has known it.
    fn age(&self) -> Duration;
    /// Numbers words of one object; later questions have higher numbers.
    fn number(&self) -> u64;
    /// What was told is remembered now, under the number, and may be believed from this moment on.
    fn remembered(&self);
}

/// Data of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    /// The bytes; fewer than asked for only at the end of the file.
    pub bytes: Bytes,
    /// The file ended there.
    pub eof: bool,
}

/// What READ gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataRead {
    /// Attributes from before the data was read.
    pub attributes: FileAttributes,
    /// The data.
    pub data: Data,
}

/// What a change of one object did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The change attribute just before, where the source tells it.
    pub before: Option<u64>,
    /// Attributes just after.
    pub attributes: FileAttributes,
}

/// What WRITE did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes taken, at least one.
    pub count: u32,
    /// They are on stable storage.
    pub stable: bool,
    /// Another value than before: what was not committed may be lost.
    pub verifier: u64,
    /// What changed.
    pub changed: Changed,
}

/// What COMMIT said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// As in [`Written`].
    pub verifier: u64,
    /// Attributes just after.
    pub attributes: FileAttributes,
}

/// What a change of names did to a directory (`change_info4`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryChange {
    /// Nothing else changed the directory between the two.
    pub atomic: bool,
    /// The change attribute before.
    pub before: u64,
    /// The change attribute after.
    pub after: u64,
    /// All attributes after, if they came along.
    pub attributes: Option<FileAttributes>,
}

/// An object that was made, or was there already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The object.
    pub object: SeenObject,
    /// This call made it.
    pub created: bool,
    /// What it did to the directory.
    pub directory: DirectoryChange,
}

/// Some entries of a directory.
#[derive(Clone, Debug)]
pub struct Page {
    /// The directory's attributes from before it was read.
    pub directory: FileAttributes,
    /// To be sent with the cookie of the last entry to read on.
    pub verifier: u64,
    /// Entries in the source's order, without `.` and `..`.
    pub entries: Vec<PageEntry>,
    /// Nothing follows.
    pub eof: bool,
    /// Whose word on the directory that is.
    pub directory_word: Word,
    /// What is said of entries is the source's word, asked for since this question.
    pub fresh: bool,
}

/// One entry.
#[derive(Clone, Debug)]
pub struct PageEntry {
    /// Resume position.
    pub cookie: u64,
    /// The name.
    pub name: Bytes,
    /// The object, or why it cannot be told.
    pub object: Result<SeenObject, SourceError>,
}

/// How a source does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It answers.
    Up,
    /// It has not been reached yet, or has not answered for longer than a call should take.
    Down,
}

/// A source on the network. See the module for the rules.
#[async_trait]
pub trait RemoteSource: fmt::Debug + Send + Sync + 'static {
    /// How it does, without asking it.
    fn health(&self) -> Health;

    /// Whether it knows extended attributes, as far as is known.
    fn has_xattrs(&self) -> bool {
        false
    }

    /// The directory that the source's URL names.
    async fn root(&self, by: &OnBehalf) -> Result<SeenObject, SourceError>;

    /// What is at a place, in one round trip.
    async fn look(&self, by: &OnBehalf, place: &Place, want: Want) -> Result<Seen, SourceError>;

    /// As [`RemoteSource::look`] for many places, in as few round trips as the source's limits allow; answers in the
    /// places' order.
    async fn look_many(
        &self,
        by: &OnBehalf,
        places: &[Place],
        want: Want,
    ) -> Result<Vec<Result<Seen, SourceError>>, SourceError>;

    /// The directory above a directory.
    async fn parent(&self, by: &OnBehalf, dir: &ObjectId) -> Result<SeenObject, SourceError>;

    /// Data: as many bytes as asked for unless the file ends, however small the source's own limit is.
    async fn read(&self, by: &OnBehalf, file: &ObjectId, offset: u64, count: u32) -> Result<DataRead, SourceError>;

    /// Writes, at least one byte; `stable` puts them on stable storage before it answers.
    async fn write(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        offset: u64,
        data: Bytes,
        stable: bool,
    ) -> Result<Written, SourceError>;

    /// Puts what was written on stable storage.
    async fn commit(&self, by: &OnBehalf, file: &ObjectId) -> Result<Committed, SourceError>;

    /// Sets attributes.
    async fn set_attributes(&self, by: &OnBehalf, file: &ObjectId, set: &SetAttributes)
    -> Result<Changed, SourceError>;

    /// Makes a regular file. The name is taken: `EEXIST` if `exclusive`, else what is there, unchanged, of any kind.
    async fn create(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        exclusive: bool,
        set: &SetAttributes,
    ) -> Result<Made, SourceError>;

    /// Makes anything else; `EEXIST` if the name is taken.
    async fn make(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        object: &NewObject,
        set: &SetAttributes,
    ) -> Result<Made, SourceError>;

    /// Gives an object another name.
    async fn link(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<DirectoryChange, SourceError>;

    /// Removes a name (of a directory: if it is empty).
    async fn remove(&self, by: &OnBehalf, dir: &ObjectId, name: &[u8]) -> Result<DirectoryChange, SourceError>;

    /// Moves a name; tells what it did to the directory it was in, and to the one it is in now.
    async fn rename(
        &self,
        by: &OnBehalf,
        from: (&ObjectId, &[u8]),
        to: (&ObjectId, &[u8]),
    ) -> Result<(DirectoryChange, DirectoryChange), SourceError>;

    /// What a symbolic link says.
    async fn read_link(&self, by: &OnBehalf, link: &ObjectId) -> Result<Bytes, SourceError>;

    /// Entries after `cookie` (0: from the beginning, with verifier 0), with attributes, about `bytes` of them on the
    /// wire. `BadCookie` if the source no longer takes cookie or verifier.
    async fn read_directory(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        cookie: u64,
        verifier: u64,
        bytes: u32,
    ) -> Result<Page, SourceError>;

    /// Space of the file system an object is on.
    async fn space(&self, by: &OnBehalf, object: &ObjectId) -> Result<SpaceAttributes, SourceError>;

    /// Where data or a hole begins, `None` beyond the end. `ENOTSUP` where the source does not know.
    async fn seek(
        &self,
        _by: &OnBehalf,
        _file: &ObjectId,
        _offset: u64,
        _what: SeekWhat,
    ) -> Result<Option<u64>, SourceError> {
        Err(SourceError::UNSUPPORTED)
    }

    /// Reserves (`punch` false) or frees space.
    async fn allocate(
        &self,
        _by: &OnBehalf,
        _file: &ObjectId,
        _offset: u64,
        _length: u64,
        _punch: bool,
    ) -> Result<Changed, SourceError> {
        Err(SourceError::UNSUPPORTED)
    }

    /// The value of an extended attribute (RFC 8276: without its `user.`).
    async fn xattr_get(&self, _by: &OnBehalf, _file: &ObjectId, _name: &[u8]) -> Result<Bytes, SourceError> {
        Err(SourceError::UNSUPPORTED)
    }

    /// Names of extended attributes.
    async fn xattr_list(&self, _by: &OnBehalf, _file: &ObjectId) -> Result<Vec<Bytes>, SourceError> {
        Err(SourceError::UNSUPPORTED)
    }

    /// Sets an extended attribute.
    async fn xattr_set(
        &self,
        _by: &OnBehalf,
        _file: &ObjectId,
        _name: &[u8],
        _value: &Bytes,
        _how: XattrSet,
    ) -> Result<Changed, SourceError> {
        Err(SourceError::UNSUPPORTED)
    }

    /// Removes an extended attribute.
    async fn xattr_remove(&self, _by: &OnBehalf, _file: &ObjectId, _name: &[u8]) -> Result<Changed, SourceError> {
        Err(SourceError::UNSUPPORTED)
    }

    /// Gives back what the source keeps for us. Nothing is asked of it afterwards.
    async fn close(&self) {}
}
