//! The decoders' properties over the committed corpus and seeded mutations of it.
//!
//! `FOREBAY_FUZZ_SEED` and `FOREBAY_FUZZ_ROUNDS` choose other mutations, and more of them.

mod allocation;
mod properties;

use std::{fs, path::Path};

/// Mutations of each target, spread over its corpus.
const ROUNDS: u64 = 20_000;
/// Most bytes that decoding, encoding and decoding again may hold at once: for each byte of input, and at all.
const BYTES_PER_BYTE: usize = 128;
const BYTES_AT_LEAST: usize = 16 << 10;

#[test]
fn every_decoder_holds_its_properties_in_bounded_memory() {
    let setting = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (seed, rounds) = (setting("FOREBAY_FUZZ_SEED", 1), setting("FOREBAY_FUZZ_ROUNDS", ROUNDS));
    println!("FOREBAY_FUZZ_SEED={seed} FOREBAY_FUZZ_ROUNDS={rounds}");
    for &(name, property) in properties::TARGETS {
        let corpus = corpus(name);
        corpus.iter().for_each(|input| judge(name, property, input));
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..rounds {
            judge(name, property, &mutation(&corpus, &mut random));
        }
    }
}

fn judge(name: &str, property: fn(&[u8]), input: &[u8]) {
    let (outcome, peak) = allocation::peak_of(|| std::panic::catch_unwind(|| property(input)));
    assert!(outcome.is_ok(), "{name} fails for {input:02x?}");
    let allowed = BYTES_AT_LEAST + BYTES_PER_BYTE * input.len();
    assert!(peak <= allowed, "{name} held {peak} bytes for an input of {} ({input:02x?})", input.len());
}

/// The committed inputs of a target, always in one order.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut inputs: Vec<_> = files(&root.join("fuzz/corpus").join(name));
    assert!(!inputs.is_empty(), "no corpus for {name}");
    inputs.sort();
    inputs
}

fn files(directory: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.map(|entry| fs::read(entry.expect("an entry").path()).expect("a corpus file")).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

/// An input of the corpus with a few changes of the kind that break decoders.
fn mutation(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(4) {
        let place = random.below(input.len());
        let word = place & !3;
        match random.below(6) {
            0 if !input.is_empty() => input[place] ^= 1 << random.below(8),
            1 => input.truncate(place),
            2 if word + 4 <= input.len() => {
                let lies = [0, 1, 3, 17, 255, 256, 1024, 65_536, 0x7fff_ffff, u32::MAX];
                input[word..word + 4].copy_from_slice(&lies[random.below(lies.len())].to_be_bytes());
            }
            3 => {
                let end = (word + 4 * random.below(8)).min(input.len());
                let copied = input[word.min(end)..end].to_vec();
                input.splice(word..word, copied);
            }
            4 => {
                let other = &corpus[random.below(corpus.len())];
                let start = random.below(other.len()) & !3;
                input.truncate(word);
                input.extend_from_slice(&other[start..]);
            }
            _ => input.extend((0..random.below(9)).map(|_| 0xff)),
        }
        input.truncate(64 << 10);
    }
    input
}
