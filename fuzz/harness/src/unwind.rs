//! Formats that the unwinder parses: a case's parts become an image's sections, code or stack, and
//! a thread in it is walked.

use core::ops::ControlFlow;

use coroner_process::registers::{Aarch64Registers, X86_64Registers};
use coroner_unwind::{
    Aarch64, AddressRange, End, Frame, FrameSection, Image, ImageFormat, Images, Options, RuleCache, SwiftAsync,
    Walker, X86_64, build_search_table,
};

use crate::case::{ARM64, Case, MACHO, OWN, RETURN_ADDRESS, Ranges, STACK};

/// Limits of every walk. A walk within these limits can't hang.
const OPTIONS: Options =
    Options { frames: 64, reads: 20_000, authentication_mask: None, scan_words: 64, swift_async: SwiftAsync::Follow };

fn range(start: u64, bytes: &[u8]) -> AddressRange {
    AddressRange { start, end: start + bytes.len() as u64 }
}

fn base_image(case: &Case<'_>) -> Image {
    Image {
        format: if case.has(MACHO) { ImageFormat::MachO } else { ImageFormat::Elf },
        text: (case.text.0..case.text.1).into(),
        text_section: case.text.0,
        ..Image::default()
    }
}

/// Walks the case's thread three times: with a cold rule cache, with a warm one, and with all
/// frames taken at once.
fn walk_image(case: &Case<'_>, image: &Image, sections: &[(u64, &[u8])]) {
    let stack: Vec<u8> = case.stack.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut ranges = sections.to_vec();
    ranges.push((STACK, &stack));
    let memory = Ranges(&ranges);
    let images = [*image];
    let mut cache = Box::new(RuleCache::new());
    let cold = walk_once(case, memory, &images, &mut cache, false);
    let warm = walk_once(case, memory, &images, &mut cache, false);
    assert_eq!(cold, warm, "the rule cache changes the walk");
    let at_once = walk_once(case, memory, &images, &mut cache, true);
    assert_eq!(cold, at_once, "the walk depends on how its frames are taken");
    assert!(cold.0.len() <= OPTIONS.frames as usize, "more frames than the budget allows");
}

fn walk_once(
    case: &Case<'_>,
    memory: Ranges<'_>,
    images: &[Image],
    cache: &mut RuleCache,
    at_once: bool,
) -> (Vec<Frame>, Option<End>) {
    let mut frames = Vec::new();
    macro_rules! walk {
        ($arch:ty, $registers:expr) => {{
            let mut walker = Walker::<$arch, _, _>::new($registers, memory, images, cache, OPTIONS);
            if case.has(RETURN_ADDRESS) {
                walker = walker.from_return_address();
            }
            if at_once {
                walker.for_each(|frame| {
                    frames.push(*frame);
                    ControlFlow::Continue(())
                });
            } else {
                while let Some(frame) = walker.next_frame() {
                    frames.push(frame);
                }
            }
            // Parsing counts against the read budget, and a warm cache saves it, so such walks
            // can't be compared.
            let end = walker.end().filter(|end| *end != End::ReadBudget);
            if end.is_none() {
                frames.clear();
            }
            (frames, end)
        }};
    }
    if case.has(ARM64) {
        let mut registers = Aarch64Registers { pc: case.pc, sp: STACK + 0x40, ..Default::default() };
        for (index, register) in registers.x.iter_mut().enumerate() {
            *register = case.register(index as u64);
        }
        walk!(Aarch64, &registers)
    } else {
        let mut registers = X86_64Registers { pc: case.pc, ..Default::default() };
        for (index, register) in registers.gpr.iter_mut().enumerate() {
            *register = case.register(index as u64);
        }
        registers.gpr[7] = STACK + 0x40;
        walk!(X86_64, &registers)
    }
}

/// Part 1 is an `.eh_frame_hdr`, part 2 an `.eh_frame`.
pub fn eh_frame_hdr(case: &Case<'_>) {
    let mut image = base_image(case);
    image.format = ImageFormat::Elf;
    image.eh_frame_hdr = range(case.part1_address, case.part1);
    if !case.has(OWN) {
        image.eh_frame = range(case.part2_address, case.part2);
    }
    walk_image(case, &image, &[(case.part1_address, case.part1), (case.part2_address, case.part2)]);
}

