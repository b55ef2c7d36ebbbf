//! The checksum of values and breadcrumbs.
//!
//! It has to distinguish a version that was written whole from one of which any words are of another, at a price that a tag
//! can pay: one multiplication for eight bytes, where a CRC without the processor's help takes eight loads from tables
//! that an app does not keep in its caches.

/// 2⁶⁴ divided by the golden ratio, odd.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Takes one more word in: the two halves of the 128-bit product of (state ⊕ word) and the multiplier, one ⊕ the other.
/// A checksum begins with state 0.
#[inline(always)]
pub(super) fn mix(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ word).wrapping_mul(u128::from(MULTIPLIER));
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::mix;

    #[test]
    fn as_the_specification_says() {
        // By hand: 1 · M has no high half.
        assert_eq!(mix(0, 1), 0x9E37_79B9_7F4A_7C15);
        // 2⁶³ · M = M/2 · 2⁶⁴ + 2⁶³, M being odd.
        assert_eq!(mix(0, 1 << 63), (0x9E37_79B9_7F4A_7C15 >> 1) ^ 1 << 63);
        assert_eq!(mix(3, 2), mix(0, 1));
    }

    #[test]
    fn every_bit_of_every_word_counts() {
        let words: [u64; 6] = [7, 0, u64::MAX, 0, 0x6162_6364, 0];
        let of = |words: [u64; 6]| words.into_iter().fold(0, mix);
        for index in 0..words.len() {
            for bit in 0..64 {
                let mut other = words;
                other[index] ^= 1 << bit;
                assert_ne!(of(words), of(other));
                assert_ne!(of(words) >> 32, of(other) >> 32, "in the half that a breadcrumb has");
            }
        }
    }
}
