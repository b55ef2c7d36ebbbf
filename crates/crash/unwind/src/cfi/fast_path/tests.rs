use super::*;
use crate::arch::{Aarch64, X86_64};
use crate::cfi::Fde;
use crate::cfi::row::RowState;
use crate::cursor::{Bases, Cursor};
use coroner_process::memory::{Snapshot, SnapshotRange};

extern crate std;
use std::vec::Vec;

const SECTION: u64 = 0x50_0000;
const CODE: u64 = 0x40_0000;
const SIZE: u32 = 0x200;

/// xorshift64
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn number(&mut self, into: &mut Vec<u8>) {
        match self.below(8) {
            0 => into.extend([0x80 | self.below(128) as u8, self.below(128) as u8]),
            1 => into.extend([0x80 | self.below(128) as u8, 0x80 | self.below(128) as u8, self.below(9) as u8]),
            _ => into.push(self.below(32) as u8),
        }
    }

    /// Appends an instruction, usually a plain one.
    fn instruction(&mut self, into: &mut Vec<u8>) {
        match self.below(24) {
            0..=5 => into.push(0x40 | self.below(40) as u8),
            6..=9 => {
                into.push(0x80 | self.below(36) as u8);
                self.number(into);
            }
            10..=13 => {
                into.push(0x0e);
                self.number(into);
            }
            14 => into.extend([0x0c, self.below(34) as u8, self.below(128) as u8]),
            15 => into.extend([0x0d, self.below(34) as u8]),
            16 => into.push(0x0a),
            17 => into.push(0x0b),
            18 => into.push(0xc0 | self.below(36) as u8),
            19 => into.extend([0x02, self.below(256) as u8]),
            20 => into.extend([0x03, self.below(256) as u8, 0]),
            21 => into.extend([0x2e, self.below(128) as u8]),
            22 => into.extend([0, 0x2d, 0]),
            _ => into.push(self.below(256) as u8),
        }
    }
}

/// Returns a section with a CIE and an entry with these instructions: the entry's address, and the
/// bytes.
fn section<A: Architecture>(wide: bool, instructions: &[u8]) -> (u64, Vec<u8>) {
    let encoding = if wide { DW_EH_PE_PCREL } else { DW_EH_PE_PCREL_SDATA4 };
    let mut bytes = std::vec![0, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, A::RA, 1, encoding, 0x0c, A::SP];
    bytes.extend(if A::LINK_REGISTER { [0, 0, 0] } else { [8, 0x80 | A::RA, 1] });
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes[0] = bytes.len() as u8 - 4;
    let at = bytes.len();
    bytes.extend([0; 4]);
    bytes.extend((at as u32 + 4).to_le_bytes());
    let start = CODE.wrapping_sub(SECTION + at as u64 + 8);
    if wide {
        bytes.extend(start.to_le_bytes());
        bytes.extend(u64::from(SIZE).to_le_bytes());
    } else {
        bytes.extend((start as u32).to_le_bytes());
        bytes.extend(SIZE.to_le_bytes());
    }
    bytes.push(0);
    bytes.extend(instructions);
    let length = bytes.len() - at - 4;
    bytes[at..at + 4].copy_from_slice(&(length as u32).to_le_bytes());
    bytes.extend([0; 2 * BLOCK]);
    (SECTION + at as u64, bytes)
}

/// Returns how many of 20,000 random entries are plain; those must have the same row as with the
/// full parser.
fn fast_fdes<A: Architecture>(wide: bool) -> usize {
    let mut chance = Random(88_172_645_463_325_252);
    let mut fast_fdes = 0;
    for _ in 0..20_000 {
        let mut instructions = Vec::new();
        for _ in 0..chance.below(40) {
            chance.instruction(&mut instructions);
        }
        let (at, bytes) = section::<A>(wide, &instructions);
        let address = CODE + chance.below(SIZE.into());
        let ranges = [SnapshotRange { address: SECTION, bytes: &bytes }];
        let mut memory = Snapshot { ranges: &ranges };
        let section = FrameSection {
            range: (SECTION..SECTION + bytes.len() as u64).into(),
            dialect: Dialect::EhFrame,
            bases: Bases::default(),
            bias: 0,
        };
        let mut cache = CieCache::new();
        let mut row = Row::new(0, 0);
        let Some(plain) = row_at::<A, _>(&mut memory, &mut cache, &section, at, address, &mut row) else {
            continue;
        };
        fast_fdes += 1;
        let mut cursor = Cursor::new(&mut memory, section.range, at).unwrap();
        let entry = Fde::parse(&mut cursor, &section, &mut cache).unwrap();
        assert_eq!((plain.range, plain.covers), (entry.range, true));
        let cie = *cache.get(cursor.memory, &section, entry.cie).unwrap();
        let state = RowState::compute(&mut cursor, &cie, &entry, address).unwrap();
        let expected = state.simple::<A>(&cie).unwrap();
        let said = |row: &Row| (row.cfa_register, row.cfa_offset, A::SAVED.map(|number| row.saved_words::<A>(number)));
        assert_eq!(said(&row), said(&expected), "{instructions:x?} at {address:#x}");
    }
    fast_fdes
}

