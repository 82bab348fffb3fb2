//! A session's slots (RFC 8881 §2.10.6): which are free, and what each used last.
//!
//! Owns: sequences and the count of permits that waiting calls take. Never does: waiting.
//! Invariants: a slot carries one call at a time; its sequence moves only when the server is known to have moved it;
//! permits given out and slots in use never exceed the slots there are.

/// One slot.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The last sequence the server has seen.
    sequence: u32,
    busy: bool,
}

/// A slot taken for one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// Its number.
    pub slot: u32,
    /// The sequence to send.
    pub sequence: u32,
}

/// The table. Permits are counted by the caller's semaphore: `usable` of them to begin with.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    usable: usize,
    /// Permits that are to be swallowed when slots come back.
    debt: usize,
}

/// What is to be done to the semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permits {
    /// Nothing.
    Keep,
    /// Add so many.
    Add(usize),
    /// Take away as many of these as are free, and tell [`Slots::swallowed`] how many were.
    Forget(usize),
}

impl Slots {
    /// A table of as many slots as the server granted.
    pub fn new(count: usize) -> Self {
        let count = count.max(1);
        Self { slots: vec![Slot { sequence: 0, busy: false }; count], usable: count, debt: 0 }
    }

    /// Takes the lowest free slot, for whoever holds a permit.
    pub fn take(&mut self) -> Option<Taken> {
        let place = self.slots.iter().position(|slot| !slot.busy)?;
        let slot = &mut self.slots[place];
        slot.busy = true;
        Some(Taken { slot: place as u32, sequence: slot.sequence.wrapping_add(1) })
    }

    /// Gives a slot back; `advanced` if the server has used up its sequence.
    pub fn release(&mut self, taken: Taken, advanced: bool) -> Permits {
        if let Some(slot) = self.slots.get_mut(taken.slot as usize) {
            slot.busy = false;
            if advanced {
                slot.sequence = taken.sequence;
            }
        }
        if self.debt > 0 {
            self.debt -= 1;
            return Permits::Keep;
        }
        Permits::Add(1)
    }

    /// The server would like no slot above `highest` to be used.
    pub fn set_target(&mut self, highest: u32) -> Permits {
        let usable = (highest as usize).saturating_add(1).min(self.slots.len());
        let before = std::mem::replace(&mut self.usable, usable);
        if usable < before {
            return Permits::Forget(before - usable);
        }
        let more = usable - before;
        let paid = more.min(self.debt);
        self.debt -= paid;
        if more > paid { Permits::Add(more - paid) } else { Permits::Keep }
    }

    /// Of `wanted` permits, `got` were free and are gone; the rest goes when slots come back.
    pub fn swallowed(&mut self, wanted: usize, got: usize) {
        self.debt += wanted.saturating_sub(got);
    }

    /// `sa_highest_slotid`: the highest slot in use.
    pub fn highest_busy(&self) -> u32 {
        self.slots.iter().rposition(|slot| slot.busy).unwrap_or(0) as u32
    }

    /// Slots there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_moves_only_when_the_server_moved_it() {
        let mut slots = Slots::new(2);
        let one = slots.take().unwrap();
        assert_eq!((one, slots.take().unwrap().slot, slots.take()), (Taken { slot: 0, sequence: 1 }, 1, None));
        assert_eq!(slots.highest_busy(), 1);
        assert_eq!(slots.release(one, false), Permits::Add(1));
        let again = slots.take().unwrap();
        assert_eq!(again, one);
        slots.release(again, true);
        assert_eq!(slots.take().unwrap(), Taken { slot: 0, sequence: 2 });
    }

    /// Whatever the server asks for and calls do, who holds a permit finds a slot.
    #[test]
    fn permits_and_slots_stay_in_step() {
        let seed = 0x0051_0751_u64;
        println!("seed {seed:#x}");
        let mut state = seed;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let (mut slots, mut free, mut held) = (Slots::new(8), 8_usize, Vec::new());
        for step in 0..20_000 {
            let change = match random(3) {
                0 if free > 0 => {
                    free -= 1;
                    held.push(slots.take().unwrap_or_else(|| panic!("step {step}: a permit and no slot")));
                    Permits::Keep
                }
                1 if !held.is_empty() => slots.release(held.swap_remove(random(held.len())), true),
                _ => slots.set_target(random(12) as u32),
            };
            match change {
                Permits::Keep => {}
                Permits::Add(more) => free += more,
                Permits::Forget(wanted) => {
                    let got = wanted.min(free);
                    free -= got;
                    slots.swallowed(wanted, got);
                }
            }
            assert_eq!(free + held.len(), slots.usable + slots.debt, "step {step}");
        }
    }
}