/// Part 1 is code, part 2 an `.eh_frame` or Mach-O's `__eh_frame`, without a search table.
pub fn eh_frame(case: &Case<'_>) {
    let mut image = base_image(case);
    image.eh_frame = range(case.part2_address, case.part2);
    walk_image(case, &image, &[(case.part1_address, case.part1), (case.part2_address, case.part2)]);
}

/// Part 2 is a `.debug_frame`. With the target's flag, a search table is built for it first.
pub fn debug_frame(case: &Case<'_>) {
    let mut image = base_image(case);
    image.format = ImageFormat::Elf;
    image.debug_frame = range(case.part2_address, case.part2);
    let mut table = vec![0u8; 32 + 16 * 64];
    let table_address = 0x6_0000_0000;
    let sections = [(case.part1_address, case.part1), (case.part2_address, case.part2)];
    if case.has(OWN) {
        let section = FrameSection::debug_frame(&image);
        let mut memory = Ranges(&sections);
        if let Ok(length) = build_search_table(&mut memory, &section, table_address, &mut table) {
            table.truncate(length);
            image.debug_frame_hdr = range(table_address, &table);
        }
    }
    walk_image(case, &image, &[sections[0], sections[1], (table_address, &table)]);
}

/// Part 1 is an `.sframe`, part 2 the `.eh_frame`, which takes precedence.
pub fn sframe(case: &Case<'_>) {
    let mut image = base_image(case);
    image.format = ImageFormat::Elf;
    image.sframe = range(case.part1_address, case.part1);
    image.eh_frame = range(case.part2_address, case.part2);
    walk_image(case, &image, &[(case.part1_address, case.part1), (case.part2_address, case.part2)]);
}

/// Address of a synthesised section.
const SYNTHESISED: u64 = 0x5_0000_0000;

/// Builds an `.eh_frame` with one common entry and one frame description that covers all of the
/// case's code.
fn synthesise_eh_frame(case: &Case<'_>, initial: &[u8], instructions: &[u8]) -> Vec<u8> {
    let arm64 = case.has(ARM64);
    let mut section = Vec::new();
    let mut entry = |body: &[u8]| {
        let at = section.len();
        section.extend_from_slice(&(body.len() as u32).to_le_bytes());
        section.extend_from_slice(body);
        at
    };
    // id 0, version 1, augmentation "zR" (16 bytes absolute pointers), alignments 1 and -8, return
    // address column
    let mut common = vec![0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, if arm64 { 30 } else { 16 }, 1, 0x04];
    if !case.has(RETURN_ADDRESS) && case.seed & 1 != 0 {
        // 'S': the code is a signal trampoline.
        common.splice(5..8, [b'z', b'R', b'S', 0]);
    }
    common.extend_from_slice(initial);
    let common_at = entry(&common);
    let mut description = Vec::new();
    let after_length = 4 + common.len() + 4;
    description.extend_from_slice(&((after_length - common_at) as u32).to_le_bytes());
    description.extend_from_slice(&case.text.0.to_le_bytes());
    description.extend_from_slice(&(case.text.1 - case.text.0).to_le_bytes());
    description.push(0);
    description.extend_from_slice(instructions);
    entry(&description);
    section.extend_from_slice(&[0; 4]);
    section
}

fn walk_eh_frame(case: &Case<'_>, initial: &[u8], instructions: &[u8]) {
    let section = synthesise_eh_frame(case, initial, instructions);
    let image = Image { format: ImageFormat::Elf, eh_frame: range(SYNTHESISED, &section), ..base_image(case) };
    walk_image(case, &image, &[(SYNTHESISED, &section)]);
}

/// Part 1 is a common entry's instructions, part 2 a frame description's.
pub fn cfa_instructions(case: &Case<'_>) {
    walk_eh_frame(case, case.part1, case.part2);
}

/// Part 2 is an expression for the canonical frame address or, with the target's flag, for the
/// location of the return address.
pub fn expression(case: &Case<'_>) {
    let mut instructions = if case.has(OWN) {
        // DW_CFA_def_cfa sp + 16; DW_CFA_expression ra
        vec![0x0c, if case.has(ARM64) { 31 } else { 7 }, 16, 0x10, if case.has(ARM64) { 30 } else { 16 }]
    } else {
        // DW_CFA_offset ra, -8; DW_CFA_def_cfa_expression
        vec![0x80 | if case.has(ARM64) { 30 } else { 16 }, 1, 0x0f]
    };
    let mut length = case.part2.len();
    while length >= 0x80 {
        instructions.push(length as u8 | 0x80);
        length >>= 7;
    }
    instructions.push(length as u8);
    instructions.extend_from_slice(case.part2);
    walk_eh_frame(case, &[], &instructions);
}

