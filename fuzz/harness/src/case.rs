//! The structured input of the unwinder's targets: two parts placed in an address space.

use core::fmt;

use arbitrary::{Arbitrary, Unstructured};
use coroner_process::memory::{Memory, Unreadable};

/// The header's length in bytes.
pub const HEADER: usize = 24;

/// The stack's address, above every 32-bit address that a header can hold.
pub const STACK: u64 = 0x7_0000_0000;
/// The stack's length in words.
const STACK_WORDS: usize = 512;

/// A decoded input. All integers are little endian.
///
/// | offset | field |
/// |---|---|
/// | 0 | flags: 1 arm64, 2 Mach-O, 4 the first frame is a return address, 8 and up: the target's |
/// | 1 | seed of registers and stack |
/// | 2 | u16: length of part 1 |
/// | 4 | u32: pc |
/// | 8 | u32: start of the code |
/// | 12 | u32: length of the code |
/// | 16 | u32: address of part 1 |
/// | 20 | u32: address of part 2 |
/// | 24 | part 1, part 2 |
pub struct Case<'a> {
    /// Architecture, image format, and the target's own flags.
    pub flags: u8,
    /// Seed of registers and stack.
    pub seed: u8,
    /// Program counter.
    pub pc: u64,
    /// Start and end of the code.
    pub text: (u64, u64),
    /// Address of part 1.
    pub part1_address: u64,
    /// Bytes of part 1.
    pub part1: &'a [u8],
    /// Address of part 2.
    pub part2_address: u64,
    /// Bytes of part 2.
    pub part2: &'a [u8],
    /// Stack memory at [`STACK`].
    pub stack: [u64; STACK_WORDS],
}

/// Written by hand rather than derived, so that sections of real programs can be seeds: a derived
/// layout takes lengths from the input's end.
impl<'a> Arbitrary<'a> for Case<'a> {
    fn arbitrary(u: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let rest = u.len();
        Case::from_bytes(u.bytes(rest)?).ok_or(arbitrary::Error::NotEnoughData)
    }

    fn size_hint(_: usize) -> (usize, Option<usize>) {
        (HEADER, None)
    }
}

impl<'a> Case<'a> {
    /// Decodes an input; returns `None` if it is shorter than a header.
    #[must_use]
    pub fn from_bytes(input: &'a [u8]) -> Option<Case<'a>> {
        let (header, parts) = input.split_at_checked(HEADER)?;
        let word =
            |at: usize| u64::from(u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]));
        let length = usize::from(u16::from_le_bytes([header[2], header[3]])).min(parts.len());
        let (part1, part2) = parts.split_at(length);
        let text = (word(8), word(8) + word(12).min(1 << 24));
        let mut case = Case {
            flags: header[0],
            seed: header[1],
            pc: word(4),
            text,
            part1_address: word(16),
            part1,
            part2_address: word(20),
            part2,
            stack: [0; STACK_WORDS],
        };
        case.fill_stack();
        Some(case)
    }

    /// Fills the stack with typical contents: return addresses, ascending frame pointers, zeros,
    /// numbers.
    fn fill_stack(&mut self) {
        let mut chance = u64::from(self.seed) << 8 | 1;
        let (start, end) = self.text;
        for index in 0..STACK_WORDS as u64 {
            chance = chance.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let random = chance >> 33;
            self.stack[index as usize] = match random & 7 {
                0..=2 => start + (random >> 3) % (end - start).max(1),
                3 | 4 => STACK + 8 * (index + 1 + (random >> 3) % 24),
                5 => 0,
                6 => random,
                _ => !chance,
            };
        }
    }

    /// Returns a register's value: most point into the stack, some into the code, some anywhere.
    #[must_use]
    pub fn register(&self, index: u64) -> u64 {
        let random = (u64::from(self.seed) << 8 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        match random & 3 {
            0 => self.text.0 + (random >> 2) % (self.text.1 - self.text.0).max(1),
            1 => random,
            _ => STACK + 8 * ((random >> 2) % 200),
        }
    }

    /// Whether a flag is set.
    #[must_use]
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Output of `cargo fuzz` for a failing input: all fields but the stack, which follows from them.
impl fmt::Debug for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case")
            .field("flags", &format_args!("{:#04x}", self.flags))
            .field("seed", &self.seed)
            .field("pc", &format_args!("{:#x}", self.pc))
            .field("text", &format_args!("{:#x}..{:#x}", self.text.0, self.text.1))
            .field("part1_address", &format_args!("{:#x}", self.part1_address))
            .field("part1", &format_args!("{:02x?}", self.part1))
            .field("part2_address", &format_args!("{:#x}", self.part2_address))
            .field("part2", &format_args!("{:02x?}", self.part2))
            .finish_non_exhaustive()
    }
}

/// Flag: the first frame runs on arm64.
pub const ARM64: u8 = 1;
/// Flag: the image is Mach-O.
pub const MACHO: u8 = 2;
/// Flag: the first frame's pc is a return address.
pub const RETURN_ADDRESS: u8 = 4;
/// The first flag whose meaning is up to the target.
pub const OWN: u8 = 8;

/// Memory made of a few ranges.
#[derive(Clone, Copy, Debug)]
pub struct Ranges<'a>(pub &'a [(u64, &'a [u8])]);

impl Memory for Ranges<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        for (start, bytes) in self.0 {
            let Some(offset) = address.checked_sub(*start) else { continue };
            let Ok(offset) = usize::try_from(offset) else { continue };
            if let Some(source) = bytes.get(offset..).and_then(|tail| tail.get(..into.len())) {
                into.copy_from_slice(source);
                return Ok(());
            }
        }
        Err(Unreadable { address })
    }
}