#[test]
fn the_fast_path_agrees_with_the_full_parser_for_fdes() {
    for fast_fdes in
        [fast_fdes::<X86_64>(false), fast_fdes::<X86_64>(true), fast_fdes::<Aarch64>(false), fast_fdes::<Aarch64>(true)]
    {
        assert!(fast_fdes > 5_000, "only {fast_fdes} of 20,000 are plain");
    }
}

/// Returns how many of 20,000 random CIEs the fast path reads; those must equal the full parser's
/// result.
fn fast_cies<A: Architecture>() -> usize {
    let mut chance = Random(0x1234_5678_9abc_def1);
    let mut fast_fdes = 0;
    for _ in 0..20_000 {
        let letters: Vec<u8> = (0..chance.below(5)).map(|_| b"RLPSRRLBGx"[chance.below(10) as usize]).collect();
        let version = [1, 3, 1, 3, 4][chance.below(5) as usize];
        let mut bytes = std::vec![0, 0, 0, 0, 0, 0, 0, 0, version, b'z'];
        bytes.extend(&letters);
        bytes.extend([0, [1, 4, 17][chance.below(3) as usize], [0x78, 0x70, 8, 0x7c][chance.below(4) as usize]]);
        bytes.push(if chance.below(8) == 0 { 3 } else { A::RA });
        let mut data = Vec::new();
        for letter in &letters {
            match letter {
                b'R' => data.push([0x1b, 0x10, 0x1b, 0x03][chance.below(4) as usize]),
                b'L' => data.push(0x1b),
                b'P' => match chance.below(4) {
                    0 => data.extend([0x9b, 1, 2, 3, 4]),
                    1 => data.extend([0x00, 1, 2, 3, 4, 5, 6, 7, 8]),
                    2 => data.extend([0x50, 1, 2]),
                    _ => data.extend([0x1b, 1, 2, 3, 4]),
                },
                _ => {}
            }
        }
        let longer = chance.below(8).saturating_sub(6);
        bytes.push((data.len() as u64 + longer) as u8);
        bytes.extend(data);
        bytes.resize(bytes.len() + longer as usize, 0x1b);
        bytes.extend([0x0c, A::SP, 8, 0x80 | A::RA, 1]);
        for _ in 0..chance.below(4).saturating_sub(1) {
            match chance.below(5) {
                0 => chance.instruction(&mut bytes),
                4 => bytes.extend([0x07, [A::RA, A::FP][chance.below(2) as usize]]),
                1 => bytes.extend([0x80 | A::FP, chance.below(4) as u8]),
                _ => bytes.push(0),
            }
        }
        bytes[0] = bytes.len() as u8 - 4 - chance.below(16).saturating_sub(14) as u8;
        bytes.extend([0; BLOCK]);
        let ranges = [SnapshotRange { address: SECTION, bytes: &bytes }];
        let mut memory = Snapshot { ranges: &ranges };
        let range = (SECTION..SECTION + bytes.len() as u64).into();
        let section = FrameSection { range, dialect: Dialect::EhFrame, bases: Bases::default(), bias: 0 };
        let Some((plain, signal_trampoline)) = FastCie::read::<A, _>(&mut memory, &section, SECTION) else {
            continue;
        };
        fast_fdes += 1;
        let long = Cie::parse(&mut memory, &section, SECTION).unwrap();
        assert_eq!((signal_trampoline, A::RA), (long.signal_trampoline, long.return_register), "{bytes:x?}");
        let undefined = long.initial.register(A::RA) == crate::cfi::row::RegisterRule::Undefined;
        assert_eq!(plain.outermost != 0, undefined, "{bytes:x?}");
        // The full parser has no plain form for CIEs without a row.
        assert_eq!((!undefined).then_some(plain), long.plain, "{bytes:x?}");
    }
    fast_fdes
}

