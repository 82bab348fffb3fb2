//! The change attribute: a number that differs after every change of an object.
//!
//! Owns: how `ctime` becomes that number. Never does: system calls on files.
//!
//! **Fine clock.** Since Linux 6.13 ext4, xfs, btrfs and tmpfs have multigrain timestamps: if anybody has asked for
//! `ctime` since it was last set, the next change gets a fresh nanosecond time. Two states that two readers saw thus
//! have two ctimes, and the number is `ctime` in nanoseconds. (Directories of tmpfs do not keep to that, and count as
//! coarse: draws follow each other, so `ctime + offset` grows from state to state even where ticks are short.)
//!
//! **Coarse clock.** Elsewhere `ctime` is taken from a clock that ticks every 1 to 10 ms (or every second or two where
//! the file system keeps no more), so a second change within a tick leaves it as it was. There the number is
//! `ctime + offset`, with `offset` below half a millisecond so that numbers of different ticks never meet:
//! * Every change made here draws a new offset from one counter and keeps it in a bounded table with the tick: all
//!   states within one tick differ, and the number then stays as long as the entry does.
//! * Without an entry and once the tick is over, no further state can have this `ctime`: the offset is `SETTLED`, which
//!   the counter never gives. So an entry that was evicted, or lost by a restart, turns into a number that no earlier
//!   state had. The price is one needless revalidation, of objects changed shortly before only.
//! * Without an entry while the tick lasts, the next state could have the same `ctime`: each question draws a new
//!   offset. This also covers changes by others on this machine.
//! * The counter starts at a random place, so a restart within a tick repeats an earlier number only by a chance of
//!   one in half a million.
//!
//! What remains on a coarse clock: a change by another process of this machine in the same tick as, and after, one made
//! here is seen only when the object changes again.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU32, Ordering},
};

use quick_cache::sync::Cache;

use crate::source::Time;

/// Offsets are below this: half of the shortest tick (1 ms), so that clock slewing cannot make ticks meet.
const OFFSETS: u32 = 500_000;
/// The offset of an object that cannot change within its tick any more; the counter stays below it.
const SETTLED: u64 = OFFSETS as u64;
/// Objects changed lately that are remembered: 64 Ki entries are 3 MiB, filled only on coarse clocks.
const TABLE_ENTRIES: usize = 65_536;
/// How long a tick may still be the present one: the longest tick (10 ms at HZ=100) and one in flight.
const TICK_NANOSECONDS: u64 = 20_000_000;
/// The same where `ctime` has whole seconds: two seconds (FAT) and one in flight.
const SECONDS_TICK_NANOSECONDS: u64 = 2_100_000_000;

/// Change attributes on coarse clocks.
pub(super) struct CoarseChanges {
    counter: AtomicU32,
    entries: Cache<u128, (u64, u32)>,
}

impl CoarseChanges {
    pub(super) fn new() -> Self {
        let start = RandomState::new().hash_one(std::process::id()) as u32;
        Self { counter: AtomicU32::new(start), entries: Cache::new(TABLE_ENTRIES) }
    }

    fn draw(&self) -> u32 {
        self.counter.fetch_add(1, Ordering::Relaxed) % OFFSETS
    }

    /// The object was changed here, and its `ctime` is now `changed`.
    pub(super) fn record(&self, object: u128, changed: Time) {
        self.entries.insert(object, (nanoseconds(changed), self.draw()));
    }

    /// The change attribute of an object whose `ctime` is `changed`; `now` is the coarse clock.
    pub(super) fn value(&self, object: u128, changed: Time, now: Time) -> u64 {
        let tick = nanoseconds(changed);
        if let Some((recorded, offset)) = self.entries.get(&object)
            && recorded == tick
        {
            return tick.wrapping_add(u64::from(offset));
        }
        let offset = if is_settled(changed, now) { SETTLED } else { u64::from(self.draw()) };
        tick.wrapping_add(offset)
    }
}

/// No change from now on can get this `ctime`, whatever the clock.
pub(super) fn is_settled(changed: Time, now: Time) -> bool {
    let window = if changed.nanoseconds == 0 { SECONDS_TICK_NANOSECONDS } else { TICK_NANOSECONDS };
    nanoseconds(now).abs_diff(nanoseconds(changed)) > window
}

/// Nanoseconds since 1970; wraps, which keeps different times different for 584 years.
pub(super) fn nanoseconds(time: Time) -> u64 {
    time.seconds.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(u64::from(time.nanoseconds))
}

/// The clock that stamps files where stamps are coarse.
pub(super) fn coarse_now() -> Time {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable and outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut now) };
    Time { seconds: now.tv_sec, nanoseconds: u32::try_from(now.tv_nsec).unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Time = Time { seconds: 1_700_000_000, nanoseconds: 4_000_000 };
    const LATER: Time = Time { seconds: 1_700_000_001, nanoseconds: 4_000_000 };

    #[test]
    fn every_recorded_change_within_a_tick_differs_and_stays() {
        let changes = CoarseChanges::new();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1_000 {
            changes.record(1, TICK);
            let value = changes.value(1, TICK, TICK);
            assert!(seen.insert(value), "a new state has a new value");
            assert_eq!(value, changes.value(1, TICK, LATER), "and keeps it when the tick is over");
        }
    }

    #[test]
    fn an_entry_lost_never_repeats_an_earlier_value() {
        let changes = CoarseChanges::new();
        changes.record(1, TICK);
        let before = changes.value(1, TICK, TICK);
        let restarted = CoarseChanges::new();
        let after = restarted.value(1, TICK, LATER);
        assert_ne!(before, after);
        assert_eq!(after, CoarseChanges::new().value(1, TICK, LATER), "settled values survive restarts");
    }

    #[test]
    fn while_the_tick_lasts_an_unknown_object_never_gets_one_value_twice() {
        let changes = CoarseChanges::new();
        assert_ne!(changes.value(1, TICK, TICK), changes.value(1, TICK, TICK));
        let second = Time { seconds: 5, nanoseconds: 0 };
        let soon = Time { seconds: 6, nanoseconds: 0 };
        assert_ne!(changes.value(1, second, soon), changes.value(1, second, soon), "whole seconds tick slowly");
    }
}
