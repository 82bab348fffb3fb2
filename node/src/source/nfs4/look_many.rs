//! Many places in few COMPOUNDs.
//!
//! Owns: packing by the operations and bytes that the session grants, and what is left when a place ends a COMPOUND.
//! Never does: losing a place, or changing their order.
//! Invariants: a batch never needs more than was granted; each COMPOUND settles at least its first place, or is one that
//! is sent again because the server wants it so.

use std::collections::VecDeque;

use forebay_proto::nfs4::{Op, Status};
use futures_util::{StreamExt, stream::FuturesUnordered};

use super::{
    Nfs4Source,
    engine::{Backoff, Request, TOO_MANY},
    errors::{is_later, source_error},
    look::ask_of_current,
    session::Session,
    wire::{self, Results, take},
};
use crate::source::{
    FileAttributes, SOURCE_HANDLE_MAX, SourceError,
    counters::Kind,
    remote::{OnBehalf, Place, Seen, Want, Word},
};

/// What a COMPOUND may take, SEQUENCE aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// Operations.
    pub operations: usize,
    /// Bytes of arguments.
    pub request: usize,
    /// Bytes of results.
    pub reply: usize,
    /// WRITEs.
    pub writes: usize,
}

impl Grant {
    /// What a session grants.
    pub fn of(session: &Session) -> Self {
        Self {
            operations: session.operations(),
            request: session.request_room(),
            reply: session.reply_room(),
            writes: session.writes(),
        }
    }

    /// Takes `need` away, if it is there.
    pub fn take(&mut self, need: Self) -> bool {
        let left = (
            self.operations.checked_sub(need.operations),
            self.request.checked_sub(need.request),
            self.reply.checked_sub(need.reply),
            self.writes.checked_sub(need.writes),
        );
        let (Some(operations), Some(request), Some(reply), Some(writes)) = left else { return false };
        *self = Self { operations, request, reply, writes };
        true
    }
}

/// One place in a batch: how its COMPOUND comes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    /// Place of the place in the caller's list.
    index: usize,
    /// It begins a run of names in one directory: PUTFH, the directory's attributes, SAVEFH if others follow.
    enters: bool,
    /// It comes back to the directory of the run by RESTOREFH.
    returns: bool,
    /// Others of the run follow.
    saves: bool,
}

/// What a place needs at most.
fn need(place: &Place, first: bool, want: Want) -> Grant {
    let asked = 2 + usize::from(want.access) + usize::from(want.read > 0);
    let writes = 0;
    let reply = 2 * 8 + wire::ATTRIBUTES_ROOM + SOURCE_HANDLE_MAX + 16 + 24 + want.read as usize;
    match place {
        Place::Object(_) => Grant { operations: asked, request: SOURCE_HANDLE_MAX + 96, reply, writes },
        Place::Name(_, name) if first => Grant {
            operations: asked + 4,
            request: SOURCE_HANDLE_MAX + 128 + name.len(),
            reply: reply + wire::ATTRIBUTES_ROOM + 40,
            writes,
        },
        Place::Name(_, name) => Grant { operations: asked + 2, request: 96 + name.len(), reply: reply + 16, writes },
    }
}

/// Takes places off the front of `queue` until no more fit. The first always fits: the smallest grant holds one place.
fn pack(queue: &mut VecDeque<usize>, places: &[Place], want: Want, grant: Grant) -> Vec<Step> {
    let mut left = grant;
    let mut steps: Vec<Step> = Vec::new();
    while let Some(&index) = queue.front() {
        let before = steps.last().map(|step| &places[step.index]);
        let follows = matches!((before, &places[index]), (Some(Place::Name(a, _)), Place::Name(b, _)) if a == b);
        let fits = left.take(need(&places[index], !follows, want));
        if !fits && !steps.is_empty() {
            break;
        }
        queue.pop_front();
        if follows && let Some(step) = steps.last_mut() {
            step.saves = step.enters;
        }
        steps.push(Step { index, enters: !follows, returns: follows, saves: false });
        if !fits {
            break;
        }
    }
    steps
}

/// The operations of a batch.
fn operations(steps: &[Step], places: &[Place], want: Want) -> Result<Vec<Op>, SourceError> {
    let mut ops = Vec::new();
    for step in steps {
        match &places[step.index] {
            Place::Object(id) => {
                ops.push(wire::putfh(&id.handle));
                ask_of_current(&mut ops, false, want.access, want.read);
            }
            Place::Name(dir, name) => {
                if step.enters {
                    ops.extend([wire::putfh(&dir.handle), wire::getattr(wire::OBJECT)]);
                    ops.extend(step.saves.then_some(Op::SaveFh(())));
                }
                ops.extend(step.returns.then_some(Op::RestoreFh(())));
                ops.push(wire::lookup(name)?);
                ask_of_current(&mut ops, true, want.access, want.read);
            }
        }
    }
    Ok(ops)
}

