//! What nodes say to each other about files.
//!
//! Owns: the messages' form ([`crate::cluster::form`]) and their bounds. Never does: act on them.
//! Invariant: bytes from a peer decode or are refused; nothing in a message is longer than [`MESSAGE_MAX`] allows, places and names
//! have bounds of their own.

use bytes::Bytes;
use forebay_meta::state::FileKey;
use serde::{Deserialize, Serialize};

use super::owner::{HeartbeatReply, Refusal};
use crate::{
    cluster::{
        control::MESSAGE_MAX,
        form::{decode, encode},
    },
    source::{
        AccessMask, Credentials, FileAttributes, ObjectId, SourceError,
        remote::{Place, Want},
    },
};

/// Places in one question: more than any source takes in one round trip.
pub const PLACES_MAX: usize = 1_024;
/// Names that one change touches in one directory.
pub const NAMES_MAX: usize = 2;
/// Longest name of a file, as NFS clients and file systems have it.
pub const NAME_MAX: usize = 255;

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// From a holder, once a second.
    Heartbeat {
        /// Of the pair lease that it has.
        incarnation: Option<u64>,
        /// The ring that it goes by.
        epoch: u64,
    },
    /// Whether the ring with this epoch is released.
    Released {
        /// The asker's.
        epoch: u64,
    },
    /// The owner takes a file back.
    Recall {
        /// Which.
        file: FileKey,
    },
    /// Something about an export's files.
    Of {
        /// The export.
        export: String,
        /// The ring by which the node was chosen.
        epoch: u64,
        /// What.
        question: Box<Question>,
    },
}

/// What is asked about an export's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// What is at these places.
    Look {
        /// On whose behalf.
        user: Credentials,
        /// Where, with the numbers of the questions.
        places: Vec<(Place, u64)>,
        /// What to bring along.
        want: Want,
    },
    /// Entries of a directory.
    List {
        /// On whose behalf.
        user: Credentials,
        /// Which, with the number of the question.
        dir: (ObjectId, u64),
        /// After which.
        cookie: u64,
        /// As the page before told it.
        verifier: u64,
        /// About how many bytes of them.
        bytes: u32,
    },
    /// A change of an object begins.
    Hold {
        /// Which.
        object: ObjectId,
        /// The change's number.
        number: u64,
        /// In a directory: the names that it touches.
        names: Vec<Bytes>,
    },
    /// It is over.
    LetGo {
        /// As the answer to [`Question::Hold`] called it.
        hold: u64,
        /// Which object.
        object: ObjectId,
        /// Attributes just after, if they are known.
        after: Option<Box<FileAttributes>>,
    },
    /// The data's owner is to fetch a chunk.
    Pull {
        /// On whose behalf.
        user: Credentials,
        /// Which file.
        object: ObjectId,
        /// As its owner told them: only data of this state is wanted.
        attributes: Box<FileAttributes>,
        /// What data of this state is kept under.
        content: u64,
        /// A later change may look the same.
        settled: bool,
        /// Which chunk.
        index: u32,
    },
}

