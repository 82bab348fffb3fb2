//! Whether a history of one register is linearizable, where no value is written twice.
//!
//! For each value take the operations that wrote or read it. From the first end among them to the last beginning the register must have had it
//! (a forward zone, if these are in that order); otherwise it must have had it at some moment between them (a backward zone). A history
//! is linearizable if and only if forward zones do not overlap, no backward zone lies within a forward one, and no read ended before
//! its write began (P. B. Gibbons, E. Korach: Testing shared memories, 1997).

use std::collections::HashMap;

/// When something happened, in nanoseconds since the beginning.
pub type At = u64;

/// One operation on the register.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub begin: At,
    /// `At::MAX`: it may have happened, or may yet.
    pub end: At,
    pub value: u64,
    pub is_write: bool,
}

#[derive(Debug)]
struct Zone {
    value: u64,
    first_end: At,
    last_begin: At,
}

/// What is wrong with a history, if anything. A value that was there at first is written by an operation before all others.
pub fn fault(history: &[Op]) -> Option<String> {
    let mut writes: HashMap<u64, Op> = HashMap::new();
    for op in history.iter().filter(|op| op.is_write) {
        assert!(writes.insert(op.value, *op).is_none(), "value {} is written twice", op.value);
    }
    let mut zones: HashMap<u64, Zone> = HashMap::new();
    let is_seen: std::collections::HashSet<u64> = history.iter().filter(|op| !op.is_write).map(|op| op.value).collect();
    for op in history {
        let Some(write) = writes.get(&op.value) else {
            return Some(format!("{} was read and never written", op.value));
        };
        if !op.is_write && op.end < write.begin {
            return Some(format!("{} was read before it was written", op.value));
        }
        if op.is_write && op.end == At::MAX && !is_seen.contains(&op.value) {
            // It need not have happened.
            continue;
        }
        let zone = zones.entry(op.value).or_insert(Zone { value: op.value, first_end: At::MAX, last_begin: 0 });
        zone.first_end = zone.first_end.min(op.end);
        zone.last_begin = zone.last_begin.max(op.begin);
    }
    let (mut forward, backward): (Vec<Zone>, Vec<Zone>) =
        zones.into_values().partition(|zone| zone.first_end < zone.last_begin);
    forward.sort_by_key(|zone| zone.first_end);
    for pair in forward.windows(2) {
        if pair[1].first_end < pair[0].last_begin {
            let (a, b) = (pair[0].value, pair[1].value);
            return Some(format!("{a} and {b} were there at the same time: {pair:?}"));
        }
    }
    for inner in backward {
        let place = forward.partition_point(|outer| outer.first_end < inner.last_begin);
        if let Some(outer) = place.checked_sub(1).map(|place| &forward[place])
            && outer.first_end < inner.last_begin
            && inner.first_end < outer.last_begin
        {
            return Some(format!("{inner:?} can only have been while {outer:?} was"));
        }
    }
    None
}

#[test]
fn what_is_linearizable_passes_and_what_is_not_does_not() {
    let op = |begin, end, value, is_write| Op { begin, end, value, is_write };
    let first = op(0, 1, 0, true);
    // One after the other.
    assert_eq!(fault(&[first, op(2, 3, 1, true), op(4, 5, 1, false)]), None);
    // Read while it is written: before or after.
    assert_eq!(fault(&[first, op(2, 9, 1, true), op(3, 4, 0, false), op(5, 6, 1, false)]), None);
    // New, then old.
    assert!(fault(&[first, op(2, 9, 1, true), op(3, 4, 1, false), op(5, 6, 0, false)]).is_some());
    // Old after the answer.
    assert!(fault(&[first, op(2, 3, 1, true), op(4, 5, 0, false)]).is_some());
    // Never written; read before it was.
    assert!(fault(&[first, op(2, 3, 7, false)]).is_some());
    assert!(fault(&[first, op(2, 3, 1, false), op(4, 5, 1, true)]).is_some());
    // Two at the same time in either order, but in one of them.
    let both = [first, op(2, 9, 1, true), op(2, 9, 2, true)];
    assert_eq!(fault(&[&both[..], &[op(10, 11, 1, false), op(12, 13, 1, false)]].concat()), None);
    assert!(fault(&[&both[..], &[op(10, 11, 1, false), op(12, 13, 2, false)]].concat()).is_some());
    // What may have happened may be seen, and need not.
    assert_eq!(fault(&[first, op(2, At::MAX, 1, true), op(4, 5, 0, false)]), None);
    assert_eq!(fault(&[first, op(2, At::MAX, 1, true), op(4, 5, 0, false), op(6, 7, 1, false)]), None);
    assert!(fault(&[first, op(2, At::MAX, 1, true), op(4, 5, 1, false), op(6, 7, 0, false)]).is_some());
}