/// What became of one place of a batch.
#[expect(clippy::large_enum_variant, reason = "nearly every place has an answer")]
enum Settled {
    /// Its answer; `true` if the COMPOUND went on after it.
    Answer(Result<Seen, SourceError>, bool),
    /// The server wants it asked again.
    Later,
}

/// What became of a batch: answers, and places to be asked again.
struct Batch {
    answers: Vec<(usize, Result<Seen, SourceError>)>,
    rest: Vec<usize>,
    later: bool,
}

impl Nfs4Source {
    pub(super) async fn look_at_many(
        &self,
        by: &OnBehalf,
        places: &[Place],
        want: Want,
    ) -> Result<Vec<Result<Seen, SourceError>>, SourceError> {
        let session = self.engine.current().await?;
        let want = Want { read: want.read.min(session.read_max()), ..want };
        let parallel = (session.slot_count() / 2).clamp(1, 16);
        let mut answers: Vec<Option<Result<Seen, SourceError>>> = (0..places.len()).map(|_| None).collect();
        let mut queues = VecDeque::from([(0..places.len()).collect::<VecDeque<_>>()]);
        let mut running = FuturesUnordered::new();
        let mut pause = Backoff::default();
        loop {
            while running.len() < parallel
                && let Some(queue) = queues.front_mut()
            {
                let steps = pack(queue, places, want, Grant::of(&session));
                if queue.is_empty() {
                    queues.pop_front();
                }
                if !steps.is_empty() {
                    running.push(self.batch(by, places, want, steps));
                }
            }
            let Some(batch) = running.next().await else { break };
            let batch = batch?;
            for (index, answer) in batch.answers {
                answers[index] = Some(answer);
            }
            if batch.later {
                pause.wait().await;
            }
            // One that failed is often followed by others that do: halves go on side by side, so that many failures
            // take few rounds.
            let (first, second) = batch.rest.split_at(batch.rest.len() / 2);
            queues.extend(
                [second, first].into_iter().filter(|half| !half.is_empty()).map(|half| half.iter().copied().collect()),
            );
        }
        Ok(answers.into_iter().map(|answer| answer.unwrap_or(Err(SourceError::Unavailable))).collect())
    }

    async fn batch(&self, by: &OnBehalf, places: &[Place], want: Want, steps: Vec<Step>) -> Result<Batch, SourceError> {
        let mut batch = Batch { answers: Vec::with_capacity(steps.len()), rest: Vec::new(), later: false };
        let ops = match operations(&steps, places, want) {
            Ok(ops) => ops,
            // A name that no server takes: the others are asked by themselves.
            Err(error) if steps.len() == 1 => {
                batch.answers.push((steps[0].index, Err(error)));
                return Ok(batch);
            }
            Err(_) => {
                batch.rest.extend(steps.iter().map(|step| step.index));
                return Ok(batch);
            }
        };
        let payload = want.read as usize * steps.len();
        let kind = if steps.len() > 1 { Kind::LookMany } else { Kind::Look };
        let request = Request { essential: 0, payload, ..Request::asking(&self.engine, kind, by, ops) };
        let mut results = match self.engine.call(request).await {
            Err(TOO_MANY) if steps.len() > 1 => {
                batch.rest.extend(steps.iter().map(|step| step.index));
                return Ok(batch);
            }
            results => results?,
        };
        let mut directory = None;
        for (place, step) in steps.iter().enumerate() {
            let (answer, goes_on) =
                match self.settle(&mut results, step, &places[step.index], want, &mut directory).await {
                    Settled::Answer(answer, goes_on) => (answer, goes_on),
                    Settled::Later => {
                        batch.later = true;
                        batch.rest.extend(steps[place..].iter().map(|step| step.index));
                        break;
                    }
                };
            batch.answers.push((step.index, answer));
            if !goes_on {
                batch.rest.extend(steps[place + 1..].iter().map(|step| step.index));
                break;
            }
        }
        Ok(batch)
    }