/// What a name in a directory stands for, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Named {
    /// It is not known.
    Unknown,
    /// There is no such name.
    Missing,
    /// This.
    Object(ObjectId),
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Message::Heartbeat`].
    Lease(HeartbeatReply),
    /// To [`Message::Released`]: the newest ring that is released, if it is not older.
    Released(Option<u64>),
    /// Done.
    Done,
    /// This node does not act as the owner.
    Refused(Refusal),
    /// The source's error.
    Failed(SourceError),
    /// To [`Question::Look`], in the places' order.
    Seen(Vec<Result<Glance, SourceError>>),
    /// To [`Question::List`].
    Page(Box<Listed>),
    /// To [`Question::Hold`].
    Held {
        /// What the hold is called.
        hold: u64,
        /// What the names stand for.
        names: Vec<Named>,
    },
    /// To [`Question::LetGo`]: whether the node has owned the file all along.
    LetGo(bool),
    /// To [`Question::Pull`]: the chunk is here. `false`: the file is in another state.
    Pulled(bool),
}

/// An object as its owner tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sight {
    /// Attributes.
    pub attributes: FileAttributes,
    /// What its data or names are kept under.
    pub content: u64,
    /// No later change can look the same.
    pub settled: bool,
    /// For how long the owner has known it.
    pub age_ms: u32,
    /// With which pair lease it may be believed. `None`: use it once.
    pub incarnation: Option<u64>,
}

impl Sight {
    /// How something looked, to be used once.
    pub fn once(attributes: FileAttributes) -> Self {
        Self { attributes, content: 0, settled: false, age_ms: 0, incarnation: None }
    }
}

/// What is at a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Glance {
    /// The directory, if it was looked up by name.
    pub directory: Option<Sight>,
    /// The object, or why there is none.
    pub object: Result<Found, SourceError>,
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// What names it.
    pub id: ObjectId,
    /// How it looks.
    pub sight: Sight,
    /// The answering node does not own it: only what it is called and of which kind it is holds.
    pub hearsay: bool,
    /// What the user may do, if it was asked for.
    pub access: Option<AccessMask>,
    /// All of its data, if it was asked for and is at hand.
    pub data: Option<Bytes>,
}

/// Entries of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// The directory.
    pub directory: Sight,
    /// To be sent with the cookie of the last entry.
    pub verifier: u64,
    /// In the source's order.
    pub entries: Vec<ListedEntry>,
    /// Nothing follows.
    pub eof: bool,
    /// The source was asked for it since the question came: attributes of entries are news.
    pub fresh: bool,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedEntry {
    /// Resume position.
    pub cookie: u64,
    /// The name.
    pub name: Bytes,
    /// The object, or why it cannot be told.
    pub object: Result<(ObjectId, FileAttributes), SourceError>,
}

impl Message {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        encode(self)
    }

    /// What [`Message::encode`] made; `None` if it is none, or out of bounds.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        decode(bytes, MESSAGE_MAX).filter(Message::is_in_bounds)
    }

    fn is_in_bounds(&self) -> bool {
        let name = |name: &Bytes| name.len() <= NAME_MAX && !name.is_empty();
        let place = |(place, _): &(Place, u64)| match place {
            Place::Object(_) => true,
            Place::Name(_, of) => name(of),
        };
        match self {
            Message::Of { question, .. } => match &**question {
                Question::Look { places, .. } => places.len() <= PLACES_MAX && places.iter().all(place),
                Question::Hold { names, .. } => names.len() <= NAMES_MAX && names.iter().all(name),
                _ => true,
            },
            _ => true,
        }
    }
}

impl Answer {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        encode(self)
    }

    /// What [`Answer::encode`] made; `None` if it is none.
    pub fn decode(bytes: &[u8]) -> Option<Answer> {
        decode(bytes, MESSAGE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{SourceFsid, SourceHandle};

    fn object() -> ObjectId {
        ObjectId { fsid: SourceFsid(7), handle: SourceHandle::new(&[9; 128]).unwrap() }
    }

    fn of(question: Question) -> Message {
        Message::Of { export: "/data".into(), epoch: 3, question: Box::new(question) }
    }

    #[test]
    fn messages_come_back_and_what_is_out_of_bounds_does_not() {
        let hold = |names| of(Question::Hold { object: object(), number: 5, names });
        let good = hold(vec![Bytes::from_static(b"a"), Bytes::from(vec![b'x'; NAME_MAX])]);
        assert_eq!(Message::decode(&good.encode()), Some(good.clone()));
        for names in
            [vec![Bytes::new()], vec![Bytes::from(vec![b'x'; NAME_MAX + 1])], vec![Bytes::from_static(b"a"); 3]]
        {
            assert_eq!(Message::decode(&hold(names).encode()), None);
        }
        let bytes = good.encode();
        for cut in 0..bytes.len() {
            assert_eq!(Message::decode(&bytes[..cut]), None, "cut at {cut}");
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert_eq!(Message::decode(&longer), None);
        longer[0] = 2;
        assert_eq!(Message::decode(&longer[..bytes.len()]), None, "another version");
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..512)) {
            let mut bytes = bytes;
            bytes.insert(0, 1);
            let _ = (Message::decode(&bytes), Answer::decode(&bytes));
        }
    }
}
