//! A node's answers to the others.
//!
//! Invariants: a snapshot that no leader can have made is refused before openraft sees it, which would panic; nothing is passed on twice: who is asked
//! as the leader and is not says so.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use openraft::{async_runtime::watch::WatchReceiver, raft::TransferLeaderRequest, type_config::alias::SnapshotOf};
use tokio::sync::mpsc;

use super::{
    core::Core,
    group::Group,
    network::{Answer, Endpoint, Message},
    snapshot_files::SnapshotFiles,
    types::{Types, Vote},
};

/// A request of another node ends after this long: that node's patience is about as long.
const FORWARDED_WITHIN: Duration = Duration::from_secs(10);

#[async_trait]
impl<C: Core> Endpoint for Group<C> {
    async fn answer(&self, message: Message) -> Result<Answer, String> {
        let raft = &self.inner.raft;
        Ok(match message {
            Message::Append(rpc) => Answer::Append(raft.append_entries(rpc).await.map_err(stopped)?),
            Message::Vote(rpc) => Answer::Vote(raft.vote(rpc).await.map_err(stopped)?),
            Message::PreVote(rpc) => Answer::PreVote(raft.pre_vote(rpc).await.map_err(stopped)?),
            Message::Transfer { from, to, last } => {
                let request = TransferLeaderRequest::new(from, to, last);
                Answer::Transfer(raft.handle_transfer_leader(request).await.map_err(stopped)?)
            }
            Message::Forward(request) => Answer::Forward(self.inner.do_here(request, FORWARDED_WITHIN).await),
        })
    }

    async fn take_snapshot(&self, vote: Vote, chunks: mpsc::Receiver<Bytes>) -> Result<Vote, String> {
        let snapshot = self.inner.replica.receive(chunks).await.map_err(stopped)?;
        self.plausible(&vote, &snapshot)?;
        let snapshot = SnapshotOf::<Types, SnapshotFiles> { meta: snapshot.meta(), snapshot };
        Ok(self.inner.raft.install_full_snapshot(vote, snapshot).await.map_err(stopped)?.vote)
    }
}

impl<C: Core> Group<C> {
    /// Whether a leader of `vote` can have made the snapshot of the log that this node has.
    fn plausible(&self, vote: &Vote, snapshot: &SnapshotFiles) -> Result<(), String> {
        let Some(last) = snapshot.meta().last_log_id else { return Err("a snapshot of nothing".into()) };
        if last.leader_id > vote.leader_id {
            return Err(format!("a snapshot up to {last} under the vote {vote}"));
        }
        let metrics = self.inner.raft.metrics();
        let committed = metrics.borrow_watched().local_committed;
        match committed {
            Some(committed) if last > committed && last.index <= committed.index => {
                Err(format!("a snapshot up to {last}, and this node knows {committed} to be committed"))
            }
            _ => Ok(()),
        }
    }
}

fn stopped(error: impl std::fmt::Display) -> String {
    error.to_string()
}
