//! Many small reads, writes and looks by path in few COMPOUNDs.
//!
//! Owns: packing of whole paths, and what does not fit a COMPOUND or needs an open: that goes by itself. Never does:
//! giving up items behind one that failed.
//! Invariants: answers are in the items' order; an item that is sent again does the same again.

use std::collections::VecDeque;

use bytes::Bytes;
use forebay_proto::nfs4::{
    Attributes, Op, OpReply, StableHow, Stateid, Status, open,
    ops::{
        close::CloseArgs,
        open::{CreateHow, OpenArgs, OpenClaim, OpenHow},
    },
};
use futures_util::{StreamExt, stream::FuturesUnordered};

use super::{
    Nfs4Source,
    engine::{Backoff, Request, TOO_MANY},
    errors::{Failure, is_later, refuses_stateid, source_error},
    look_many::Grant,
    opens,
    wire::{self, Results, take},
};
use crate::source::{
    FileAttributes, ObjectId, SOURCE_HANDLE_MAX, SourceError, SourceHandle,
    counters::Kind,
    remote::{Data, OnBehalf},
};

/// What is to be done at a path.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Bytes.
    Read { offset: u64, count: u32 },
    /// Attributes.
    Attributes,
    /// Bytes to a file, which is made with this mode if it is not there.
    Write { offset: u64, data: Bytes, create: Option<u32>, sync: bool },
}

/// One thing to do.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// The directory, part by part.
    pub parent: Vec<Bytes>,
    /// The name in it; `None` for the root itself.
    pub name: Option<Bytes>,
    /// What.
    pub action: Action,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Data(Data),
    Attributes(Box<FileAttributes>),
    Written { count: u32, stable: bool },
}

/// Bytes of a path that keep a WRITE behind it in the first page of a request.
const NEAR: usize = 2048;

type Answer = Result<Outcome, SourceError>;

/// One item in a COMPOUND.
#[derive(Clone, Copy, Debug)]
struct Step {
    index: usize,
    /// It walks to its directory; else it comes back there by RESTOREFH.
    enters: bool,
    /// Others of the same directory follow.
    saves: bool,
}

/// What became of a COMPOUND.
#[derive(Default)]
struct Batch {
    answers: Vec<(usize, Answer)>,
    /// To be done by themselves.
    alone: Vec<usize>,
    rest: Vec<usize>,
    later: bool,
}

/// What became of one item.
enum Settled {
    Answer(Answer),
    Alone,
    Later,
}

/// What an item needs at most.
fn need(item: &Item, enters: bool) -> Grant {
    let name = item.name.as_ref().map_or(0, Bytes::len);
    let (operations, request, reply) = match &item.action {
        Action::Read { count, .. } => (2, name + 64, 40 + *count as usize),
        Action::Attributes => (2, name + 64, 24 + wire::ATTRIBUTES_ROOM),
        Action::Write { data, create, .. } => (2 + 2 * usize::from(create.is_some()), name + 256 + data.len(), 192),
    };
    let writes = usize::from(matches!(item.action, Action::Write { .. }));
    if !enters {
        return Grant { writes, operations: operations + 1, request: request + 4, reply: reply + 8 };
    }
    let path: usize = item.parent.iter().map(|part| part.len() + 12).sum();
    let walk = item.parent.len() + 2;
    Grant {
        writes,
        operations: operations + walk,
        request: request + path + SOURCE_HANDLE_MAX + 16,
        reply: reply + walk * 8,
    }
}

fn path_length(item: &Item) -> usize {
    item.parent.iter().chain(&item.name).map(|part| part.len() + 12).sum()
}

fn grant_is_low(session: &super::session::Session) -> bool {
    session.writes() == 1
}

fn pack(queue: &mut VecDeque<usize>, items: &[Item], grant: Grant) -> Vec<Step> {
    let mut left = grant;
    let mut steps: Vec<Step> = Vec::new();
    while let Some(&index) = queue.front() {
        let item = &items[index];
        let before = steps.last().map(|step| &items[step.index]).filter(|before| before.name.is_some());
        let follows = item.name.is_some() && before.is_some_and(|before| before.parent == item.parent);
        if !left.take(need(item, !follows)) {
            break;
        }
        queue.pop_front();
        if follows && let Some(step) = steps.last_mut() {
            step.saves = step.enters;
        }
        steps.push(Step { index, enters: !follows, saves: false });
    }
    steps
}

