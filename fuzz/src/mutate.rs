//! Changes of inputs.

use crate::case::HEADER;

/// A stream of chance (splitmix64): the same seed gives the same run.
#[derive(Debug)]
pub struct Chance(pub u64);

impl Chance {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `bound` (0 if that is 0).
    pub fn below(&mut self, bound: usize) -> usize {
        (self.number() % bound.max(1) as u64) as usize
    }
}

/// Numbers that parsers stumble over.
const ODD: [u64; 16] = [
    0,
    1,
    4,
    8,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// The longest input.
const MAX_LENGTH: usize = 1 << 15;

/// Changes `input` in one to eight ways; `other` is another input of the corpus, to take pieces from.
pub fn mutate(input: &mut Vec<u8>, other: &[u8], chance: &mut Chance) {
    for _ in 0..=chance.below(8) {
        once(input, other, chance);
    }
    input.truncate(MAX_LENGTH);
}

fn once(input: &mut Vec<u8>, other: &[u8], chance: &mut Chance) {
    if input.len() < HEADER {
        input.resize(HEADER, 0);
    }
    let at = chance.below(input.len());
    match chance.below(12) {
        0 => input[at] ^= 1 << chance.below(8),
        1 => input[at] = chance.number() as u8,
        2 => input[at] = input[at].wrapping_add(1),
        3 => input[at] = input[at].wrapping_sub(1),
        4 => {
            // An odd number of 1, 2, 4 or 8 bytes.
            let bytes = ODD[chance.below(ODD.len())].to_le_bytes();
            let length = (1usize << chance.below(4)).min(input.len() - at);
            input[at..at + length].copy_from_slice(&bytes[..length]);
        }
        5 => {
            // A small step of a 32-bit number.
            if let Some(place) = input[at..].first_chunk_mut::<4>() {
                let step = (chance.below(64) as u32).wrapping_sub(32);
                *place = u32::from_le_bytes(*place).wrapping_add(step).to_le_bytes();
            }
        }
        6 => {
            let length = chance.below(16).min(input.len() - at);
            input.drain(at..at + length);
        }
        7 => {
            let bytes: Vec<u8> = (0..=chance.below(8)).map(|_| chance.number() as u8).collect();
            input.splice(at..at, bytes);
        }
        8 => {
            let end = (at + chance.below(32)).min(input.len());
            let piece = input[at..end].to_vec();
            let to = chance.below(input.len());
            input.splice(to..to, piece);
        }
        9 if !other.is_empty() => {
            let from = chance.below(other.len());
            let piece = &other[from..(from + chance.below(64)).min(other.len())];
            let end = (at + piece.len()).min(input.len());
            input.splice(at..end, piece.iter().copied());
        }
        // The header: flags, seed, pc.
        10 => {
            let at = chance.below(8);
            input[at] = chance.number() as u8;
        }
        _ => input.truncate(at.max(HEADER)),
    }
}
