//! Call frame information written byte by byte: every kind of rule, and every kind of error.

use coroner_process::memory::{Memory, Snapshot, SnapshotRange};
use coroner_process::registers::X86_64Registers;
use coroner_unwind::{
    AddressKind, BuildError, End, Found, FrameSection, Image, Malformed, Options, Problem, RuleCache, Walker, X86_64,
    build_search_table,
};

const CODE: u64 = 0x40_0000;
const SECTION: u64 = 0x50_0000;
const TABLE: u64 = 0x60_0000;
const STACK: u64 = 0x7000;

/// A builder for bytes in order, with lengths filled in.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u8(mut self, value: u8) -> Bytes {
        self.0.push(value);
        self
    }

    fn u32(mut self, value: u32) -> Bytes {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Bytes {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Bytes {
        self.0.extend(bytes);
        self
    }

    /// Appends a 32-bit length and the bytes added by `entry`, padded with `DW_CFA_nop`.
    fn entry(mut self, entry: impl FnOnce(Bytes) -> Bytes) -> Bytes {
        let start = self.0.len();
        let mut after = entry(self.u32(0)).0;
        while !after.len().is_multiple_of(4) {
            after.push(0);
        }
        let length = (after.len() - start - 4) as u32;
        after[start..start + 4].copy_from_slice(&length.to_le_bytes());
        self = Bytes(after);
        self
    }

    /// Appends a CIE with augmentation `zR`, absolute 8-byte addresses: cfa = rsp + 8, ra at cfa −
    /// 8.
    fn common(self, augmentation: &[u8], data: &[u8]) -> Bytes {
        self.entry(|entry| {
            let entry = entry.u32(0).u8(1).raw(augmentation).u8(0).u8(1).u8(0x78).u8(16);
            let entry = if augmentation.starts_with(b"z") { entry.u8(data.len() as u8).raw(data) } else { entry };
            // DW_CFA_def_cfa rsp 8; DW_CFA_offset ra 1
            entry.raw(&[0x0c, 7, 8, 0x90, 1])
        })
    }

    /// Appends an FDE of the CIE at offset 0, for 0x100 bytes from `start` on.
    fn function(self, start: u64, instructions: &[u8]) -> Bytes {
        self.entry(|entry| {
            let here = entry.0.len() as u32;
            entry.u32(here).u64(start).u64(0x100).u8(0).raw(instructions)
        })
    }

    /// Appends the zero terminator.
    fn end(self) -> Vec<u8> {
        self.u32(0).0
    }
}

/// Returns a section with one function and these instructions.
fn section(instructions: &[u8]) -> Vec<u8> {
    Bytes::default().common(b"zR", &[0x04]).function(CODE, instructions).end()
}

/// Walks from `pc` in the function; returns the frames and the end. The stack has eight words, the
/// first one at rsp.
fn walk(
    eh_frame: &[u8],
    offset: u64,
    stack: &[u64],
    registers: &X86_64Registers,
) -> (Vec<u64>, X86_64Registers, End, Option<Problem>) {
    let stack: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
    let code = [0x90u8; 0x400];
    let ranges = [
        SnapshotRange { address: SECTION, bytes: eh_frame },
        SnapshotRange { address: STACK, bytes: &stack },
        SnapshotRange { address: CODE, bytes: &code },
    ];
    let images = [Image {
        text: (CODE..CODE + 0x400).into(),
        eh_frame: (SECTION..SECTION + eh_frame.len() as u64).into(),
        ..Image::default()
    }];
    let mut registers = *registers;
    registers.pc = CODE + offset;
    registers.gpr[7] = STACK;
    let mut cache = Box::new(RuleCache::new());
    let options = Options { scan_words: 0, ..Options::default() };
    let memory = Snapshot { ranges: &ranges };
    let mut walker = Walker::<X86_64, _, _>::new(&registers, memory, &images[..], &mut cache, options);
    let mut pcs = vec![walker.frame().pc];
    let mut second = X86_64Registers::default();
    while walker.step().is_ok() && pcs.len() < 10 {
        pcs.push(walker.frame().pc);
        if pcs.len() == 2 {
            let file = walker.registers();
            for (number, value) in second.gpr.iter_mut().enumerate() {
                *value = file.certain(number as u8).unwrap_or(0xdead);
            }
        }
    }
    (pcs, second, walker.end().unwrap_or(End::FrameBudget), walker.problem())
}

/// Returns the caller's registers that follow from these instructions, with words 0x100, 0x200 … on
/// the stack, and the return address in word `at`.
fn caller(instructions: &[u8], at: usize, registers: &X86_64Registers) -> X86_64Registers {
    let mut stack: Vec<u64> = (1..=16).map(|word| word * 0x100).collect();
    stack[at] = CODE + 0x350;
    let (pcs, second, _, problem) = walk(&section(instructions), 0x10, &stack, registers);
    assert_eq!(problem, None);
    assert_eq!(pcs.get(1), Some(&(CODE + 0x350)), "{instructions:x?}");
    second
}

const RBX: usize = 3;
const RBP: usize = 6;
const RSP: usize = 7;
const R12: usize = 12;

#[test]
fn every_kind_of_cfa_rule_is_executed() {
    let mut registers = X86_64Registers::default();
    registers.gpr[RBP] = STACK + 0x20;
    registers.gpr[10] = STACK + 0x30;
    // The initial row
    assert_eq!(caller(&[], 0, &registers).gpr[RSP], STACK + 8);
    // DW_CFA_def_cfa_offset 24
    assert_eq!(caller(&[0x0e, 24], 2, &registers).gpr[RSP], STACK + 24);
    // DW_CFA_def_cfa_offset 0, ra at cfa + 0: as after a function has popped its return address
    assert_eq!(caller(&[0x0e, 0, 0x11, 16, 0], 0, &registers).gpr[RSP], STACK);
    // DW_CFA_def_cfa_register rbp (offset 8 stays)
    assert_eq!(caller(&[0x0d, 6], 4, &registers).gpr[RSP], STACK + 0x28);
    // DW_CFA_def_cfa r10, 0
    assert_eq!(caller(&[0x0c, 10, 0], 5, &registers).gpr[RSP], STACK + 0x30);
    // DW_CFA_def_cfa_sf rsp, −3 × −8; DW_CFA_def_cfa_offset_sf −4 × −8
    assert_eq!(caller(&[0x12, 7, 0x7d], 2, &registers).gpr[RSP], STACK + 24);
    assert_eq!(caller(&[0x13, 0x7c], 3, &registers).gpr[RSP], STACK + 32);
    // DW_CFA_def_cfa_expression: DW_OP_breg6 −8; DW_OP_lit16; DW_OP_plus
    assert_eq!(caller(&[0x0f, 4, 0x76, 0x78, 0x40, 0x22], 4, &registers).gpr[RSP], STACK + 0x28);
    // DW_CFA_advance_loc beyond the address: the following instructions don't apply
    assert_eq!(caller(&[0x51, 0x0e, 24], 0, &registers).gpr[RSP], STACK + 8);
    // DW_CFA_advance_loc1, 2, 4 up to the address
    assert_eq!(caller(&[0x02, 4, 0x03, 4, 0, 0x04, 8, 0, 0, 0, 0x0e, 16], 1, &registers).gpr[RSP], STACK + 16);
    // DW_CFA_remember_state, DW_CFA_restore_state: the CFA too
    assert_eq!(caller(&[0x0a, 0x0e, 64, 0x0b], 0, &registers).gpr[RSP], STACK + 8);
    // The same with an expression in between, and a DW_CFA_restore_extended
    assert_eq!(caller(&[0x83, 2, 0x0a, 0x0f, 1, 0x30, 0x06, 3, 0x0b], 0, &registers).gpr[RSP], STACK + 8);
    // DW_CFA_GNU_args_size, DW_CFA_nop, a vector register
    assert_eq!(caller(&[0x2e, 16, 0x00, 0x05, 40, 2], 0, &registers).gpr[RSP], STACK + 8);
}

#[test]
fn a_cfa_in_memory_is_read() {
    let mut registers = X86_64Registers::default();
    registers.gpr[RBP] = STACK + 0x20;
    let mut stack: Vec<u64> = (1..=16).map(|word| word * 0x100).collect();
    stack[3] = STACK + 0x40;
    stack[7] = CODE + 0x350;
    // DW_OP_breg6 −8; DW_OP_deref
    let (pcs, second, _, _) = walk(&section(&[0x0f, 3, 0x76, 0x78, 0x06]), 0x10, &stack, &registers);
    assert_eq!(pcs[1], CODE + 0x350);
    assert_eq!(second.gpr[RSP], STACK + 0x40);
}

#[test]
fn every_kind_of_register_rule_is_executed() {
    let mut registers = X86_64Registers::default();
    registers.gpr[RBX] = 0xb;
    registers.gpr[R12] = 0xc;
    registers.gpr[0] = 0xa;
    // cfa = rsp + 32, return address in word 3
    let rbx = |rule: &[u8]| {
        let mut instructions = vec![0x0e, 32];
        instructions.extend(rule);
        caller(&instructions, 3, &registers).gpr[RBX]
    };
    assert_eq!(rbx(&[]), 0xb);
    // DW_CFA_offset 2 × −8; DW_CFA_offset_extended 3 × −8; _sf −(−1) … 2 × −8
    assert_eq!(rbx(&[0x83, 2]), 0x300);
    assert_eq!(rbx(&[0x05, 3, 3]), 0x200);
    assert_eq!(rbx(&[0x11, 3, 2]), 0x300);
    // DW_CFA_GNU_negative_offset_extended −(1 × −8): above the CFA
    assert_eq!(rbx(&[0x2f, 3, 1]), 0x600);
    // DW_CFA_restore, then DW_CFA_same_value
    assert_eq!(rbx(&[0x83, 2, 0xc3]), 0xb);
    assert_eq!(rbx(&[0x83, 2, 0x08, 3]), 0xb);
    // DW_CFA_undefined
    assert_eq!(rbx(&[0x07, 3]), 0xdead);
    // DW_CFA_register r12; rax
    assert_eq!(rbx(&[0x09, 3, 12]), 0xc);
    assert_eq!(rbx(&[0x09, 3, 0]), 0xa);
    // DW_CFA_val_offset 1 × −8, _sf −1 × −8
    assert_eq!(rbx(&[0x14, 3, 1]), STACK + 24);
    assert_eq!(rbx(&[0x15, 3, 0x7f]), STACK + 40);
    // DW_CFA_expression: the CFA is on the stack; minus 32
    assert_eq!(rbx(&[0x10, 3, 3, 0x08, 32, 0x1c]), 0x100);
    // DW_CFA_val_expression: the same, the address itself
    assert_eq!(rbx(&[0x16, 3, 3, 0x08, 32, 0x1c]), STACK);
    // Exceeding the maximum number of remembered states is an error, reaching it is not.
    assert_eq!(rbx(&[0x0a, 0x0a, 0x0a, 0x0a, 0x83, 2]), 0x300);
}

#[test]
fn every_expression_operation_is_evaluated() {
    // DW_CFA_val_expression of rbx, evaluated with the CFA on the stack
    let value = |expression: &[u8]| {
        let mut instructions = vec![0x16, 3, expression.len() as u8];
        instructions.extend(expression);
        caller(&instructions, 0, &X86_64Registers::default()).gpr[RBX]
    };
    // lit5, lit31; const1u, const1s, const2u, const2s, const4s, constu, consts
    assert_eq!(value(&[0x35]), 5);
    assert_eq!(value(&[0x4f]), 31);
    assert_eq!(value(&[0x08, 200]), 200);
    assert_eq!(value(&[0x09, 200]), 200u8 as i8 as u64);
    assert_eq!(value(&[0x0a, 1, 2]), 0x201);
    assert_eq!(value(&[0x0b, 1, 0x82]), 0x8201u16 as i16 as u64);
    assert_eq!(value(&[0x0d, 1, 0, 0, 0x80]), 0x8000_0001u32 as i32 as u64);
    assert_eq!(value(&[0x10, 0x81, 1]), 0x81);
    assert_eq!(value(&[0x11, 0x7f]), u64::MAX);
    // 7 3: div, mod, minus, mul, plus, shl, shr, and, or, xor
    for (operation, result) in [
        (0x1b, 2),
        (0x1d, 1),
        (0x1c, 4),
        (0x1e, 21),
        (0x22, 10),
        (0x24, 56),
        (0x25, 0),
        (0x1a, 3),
        (0x21, 7),
        (0x27, 4),
    ] {
        assert_eq!(value(&[0x37, 0x33, operation]), result, "{operation:x}");
    }
    // shra of −8 by 1; abs, neg, not; plus_uconst
    assert_eq!(value(&[0x09, 0xf8, 0x31, 0x26]), -4i64 as u64);
    assert_eq!(value(&[0x09, 0xf8, 0x19]), 8);
    assert_eq!(value(&[0x33, 0x1f]), -3i64 as u64);
    assert_eq!(value(&[0x33, 0x20]), !3);
    assert_eq!(value(&[0x33, 0x23, 4]), 7);
    // dup, drop, over, pick, swap, rot
    assert_eq!(value(&[0x33, 0x12, 0x22]), 6);
    assert_eq!(value(&[0x33, 0x34, 0x13]), 3);
    assert_eq!(value(&[0x33, 0x34, 0x14]), 3);
    assert_eq!(value(&[0x33, 0x34, 0x35, 0x15, 2]), 3);
    assert_eq!(value(&[0x33, 0x34, 0x16, 0x1c]), 1);
    assert_eq!(value(&[0x33, 0x34, 0x35, 0x17, 0x13, 0x1c]), 5u64.wrapping_sub(3));
    // lt, then bra over a skip: 3 < 4 ? 1 : 2
    assert_eq!(value(&[0x33, 0x34, 0x2d, 0x28, 4, 0, 0x32, 0x2f, 1, 0, 0x31]), 1);
    assert_eq!(value(&[0x34, 0x33, 0x2d, 0x28, 4, 0, 0x32, 0x2f, 1, 0, 0x31]), 2);
    // deref_size 2 of the second word
    assert_eq!(value(&[0x94, 2]), 0x200);
}

#[test]
fn plt_expressions_depend_on_the_position() {
    // The .plt of GNU ld: breg7 8; breg16 0; lit15; and; lit11; ge; lit3; shl; plus. rip is column
    // 16.
    let expression = [0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
    let stack = [CODE + 0x350, CODE + 0x360, 0];
    for (offset, expected) in [(0x10, CODE + 0x350), (0x1b, CODE + 0x360)] {
        let (pcs, ..) = walk(&section(&expression), offset, &stack, &X86_64Registers::default());
        assert_eq!(pcs[1], expected);
    }
}

/// Returns the error in a section.
fn find_error(eh_frame: &[u8]) -> Option<Malformed> {
    match walk(eh_frame, 0x10, &[CODE + 0x350, 0, 0, 0], &X86_64Registers::default()).3 {
        Some(Problem::Malformed { what, address }) => {
            // The error is in the section, or concerns a register.
            assert!(address < 64 || (SECTION..=SECTION + eh_frame.len() as u64).contains(&address), "{address:x}");
            Some(what)
        }
        Some(Problem::Unreadable { .. }) => panic!("read beyond the section"),
        None => None,
    }
}

#[test]
fn malformed_fdes_are_errors() {
    let with = |instructions: &[u8]| find_error(&section(instructions));
    assert_eq!(with(&[]), None);
    // An opcode and an operation that do not exist
    assert_eq!(with(&[0x3f]), Some(Malformed::Opcode));
    assert_eq!(with(&[0x0f, 1, 0xff]), Some(Malformed::Opcode));
    // restore_state without state; too many states
    assert_eq!(with(&[0x0b]), Some(Malformed::StateStack));
    assert_eq!(with(&[0x0a; 20]), Some(Malformed::StateStack));
    // Stack underflow, overflow; division by 0; a jump out of the expression, and an endless loop
    assert_eq!(with(&[0x0f, 1, 0x22]), Some(Malformed::Expression));
    assert_eq!(with(&[[0x0f, 40].as_slice(), &[0x31; 40]].concat()), Some(Malformed::Expression));
    assert_eq!(with(&[0x0f, 3, 0x31, 0x30, 0x1b]), Some(Malformed::Expression));
    assert_eq!(with(&[0x0f, 3, 0x2f, 0xff, 0x7f]), Some(Malformed::Expression));
    assert_eq!(with(&[0x0f, 3, 0x2f, 0xfd, 0xff]), Some(Malformed::Expression));
    // A block, and a number, that extend past the end of the entry
    assert_eq!(with(&[0x0f, 0x7f]), Some(Malformed::Truncated));
    assert_eq!(with(&[0x0e, 0x80, 0x80]), Some(Malformed::Truncated));
    // The CFA relative to a register that does not exist; a register with an unknown value
    assert_eq!(with(&[0x0d, 60]), Some(Malformed::OutOfRange));
    // An offset beyond the address space
    assert_eq!(with(&[0x83, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]), Some(Malformed::OutOfRange));
}

#[test]
fn malformed_cies_are_errors() {
    let with = |common: Bytes| find_error(&common.function(CODE, &[]).end());
    // Version, augmentation, pointer encoding
    let version = Bytes::default().entry(|entry| entry.u32(0).u8(9).raw(b"zR\0").u8(1).u8(0x78).u8(16).u8(1).u8(4));
    assert_eq!(with(version), Some(Malformed::Version));
    let unknown = Bytes::default().entry(|entry| entry.u32(0).u8(1).raw(b"Q\0").u8(1).u8(0x78).u8(16));
    assert_eq!(with(unknown), Some(Malformed::Augmentation));
    assert_eq!(with(Bytes::default().common(b"zR", &[0x47])), Some(Malformed::PointerEncoding));
    // Augmentation data longer than the entry; an unterminated string
    let long = Bytes::default().entry(|entry| entry.u32(0).u8(1).raw(b"zR\0").u8(1).u8(0x78).u8(16).u8(100).u8(4));
    assert_eq!(with(long), Some(Malformed::Truncated));
    let endless = Bytes::default().entry(|entry| entry.u32(0).u8(1).raw(&[b'a'; 60]));
    assert_eq!(with(endless), Some(Malformed::Augmentation));
    // An unknown letter after `z` is skipped, with `P` and `L` before it.
    let passed = Bytes::default().common(b"zPLR", &[0x04, 1, 2, 3, 4, 5, 6, 7, 8, 0x1b, 0x04]);
    assert_eq!(with(passed), None);
}

#[test]
fn invalid_references_are_errors() {
    // An FDE that refers to itself, or to another FDE, as its CIE
    let mut circle = section(&[]);
    let entry = 4 + u32::from_le_bytes(circle[..4].try_into().unwrap()) as usize;
    circle[entry + 4..entry + 8].copy_from_slice(&4u32.to_le_bytes());
    assert_eq!(find_error(&circle), Some(Malformed::Reference));
    // A CIE before the section
    circle[entry + 4..entry + 8].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
    assert_eq!(find_error(&circle), Some(Malformed::OutOfRange));
    // A length that extends past the end of the section, and reserved lengths
    for (length, what) in [
        (0x7fff_ffff, Malformed::Truncated),
        (0xffff_fff5u32, Malformed::OutOfRange),
        (0xffff_ffff, Malformed::Truncated),
    ] {
        let mut bad = section(&[]);
        bad[..4].copy_from_slice(&length.to_le_bytes());
        assert_eq!(find_error(&bad), Some(what));
    }
}

#[test]
fn truncation_and_flipped_bytes_do_no_harm() {
    let whole = section(&[0x0e, 32, 0x83, 2, 0x0a, 0x10, 3, 3, 0x08, 32, 0x1c, 0x0b, 0x0f, 3, 0x77, 8, 0x06]);
    for length in 0..whole.len() {
        walk_without_panic(&whole[..length]);
    }
    for index in 0..whole.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff, whole[index] ^ 0x10] {
            let mut flipped = whole.clone();
            flipped[index] = value;
            walk_without_panic(&flipped);
        }
    }
}