fn operations(root: &SourceHandle, by: &OnBehalf, steps: &[Step], items: &[Item]) -> Result<Vec<Op>, SourceError> {
    let mut ops = Vec::new();
    for step in steps {
        let item = &items[step.index];
        if step.enters {
            ops.push(wire::putfh(root));
            for part in &item.parent {
                ops.push(wire::lookup(part)?);
            }
            ops.extend(step.saves.then_some(Op::SaveFh(())));
        } else {
            ops.push(Op::RestoreFh(()));
        }
        act(&mut ops, by, item)?;
    }
    Ok(ops)
}

/// Appends what is to be done in the item's directory.
fn act(ops: &mut Vec<Op>, by: &OnBehalf, item: &Item) -> Result<(), SourceError> {
    let (create, name) = (matches!(item.action, Action::Write { create: Some(_), .. }), item.name.as_ref());
    if let Some(name) = name.filter(|_| !create) {
        ops.push(wire::lookup(name)?);
    }
    match &item.action {
        Action::Read { offset, count } => ops.push(wire::read(Stateid::ANONYMOUS, *offset, *count)),
        Action::Attributes => ops.push(wire::getattr(wire::OBJECT)),
        Action::Write { offset, data, create: None, sync } => {
            ops.push(wire::write(Stateid::ANONYMOUS, *offset, data.clone(), *sync));
        }
        Action::Write { offset, data, create: Some(mode), sync } => {
            let wanted = Attributes { mode: Some(*mode), ..Attributes::default() };
            ops.push(Op::Open(OpenArgs {
                seqid: 0,
                share_access: open::ACCESS_WRITE | open::WANT_NO_DELEG,
                share_deny: 0,
                owner: opens::owner(&by.user, open::ACCESS_BOTH),
                how: OpenHow::Create(CreateHow::Unchecked(wanted.to_fattr(&Attributes::NAMED))),
                claim: OpenClaim::Null(wire::component(name.map_or(&[][..], |name| name))?),
            }));
            ops.push(wire::write(Stateid::CURRENT, *offset, data.clone(), *sync));
            ops.push(Op::Close(CloseArgs { seqid: 0, stateid: Stateid::CURRENT }));
        }
    }
    Ok(())
}

impl Nfs4Source {
    /// Does all items; answers in their order.
    pub(crate) async fn run_items(
        &self,
        by: &OnBehalf,
        root: &ObjectId,
        items: &[Item],
    ) -> Result<Vec<Answer>, SourceError> {
        let session = self.engine.current().await?;
        let parallel = (session.slot_count() / 2).clamp(1, 16);
        let mut answers: Vec<Option<Answer>> = (0..items.len()).map(|_| None).collect();
        // Items of one directory side by side, whatever the caller's order.
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by(|a, b| items[*a].parent.cmp(&items[*b].parent));
        // Where only one WRITE may be in a COMPOUND, it may not stand far from its beginning either.
        let far = |index: &usize| {
            grant_is_low(&session) && need(&items[*index], true).writes > 0 && path_length(&items[*index]) > NEAR
        };
        let (mut alone, order): (Vec<_>, Vec<_>) = order.into_iter().partition(far);
        let mut queues = VecDeque::from([VecDeque::from(order)]);
        let mut running = FuturesUnordered::new();
        let mut pause = Backoff::default();
        loop {
            while running.len() < parallel
                && let Some(queue) = queues.front_mut()
            {
                let steps = pack(queue, items, Grant::of(&session));
                // Not even one fits: it is too large for a COMPOUND.
                alone.extend(if steps.is_empty() { queue.pop_front() } else { None });
                if queue.is_empty() {
                    queues.pop_front();
                }
                if !steps.is_empty() {
                    running.push(self.batch_of_items(by, &root.handle, items, steps));
                }
            }
            let Some(batch) = running.next().await else { break };
            let batch = batch?;
            batch.answers.into_iter().for_each(|(index, answer)| answers[index] = Some(answer));
            alone.extend(batch.alone);
            if batch.later {
                pause.wait().await;
            }
            let (first, second) = batch.rest.split_at(batch.rest.len() / 2);
            queues.extend(
                [second, first].into_iter().filter(|half| !half.is_empty()).map(|half| half.iter().copied().collect()),
            );
        }
        let mut lonely = futures_util::stream::iter(alone)
            .map(|index| async move { (index, self.item_alone(by, root, &items[index]).await) })
            .buffer_unordered(parallel);
        while let Some((index, answer)) = lonely.next().await {
            answers[index] = Some(answer);
        }
        Ok(answers.into_iter().map(|answer| answer.unwrap_or(Err(SourceError::Unavailable))).collect())
    }

