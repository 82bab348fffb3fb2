//! Buffers for READ: from a small pool per thread, since a fresh megabyte costs page faults each time.

use std::cell::RefCell;

use bytes::BytesMut;

/// Slabs kept by each thread.
const KEPT: usize = 4;
/// Size of a slab: one full READ.
const SLAB: usize = 1 << 20;

thread_local! {
    static SLABS: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer with room for `capacity` bytes. Large ones come out of slabs that are used again once everything
/// read into them has been sent.
pub fn take(capacity: usize) -> BytesMut {
    if capacity < SLAB / 16 {
        return BytesMut::with_capacity(capacity);
    }
    SLABS.with_borrow_mut(|slabs| {
        for slab in slabs.iter_mut() {
            if slab.try_reclaim(capacity) {
                return hand_out(slab);
            }
        }
        let mut slab = BytesMut::with_capacity(SLAB.max(capacity));
        let buffer = hand_out(&mut slab);
        if slabs.len() == KEPT {
            slabs.remove(0);
        }
        slabs.push(slab);
        buffer
    })
}

/// Hands out the whole slab; what stays behind is an empty view of the same memory, by which it is reclaimed.
fn hand_out(slab: &mut BytesMut) -> BytesMut {
    let mut whole = std::mem::take(slab);
    whole.clear();
    *slab = whole.split_to(0);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_is_used_again_only_when_its_last_reader_is_gone() {
        let mut first = take(SLAB);
        first.extend_from_slice(&[1; 8]);
        let place = first.as_ptr();
        let held = first.freeze();
        let second = take(SLAB);
        assert_ne!(second.as_ptr(), place);
        assert_eq!(held[..], [1; 8]);
        drop((held, second));
        let third = take(SLAB);
        assert!(third.capacity() >= SLAB);
    }
}
