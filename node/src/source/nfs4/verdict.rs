//! What a reply means to the slot it came on.
//!
//! Owns: the table of what SEQUENCE may say. Never does: acting on it.

use bytes::Bytes;
use forebay_proto::nfs4::{OpReply, Status, ops::sequence::SequenceOk};

use super::wire::{self, DecodeError};
use crate::source::SourceError;

/// What a reply means to the slot it came on.
pub(super) enum Verdict {
    /// Results, SEQUENCE's apart.
    Done { sequence: SequenceOk, replies: Vec<OpReply> },
    /// The same again on the same slot, later.
    Repeat,
    /// The connection is to be bound first.
    Bind,
    /// The sequence is used up, the results are not to be had.
    Used,
    /// More operations than the server takes.
    TooMany,
    /// The session is gone.
    Lost,
    /// It cannot be done.
    Failed(SourceError),
}

/// Judges a reply record; `unknown` if the call had been sent before.
pub(super) fn judge(record: Bytes, unknown: bool) -> Verdict {
    let (status, mut replies) = match wire::decode(record) {
        Ok(decoded) => decoded,
        Err(DecodeError::Refused(refused)) => {
            tracing::warn!(?refused, "the source refused a call");
            return Verdict::Failed(SourceError::Errno(libc::EACCES));
        }
        Err(error) => {
            tracing::warn!(%error, "the source sent what is no reply");
            return Verdict::Failed(SourceError::Errno(libc::EIO));
        }
    };
    if not_kept(&replies) {
        return Verdict::Used;
    }
    let first = if replies.is_empty() { None } else { Some(replies.remove(0)) };
    match first {
        Some(OpReply::Sequence(Ok(sequence))) => Verdict::Done { sequence, replies },
        Some(OpReply::Sequence(Err(status))) => sequence_failed(status, unknown),
        _ => sequence_failed(status, unknown),
    }
}

fn sequence_failed(status: Status, unknown: bool) -> Verdict {
    match status {
        Status::Delay => Verdict::Repeat,
        Status::ConnNotBoundToSession => Verdict::Bind,
        Status::SeqFalseRetry => Verdict::Used,
        Status::BadSession
        | Status::DeadSession
        | Status::StaleClientid
        | Status::Expired
        | Status::BadSlot
        | Status::BadHighSlot
        | Status::SeqMisordered => {
            tracing::debug!(status = status.name(), unknown, "the session is gone");
            Verdict::Lost
        }
        // Some servers grant more operations than they take.
        Status::Resource | Status::TooManyOps => Verdict::TooMany,
        other => {
            tracing::warn!(status = other.name(), "the source refused SEQUENCE");
            Verdict::Failed(SourceError::Errno(libc::EIO))
        }
    }
}

/// Whether the reply says that the server kept no reply to repeat.
fn not_kept(replies: &[OpReply]) -> bool {
    replies.iter().take(2).any(|reply| reply.status() == Status::RetryUncachedRep)
}