    async fn batch_of_items(
        &self,
        by: &OnBehalf,
        root: &SourceHandle,
        items: &[Item],
        steps: Vec<Step>,
    ) -> Result<Batch, SourceError> {
        let mut batch = Batch::default();
        let ops = match operations(root, by, &steps, items) {
            Ok(ops) => ops,
            Err(error) if steps.len() == 1 => {
                batch.answers.push((steps[0].index, Err(error)));
                return Ok(batch);
            }
            Err(_) => {
                batch.rest = steps.iter().map(|step| step.index).collect();
                return Ok(batch);
            }
        };
        let kind = match items[steps[0].index].action {
            Action::Read { .. } => Kind::Read,
            Action::Attributes => Kind::LookMany,
            Action::Write { .. } => Kind::Write,
        };
        let payload = steps.iter().map(|step| payload(&items[step.index])).sum();
        let request = Request { essential: 0, payload, ..Request::asking(&self.engine, kind, by, ops) };
        let mut results = match self.engine.call(request).await {
            Err(TOO_MANY) if steps.len() > 1 => {
                batch.rest.extend(steps.iter().map(|step| step.index));
                return Ok(batch);
            }
            results => results?,
        };
        for (place, step) in steps.iter().enumerate() {
            let settled = self.settle_item(&mut results, by, root, step, &items[step.index]).await;
            let stops = match settled {
                Settled::Answer(answer) => {
                    let failed = answer.is_err();
                    batch.answers.push((step.index, answer));
                    failed
                }
                Settled::Alone => {
                    batch.alone.push(step.index);
                    results.failed().is_some() && results.status_at(0).is_none()
                }
                Settled::Later => {
                    batch.later = true;
                    batch.rest.push(step.index);
                    true
                }
            };
            if stops || results.status_at(0).is_none() {
                batch.rest.extend(steps[place + 1..].iter().map(|step| step.index));
                break;
            }
        }
        Ok(batch)
    }

    async fn settle_item(
        &self,
        results: &mut Results,
        by: &OnBehalf,
        root: &SourceHandle,
        step: &Step,
        item: &Item,
    ) -> Settled {
        let before = if step.enters { 1 + item.parent.len() + usize::from(step.saves) } else { 1 };
        let creates = matches!(item.action, Action::Write { create: Some(_), .. });
        let looks = usize::from(item.name.is_some() && !creates);
        for _ in 0..before + looks {
            match results.next().map_or(Status::ServerFault, |reply| reply.status()) {
                Status::Ok => {}
                status => return failed(status),
            }
        }
        match &item.action {
            Action::Read { count, .. } => match take!(results, Read) {
                Ok(ok) if ok.eof || ok.data.len() >= *count as usize => {
                    let bytes = results.own(ok.data.into_bytes());
                    self.engine.counters.read(bytes.len());
                    Settled::Answer(Ok(Outcome::Data(Data { bytes, eof: ok.eof })))
                }
                Ok(_) => Settled::Alone,
                Err(status) => failed(status),
            },
            Action::Attributes => match take!(results, GetAttr) {
                Ok(told) => {
                    let told = self.attributes_of(&told).await.map_err(source_error);
                    Settled::Answer(told.map(|told| Outcome::Attributes(Box::new(told))))
                }
                Err(status) => failed(status),
            },
            Action::Write { data, create, .. } => {
                let opened = match create.map(|_| take!(results, Open)).transpose() {
                    Ok(opened) => opened,
                    Err(status) => return failed(status),
                };
                let written = take!(results, Write);
                let closed = if opened.is_some() { results.next() } else { None };
                if let Some(opened) = &opened
                    && closed.as_ref().map(OpReply::status) != Some(Status::Ok)
                    && let Ok(id) = self.id_of(by, root, item).await
                {
                    opens::close_left_open(&self.engine, &id.handle, opened, closed);
                }
                match written {
                    Ok(ok) if ok.count as usize >= data.len() => {
                        self.engine.counters.written(data.len());
                        let stable = ok.committed == StableHow::FileSync;
                        Settled::Answer(Ok(Outcome::Written { count: ok.count, stable }))
                    }
                    Ok(_) => Settled::Alone,
                    Err(status) => failed(status),
                }
            }
        }
    }

