//! Cutting what is longer than one call may carry.
//!
//! Owns: where it is cut. Never does: sending.

/// Cuts `count` bytes into as few equal pieces of at most `most` as there must be, whole pages where that can be.
pub(in crate::source) fn pieces(count: u32, most: u32) -> impl Iterator<Item = (u32, u32)> {
    let number = count.div_ceil(most.max(1)).max(1);
    let even = count.div_ceil(number);
    let size = even.checked_next_multiple_of(4096).filter(|size| *size <= most).unwrap_or(most.min(even).max(1)).max(1);
    (0..count.div_ceil(size).max(1)).map(move |place| (place * size, size.min(count - place * size)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_everything_once_in_as_few_as_there_must_be() {
        for (count, most) in [
            (1, 1),
            (4096, 65_536),
            (1 << 20, 61_440),
            (1 << 20, 1 << 20),
            (1 << 20, 1_044_480),
            (10, 3),
            (0, 4096),
            (65_537, 65_536),
        ] {
            let all: Vec<_> = pieces(count, most).collect();
            let mut next = 0;
            for (at, size) in &all {
                assert_eq!(*at, next, "{count} by {most}");
                assert!(*size <= most, "{count} by {most}: {size}");
                next += size;
            }
            assert_eq!(next, count, "{count} by {most}");
            assert!(all.len() as u32 <= count.div_ceil(most).max(1) + 1, "{count} by {most}: {}", all.len());
        }
    }
}