#[test]
fn the_fast_path_agrees_with_the_full_parser_for_cies() {
    for fast_fdes in [fast_cies::<X86_64>(), fast_cies::<Aarch64>()] {
        assert!(fast_fdes > 1_000, "only {fast_fdes} of 20,000 are plain");
    }
}

#[test]
fn outermost_frames_are_recognized() {
    let rule = |instructions: &[u8]| {
        let (at, bytes) = section::<X86_64>(false, instructions);
        let ranges = [SnapshotRange { address: SECTION, bytes: &bytes }];
        let range = (SECTION..SECTION + bytes.len() as u64).into();
        let section = FrameSection { range, dialect: Dialect::EhFrame, bases: Bases::default(), bias: 0 };
        let (mut cache, mut row) = (CieCache::new(), Row::new(0, 0));
        let mut memory = Snapshot { ranges: &ranges };
        row_at::<X86_64, _>(&mut memory, &mut cache, &section, at, CODE + 9, &mut row).map(|plain| plain.outermost)
    };
    assert_eq!(rule(&[0x07, 16]), Some(true));
    assert_eq!(rule(&[0x07, 16, 0, 0, 0]), Some(true));
    assert_eq!(rule(&[0x0e, 16, 0, 0]), Some(false));
    // Another register, or more than that, is for the full parser.
    assert_eq!(rule(&[0x07, 6]), None);
    assert_eq!(rule(&[0x07, 16, 0x41, 0x90, 1]), None);
    assert_eq!(rule(&[0x41, 0x07, 16]), None);
    // The same as x86_64's C runtime: in the CIE, and with nothing in the entry.
    let mut bytes =
        std::vec![20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 7, 16];
    bytes.extend([16, 0, 0, 0, 28, 0, 0, 0]);
    bytes.extend((CODE.wrapping_sub(SECTION + 32) as u32).to_le_bytes());
    bytes.extend([0x22, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend([0; BLOCK]);
    for (byte, outermost) in [(0, Some(true)), (0x41, None)] {
        bytes[41] = byte;
        let ranges = [SnapshotRange { address: SECTION, bytes: &bytes }];
        let range = (SECTION..SECTION + bytes.len() as u64).into();
        let section = FrameSection { range, dialect: Dialect::EhFrame, bases: Bases::default(), bias: 0 };
        let (mut cache, mut memory, mut row) = (CieCache::new(), Snapshot { ranges: &ranges }, Row::new(0, 0));
        let (at, lookup) = (SECTION + 24, CODE + 9);
        let said = row_at::<X86_64, _>(&mut memory, &mut cache, &section, at, lookup, &mut row);
        assert_eq!(said.map(|said| said.outermost), outermost);
        let mut rule = crate::Rule::FrameRecord;
        let mut sections = crate::lookup::SectionCache::new();
        crate::lookup::rule_at::<X86_64, _>(&mut memory, &mut sections, &section, at, lookup, &mut rule).unwrap();
        assert_eq!(rule, crate::Rule::Outermost);
    }
}

#[test]
fn addresses_outside_the_function_are_not_covered() {
    let (at, bytes) = section::<X86_64>(false, &[0x41, 0x0e, 16]);
    let ranges = [SnapshotRange { address: SECTION, bytes: &bytes }];
    let mut memory = Snapshot { ranges: &ranges };
    let section = FrameSection {
        range: (SECTION..SECTION + bytes.len() as u64).into(),
        dialect: Dialect::EhFrame,
        bases: Bases::default(),
        bias: 0,
    };
    for (address, covers) in [(CODE - 1, false), (CODE, true), (CODE + 0x1ff, true), (CODE + 0x200, false)] {
        let (mut cache, mut row) = (CieCache::new(), Row::new(0, 0));
        let plain = row_at::<X86_64, _>(&mut memory, &mut cache, &section, at, address, &mut row).unwrap();
        assert_eq!(plain.covers, covers, "{address:#x}");
    }
}