    /// Finds the object at an item's path, however deep.
    async fn id_of(&self, by: &OnBehalf, root: &SourceHandle, item: &Item) -> Result<ObjectId, Failure> {
        let room = self.engine.current().await?.operations().saturating_sub(3).max(1);
        let parts: Vec<&Bytes> = item.parent.iter().chain(item.name.as_ref()).collect();
        let mut steps: Vec<&[&Bytes]> = parts.chunks(room).collect();
        if steps.is_empty() {
            steps.push(&[]);
        }
        let (mut here, mut found) = (*root, None);
        for step in steps {
            let mut ops = vec![wire::putfh(&here)];
            for part in step {
                ops.push(wire::lookup(part)?);
            }
            super::look::ask_of_current(&mut ops, true, false, 0);
            let mut results = self.engine.call(Request::asking(&self.engine, Kind::Lookup, by, ops)).await?;
            for _ in 0..=step.len() {
                match results.next().map_or(Status::ServerFault, |reply| reply.status()) {
                    Status::Ok => {}
                    status => return Err(status.into()),
                }
            }
            let (seen, _) = self.object_from(&mut results, None, false, 0).await?;
            here = seen.id.handle;
            found = Some(seen.id);
        }
        found.ok_or(Failure::Status(Status::ServerFault))
    }

    /// An item by itself: too large, or refused without an open.
    async fn item_alone(&self, by: &OnBehalf, root: &ObjectId, item: &Item) -> Answer {
        let id = match (self.id_of(by, &root.handle, item).await, &item.action) {
            (Ok(id), _) => id,
            (Err(Failure::Status(Status::NoEnt)), Action::Write { create: Some(mode), .. }) => {
                let empty = Action::Write { offset: 0, data: Bytes::new(), create: Some(*mode), sync: false };
                self.make_empty(by, root, &Item { action: empty, ..item.clone() }).await?
            }
            (Err(failure), _) => return Err(failure.into()),
        };
        match &item.action {
            Action::Read { offset, count } => Ok(Outcome::Data(self.read_data(by, &id, *offset, *count).await?.data)),
            Action::Attributes => Ok(Outcome::Attributes(Box::new(self.attributes_by_handle(by, &id).await?))),
            Action::Write { offset, data, sync, .. } => {
                let (mut done, mut stable) = (0, true);
                while done < data.len() {
                    let at = offset.saturating_add(done as u64);
                    let written = self.write_data(by, &id, at, data.slice(done..), *sync).await?;
                    done += written.count as usize;
                    stable &= written.stable;
                }
                Ok(Outcome::Written { count: u32::try_from(done).unwrap_or(u32::MAX), stable })
            }
        }
    }

    async fn make_empty(&self, by: &OnBehalf, root: &ObjectId, item: &Item) -> Result<ObjectId, SourceError> {
        let Action::Write { create: Some(mode), .. } = item.action else {
            return Err(SourceError::Errno(libc::EINVAL));
        };
        let (Some(name), parent) = (&item.name, Item { name: None, ..item.clone() }) else {
            return Err(SourceError::Errno(libc::EISDIR));
        };
        let dir = self.id_of(by, &root.handle, &parent).await?;
        let set = crate::source::SetAttributes { mode: Some(mode), ..Default::default() };
        Ok(self.create_file(by, &dir, name, false, &set).await?.object.id)
    }
}

fn payload(item: &Item) -> usize {
    match &item.action {
        Action::Read { count, .. } => *count as usize,
        Action::Attributes => 0,
        Action::Write { data, .. } => data.len(),
    }
}

fn failed(status: Status) -> Settled {
    if is_later(status) {
        Settled::Later
    } else if refuses_stateid(status) {
        Settled::Alone
    } else {
        Settled::Answer(Err(source_error(status)))
    }
}