fn walk_without_panic(eh_frame: &[u8]) {
    let (pcs, _, end, _) = walk(eh_frame, 0x10, &[CODE + 0x350, 0, 0, 0], &X86_64Registers::default());
    assert!(!pcs.is_empty() && pcs.len() <= 10, "{end:?}");
}

#[test]
fn outermost_and_signal_frames_are_recognized() {
    // DW_CFA_undefined of the return address
    let (pcs, _, end, problem) = walk(&section(&[0x07, 16]), 0x10, &[CODE; 8], &X86_64Registers::default());
    assert_eq!((pcs.len(), end, problem), (1, End::EndOfStack, None));
    // `S`: the caller was interrupted, also at a function's first instruction
    let eh_frame = Bytes::default().common(b"zRS", &[0x04]).function(CODE, &[]).end();
    let stack: Vec<u8> = [CODE + 0x100, 0].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
    let ranges =
        [SnapshotRange { address: SECTION, bytes: &eh_frame }, SnapshotRange { address: STACK, bytes: &stack }];
    let images = [Image {
        text: (CODE..CODE + 0x400).into(),
        eh_frame: (SECTION..SECTION + eh_frame.len() as u64).into(),
        ..Image::default()
    }];
    let mut registers = X86_64Registers { pc: CODE + 0x10, ..X86_64Registers::default() };
    registers.gpr[RSP] = STACK;
    let mut cache = Box::new(RuleCache::new());
    let memory = Snapshot { ranges: &ranges };
    let mut walker = Walker::<X86_64, _, _>::new(&registers, memory, &images[..], &mut cache, Options::default());
    assert_eq!(walker.next_frame().unwrap().kind, AddressKind::SignalTrampoline);
    let interrupted = walker.frame();
    assert_eq!((interrupted.lookup_address(), interrupted.found), (CODE + 0x100, Found::Cfi));
}

