use super::mix;

#[test]
fn the_checksum_matches_the_specification() {
    // Computed by hand: 1 · M has no high half.
    assert_eq!(mix(0, 1), 0x9E37_79B9_7F4A_7C15);
    // 2⁶³ · M = M/2 · 2⁶⁴ + 2⁶³, since M is odd.
    assert_eq!(mix(0, 1 << 63), (0x9E37_79B9_7F4A_7C15 >> 1) ^ 1 << 63);
    assert_eq!(mix(3, 2), mix(0, 1));
}

#[test]
fn every_bit_changes_the_checksum() {
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
