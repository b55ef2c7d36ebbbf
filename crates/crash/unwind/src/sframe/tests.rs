//! Compares `.sframe` from GNU Binutils with `.eh_frame` of the same code: both must find the same
//! caller at every address.

use coroner_process::memory::{Snapshot, SnapshotRange};
use coroner_process::registers::{Aarch64Registers, X86_64Registers};

use crate::{Aarch64, AddressRange, Architecture, Found, Image, Options, Row, Rule, RuleCache, Walker, X86_64, sframe};

extern crate std;
use std::boxed::Box;
use std::vec::Vec;

/// Address of the library, and an address outside it that only return addresses point to.
const BASE: u64 = 0x40_0000;
const ELSEWHERE: u64 = 0x80_0000;
const STACK: u64 = 0x7000_0000;
const STACK_WORDS: u64 = 0x8000;

/// Output of `fixtures/sframe/make.sh`.
const LIBRARIES: [(&str, &[u8]); 4] = [
    ("v2-x86_64", include_bytes!("../../../../../fixtures/sframe/v2-x86_64.so")),
    ("v3-x86_64", include_bytes!("../../../../../fixtures/sframe/v3-x86_64.so")),
    ("v2-aarch64", include_bytes!("../../../../../fixtures/sframe/v2-aarch64.so")),
    ("v3-aarch64", include_bytes!("../../../../../fixtures/sframe/v3-aarch64.so")),
];

struct Library {
    bytes: Vec<u8>,
    code: AddressRange,
    sframe: AddressRange,
    eh_frame_hdr: AddressRange,
}

/// Reads a library. For everything used here, its file offsets are its linked addresses.
fn library(name: &str) -> Library {
    let bytes = LIBRARIES.iter().find(|library| library.0 == name).unwrap().1.to_vec();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let mut library = Library {
        code: AddressRange::default(),
        sframe: AddressRange::default(),
        eh_frame_hdr: AddressRange::default(),
        bytes: Vec::new(),
    };
    for header in (word(32) as usize..).step_by(56).take(usize::from(bytes[56])) {
        let (kind, offset, address, size) = (word(header), word(header + 8), word(header + 16), word(header + 40));
        let range = AddressRange { start: BASE + address, end: BASE + address + size };
        match (kind as u32, kind >> 32) {
            (1, 5) => library.code = range,
            (0x6474_e550, _) => library.eh_frame_hdr = range,
            (0x6474_e554, _) => library.sframe = range,
            _ => continue,
        }
        assert_eq!(offset, address);
    }
    assert!(!library.code.is_empty() && !library.sframe.is_empty() && !library.eh_frame_hdr.is_empty());
    library.bytes = bytes;
    library
}

/// Walks from the instruction at `at`: returns how the caller is found, and its pc, sp and frame
/// pointer. On arm64 the instruction is treated as a call, so that its code is not analyzed.
fn caller<A: Architecture>(
    library: &Library,
    image: Image,
    stack: &[u8],
    at: u64,
) -> Option<(Found, u64, u64, Option<u64>)>
where
    A::Registers: Default + Start,
{
    let ranges =
        [SnapshotRange { address: BASE, bytes: &library.bytes }, SnapshotRange { address: STACK, bytes: stack }];
    let images = [Image { text: (BASE..ELSEWHERE + 0x100_0000).into(), ..image }];
    let is_call = A::LINK_REGISTER;
    let registers = A::Registers::at(at + u64::from(is_call), STACK + 0x2000, STACK + 0x3000);
    let mut cache = Box::new(RuleCache::new());
    let options = Options { scan_words: 0, ..Options::default() };
    let memory = Snapshot { ranges: &ranges };
    let mut walker = Walker::<A, _, _>::new(&registers, memory, &images[..], &mut cache, options);
    if is_call {
        walker = walker.from_return_address();
    }
    walker.next_frame()?;
    let frame = walker.next_frame()?;
    let mut registers = *walker.registers();
    let fp = registers.value(A::FP, &mut Snapshot { ranges: &ranges }).ok().flatten();
    matches!(frame.found, Found::Cfi | Found::SFrame).then_some((frame.found, frame.pc, frame.sp, fp))
}

trait Start {
    fn at(pc: u64, sp: u64, fp: u64) -> Self;
}

impl Start for X86_64Registers {
    fn at(pc: u64, sp: u64, fp: u64) -> Self {
        let mut registers = X86_64Registers { pc, ..Default::default() };
        registers.gpr = [STACK + 0x2800; 16];
        (registers.gpr[7], registers.gpr[6]) = (sp, fp);
        registers
    }
}