    /// Takes one place's results.
    async fn settle(
        &self,
        results: &mut Results,
        step: &Step,
        place: &Place,
        want: Want,
        directory: &mut Option<FileAttributes>,
    ) -> Settled {
        let failed =
            |status| if is_later(status) { Settled::Later } else { Settled::Answer(Err(source_error(status)), false) };
        let known = match place {
            Place::Object(id) => {
                *directory = None;
                match take!(results, PutFh) {
                    Ok(()) => Some(&id.handle),
                    Err(status) => return self.settled(None, Err(status)),
                }
            }
            Place::Name(..) => {
                match self.come_to(results, step, directory).await {
                    Ok(()) => {}
                    Err(status) => return failed(status),
                }
                if let Err(status) = take!(results, Lookup) {
                    return self.settled(directory.clone(), Err(status));
                }
                None
            }
        };
        let object = self.object_from(results, known, want.access, want.read).await;
        self.settled(directory.clone(), object)
    }

    fn settled(
        &self,
        directory: Option<FileAttributes>,
        object: Result<(crate::source::remote::SeenObject, Option<Status>), Status>,
    ) -> Settled {
        match object {
            Ok((seen, stopped)) => Settled::Answer(
                Ok(Seen { directory, directory_word: Word::Source, object: Ok(seen) }),
                stopped.is_none(),
            ),
            Err(status) if is_later(status) => Settled::Later,
            Err(status) => Settled::Answer(
                Ok(Seen { directory, directory_word: Word::Source, object: Err(source_error(status)) }),
                false,
            ),
        }
    }

    /// Takes the results of coming to a name's directory.
    async fn come_to(
        &self,
        results: &mut Results,
        step: &Step,
        directory: &mut Option<FileAttributes>,
    ) -> Result<(), Status> {
        if step.enters {
            take!(results, PutFh)?;
            let told = take!(results, GetAttr)?;
            *directory = Some(self.attributes_of(&told).await?);
            if step.saves {
                take!(results, SaveFh)?;
            }
        }
        if step.returns {
            take!(results, RestoreFh)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::source::{ObjectId, SourceFsid, SourceHandle};

    fn dir(number: u8) -> ObjectId {
        ObjectId { fsid: SourceFsid(1), handle: SourceHandle::new(&[number; 20]).unwrap() }
    }

    fn name(number: u8, name: &str) -> Place {
        Place::Name(dir(number), Bytes::copy_from_slice(name.as_bytes()))
    }

    #[test]
    fn a_batch_needs_no_more_than_was_granted_and_every_place_is_in_one() {
        let seed = 0x1001_u64;
        println!("seed {seed:#x}");
        let mut state = seed;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for round in 0..500 {
            let places: Vec<_> = (0..random(60))
                .map(|_| match random(3) {
                    0 => Place::Object(dir(random(3) as u8)),
                    number => name(number as u8, "a name"),
                })
                .collect();
            let want = Want { access: random(2) == 0, read: random(3) as u32 * 4096, open: false };
            let grant = Grant {
                operations: 8 + random(250) as usize,
                request: 1024 + random(60_000) as usize,
                reply: 10_000 + random(200_000) as usize,
                writes: 0,
            };
            let mut queue: VecDeque<_> = (0..places.len()).collect();
            let mut seen = Vec::new();
            while !queue.is_empty() {
                let steps = pack(&mut queue, &places, want, grant);
                let ops = operations(&steps, &places, want).unwrap();
                assert!(ops.len() <= grant.operations, "round {round}: {} of {}", ops.len(), grant.operations);
                seen.extend(steps.iter().map(|step| step.index));
            }
            assert_eq!(seen, (0..places.len()).collect::<Vec<_>>(), "round {round}");
        }
    }

    #[test]
    fn names_of_one_directory_share_its_handle() {
        let places: Vec<_> = (0..20).map(|number| name(1, &format!("f{number}"))).collect();
        let want = Want { access: true, read: 4096, open: false };
        let grant = Grant { operations: 255, request: 1 << 20, reply: 1 << 20, writes: 0 };
        let mut queue: VecDeque<_> = (0..20).collect();
        let steps = pack(&mut queue, &places, want, grant);
        let ops = operations(&steps, &places, want).unwrap();
        let count = |kind: fn(&Op) -> bool| ops.iter().filter(|op| kind(op)).count();
        assert_eq!((steps.len(), count(|op| matches!(op, Op::PutFh(_)))), (20, 1));
        assert_eq!((count(|op| matches!(op, Op::SaveFh(()))), count(|op| matches!(op, Op::RestoreFh(())))), (1, 19));
        assert_eq!(ops.len(), 3 + 19 + 20 * 5);
    }
}
