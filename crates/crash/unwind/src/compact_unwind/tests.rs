use super::*;
use crate::arch::{Aarch64, X86_64};
use crate::image::ImageFormat;
use coroner_process::memory::{Snapshot, SnapshotRange};

extern crate std;
use std::vec;
use std::vec::Vec;

use coroner_unwind_test_support::unwind_info::unwind_info;

const BASE: u64 = 0x1_0000_0000;
const INFO: u64 = BASE + 0x8000;

/// The encoder described in the header's comment (the same as LLVM's
/// `encodeCompactUnwindRegistersWithoutFrame`), for checking the decoder.
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
fn every_permutation_is_decoded() {
    let mut count = 0;
    arrangements(&mut Vec::new(), &mut |registers| {
        let decoded = permutation(registers.len() as u32, encode(registers)).unwrap();
        assert_eq!(&decoded[..registers.len()], registers);
        count += 1;
    });
    assert_eq!(count, 1957);
}

#[test]
fn invalid_permutations_are_rejected() {
    assert_eq!(permutation(7, 0), None);
    assert_eq!(permutation(1, 6), None);
    assert_eq!(permutation(6, 1023), None);
}

fn image(info: &[u8]) -> Image {
    Image {
        format: ImageFormat::MachO,
        text: (BASE..BASE + 0x8000).into(),
        base: BASE,
        unwind_info: (INFO..INFO + info.len() as u64).into(),
        ..Image::default()
    }
}

/// Decodes the entry of each function, after checking that each byte of its range has that entry.
fn decode<A: Architecture>(encodings: &[u32]) -> Vec<Result<Compact, Problem>> {
    let info = unwind_info(encodings);
    let code = vec![0u8; 0x8000];
    let ranges = [SnapshotRange { address: INFO, bytes: &info }, SnapshotRange { address: BASE, bytes: &code }];
    let mut memory = Snapshot { ranges: &ranges };
    let image = image(&info);
    assert_eq!(find(&mut memory, &image, BASE + 0xfff), Ok(None));
    assert_eq!(find(&mut memory, &image, BASE + 0x1000 + 0x100 * encodings.len() as u64), Ok(None));
    encodings
        .iter()
        .enumerate()
        .map(|(index, encoding)| {
            let start = BASE + 0x1000 + 0x100 * index as u64;
            let expected = CompactEntry { encoding: *encoding, range: (start..start + 0x100).into() };
            for offset in [0, 1, 0x80, 0xff] {
                assert_eq!(find(&mut memory, &image, start + offset), Ok(Some(expected)));
            }
            expected.decode::<A, _>(&mut memory)
        })
        .collect()
}

/// Returns a row with registers saved at these offsets from the CFA.
#[allow(clippy::unnecessary_wraps)] // As what it is compared with is.
fn row<A: Architecture>(register: u8, offset: i32, saved: &[(u8, i64)]) -> Result<Compact, Problem> {
    let row =
        saved.iter().fold(Row::new(register, offset), |row, (number, at)| row.with_saved::<A>(*number, *at).unwrap());
    Ok(Compact::Row(row))
}

#[test]
fn every_arm64_encoding_is_decoded() {
    let decoded = decode::<Aarch64>(&[
        0,
        0x0200_0000,
        0x0200_3000,
        0x0300_0123,
        0x0400_0000,
        0x0400_0001,
        0x0400_0015,
        0x0400_0f1f,
    ]);
    let frame = [(29, -16), (30, -8)];
    let pairs = |numbers: &[u8]| -> Vec<(u8, i64)> {
        let mut saved = frame.to_vec();
        saved.extend(numbers.iter().enumerate().map(|(index, number)| (*number, -24 - 8 * index as i64)));
        saved
    };
    let expected = [
        Ok(Compact::None),
        row::<Aarch64>(31, 0, &[]),
        row::<Aarch64>(31, 48, &[]),
        Ok(Compact::Dwarf(0x123)),
        row::<Aarch64>(29, 16, &frame),
        row::<Aarch64>(29, 16, &pairs(&[19, 20])),
        row::<Aarch64>(29, 16, &pairs(&[19, 20, 23, 24, 27, 28])),
        // d-register pairs are below and are ignored
        row::<Aarch64>(29, 16, &pairs(&[19, 20, 21, 22, 23, 24, 25, 26, 27, 28])),
    ];
    assert_eq!(decoded, expected);
    let bad = |start| Err(Problem::Malformed { what: Malformed::CompactEncoding, address: start });
    assert_eq!(decode::<Aarch64>(&[0x0100_0000, 0x0f00_0000]), [bad(BASE + 0x1000), bad(BASE + 0x1100)]);
}

#[test]
fn every_x86_64_encoding_is_decoded() {
    let frame = [(6, -16), (16, -8)];
    // rbp frame; rbx and r14 with a gap, 4 words below; frameless 0x18; frameless 0x28 with two
    // registers saved, of the permutation 3 · 5 + 0: the fourth, then the first of the remaining
    // ones
    let decoded = decode::<X86_64>(&[
        0,
        0x0100_0000,
        0x0104_0101,
        0x0203_0000,
        0x0205_080f,
        0x0300_0000,
        0x0400_0042,
        0x0101_0000 | 6,
    ]);
    let expected = [
        Ok(Compact::None),
        row::<X86_64>(6, 16, &frame),
        row::<X86_64>(6, 16, &[frame[0], frame[1], (3, -16 - 32), (14, -16 - 16)]),
        row::<X86_64>(7, 24, &[(16, -8)]),
        // two registers: number 4 (r14) lower, number 1 (rbx) above it, both right below the return
        // address
        row::<X86_64>(7, 40, &[(16, -8), (14, -24), (3, -16)]),
        // the size is read from the code, which is all zeros
        row::<X86_64>(7, 0, &[(16, -8)]),
        Ok(Compact::Dwarf(0x42)),
        row::<X86_64>(6, 16, &[(16, -8), (6, -16 - 8)]),
    ];
    assert_eq!(decoded, expected);
    let bad = |start| Err(Problem::Malformed { what: Malformed::CompactEncoding, address: start });
    // seven registers; a register 7; no such mode
    assert_eq!(
        decode::<X86_64>(&[0x0200_1c00, 0x0100_0007, 0x0500_0000]),
        [bad(BASE + 0x1000), bad(BASE + 0x1100), bad(BASE + 0x1200)]
    );
}

#[test]
fn truncation_and_flipped_bytes_do_no_harm() {
    let whole = unwind_info(&[0x0400_0000; 9]);
    let look = |info: &[u8]| {
        let ranges = [SnapshotRange { address: INFO, bytes: info }];
        let image = image(info);
        let mut errors = 0;
        for offset in (0..0x2000).step_by(0x80) {
            match find(&mut Snapshot { ranges: &ranges }, &image, BASE + offset) {
                Err(Problem::Unreadable { address }) => panic!("read {address:x}, beyond the section"),
                Err(Problem::Malformed { .. }) => errors += 1,
                Ok(_) => {}
            }
        }
        errors
    };
    assert_eq!(look(&whole), 0);
    for length in 0..whole.len() {
        assert!(look(&whole[..length]) > 0, "{length}");
    }
    for index in 0..whole.len() {
        for flip in [1, 0x80, 0xff] {
            let mut flipped = whole.clone();
            flipped[index] ^= flip;
            look(&flipped);
        }
    }
}