impl Start for Aarch64Registers {
    fn at(pc: u64, sp: u64, fp: u64) -> Self {
        let mut registers = Aarch64Registers { pc, sp, ..Default::default() };
        (registers.x[29], registers.x[30]) = (fp, ELSEWHERE + 0x8_0000);
        registers
    }
}

/// Compares the two tables at every address. Returns the number of addresses at which both have the
/// same caller, and at which only `.eh_frame` has one.
fn compare<A: Architecture>(name: &str) -> (usize, usize)
where
    A::Registers: Default + Start,
{
    let library = library(name);
    // Every word of the stack is a different return address.
    let stack: Vec<u8> = (0..STACK_WORDS).flat_map(|word| (ELSEWHERE + word * 4).to_le_bytes()).collect();
    let (mut same, mut alone) = (0, 0);
    for at in library.code.start..library.code.end {
        let by_cfi = Image { eh_frame_hdr: library.eh_frame_hdr, eh_frame: eh_frame(&library), ..Image::default() };
        let by_sframe = Image { sframe: library.sframe, ..Image::default() };
        let cfi = caller::<A>(&library, by_cfi, &stack, at);
        let sframe = caller::<A>(&library, by_sframe, &stack, at);
        match (cfi, sframe) {
            (Some((found, pc, sp, fp)), Some(sframe)) => {
                assert_eq!(found, Found::Cfi);
                assert_eq!((Found::SFrame, pc, sp, fp), sframe, "{name} at {:#x}", at - BASE);
                same += 1;
            }
            (Some(_), None) => alone += 1,
            (None, _) => {}
        }
    }
    (same, alone)
}

/// Returns the range of `.eh_frame`, which is after its header in these files, up to `.sframe`.
fn eh_frame(library: &Library) -> AddressRange {
    AddressRange { start: library.eh_frame_hdr.end.next_multiple_of(8), end: library.sframe.start }
}

#[test]
fn both_tables_find_the_same_callers() {
    // Version 2 has no table for a function that realigns its stack through a register; in version
    // 3 the rows in its middle have a CFA in memory.
    assert_eq!(compare::<X86_64>("v2-x86_64"), (1732, 47));
    assert_eq!(compare::<X86_64>("v3-x86_64"), (1766, 13));
    assert_eq!(compare::<Aarch64>("v2-aarch64"), (1792, 0));
    assert_eq!(compare::<Aarch64>("v3-aarch64"), (1792, 0));
}

/// A procedure linkage table, whose rows repeat: the first instructions of a stub leave the stack
/// unchanged; from the last one on, one more word is on the stack.
#[test]
fn plt_rows_repeat() {
    for name in ["v2-x86_64", "v3-x86_64"] {
        let library = library(name);
        let ranges = [SnapshotRange { address: BASE, bytes: &library.bytes }];
        let stubs = library.code.start + 0x10;
        for address in stubs..stubs + 0x30 {
            let mut memory = Snapshot { ranges: &ranges };
            let stated = sframe::find::<X86_64, _>(&mut memory, library.sframe, address).unwrap().unwrap();
            let offset = if (address & 15) < 11 { 8 } else { 16 };
            let row = Row::new(X86_64::SP, offset).with_saved::<X86_64>(X86_64::RA, -8).unwrap();
            assert_eq!((stated.rule, stated.range.start), (Rule::Row(row), stubs), "{name} at {:#x}", address - BASE);
        }
    }
}

#[test]
fn damaged_sections_yield_errors_or_nothing() {
    for (name, _) in LIBRARIES {
        let mut library = library(name);
        let start = (library.sframe.start - BASE) as usize;
        let mut problems = 0;
        for byte in 0..library.sframe.len() as usize {
            for change in [0x00, 0x7f, 0x80, 0xff] {
                let before = std::mem::replace(&mut library.bytes[start + byte], change);
                for address in (library.code.start..library.code.end).step_by(61) {
                    let ranges = [SnapshotRange { address: BASE, bytes: &library.bytes }];
                    let mut memory = Snapshot { ranges: &ranges };
                    problems += usize::from(sframe::find::<X86_64, _>(&mut memory, library.sframe, address).is_err());
                    problems += usize::from(sframe::find::<Aarch64, _>(&mut memory, library.sframe, address).is_err());
                }
                library.bytes[start + byte] = before;
            }
        }
        assert!(problems > 100, "{name}: {problems}");
        for length in 0..28 {
            let ranges = [SnapshotRange { address: BASE, bytes: &library.bytes }];
            let cut = AddressRange { end: library.sframe.start + length, ..library.sframe };
            assert!(sframe::find::<X86_64, _>(&mut Snapshot { ranges: &ranges }, cut, library.code.start).is_err());
        }
    }
}
