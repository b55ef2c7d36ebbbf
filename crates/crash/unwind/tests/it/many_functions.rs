//! Walks through more functions than the cache has room for: a rule that a walk still needs is
//! never replaced.

use std::ops::ControlFlow;

use coroner_process::memory::{Snapshot, SnapshotRange};
use coroner_process::registers::X86_64Registers;
use coroner_unwind::{FrameSection, Image, Options, RuleCache, Walker, X86_64, build_search_table};

const CODE: u64 = 0x40_0000;
/// Size of each function, in bytes.
const SIZE: u64 = 16;
/// Offset of the return address of a function's call from the function's start.
const CALL: u64 = 8;
const SECTION: u64 = 0x50_0000;
const TABLE: u64 = 0x60_0000;
const STACK: u64 = 0x700_0000;
const RBX: usize = 3;
/// The caller's rbx, as saved by the innermost function.
const SAVED: u64 = 0x5eed;

/// Returns the `.eh_frame` of consecutive functions in the form that compilers write, followed by
/// free space. Each function pushes one register, which only the first one's unwind data describe:
/// rbx.
fn section(functions: u32) -> Vec<u8> {
    // zR, pcrel sdata4; DW_CFA_def_cfa rsp 8; DW_CFA_offset ra 1
    let mut bytes = vec![20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0];
    for number in 0..functions {
        let at = bytes.len() as u64;
        let start = CODE + u64::from(number) * SIZE;
        bytes.extend(20_u32.to_le_bytes());
        bytes.extend((at as u32 + 4).to_le_bytes());
        bytes.extend((start.wrapping_sub(SECTION + at + 8) as u32).to_le_bytes());
        bytes.extend((SIZE as u32).to_le_bytes());
        // DW_CFA_advance_loc 1; DW_CFA_def_cfa_offset 16; DW_CFA_offset rbx 2
        let offset = if number == 0 { [0x83, 2] } else { [0, 0] };
        bytes.extend([0, 0x41, 0x0e, 16, offset[0], offset[1], 0, 0]);
    }
    bytes.extend([0; 4]);
    bytes
}

/// Walks a stack of calls of these functions, innermost first, and checks the frames and the
/// outermost frame's rbx.
fn walk(memory: Snapshot<'_>, images: &[Image], cache: &mut RuleCache, functions: &[u32]) {
    let expected: Vec<u64> = functions.iter().map(|number| CODE + u64::from(*number) * SIZE + CALL).collect();
    let mut stack = Vec::new();
    for (frame, _) in expected.iter().enumerate() {
        stack.extend((if frame == 0 { SAVED } else { 0xbad }).to_le_bytes());
        stack.extend(expected.get(frame + 1).copied().unwrap_or(0).to_le_bytes());
    }
    let ranges = [memory.ranges[0], memory.ranges[1], SnapshotRange { address: STACK, bytes: &stack }];
    let mut registers = X86_64Registers { pc: expected[0], ..X86_64Registers::default() };
    registers.gpr[7] = STACK;
    registers.gpr[RBX] = 0xbad;
    let memory = Snapshot { ranges: &ranges };
    let mut walker = Walker::<X86_64, _, _>::new(&registers, memory, images, cache, Options::default());
    let mut seen = Vec::new();
    walker.for_each(|frame| {
        seen.push(frame.pc);
        ControlFlow::Continue(())
    });
    assert_eq!(seen, expected);
    let rbx = walker.registers().certain(RBX as u8);
    assert_eq!(rbx, Some(SAVED), "{} frames, the last of function {:?}", functions.len(), functions.last());
}

#[test]
fn saved_registers_survive_cache_replacement() {
    let bytes = section(4000);
    let image = Image {
        text: (CODE..CODE + 4000 * SIZE).into(),
        eh_frame: (SECTION..SECTION + bytes.len() as u64).into(),
        ..Image::default()
    };
    let frames = FrameSection::eh_frame(&image);
    let mut table = vec![0; 16 * 4000 + 32];
    let written = [SnapshotRange { address: SECTION, bytes: &bytes }];
    let used = build_search_table(&mut Snapshot { ranges: &written }, &frames, TABLE, &mut table).expect("a table");
    let images = [Image { eh_frame_hdr: (TABLE..TABLE + used as u64).into(), ..image }];
    let ranges = [written[0], SnapshotRange { address: TABLE, bytes: &table }];
    let memory = Snapshot { ranges: &ranges };
    let mut cache = Box::new(RuleCache::new());
    // One walk over all of them.
    walk(memory, &images, &mut cache, &(0..4000).collect::<Vec<_>>());
    for before in 0..60 {
        // The first functions' rules are the oldest when a walk needs them again, and new ones are
        // needed after them.
        cache.clear();
        walk(memory, &images, &mut cache, &(0..1000 + before).collect::<Vec<_>>());
        let known_then_new: Vec<u32> = (0..50).chain(2000..2200).collect();
        walk(memory, &images, &mut cache, &known_then_new);
    }
}
