use super::*;

fn hash_words(words: &[u64]) -> u64 {
    hash(words, 1, 7)
}

#[test]
fn permutations_and_recursion_do_not_collide() {
    let base = 0x5555_5555_4000_u64;
    let mut seen = std::collections::HashSet::new();
    for depth in 0..200_usize {
        assert!(seen.insert(hash_words(&vec![base; depth])), "recursion {depth} deep");
    }
    for a in 0..20 {
        for b in 0..20 {
            for c in 0..20 {
                let words = [base + a * 16, base + 0x1000 + b * 4, base + 0x2000 + c * 8];
                assert!(seen.insert(hash_words(&words)));
                assert!(seen.insert(hash_words(&[words[2], words[1], words[0]])));
            }
        }
    }
}

#[test]
fn the_position_of_an_address_changes_the_hash() {
    let words: Vec<u64> = (0..19).map(|index| 0x7fff_0000_1000 + index * 0x340).collect();
    let mut seen = std::collections::HashSet::from([hash_words(&words)]);
    for one in 0..words.len() {
        for other in 0..one {
            let mut changed = words.clone();
            changed.swap(one, other);
            assert!(seen.insert(hash_words(&changed)), "{one} and {other} exchanged");
        }
        let mut shorter = words.clone();
        shorter.remove(one);
        assert!(seen.insert(hash_words(&shorter)), "without {one}");
    }
}

#[test]
fn every_bit_of_an_address_changes_about_half_of_the_hash() {
    let words: Vec<u64> = (0..16).map(|index| 0x7fff_0000_1000 + index * 0x340).collect();
    let before = hash_words(&words);
    for at in [0, 7, 15] {
        for bit in 0..48 {
            let mut changed = words.clone();
            changed[at] ^= 1 << bit;
            let flipped = (hash_words(&changed) ^ before).count_ones();
            assert!((12..=52).contains(&flipped), "word {at} bit {bit}: {flipped} bits");
        }
    }
}