/// Part 1 is a Mach-O `__unwind_info`, part 2 its `__eh_frame`. The image's base is the code's
/// start.
pub fn compact_unwind(case: &Case<'_>) {
    let image = Image {
        format: ImageFormat::MachO,
        base: if case.has(OWN) { 0 } else { case.text.0 },
        unwind_info: range(case.part1_address, case.part1),
        eh_frame: range(case.part2_address, case.part2),
        ..base_image(case)
    };
    walk_image(case, &image, &[(case.part1_address, case.part1), (case.part2_address, case.part2)]);
}

/// Builds an `__unwind_info` of one regular page with one entry: all code has this encoding.
fn synthesise_unwind_info(encoding: u32, length: u32) -> Vec<u8> {
    // header: version, common encodings, personalities, index (two entries: the page and the end)
    let header = [1u32, 28, 0, 28, 0, 28, 2];
    // index: function offset, second-level page, LSDA index
    let index = [0, 52, 52, length, 0, 52];
    // regular page: kind 2, entries at 8, one entry
    let page = [2, 8 | 1 << 16, 0, encoding];
    header.iter().chain(&index).chain(&page).flat_map(|word: &u32| word.to_le_bytes()).collect()
}

/// Part 1 is code, for prologue and epilogue analysis. With the target's flag the image is Mach-O
/// and the first four bytes of part 2 are the compact encoding of all code; otherwise there is no
/// unwind data.
pub fn code(case: &Case<'_>) {
    let mut image = base_image(case);
    image.text = range(case.text.0, case.part1);
    let mut unwind_info = Vec::new();
    if let (true, Some(encoding)) = (case.has(OWN), case.part2.first_chunk()) {
        unwind_info = synthesise_unwind_info(u32::from_le_bytes(*encoding), case.part1.len() as u32);
        image.format = ImageFormat::MachO;
        image.base = case.text.0;
        image.unwind_info = range(SYNTHESISED, &unwind_info);
    }
    walk_image(case, &image, &[(case.text.0, case.part1), (SYNTHESISED, &unwind_info)]);
}

/// Images without unwind data; the flag is whether the executable ranges are known.
struct Sparse<'a>(&'a [Image], bool);

impl Images for Sparse<'_> {
    fn find(&self, address: u64) -> Option<Image> {
        self.0.find(address)
    }

    fn is_executable(&self, address: u64) -> Option<bool> {
        self.1.then(|| self.find(address).is_some())
    }
}

/// Part 1 is code, part 2 the stack: a whole walk over arbitrary memory.
pub fn walk(case: &Case<'_>) {
    let mut image = base_image(case);
    image.text = range(case.text.0, case.part1);
    let images = [image];
    let sparse = Sparse(&images, case.has(OWN));
    let memory = Ranges(&[(case.text.0, case.part1), (STACK, case.part2)]);
    let mut cache = Box::new(RuleCache::new());
    let mut frames = 0;
    macro_rules! walk {
        ($arch:ty, $registers:expr) => {{
            let mut walker = Walker::<$arch, _, _>::new($registers, memory, &sparse, &mut cache, OPTIONS);
            while walker.next_frame().is_some() {
                frames += 1;
            }
            assert!(walker.end().is_some(), "the walk ended without a reason");
        }};
    }
    if case.has(ARM64) {
        let mut registers = Aarch64Registers { pc: case.pc, sp: STACK, ..Default::default() };
        for (index, register) in registers.x.iter_mut().enumerate() {
            *register = case.register(index as u64);
        }
        walk!(Aarch64, &registers);
    } else {
        let mut registers = X86_64Registers { pc: case.pc, ..Default::default() };
        for (index, register) in registers.gpr.iter_mut().enumerate() {
            *register = case.register(index as u64);
        }
        registers.gpr[7] = STACK;
        walk!(X86_64, &registers);
    }
    assert!(frames <= OPTIONS.frames, "more frames than the budget allows");
}