/// A snapshot with the `.debug_frame` from the program's file, which is never loaded: the section
/// is at an address chosen by the reader, and contains the addresses at which the program was
/// linked.
#[test]
fn a_debug_frame_section_of_a_snapshot_is_used() {
    const SLIDE: u64 = 0x3f_0000;
    let linked = CODE - SLIDE;
    let debug_frame = Bytes::default()
        // version 4, no augmentation, addresses of 8 bytes, no segments; cfa = rsp + 8, ra at cfa −
        // 8
        .entry(|entry| entry.u32(u32::MAX).raw(&[4, 0, 8, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1]))
        // cfa = rsp + 24
        .entry(|entry| entry.u32(0).u64(linked).u64(0x100).raw(&[0x0e, 24]))
        // cfa = *(rsp + 8), an expression that is evaluated each time
        .entry(|entry| entry.u32(0).u64(linked + 0x100).u64(0x100).raw(&[0x0f, 3, 0x77, 8, 0x06]))
        .0;
    // An .eh_frame that only describes another function.
    let eh_frame = Bytes::default().common(b"zR", &[0x04]).function(CODE + 0x300, &[]).end();
    let eh_frame_at = SECTION + 0x1000;
    let stack: Vec<u8> =
        [0, 0, CODE + 0x120, 0, STACK + 0x38, 0, CODE + 0x320, CODE + 0x330, 0].map(u64::to_le_bytes).concat();
    let code = [0x90_u8; 0x400];
    let mut image = Image {
        text: (CODE..CODE + 0x400).into(),
        bias: SLIDE,
        debug_frame: (SECTION..SECTION + debug_frame.len() as u64).into(),
        eh_frame: (eh_frame_at..eh_frame_at + eh_frame.len() as u64).into(),
        ..Image::default()
    };
    let mut table = [0; 64];
    for has_table in [false, true] {
        if has_table {
            let ranges = [SnapshotRange { address: SECTION, bytes: &debug_frame }];
            let section = FrameSection::debug_frame(&image);
            let mut memory = Snapshot { ranges: &ranges };
            let length = build_search_table(&mut memory, &section, TABLE, &mut table).unwrap();
            image.debug_frame_hdr = (TABLE..TABLE + length as u64).into();
        }
        let range = |address, bytes| SnapshotRange { address, bytes };
        let ranges = [
            range(SECTION, &debug_frame),
            range(eh_frame_at, &eh_frame),
            range(TABLE, &table),
            range(STACK, &stack),
            range(CODE, &code),
        ];
        let mut registers = X86_64Registers { pc: CODE + 0x10, ..Default::default() };
        registers.gpr[7] = STACK;
        let mut cache = Box::new(RuleCache::new());
        let options = Options { scan_words: 0, ..Options::default() };
        let memory = Snapshot { ranges: &ranges };
        let images = [image];
        let mut walker = Walker::<X86_64, _, _>::new(&registers, memory, &images[..], &mut cache, options);
        let frames: Vec<_> = std::iter::from_fn(|| walker.next_frame()).collect();
        let pcs: Vec<u64> = frames.iter().map(|frame| frame.pc).collect();
        assert_eq!(pcs, [CODE + 0x10, CODE + 0x120, CODE + 0x320, CODE + 0x330], "{:?}", walker.end());
        assert!(frames[1..].iter().all(|frame| frame.found == Found::Cfi), "{frames:x?}");
        assert_eq!((walker.end(), walker.problem()), (Some(End::EndOfStack), None));
    }
}

