//! Features of Apple's systems: compact unwind, signal frames, async frames.

use coroner_process::memory::{Snapshot, SnapshotRange};
use coroner_process::registers::{Aarch64Registers, X86_64Registers};
use coroner_unwind::{
    Aarch64, AddressKind, Architecture, End, Found, Frame, Image, ImageFormat, Images, Options, RuleCache, SwiftAsync,
    Walker, X86_64,
};

use coroner_unwind_test_support::unwind_info::{u32s, unwind_info};

const BASE: u64 = 0x1_0000_0000;
const INFO: u64 = BASE + 0x8000;
const STACK: u64 = 0x7000;

fn u64s(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
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

/// Walks these stack words on arm64, through functions with frame records.
fn walk(stack: &[u64], extra: &[SnapshotRange<'_>], fp: u64, options: Options) -> (Vec<Frame>, End) {
    let info = unwind_info(&[0x0400_0000; 8]);
    let stack = u64s(stack);
    // Every instruction is a call, where unwind data hold.
    let code = u32s(&vec![0x9400_0000; 0x2000]);
    let mut ranges = vec![
        SnapshotRange { address: INFO, bytes: &info },
        SnapshotRange { address: BASE, bytes: &code },
        SnapshotRange { address: STACK, bytes: &stack },
    ];
    ranges.extend(extra);
    let images = [image(&info)];
    let mut registers = Aarch64Registers { pc: BASE + 0x1010, sp: STACK, ..Default::default() };
    registers.x[29] = fp;
    let mut cache = Box::new(RuleCache::new());
    let memory = Snapshot { ranges: &ranges };
    let mut walker = Walker::<Aarch64, _, _>::new(&registers, memory, &images[..], &mut cache, options);
    let frames = std::iter::from_fn(|| walker.next_frame()).take(1_000).collect();
    (frames, walker.end().unwrap_or(End::FrameBudget))
}

const NO_SCAN: Options = Options {
    frames: 1 << 20,
    reads: 1 << 20,
    authentication_mask: None,
    scan_words: 0,
    swift_async: SwiftAsync::Ignore,
};

#[test]
fn return_addresses_lose_their_authentication_codes() {
    let (frames, end) =
        walk(&[STACK + 16, 0x6a1b_0000_0000_0000 | (BASE + 0x1020), 0, 0x0053_0000_0000_0000], &[], STACK, NO_SCAN);
    assert_eq!(frames.iter().map(|frame| frame.pc).collect::<Vec<_>>(), [BASE + 0x1010, BASE + 0x1020]);
    assert_eq!(frames[1].found, Found::CompactUnwind);
    assert_eq!(end, End::EndOfStack);
}

#[test]
fn swift_async_contexts_are_followed() {
    // [context, marked fp, lr] of the second frame; contexts: parent, resume address
    let task = u64s(&[0, 0, 0, 0, 7 << 32]);
    let contexts = u64s(&[0x9010, BASE + 0x1300, 0, BASE + 0x1400]);
    let stack =
        [STACK + 0x20, BASE + 0x1020, 0, 0x9000, (1 << 60) | (STACK + 0x40), BASE + 0x1040, 0, 0, 0, BASE + 0x1050];
    let extra = [SnapshotRange { address: 0x9000, bytes: &contexts }, SnapshotRange { address: 0xa000, bytes: &task }];
    for swift_async in [SwiftAsync::Follow, SwiftAsync::Task(0xa000)] {
        let (frames, end) = walk(&stack, &extra, STACK, Options { swift_async, ..NO_SCAN });
        let pcs: Vec<u64> = frames.iter().map(|frame| frame.pc).collect();
        // The same as Libc's results: resume addresses plus one
        assert_eq!(pcs, [BASE + 0x1010, BASE + 0x1020, BASE + 0x1301, BASE + 0x1401]);
        assert_eq!(frames[2].found, Found::SwiftAsync);
        assert_eq!((frames[2].lookup_address(), frames[2].sp, frames[2].cfa), (BASE + 0x1300, 0x9000, None));
        assert_eq!(end, End::EndOfStack);
    }
    // Without a task, or with `Ignore`, the mark is removed and has no other effect.
    for swift_async in [SwiftAsync::Ignore, SwiftAsync::Task(0), SwiftAsync::Task(0xa008)] {
        let (frames, end) = walk(&stack, &extra, STACK, Options { swift_async, ..NO_SCAN });
        let pcs: Vec<u64> = frames.iter().map(|frame| frame.pc).collect();
        assert_eq!(pcs, [BASE + 0x1010, BASE + 0x1020, BASE + 0x1040, BASE + 0x1050], "{end:?}");
    }
    // A cycle of contexts ends the walk.
    let circle = u64s(&[0x9010, BASE + 0x1300, 0x9000, BASE + 0x1400]);
    let extra = [SnapshotRange { address: 0x9000, bytes: &circle }];
    let (frames, end) = walk(&stack, &extra, STACK, Options { swift_async: SwiftAsync::Follow, ..NO_SCAN });
    assert!(frames.len() < 16 && matches!(end, End::NoProgress { .. }), "{end:?}");
}

#[test]
fn arm64_signal_frames_are_recognized() {
    // The second frame is that of _sigtramp: above it the kernel's frame, 104 bytes of siginfo, 56
    // of ucontext, then the machine context: 16 bytes of exception state, x0 … x28, fp, lr, sp, pc.
    let mut words = vec![STACK + 0x10, BASE + 0x1020, 0, 0];
    let cfa = STACK + 0x20;
    words.extend([0; 13]);
    words.extend([0, 0, 0, 0, 0, 816, cfa + 160]);
    words.extend([0, 0]);
    words.extend((0..29).map(|number| 0x100 + number));
    // the interrupted function's stack is a different one, below
    words.extend([0x5000, BASE + 0x1999, 0x4ff0, BASE + 0x1200]);
    let other = u64s(&[0, 0, 0, BASE + 0x1060]);
    let extra = [SnapshotRange { address: 0x4ff0, bytes: &other }];
    let (frames, end) = walk(&words, &extra, STACK, NO_SCAN);
    let pcs: Vec<u64> = frames.iter().map(|frame| frame.pc).collect();
    assert_eq!(pcs, [BASE + 0x1010, BASE + 0x1020, BASE + 0x1200, BASE + 0x1060], "{end:?}");
    assert_eq!(frames[1].kind, AddressKind::SignalTrampoline);
    assert_eq!((frames[2].found, frames[2].kind), (Found::SignalContext, AddressKind::InstructionPointer));
    assert_eq!(frames[2].sp, 0x4ff0);
}

/// x86_64: the unwind data in libplatform's `_sigtramp.s`. `rbx` contains the `ucontext64`, whose
/// pointer to the machine context is at 48; the machine context has 16 bytes of exception state,
/// then the thread's state from `rax` on.
#[test]
fn x86_64_signal_frames_are_unwound() {
    /// A register's DWARF number, and its offset in `_STRUCT_X86_THREAD_STATE64`, in words.
    const PLACES: [(u8, u8); 16] = [
        (0, 0),
        (3, 1),
        (2, 2),
        (1, 3),
        (5, 4),
        (4, 5),
        (6, 6),
        (8, 8),
        (9, 9),
        (10, 10),
        (11, 11),
        (12, 12),
        (13, 13),
        (14, 14),
        (15, 15),
        (16, 16),
    ];
    const RSP: u8 = 7;
    const EH_FRAME: u64 = BASE + 0x9000;
    // The word at `*(rbx + 48) + 16 + 8 * place`: DW_OP_breg3 48, deref, plus_uconst.
    let place = |word: u8| {
        let offset = 16 + 8 * u32::from(word);
        [0x73, 48, 0x06, 0x23, offset as u8 | 0x80, (offset >> 7) as u8]
    };
    let mut instructions = vec![0x0f, 7];
    instructions.extend(place(RSP));
    instructions.push(0x06);
    for (number, word) in PLACES {
        instructions.extend([0x10, number, 6]);
        instructions.extend(place(word));
    }
    let mut eh_frame = Vec::new();
    let mut entry = |body: &[u8]| {
        let at = eh_frame.len();
        eh_frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
        eh_frame.extend_from_slice(body);
        at
    };
    // "zRS", factors 1 and -8, return address column 16, pointers relative, 8 bytes
    let common = [0, 0, 0, 0, 1, b'z', b'R', b'S', 0, 1, 0x78, 16, 1, 0x10, 0, 0];
    entry(&common);
    let function = BASE + 0x1100;
    let mut description = 24_u32.to_le_bytes().to_vec();
    description.extend_from_slice(&function.wrapping_sub(EH_FRAME + 28).to_le_bytes());
    description.extend_from_slice(&0x100_u64.to_le_bytes());
    description.push(0);
    description.extend_from_slice(&instructions);
    let at = entry(&description);
    assert_eq!(at, 20);
    eh_frame.extend([0; 4]);

    // The handler saves rbx next to its frame record; then _sigtramp; then the interrupted code.
    let info = unwind_info(&[0x0101_0001, 0x0400_0000 | at as u32, 0x0100_0000, 0x0100_0000]);
    let (context, machine, other) = (0xa000_u64, 0xb000_u64, 0x5000_u64);
    let stack = u64s(&[0, context, STACK + 0x40, function + 0x20]);
    let mut ucontext = [0_u64; 7];
    ucontext[6] = machine;
    let mut state: Vec<u64> = (0..20).map(|word| 0x100 + word).collect();
    state[6] = other + 0x20;
    state[7] = other;
    // At the third function's first instruction, when only its return address is on the stack.
    state[16] = BASE + 0x1250;
    let mut mcontext = vec![0, 0];
    mcontext.extend(state);
    let (ucontext, mcontext) = (u64s(&ucontext), u64s(&mcontext));
    let interrupted = u64s(&[0, 0, 0, 0, 0, BASE + 0x1360, 0, 0]);
    let range = |address, bytes| SnapshotRange { address, bytes };
    let ranges = [
        range(INFO, &info),
        range(EH_FRAME, &eh_frame),
        range(STACK, &stack),
        range(context, &ucontext),
        range(machine, &mcontext),
        range(other, &interrupted),
    ];
    let images = [Image { eh_frame: (EH_FRAME..EH_FRAME + eh_frame.len() as u64).into(), ..image(&info) }];
    let mut registers = X86_64Registers { pc: BASE + 0x1010, ..Default::default() };
    registers.gpr[3] = 0xbad;
    registers.gpr[6] = STACK + 0x10;
    registers.gpr[7] = STACK;
    let mut cache = Box::new(RuleCache::new());
    let memory = Snapshot { ranges: &ranges };
    let mut walker = Walker::<X86_64, _, _>::new(&registers, memory, &images[..], &mut cache, NO_SCAN);
    assert_eq!(walker.step(), Ok(Some(STACK + 0x20)));
    assert_eq!((walker.frame().pc, walker.frame().found), (function + 0x20, Found::CompactUnwind));
    assert_eq!(walker.step(), Ok(Some(other)));
    let frame = walker.frame();
    assert_eq!((frame.pc, frame.sp, frame.kind), (BASE + 0x1250, other, AddressKind::InstructionPointer));
    for (number, word) in PLACES.iter().filter(|(number, _)| ![6, 16].contains(number)) {
        assert_eq!(walker.registers().certain(*number), Some(0x100 + u64::from(*word)), "register {number}");
    }
    // The walk continues from there, on the interrupted stack.
    assert_eq!(walker.step(), Ok(Some(other + 0x30)));
    assert_eq!(walker.frame().pc, BASE + 0x1360);
}

#[test]
fn stubs_are_treated_as_jumps() {
    let info = unwind_info(&[0x0100_0000; 2]);
    let stack = u64s(&[BASE + 0x1050, 0, 0, 0]);
    let ranges = [SnapshotRange { address: INFO, bytes: &info }, SnapshotRange { address: STACK, bytes: &stack }];
    let images = [Image { stubs: (BASE + 0x3000..BASE + 0x3100).into(), ..image(&info) }];
    let mut registers = X86_64Registers { pc: BASE + 0x3006, ..Default::default() };
    registers.gpr[7] = STACK;
    let mut cache = Box::new(RuleCache::new());
    let memory = Snapshot { ranges: &ranges };
    let mut walker = Walker::<X86_64, _, _>::new(&registers, memory, &images[..], &mut cache, NO_SCAN);
    assert_eq!(walker.step(), Ok(Some(STACK + 8)));
    assert_eq!(walker.frame().pc, BASE + 0x1050);
}

/// Steps from an instruction of `__stub_helper`, which follows the code with unwind data.
fn step_from_stub_helper<A: Architecture>(code: &[u8], registers: &A::Registers, stack: &[u64]) -> (u64, u64, Found) {
    const HELPER: u64 = BASE + 0x3000;
    let info = unwind_info(&[0x0400_0000; 2]);
    let stack = u64s(stack);
    let ranges = [
        SnapshotRange { address: INFO, bytes: &info },
        SnapshotRange { address: STACK, bytes: &stack },
        SnapshotRange { address: HELPER, bytes: code },
    ];
    let images = [Image { stub_helper: (HELPER..HELPER + code.len() as u64).into(), ..image(&info) }];
    let mut cache = Box::new(RuleCache::new());
    let mut found = None;
    // The rule is cached, so the second walk takes it from the cache.
    for _ in 0..2 {
        let memory = Snapshot { ranges: &ranges };
        let mut walker = Walker::<A, _, _>::new(registers, memory, &images[..], &mut cache, NO_SCAN);
        walker.step().unwrap();
        let frame = walker.frame();
        let seen = (frame.pc, frame.sp, frame.found);
        assert_eq!(*found.get_or_insert(seen), seen);
    }
    found.unwrap()
}

#[test]
fn x86_64_stub_helpers_are_unwound() {
    // As written by ld64 and LLVM's linker: lea r11, [rip + …]; push r11; jmp [rip + …]; nop; then
    // the entries, here one: push 0x1c; jmp to the start.
    let code = [
        0x4c, 0x8d, 0x1d, 1, 2, 3, 0, 0x41, 0x53, 0xff, 0x25, 1, 2, 3, 0, 0x90, 0x68, 0x1c, 0, 0, 0, 0xe9, 0xe6, 0xff,
        0xff, 0xff,
    ];
    let caller = BASE + 0x1050;
    let words = [0x9000, 0x1c, caller, 0xbad];
    for (offset, pushed) in [(0x10, 0), (0x15, 1), (0, 1), (7, 1), (9, 2)] {
        let mut registers = X86_64Registers { pc: BASE + 0x3000 + offset, ..Default::default() };
        registers.gpr[7] = STACK + 16 - 8 * pushed;
        let seen = step_from_stub_helper::<X86_64>(&code, &registers, &words);
        assert_eq!(seen, (caller, STACK + 24, Found::CodeAnalysis), "at {offset:#x}");
    }
}

#[test]
fn arm64_stub_helpers_are_unwound() {
    // adrp x17; add x17, x17; stp x16, x17, [sp, #-16]!; adrp x16; ldr x16, [x16]; br x16; then an
    // entry: ldr w16, its number; b to the start; the number.
    let code = u32s(&[
        0xb000_0051,
        0x9100_e231,
        0xa9bf_47f0,
        0xb000_0030,
        0xf940_0210,
        0xd61f_0200,
        0x1800_0050,
        0x17ff_fff9,
        0x1c,
    ]);
    let caller = BASE + 0x1050;
    for (offset, pushed) in [(0x18, 0), (0x1c, 0), (0, 0), (4, 0), (8, 0), (0xc, 16), (0x10, 16), (0x14, 16)] {
        let mut registers =
            Aarch64Registers { pc: BASE + 0x3000 + offset, sp: STACK + 16 - pushed, ..Default::default() };
        registers.x[30] = caller;
        let seen = step_from_stub_helper::<Aarch64>(&code, &registers, &[0x1c, 0x9000, 0xbad, 0xbad]);
        assert_eq!(seen, (caller, STACK + 16, Found::CodeAnalysis), "at {offset:#x}");
    }
}

/// One image that contains all code.
struct AllCode([Image; 1]);

impl Images for AllCode {
    fn find(&self, address: u64) -> Option<Image> {
        self.0.find(address)
    }

    fn is_executable(&self, address: u64) -> Option<bool> {
        Some(self.find(address).is_some())
    }
}

/// Like PLCrashReporter's `test_big_frameless_stack_odd_dwarf`: a frameless function's stack size
/// in the unwind data lacks the return address.
#[test]
fn a_stack_size_without_the_return_address_is_corrected() {
    let function = BASE + 0x1000;
    let mut code = vec![0xcc; 0x200];
    // sub rsp, 0x48; nop; call the second function; add rsp, 0x48; ret
    code[..15].copy_from_slice(&[0x48, 0x83, 0xec, 0x48, 0x90, 0xe8, 0xf6, 0, 0, 0, 0x48, 0x83, 0xc4, 0x48, 0xc3]);
    // Its caller: call rel32
    code[0x110] = 0xe8;
    let info = unwind_info(&[0x0209_0000, 0x0100_0000]);
    for local in [0, 5, 0x1_2345_6789] {
        // The function's stack, its return address, and its caller's frame record.
        let stack = u64s(&[0, 0, 0, 0, 0, 0, 0, 0, local, BASE + 0x1115, 0, 0, BASE + 0x1160]);
        let ranges = [
            SnapshotRange { address: INFO, bytes: &info },
            SnapshotRange { address: function, bytes: &code },
            SnapshotRange { address: STACK, bytes: &stack },
        ];
        let images = AllCode([image(&info)]);
        for (offset, pushed) in [(0, 0), (4, 0x48), (5, 0x48), (0xa, 0x48), (0xe, 0)] {
            let mut registers = X86_64Registers { pc: function + offset, ..Default::default() };
            registers.gpr[6] = STACK + 0x58;
            registers.gpr[7] = STACK + 0x48 - pushed;
            let mut cache = Box::new(RuleCache::new());
            let memory = Snapshot { ranges: &ranges };
            let mut walker = Walker::<X86_64, _, _>::new(&registers, memory, &images, &mut cache, NO_SCAN);
            assert_eq!(walker.step(), Ok(Some(STACK + 0x50)), "at {offset:#x}, {local:#x}");
            assert_eq!(walker.frame().pc, BASE + 0x1115);
            assert_eq!(walker.step(), Ok(Some(STACK + 0x68)));
        }
    }
}
