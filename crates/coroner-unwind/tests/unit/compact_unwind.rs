use super::*;

/// The encoder of the header's comment (as LLVM's `encodeCompactUnwindRegistersWithoutFrame` has it), to check the
/// decoder with.
fn encode(registers: &[u8]) -> u32 {
    let ranks: Vec<u32> = registers
        .iter()
        .enumerate()
        .map(|(place, register)| {
            let smaller = registers[..place].iter().filter(|before| *before < register).count() as u32;
            u32::from(*register) - smaller - 1
        })
        .collect();
    match ranks[..] {
        [a, b, c, d, e, _] | [a, b, c, d, e] => 120 * a + 24 * b + 6 * c + 2 * d + e,
        [a, b, c, d] => 60 * a + 12 * b + 3 * c + d,
        [a, b, c] => 20 * a + 4 * b + c,
        [a, b] => 5 * a + b,
        [a] => a,
        _ => 0,
    }
}

extern crate std;
use std::vec::Vec;

fn arrangements(chosen: &mut Vec<u8>, seen: &mut impl FnMut(&[u8])) {
    seen(chosen);
    for register in 1..=6 {
        if !chosen.contains(&register) {
            chosen.push(register);
            arrangements(chosen, seen);
            chosen.pop();
        }
    }
}

#[test]
fn every_permutation() {
    let mut count = 0;
    arrangements(&mut Vec::new(), &mut |registers| {
        let decoded = permutation(registers.len() as u32, encode(registers)).unwrap();
        assert_eq!(&decoded[..registers.len()], registers);
        count += 1;
    });
    assert_eq!(count, 1957);
}

#[test]
fn no_permutation() {
    assert_eq!(permutation(7, 0), None);
    assert_eq!(permutation(1, 6), None);
    assert_eq!(permutation(6, 1023), None);
}