#[test]
fn a_built_search_table_finds_every_function() {
    let eh_frame = Bytes::default()
        .common(b"zR", &[0x04])
        .function(CODE + 0x200, &[0x0e, 24])
        .function(CODE, &[])
        .function(CODE + 0x100, &[0x0e, 16])
        .end();
    let ranges = [SnapshotRange { address: SECTION, bytes: &eh_frame }];
    let mut image = Image { eh_frame: (SECTION..SECTION + eh_frame.len() as u64).into(), ..Image::default() };
    let section = FrameSection::eh_frame(&image);
    let mut memory = Snapshot { ranges: &ranges };
    assert_eq!(build_search_table(&mut memory, &section, TABLE, &mut [0; 40]), Err(BuildError::TooSmall(68)));
    let mut table = [0u8; 100];
    let length = build_search_table(&mut memory, &section, TABLE, &mut table).unwrap();
    assert_eq!(length, 68);
    image.text = (CODE..CODE + 0x400).into();
    image.eh_frame_hdr = (TABLE..TABLE + length as u64).into();
    let stack: Vec<u8> = (0..8).flat_map(|word: u64| (CODE + 0x350 + word).to_le_bytes()).collect();
    let ranges = [
        SnapshotRange { address: SECTION, bytes: &eh_frame },
        SnapshotRange { address: TABLE, bytes: &table },
        SnapshotRange { address: STACK, bytes: &stack },
    ];
    let images = [image];
    for offset in (0..0x400).step_by(0x10) {
        let mut registers = X86_64Registers { pc: CODE + offset, ..X86_64Registers::default() };
        registers.gpr[RSP] = STACK;
        let mut cache = Box::new(RuleCache::new());
        let options = Options { scan_words: 0, ..Options::default() };
        let memory = Snapshot { ranges: &ranges };
        let mut walker = Walker::<X86_64, _, _>::new(&registers, memory, &images[..], &mut cache, options);
        let stepped = walker.step();
        match offset / 0x100 {
            3 => assert_eq!(stepped, Err(End::NoUnwindData { address: CODE + offset })),
            function => assert_eq!(walker.frame().pc, CODE + 0x350 + function, "{stepped:?}"),
        }
    }
    // A table that is truncated anywhere, or has any byte changed, results in an error or in
    // another function.
    for index in 0..length {
        let mut bad = table;
        bad[index] ^= 0xff;
        let ranges = [
            SnapshotRange { address: SECTION, bytes: &eh_frame },
            SnapshotRange { address: TABLE, bytes: if index % 2 == 0 { &bad } else { &table[..index] } },
        ];
        let mut cache = Box::new(RuleCache::new());
        let registers = X86_64Registers { pc: CODE + 0x150, ..X86_64Registers::default() };
        let memory = Snapshot { ranges: &ranges };
        let mut walker = Walker::<X86_64, _, _>::new(&registers, memory, &images[..], &mut cache, Options::default());
        let _ = walker.step();
    }
    let _ = memory_is_object_safe(&mut Snapshot { ranges: &[] });
}

fn memory_is_object_safe(memory: &mut dyn Memory) -> Option<u64> {
    memory.read_u64(0).ok()
}
