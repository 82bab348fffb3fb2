//! What the generated files hold, so that what is read can be checked without the file.
//!
//! A file is pages of 4 KiB: each starts with its number (eight bytes, big-endian) and goes on with bytes that all pages share.

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of a page's number.
pub const NUMBER: usize = 8;

/// What follows the number in every page; the first eight bytes are not used.
const SHARED: [u8; PAGE] = shared();

const fn shared() -> [u8; PAGE] {
    let mut bytes = [0; PAGE];
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut at = 0;
    while at < PAGE {
        // xorshift64: compression and zero detection on the way find nothing to save.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes[at] = (state >> 32) as u8;
        at += 1;
    }
    bytes
}

/// Fills `bytes`, whole pages, as from page `first` on.
pub fn fill(first: u64, bytes: &mut [u8]) {
    for (number, page) in (first..).zip(bytes.chunks_mut(PAGE)) {
        page.copy_from_slice(&SHARED[..page.len()]);
        page[..NUMBER].copy_from_slice(&number.to_be_bytes());
    }
}

/// Where `bytes`, read at `offset`, first differ from what the file holds.
pub fn first_difference(offset: u64, bytes: &[u8]) -> Option<u64> {
    let (mut at, mut rest) = (offset, bytes);
    while !rest.is_empty() {
        let (page, within) = (at / PAGE as u64, (at % PAGE as u64) as usize);
        let (chunk, later) = rest.split_at(rest.len().min(PAGE - within));
        let number = page.to_be_bytes();
        let in_number = chunk.len().min(NUMBER.saturating_sub(within));
        let (head, tail) = chunk.split_at(in_number);
        let tail_at = within + in_number;
        if head != &number[within.min(NUMBER)..within.min(NUMBER) + in_number]
            || tail != &SHARED[tail_at..tail_at + tail.len()]
        {
            return Some(at);
        }
        at += chunk.len() as u64;
        rest = later;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_of_a_file_is_recognised_and_any_changed_byte_is_found() {
        let mut file = vec![0; 3 * PAGE];
        fill(5, &mut file);
        let base = 5 * PAGE as u64;
        for from in [0, 1, 7, 8, 9, 4090, 4095, 4096, 4097, 8191] {
            for to in [from, from + 1, from + 5, from + 4096, file.len()] {
                let to = to.min(file.len());
                assert_eq!(first_difference(base + from as u64, &file[from..to]), None, "{from}..{to}");
            }
        }
        for changed in [0, 7, 8, 4095, 4096, 4103, 12_287] {
            let mut wrong = file.clone();
            wrong[changed] ^= 1;
            let found = first_difference(base, &wrong).expect("a difference");
            assert_eq!(found / PAGE as u64, 5 + changed as u64 / PAGE as u64);
        }
        assert!(first_difference(base + 4096, &file[..4096]).is_some());
    }
}
