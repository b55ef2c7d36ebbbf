//! Explanations of synthetic reports: arm64, Darwin, damaged and hostile ones.

use coroner_explain::{Certainty, Code, CodeChangeKind, CodeSource, Explanation, FaultKind, NoCode, explain};
use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{
    Address, Annotation, Bytes, Code as CodePiece, Crash, CrashFlag, Frame, Image, Mach, Mapping, Registers,
    RelativeAddress, Segment, Signal, Skipped, StackMemory, Thread,
};
use coroner_report::wire::{Access, AddressKind, FoundBy, Os};

const PC: u64 = 0x40_1000;

/// Code at an address.
struct At(u64, Vec<u8>);

impl CodeSource for At {
    fn code(&self, address: Address, length: usize) -> Option<Code> {
        let from = usize::try_from(address.0.checked_sub(self.0)?).ok()?;
        let rest = self.1.get(from..)?;
        let bytes = rest.get(..length.min(rest.len()))?.to_vec();
        (!bytes.is_empty()).then_some(Code { bytes, is_verified: true })
    }
}

fn words(words: &[u32]) -> At {
    At(PC, words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

fn signal(name: &'static str, code_name: &'static str, code: i32) -> Signal {
    Signal { name: Some(name), code, code_name: Some(code_name), ..Signal::default() }
}

/// Creates a crash of an arm64 thread at [`PC`] with these registers.
fn arm64(signal: Signal, address: Option<u64>, set: &[(usize, u64)]) -> Report {
    let mut general = vec![0x1000_0000; 34];
    general[32] = PC;
    for (register, value) in set {
        general[*register] = *value;
    }
    report(Registers { arch: Some(Arch::Aarch64), general, ..Registers::default() }, signal, address)
}

fn report(registers: Registers, signal: Signal, address: Option<u64>) -> Report {
    let pc = registers.pc().unwrap_or_default();
    let frame = |address: u64, found_by, address_kind, name: &str| Frame {
        address: Address(address),
        found_by,
        address_kind,
        function: Some(name.to_owned()),
        ..Frame::default()
    };
    let frames = vec![
        frame(pc.0, FoundBy::CONTEXT, AddressKind::INSTRUCTION, "save"),
        frame(PC + 8, FoundBy::CFI, AddressKind::RETURN, "main"),
    ];
    let mut report = Report {
        crash: Some(Crash { tid: 7, signal: Some(signal), address: address.map(Address), ..Crash::default() }),
        threads: vec![Thread { tid: 7, crashed: true, registers: Some(registers), frames, ..Thread::default() }],
        ..Report::default()
    };
    report.header.os = Os::LINUX;
    report
}

fn maperr() -> Signal {
    signal("SIGSEGV", "SEGV_MAPERR", 1)
}

fn operand(explanation: &Explanation) -> (Option<&str>, Option<u64>, Option<i64>) {
    let operand = explanation.operand.as_ref().unwrap_or_else(|| panic!("no operand: {explanation:#?}"));
    (operand.register.as_deref(), operand.value.map(|value| value.0), operand.displacement)
}

#[test]
fn a_null_pointers_field_is_found_on_arm64() {
    // ldr w0, [x3, #16]
    let explanation = explain(&arm64(maperr(), Some(16), &[(3, 0)]), &words(&[0xb940_1060]));
    assert_eq!(
        (explanation.kind, explanation.certainty),
        (FaultKind::NullPointer, Certainty::Certain),
        "{explanation:#?}"
    );
    assert_eq!(operand(&explanation), (Some("x3"), Some(0), Some(16)));
    let access = explanation.access.unwrap();
    assert_eq!((access.kind, access.width), (Some(Access::READ), Some(4)));
    assert_eq!(explanation.headline, "Null pointer: read of 4 bytes at null + 0x10 (x3 is null) in save");
}

#[test]
fn accesses_of_all_widths_are_decoded_on_arm64() {
    // (word, base, offset, write, width): str x1, [x2, #8]; stp x0, x1, [x4, #-16]!; strb w1, [x5];
    // ldp x29, x30, [sp], #32; ldrsw x0, [x1, #4]; str q0, [x6, #32]; ldr h0, [x7, #2]; stlxr w0,
    // x1, [x8]; ldadd w1, w2, [x9]
    let rows = [
        (0xf900_0441_u32, 2, 8_i64, Some(Access::WRITE), 8),
        (0xa9bf_0480, 4, -16, Some(Access::WRITE), 16),
        (0x3900_00a1, 5, 0, Some(Access::WRITE), 1),
        (0xa8c2_7bfd, 31, 0, Some(Access::READ), 16),
        (0xb980_0420, 1, 4, Some(Access::READ), 4),
        (0x3d80_08c0, 6, 32, Some(Access::WRITE), 16),
        (0x7d40_04e0, 7, 2, Some(Access::READ), 2),
        (0xc800_fd01, 8, 0, Some(Access::WRITE), 8),
        (0xb821_0122, 9, 0, None, 4),
    ];
    for (word, base, offset, access, width) in rows {
        let value = 0x7000_0000_u64;
        let address = value.wrapping_add(offset as u64);
        let explanation = explain(&arm64(maperr(), Some(address), &[(base, value)]), &words(&[word]));
        assert_eq!(explanation.kind, FaultKind::Unmapped, "{explanation:#?}");
        let name = if base == 31 { "sp".to_owned() } else { format!("x{base}") };
        let displacement = Some(offset).filter(|offset| *offset != 0);
        assert_eq!(operand(&explanation), (Some(name.as_str()), Some(value), displacement), "{explanation:#?}");
        let explanation = explanation.access.unwrap();
        assert_eq!((explanation.kind, explanation.width), (access, Some(width)), "{word:#x}");
    }
}

#[test]
fn an_index_register_is_considered_on_arm64() {
    // ldr x0, [x1, x2, lsl #3]
    let code = words(&[0xf862_7820]);
    let explanation = explain(&arm64(maperr(), Some(40), &[(1, 0), (2, 5)]), &code);
    assert_eq!(explanation.kind, FaultKind::NullPointer, "{explanation:#?}");
    assert_eq!(operand(&explanation).0, Some("x1"));
    // The report doesn't show which one is bad.
    let explanation = explain(&arm64(maperr(), Some(0x7000_0800), &[(1, 0x7000_0000), (2, 0x100)]), &code);
    assert_eq!((explanation.kind, operand(&explanation).0), (FaultKind::Unmapped, None));
    // ldr x0, [x1, x2]: either may be the pointer, and the other the offset.
    let code = words(&[0xf862_6820]);
    for registers in [[(1, 8), (2, 0)], [(1, 0), (2, 8)]] {
        let explanation = explain(&arm64(maperr(), Some(8), &registers), &code);
        assert_eq!((explanation.kind, operand(&explanation).0), (FaultKind::NearNull, None), "{explanation:#?}");
    }
}

#[test]
fn neither_of_two_small_added_values_is_blamed() {
    // ldrb w0, [x1, x2]
    let byte = words(&[0x3862_6820]);
    for (base, index, kind) in
        [(0, 0, FaultKind::NullPointer), (0, 1, FaultKind::NearNull), (0x10, 0, FaultKind::NearNull)]
    {
        let explanation = explain(&arm64(maperr(), Some(base + index), &[(1, base), (2, index)]), &byte);
        assert_eq!((explanation.kind, operand(&explanation).0), (kind, None), "{explanation:#?}");
        assert_eq!(explanation.operand.as_ref().unwrap().index, None, "{explanation:#?}");
    }
}

#[test]
fn operands_that_disagree_with_the_address_are_not_claimed() {
    // ldr w0, [x3, #16], but the address is not derived from x3.
    let code = words(&[0xb940_1060]);
    let explanation = explain(&arm64(maperr(), Some(0x7000_0000), &[(3, 0)]), &code);
    assert!(explanation.operand.is_none() && explanation.kind == FaultKind::Unmapped, "{explanation:#?}");
    // A write, but the instruction is a load.
    let mut report = arm64(maperr(), Some(16), &[(3, 0)]);
    report.crash.as_mut().unwrap().access = Some(Access::WRITE);
    let explanation = explain(&report, &code);
    assert!(explanation.operand.is_none() && explanation.kind == FaultKind::NearNull, "{explanation:#?}");
    // Registers of a thread that requested the report itself.
    let mut report = arm64(maperr(), Some(16), &[(3, 0)]);
    report.threads[0].registers.as_mut().unwrap().only_preserved = true;
    assert!(explain(&report, &code).operand.is_none());
}

#[test]
fn traps_are_recognized_on_arm64() {
    let brk = |number: u32| words(&[0xd420_0000 | number << 5]);
    let trap = |code: At| explain(&arm64(signal("SIGTRAP", "TRAP_BRKPT", 1), Some(PC), &[]), &code);
    assert_eq!(trap(brk(1)).kind, FaultKind::Trap);
    let bounds = trap(brk(0x5512));
    assert!(bounds.kind == FaultKind::Trap && bounds.headline.contains("array index out of bounds"), "{bounds:#?}");
    assert_eq!(trap(brk(0xc471)).kind, FaultKind::ControlFlow);
    assert_eq!(trap(brk(0xf000)).kind, FaultKind::Breakpoint);
    assert_eq!(trap(brk(0x1234)).kind, FaultKind::Breakpoint);
    let illegal = |code: At| explain(&arm64(signal("SIGILL", "ILL_ILLOPC", 1), Some(PC), &[]), &code);
    assert_eq!(illegal(words(&[0])).kind, FaultKind::Trap);
    // A branch to an instruction that is not a landing pad.
    let mut report = arm64(signal("SIGILL", "ILL_ILLOPC", 1), Some(PC), &[]);
    report.crash.as_mut().unwrap().signal.as_mut().unwrap().error_code = Some(0x0d << 26);
    assert_eq!(explain(&report, &NoCode).kind, FaultKind::ControlFlow);
}

#[test]
fn a_call_through_null_is_found_on_arm64() {
    // nop; blr x19; the return address follows.
    let code = words(&[0xd503_201f, 0xd63f_0260]);
    let mut report = arm64(maperr(), Some(0), &[(19, 0), (32, 0)]);
    let explanation = explain(&report, &code);
    assert_eq!((explanation.kind, operand(&explanation).0), (FaultKind::JumpToNull, Some("x19")), "{explanation:#?}");
    assert_eq!(explanation.call.unwrap().text, "blr x19");
    // A frame found by a stack scan is not a caller.
    report.threads[0].frames[1].found_by = FoundBy::SCAN;
    let explanation = explain(&report, &code);
    assert!(explanation.call.is_none() && explanation.function.is_none(), "{explanation:#?}");
    assert_eq!(explanation.headline, "Call through a null pointer");
}

#[test]
fn a_call_that_may_have_led_elsewhere_is_not_claimed() {
    // nop; blr x8, or blr x19. The called function may have ended with a jump through x8; x19 it
    // must have restored before.
    let explain_case = |pc: u64, call: u32| {
        explain(&arm64(maperr(), Some(pc), &[(8, pc), (19, pc), (32, pc)]), &words(&[0xd503_201f, call]))
    };
    for pc in [0, 0x7000_0010_0000] {
        let by_lost = explain_case(pc, 0xd63f_0100);
        assert!(by_lost.call.is_none() && by_lost.operand.is_none(), "{by_lost:#?}");
        assert_eq!(operand(&explain_case(pc, 0xd63f_0260)).0, Some("x19"));
    }
    // The register has a tag; the program counter doesn't.
    let freed = explain(
        &arm64(maperr(), Some(0x5a_5a5a_5a5a_5a5a), &[(19, u64::from_ne_bytes([0x5a; 8])), (32, 0x5a_5a5a_5a5a_5a5a)]),
        &words(&[0xd503_201f, 0xd63f_0260]),
    );
    assert_eq!((freed.kind, operand(&freed).1), (FaultKind::PoisonedPointer, Some(u64::from_ne_bytes([0x5a; 8]))));
    // bl; its target is in the instruction.
    assert!(explain(&arm64(maperr(), Some(0), &[(32, 0)]), &words(&[0xd503_201f, 0x9400_0100])).call.is_none());
    // On x86_64: call rax, call rbx, call [rdi+8], call [rbx+8], and a direct call.
    let x86 = |before: &[u8], rbx: u64| {
        let mut general = vec![0; 18];
        (general[3], general[7]) = (rbx, 0x7ffe_0000);
        let registers = Registers { arch: Some(Arch::X86_64), general, ..Registers::default() };
        let mut report = report(registers, maperr(), Some(0));
        let bytes = [0x40_2000_u64.to_le_bytes(), [0; 8]].concat().into();
        report.stack_memory =
            vec![StackMemory { tid: 7, address: Address(0x7ffe_0008), bytes, ..StackMemory::default() }];
        let mut code = vec![0x90; 8 - before.len()];
        code.extend(before);
        let explanation = explain(&report, &At(PC, code));
        assert_eq!(explanation.kind, FaultKind::JumpToNull, "{explanation:#?}");
        explanation.call.map(|call| call.text)
    };
    assert_eq!(x86(&[0xff, 0xd0], 1), None);
    assert_eq!(x86(&[0xff, 0xd3], 0).as_deref(), Some("call rbx"));
    assert_eq!(x86(&[0xff, 0xd3], 1), None);
    assert_eq!(x86(&[0xff, 0x57, 0x08], 1), None);
    assert_eq!(x86(&[0xff, 0x53, 0x08], 0x7ffe_0008).as_deref(), Some("call qword ptr [rbx+0x8]"));
    assert_eq!(x86(&[0xff, 0x53, 0x08], 0x7ffe_0000), None);
    assert_eq!(x86(&[0xff, 0x53, 0x08], 0x1000), None);
    assert_eq!(x86(&[0xe8, 0, 1, 0, 0], 0), None);
}

/// Code with two functions, which start and end at the addresses.
struct Functions(At, [u64; 3]);

impl CodeSource for Functions {
    fn code(&self, address: Address, length: usize) -> Option<Code> {
        self.0.code(address, length)
    }

    fn function(&self, address: Address) -> Option<(Address, Address)> {
        let extents = [(self.1[0], self.1[1]), (self.1[1], self.1[2])];
        let (start, end) = extents.into_iter().find(|(start, end)| (*start..*end).contains(&address.0))?;
        Some((Address(start), Address(end)))
    }
}

#[test]
fn a_stale_link_register_is_not_a_caller() {
    // nop; a call; ldr w0, [x3, #16]; ret; the same load in another function. The link register
    // holds the address after the call.
    let explain_case = |call: u32, pc: u64, found_by: FoundBy| {
        let code = words(&[0xd503_201f, call, 0xb940_1060, 0xd65f_03c0, 0xb940_1060]);
        let mut report = arm64(maperr(), Some(16), &[(3, 0), (32, pc), (30, PC + 8)]);
        let frames = &mut report.threads[0].frames;
        (frames[1].found_by, frames[1].in_app) = (found_by, Some(true));
        let library = (None, Some("libc.so.6".to_owned()), Some(RelativeAddress(8)));
        (frames[0].function, frames[0].module, frames[0].module_offset) = library;
        explain(&report, &Functions(code, [PC, PC + 16, PC + 32])).headline.contains("called by main")
    };
    let (to_other, to_elsewhere, by_register) = (0x9400_0003, 0x9400_1000, 0xd63f_0100);
    for call in [to_other, to_elsewhere, by_register] {
        // The call has returned, and its caller continued.
        assert!(!explain_case(call, PC + 8, FoundBy::LINK_REGISTER), "{call:#x}");
        assert!(explain_case(call, PC + 8, FoundBy::CFI), "{call:#x}");
        assert!(!explain_case(call, PC + 16, FoundBy::SCAN), "{call:#x}");
    }
    assert!(explain_case(to_other, PC + 16, FoundBy::LINK_REGISTER));
    assert!(explain_case(by_register, PC + 16, FoundBy::LINK_REGISTER));
    assert!(!explain_case(to_elsewhere, PC + 16, FoundBy::LINK_REGISTER));
    // For a jump to an invalid address, a direct call to a known function proves nothing.
    assert!(!explain_case(to_other, 0x10, FoundBy::LINK_REGISTER));
}

#[test]
fn a_return_to_an_invalid_address_is_recognized() {
    // A `ret` leaves the address in the link register; a call through a pointer puts its own there.
    let nowhere = 0x4141_4141_4141;
    let mut report = arm64(maperr(), Some(nowhere), &[(30, nowhere), (32, nowhere)]);
    report.threads[0].frames.truncate(1);
    let explanation = explain(&report, &NoCode);
    assert_eq!(
        (explanation.kind, explanation.certainty, operand(&explanation).0),
        (FaultKind::BadReturn, Certainty::Certain, Some("lr"))
    );
    assert_eq!(
        explanation.headline,
        "Return to an invalid address: 0x414141414141 (ASCII text, as if a string was written over it)"
    );
    // A stack may start with a return, like that of `makecontext`: without callers, nothing need
    // have been overwritten.
    let facts = |name: &str| {
        let mut report = report.clone();
        let function = Some(name.to_owned());
        report.threads[0].frames.push(Frame { found_by: FoundBy::SCAN, function, ..Frame::default() });
        explain(&report, &NoCode).facts
    };
    let overwritten =
        |facts: &[String]| facts.iter().any(|fact| fact.starts_with("the return address was overwritten"));
    let alone = explain(&report, &NoCode).facts;
    assert!(!overwritten(&alone) && !overwritten(&facts("__start_context")), "{alone:?}");
    assert!(overwritten(&facts("main")), "{:?}", facts("main"));
    // The walk found a caller in the link register or on top of the stack, so this was a call.
    let mut called = arm64(maperr(), Some(nowhere), &[(30, PC + 8), (32, nowhere)]);
    called.threads[0].frames[1].found_by = FoundBy::LINK_REGISTER;
    assert_eq!(explain(&called, &NoCode).kind, FaultKind::JumpToNowhere);
    // With a frame found by unwind data, a return is not proved.
    report.threads[0].frames.push(Frame { found_by: FoundBy::CFI, ..Frame::default() });
    assert_eq!(explain(&report, &NoCode).kind, FaultKind::JumpToNowhere);
    // On x86_64 the address is below the stack pointer, and unknown if that memory is not saved.
    let mut general = vec![0; 18];
    (general[7], general[16]) = (0x7ffe_0010, nowhere);
    let registers = Registers { arch: Some(Arch::X86_64), general, ..Registers::default() };
    let mut report = self::report(registers, maperr(), Some(nowhere));
    report.threads[0].frames[1].found_by = FoundBy::SCAN;
    assert_eq!(explain(&report, &NoCode).kind, FaultKind::JumpToNowhere);
    let bytes = nowhere.to_le_bytes().to_vec().into();
    report.stack_memory = vec![StackMemory { tid: 7, address: Address(0x7ffe_0008), bytes, ..StackMemory::default() }];
    assert_eq!(explain(&report, &NoCode).kind, FaultKind::BadReturn);
    report.threads[0].frames[1].found_by = FoundBy::STACK_TOP;
    assert_eq!(explain(&report, &NoCode).kind, FaultKind::JumpToNowhere);
}

#[test]
fn pointer_tags_are_ignored_in_addresses() {
    // ldr w0, [x3, #16], with a tagged pointer.
    let explanation =
        explain(&arm64(maperr(), Some(0x7000_0010), &[(3, 0xb400_0000_7000_0000)]), &words(&[0xb940_1060]));
    assert_eq!(operand(&explanation), (Some("x3"), Some(0xb400_0000_7000_0000), Some(16)));
}

#[test]
fn mach_exceptions_are_explained() {
    let mach = |exception, code, address: Option<u64>| {
        let mut report = arm64(Signal::default(), address, &[(3, 0)]);
        let crash = report.crash.as_mut().unwrap();
        (crash.signal, crash.mach) = (None, Some(Mach::new(exception, code, 0)));
        explain(&report, &words(&[0xb940_1060])).kind
    };
    assert_eq!(mach(1, 1, Some(16)), FaultKind::NullPointer);
    assert_eq!(mach(1, 2, Some(0x7000_0000)), FaultKind::AccessDenied);
    assert_eq!(mach(1, 0x101, Some(0x7000_0001)), FaultKind::Unaligned);
    assert_eq!(mach(3, 1, None), FaultKind::DivisionError);
    assert_eq!(mach(77, 1, None), FaultKind::Unknown);
}

#[test]
fn a_divisor_in_saved_stack_memory_is_read() {
    let mut general = vec![0; 18];
    general[6] = 0x7ffe_0000; // rbp
    general[16] = PC;
    let registers = Registers { arch: Some(Arch::X86_64), general, ..Registers::default() };
    let mut report = report(registers, signal("SIGFPE", "FPE_INTDIV", 1), Some(PC));
    // idiv dword ptr [rbp-8]
    let code = At(PC, vec![0xf7, 0x7d, 0xf8, 0x90]);
    assert_eq!(explain(&report, &code).kind, FaultKind::DivisionError);
    let saved = |bytes: [u8; 4]| {
        vec![StackMemory {
            tid: 7,
            address: Address(0x7ffd_fff8),
            bytes: bytes.to_vec().into(),
            ..StackMemory::default()
        }]
    };
    report.stack_memory = saved([0; 4]);
    assert_eq!(explain(&report, &code).kind, FaultKind::DivisionByZero);
    report.stack_memory = saved([0xff; 4]);
    assert_eq!(explain(&report, &code).kind, FaultKind::DivisionOverflow);
}

#[test]
fn register_parts_keep_their_names() {
    // div esi; div sil; div r9b; div ah; div rsi.
    let rows: [(&[u8], &str, u64); 5] = [
        (&[0xf7, 0xf6], "esi", 0),
        (&[0x40, 0xf6, 0xf6], "sil", 0),
        (&[0x41, 0xf6, 0xf1], "r9b", 7),
        (&[0xf6, 0xf4], "ah", 3),
        (&[0x48, 0xf7, 0xf6], "rsi", 1 << 32),
    ];
    let mut general = vec![0; 18];
    (general[0], general[4], general[9], general[16]) = (0x300, 1 << 32, 0x107, PC);
    let registers = Registers { arch: Some(Arch::X86_64), general, ..Registers::default() };
    for (code, name, value) in rows {
        let code = At(PC, [code, &[0x90; 16]].concat());
        let explanation = explain(&report(registers.clone(), signal("SIGFPE", "FPE_INTDIV", 1), Some(PC)), &code);
        assert_eq!(operand(&explanation), (Some(name), Some(value), None), "{explanation:#?}");
    }
    // mov eax, [esi]
    let code = At(PC, [&[0x67, 0x8b, 0x06][..], &[0x90; 16]].concat());
    let explanation = explain(&report(registers, maperr(), Some(0)), &code);
    assert_eq!(operand(&explanation), (Some("esi"), Some(0), None), "{explanation:#?}");
}

#[test]
fn a_recursion_of_two_functions_is_found() {
    let mut report = arm64(maperr(), Some(0x6fff_fff0), &[]);
    report.crash.as_mut().unwrap().flags = vec![CrashFlag::StackOverflow];
    let frame =
        |name: &str, cfa: u64| Frame { function: Some(name.to_owned()), cfa: Some(Address(cfa)), ..Frame::default() };
    let mut frames = vec![frame("print", 0x7000_0000)];
    frames.extend((0..40_u64).map(|n| frame(if n % 2 == 0 { "even" } else { "odd" }, 0x7000_0010 + n * 0x20)));
    frames.push(frame("main", 0x7001_0000));
    report.threads[0].frames = frames;
    let explanation = explain(&report, &NoCode);
    let recursion = explanation.recursion.unwrap();
    assert_eq!((explanation.kind, recursion.rounds, recursion.bytes), (FaultKind::StackOverflow, 20, Some(0x40)));
    assert_eq!(recursion.functions, ["even", "odd"]);
    // Omitted frames count as well.
    report.threads[0].frames.truncate(31);
    report.threads[0].skipped = vec![Skipped { after: 31, count: 10 }];
    assert_eq!(explain(&report, &NoCode).recursion.unwrap().rounds, 20);
}

/// Returns reproducible pseudo-random numbers.
fn random_numbers(seed: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(seed), |number| {
        let number = number ^ number << 13;
        let number = number ^ number >> 7;
        Some(number ^ number << 17)
    })
}

#[test]
fn hostile_reports_cause_no_panic() {
    let mut random = random_numbers(0x9e37_79b9_7f4a_7c15);
    let mut next = move || random.next().unwrap();
    let extremes = [0, 1, 8, u64::MAX, u64::MAX - 7, i64::MAX as u64, i64::MIN as u64, PC];
    let signals = [
        maperr(),
        signal("SIGSEGV", "SEGV_ACCERR", 2),
        signal("SIGSEGV", "SI_KERNEL", 0x80),
        signal("SIGBUS", "BUS_ADRALN", 1),
        signal("SIGFPE", "FPE_INTDIV", 1),
        signal("SIGILL", "ILL_ILLOPN", 2),
        signal("SIGTRAP", "TRAP_BRKPT", 1),
    ];
    for round in 0..40_000_usize {
        let arch = if round % 2 == 0 { Arch::X86_64 } else { Arch::Aarch64 };
        let count = match (round % 97, arch) {
            (0, _) => 0,
            (1, _) => 5,
            (_, Arch::X86_64) => 18,
            (_, Arch::Aarch64) => 34,
        };
        let mut value = || {
            let number = next();
            if number % 3 == 0 { number } else { extremes[(number % 8) as usize] }
        };
        let general: Vec<u64> = (0..count).map(|_| value()).collect();
        let registers = Registers { arch: Some(arch), general, ..Registers::default() };
        let pc = registers.pc().unwrap_or_default();
        let address = (round % 5 != 0).then(&mut value);
        let mut report = report(registers, signals[round % signals.len()].clone(), address);
        report.images = vec![Image {
            load_address: Address(value()),
            size: value(),
            segments: vec![Segment { address: Address(value()), size: value(), ..Segment::default() }],
            ..Image::default()
        }];
        report.stack_memory =
            vec![StackMemory { address: Address(value()), bytes: vec![0xff; 16].into(), ..StackMemory::default() }];
        let mapping = |start, size| Mapping { start: Address(start), size, ..Mapping::default() };
        report.mappings = vec![mapping(value(), value()), mapping(value(), value())];
        report.code =
            vec![CodePiece { address: Address(value()), bytes: vec![0xcc; 64].into(), ..CodePiece::default() }];
        report.header.arch = Some(arch);
        report.threads[0].skipped = vec![Skipped { after: value() as usize, count: value() }];
        report.threads[0].frames[1].address = Address(value());
        if round % 3 == 0 {
            report.crash.as_mut().unwrap().flags = vec![CrashFlag::StackOverflow];
        }
        let bytes: Vec<u8> = (0..4).flat_map(|_| next().to_le_bytes()).collect();
        let explanation = explain(&report, &At(pc.0, bytes));
        assert!(!explanation.headline.is_empty() && explanation.headline.chars().count() <= 700, "{explanation:?}");
    }
    assert_eq!(explain(&Report::default(), &NoCode).kind, FaultKind::Unknown);
}

#[test]
fn code_in_the_report_suffices() {
    // ldr w0, [x3, #16], in two pieces that adjoin at the program counter.
    let mut report = arm64(maperr(), Some(16), &[(3, 0)]);
    let piece = |address: u64, bytes: &[u8]| CodePiece {
        address: Address(address),
        bytes: Bytes(bytes.to_vec()),
        ..CodePiece::default()
    };
    report.code = vec![piece(PC - 4, &[0x1f, 0x20, 0x03, 0xd5]), piece(PC, &0xb940_1060_u32.to_le_bytes())];
    let explanation = explain(&report, &NoCode);
    assert_eq!((explanation.kind, operand(&explanation).0), (FaultKind::NullPointer, Some("x3")), "{explanation:#?}");
    assert_eq!(explanation.code_change, None);
}

#[test]
fn changed_code_is_recognized() {
    let change = |word: u32| {
        let mut report = arm64(maperr(), Some(16), &[(3, 0)]);
        report.header.arch = Some(Arch::Aarch64);
        report.code =
            vec![CodePiece { address: Address(PC), bytes: Bytes(word.to_le_bytes().to_vec()), ..CodePiece::default() }];
        explain(&report, &words(&[0xb940_1060, 0xd503_201f]))
    };
    assert_eq!(change(0xb940_1060).code_change, None);
    let explanation = change(0xb940_1068);
    let found = explanation.code_change.as_ref().unwrap();
    assert_eq!((found.kind, found.address), (CodeChangeKind::OneBit, Address(PC)));
    assert!(explanation.headline.ends_with("; its code differs from the file in one bit"), "{explanation:#?}");
    assert_eq!(change(0xd420_0000).code_change.unwrap().kind, CodeChangeKind::Breakpoint);
    assert_eq!(change(0x1400_0010).code_change.unwrap().kind, CodeChangeKind::Other);

    // An address that the dynamic linker wrote into code.
    let mut report = arm64(maperr(), Some(16), &[(3, 0)]);
    report.header.arch = Some(Arch::Aarch64);
    report.images = vec![Image { load_address: Address(0x7f00_1234_0000), size: 0x1_0000, ..Image::default() }];
    let mut word = |word: u64| {
        report.code =
            vec![CodePiece { address: Address(PC), bytes: Bytes(word.to_le_bytes().to_vec()), ..CodePiece::default() }];
        explain(&report, &words(&[0, 0])).code_change
    };
    assert_eq!(word(0x7f00_1234_5678), None);
    assert!(word(0x7f00_1235_5678).is_some());
}

/// The C library keeps the message of an abort that the program survived.
#[test]
fn an_earlier_abort_message_is_not_used() {
    let explain_case = |caller: &str, function: &str| {
        let mut report = arm64(signal("SIGABRT", "SI_TKILL", -6), None, &[]);
        let frame = |module: &str, function: &str| Frame {
            module: Some(module.to_owned()),
            function: Some(function.to_owned()),
            ..Frame::default()
        };
        report.threads[0].frames =
            vec![frame("/lib/libc.so.6", "raise"), frame("/lib/libc.so.6", "abort"), frame(caller, function)];
        let text = "cart.c:8: main: Assertion `total' failed.".to_owned();
        report.annotations = vec![Annotation { source: "libc.so.6".to_owned(), text, ..Annotation::default() }];
        explain(&report, &NoCode).headline
    };
    assert!(explain_case("/lib/libc.so.6", "__assert_fail").contains("Assertion"));
    assert!(!explain_case("/opt/cart", "main").contains("Assertion"));
}

/// The functions are those of a release build with Rust 1.95 that ran out of memory.
#[test]
fn an_abort_after_a_failed_allocation_is_named() {
    let mut report = arm64(signal("SIGABRT", "SI_TKILL", -6), None, &[]);
    let frame = |function: &str| Frame { function: Some(function.to_owned()), ..Frame::default() };
    let names = ["__GI_abort", "std::process::abort", "std::alloc::rust_oom", "alloc::alloc::handle_alloc_error"];
    report.threads[0].frames =
        names.into_iter().chain(["alloc::raw_vec::handle_error", "shop::fill"]).map(frame).collect();
    let explanation = explain(&report, &NoCode).headline;
    assert!(explanation.starts_with("Abort: memory allocation failed"), "{explanation}");
    report.threads[0].frames.drain(2..4);
    let explanation = explain(&report, &NoCode).headline;
    assert!(!explanation.contains("memory"), "{explanation}");
}

#[test]
fn a_flipped_bit_is_found() {
    // ldr w0, [x3, #16]
    let code = words(&[0xb940_1060]);
    let flips = |bad: u64, others: &[(usize, u64)]| {
        let mut registers = vec![(3, bad)];
        registers.extend(others);
        let mut report = arm64(maperr(), Some(bad + 16), &registers);
        report.threads[0].stack = Some((Address(0x7ff0_0000_0000), Address(0x7ff0_0010_0000)));
        explain(&report, &code).bit_flips
    };
    let stack = flips(0x7ff0_0000_8010 ^ 1 << 41, &[]);
    assert_eq!(stack.len(), 1, "{stack:?}");
    assert_eq!((stack[0].bit, stack[0].address), (41, Address(0x7ff0_0000_8010)));
    // Near another register's value.
    let beside = flips(0xaaaa_0000_1010 ^ 1 << 33, &[(5, 0xaaaa_0000_1100)]);
    assert_eq!(beside.iter().map(|flip| flip.bit).collect::<Vec<_>>(), [33]);
    assert!(beside[0].place.contains("x5"), "{beside:?}");
    // An array starts up to 16 elements after it (two bytes each for bit 33), so an index of 0 - 1
    // leads to the same address.
    for (behind, count) in [(2, 0), (8, 0), (32, 0), (34, 1), (0, 1)] {
        let by_index = flips(0xaaaa_0000_1010 ^ 1 << 33, &[(5, 0xaaaa_0000_1010 + behind)]);
        assert_eq!(by_index.len(), count, "{behind}: {by_index:?}");
    }
    // Within 4 GiB but near no value; at the start of a page.
    assert!(flips(0x7ff0_0000_8010 ^ 1 << 27, &[]).is_empty());
    assert!(flips(0x7ff0_0000_8000 ^ 1 << 41, &[]).is_empty());
    // Two bits, a fill pattern, text.
    assert!(flips(0x7ff0_0000_8010 ^ 1 << 41 ^ 1 << 30, &[]).is_empty());
    assert!(flips(0x5a5a_5a5a_5a5a_5a5a, &[(5, 0x5a5a_5a5a_5a5a_5a5a ^ 1 << 33)]).is_empty());
    assert!(flips(0x6f6c_6c65_6821_2121, &[(5, 0x6f6c_6c65_6821_2121 ^ 1 << 33)]).is_empty());
}

#[test]
fn a_failed_pointer_authentication_is_recognized() {
    // ldr w0, [x3, #16]
    let code = words(&[0xb940_1060]);
    let good = 0x7ff0_0000_8010_u64;
    let explain_case = |os: Os, bad: u64| {
        let mut report = arm64(maperr(), Some(bad + 16), &[(3, bad)]);
        report.threads[0].stack = Some((Address(0x7ff0_0000_0000), Address(0x7ff0_0010_0000)));
        report.header.os = os;
        let explanation = explain(&report, &code);
        let is_named =
            explanation.facts.iter().find(|fact| fact.starts_with("possible pointer authentication failure"));
        (is_named.cloned(), explanation.bit_flips.len())
    };
    for (bit, key) in [(53, "key A"), (54, "key B")] {
        let (fact, flips) = explain_case(Os::LINUX, good | 1 << bit);
        let fact = fact.unwrap();
        assert!(
            fact.contains("0x7ff000008010 with") && fact.contains(key) && fact.contains("stack of thread 7"),
            "{fact}"
        );
        assert_eq!(flips, 0);
    }
    // With a memory tag in the top byte.
    assert!(explain_case(Os::LINUX, good | 1 << 53 | 0xb4 << 56).0.is_some());
    // The top byte is part of a code pointer on Darwin only.
    assert!(explain_case(Os::MACOS, good | 1 << 62).0.unwrap().contains("key B in bits 62 and 61"));
    assert!(explain_case(Os::LINUX, good | 1 << 62).0.is_none());
    // Not an error code, both bits, other bits as well.
    assert!(explain_case(Os::LINUX, good ^ 1 << 41).0.is_none());
    assert!(explain_case(Os::LINUX, good | 3 << 53).0.is_none());
    assert!(explain_case(Os::LINUX, good | 1 << 53 | 1 << 50).0.is_none());
}

#[test]
fn the_mapping_at_the_address_is_described() {
    // str x1, [x2, #8]
    let code = words(&[0xf900_0441]);
    let explain_case = |protection: u8, name: Option<&str>, code_name: &'static str| {
        let mut report = arm64(signal("SIGSEGV", code_name, 2), Some(0x7000_0008), &[(2, 0x7000_0000)]);
        report.crash.as_mut().unwrap().access = Some(Access::WRITE);
        let mapping = |start: u64, protection: u8, name: Option<&str>| Mapping {
            start: Address(start),
            size: 0x1000,
            protection,
            name: name.map(str::to_owned),
            ..Mapping::default()
        };
        report.mappings = vec![mapping(0x7000_0000, protection, name), mapping(0x7000_1000, 6, Some("[stack]"))];
        explain(&report, &code)
    };
    let guard = explain_case(0, None, "SEGV_ACCERR");
    assert_eq!(guard.kind, FaultKind::GuardPage);
    assert!(guard.facts.iter().any(|fact| fact.ends_with("below a stack")), "{guard:#?}");
    let read_only = explain_case(4, Some("/opt/ada/data.bin"), "SEGV_ACCERR");
    assert_eq!(read_only.kind, FaultKind::WriteToReadOnly);
    assert!(read_only.facts.iter().any(|fact| fact.contains(" data.bin at 0x8")), "{read_only:#?}");
    assert!(!format!("{read_only:?}").contains("ada"), "paths may contain the user's name");
    assert_eq!(explain_case(6, None, "SEGV_ACCERR").kind, FaultKind::AccessDenied);
}
