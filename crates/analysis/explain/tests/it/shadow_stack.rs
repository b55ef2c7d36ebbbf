//! Synthetic reports of threads with a shadow stack, which few machines have.
//!
//! Overwritten return addresses are found; differences with another reason are ignored.

use coroner_explain::{Explanation, FaultKind, NoCode, explain};
use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{Address, Crash, Frame, Image, Registers, Segment, Signal, StackMemory, Thread};
use coroner_report::wire::{AddressKind, ExtraRegister, FoundBy, Os, WalkEnd};

const PC: u64 = 0x40_1000;
/// Return addresses of five frames, innermost first.
const RETURNS: [u64; 5] = [0x40_1100, 0x40_1200, 0x40_1300, 0x40_1400, 0x40_1500];
const SP: u64 = 0x7ffe_0000;
/// Bytes of each frame; the return address is in the last eight.
const FRAME: u64 = 32;
const SHADOW: u64 = 0x7f80_0000_1000;
const NOWHERE: u64 = 0x4141_4141_4141;

/// Creates a report of a thread.
///
/// Its walk found `walked`, its stack contains the return addresses `stored`, and its shadow stack
/// contains `shadow`.
fn report(arch: Arch, walked: &[u64], stored: &[u64], shadow: &[u64]) -> Report {
    let mut general = vec![0; if arch == Arch::X86_64 { 18 } else { 34 }];
    let (sp, pc) = if arch == Arch::X86_64 { (7, 16) } else { (31, 32) };
    (general[sp], general[pc]) = (SP, PC);
    let extra = vec![(ExtraRegister::SHADOW_STACK, SHADOW)];
    let registers = Registers { arch: Some(arch), general, extra, ..Registers::default() };
    let cfa = |number: usize| Some(Address(SP + FRAME * (number as u64 + 1)));
    let first = Frame { address: Address(PC), found_by: FoundBy::CONTEXT, cfa: cfa(0), ..Frame::default() };
    let caller = |(number, address): (usize, &u64)| Frame {
        address: Address(*address),
        found_by: FoundBy::CFI,
        address_kind: AddressKind::RETURN,
        cfa: cfa(number + 1),
        ..Frame::default()
    };
    let frames = std::iter::once(first).chain(walked.iter().enumerate().map(caller)).collect();
    let stack: Vec<u64> = stored.iter().flat_map(|address| [0, 0, 0, *address]).collect();
    let piece = |address: u64, words: &[u64]| StackMemory {
        tid: 7,
        address: Address(address),
        bytes: words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>().into(),
        ..StackMemory::default()
    };
    let segment = Segment { address: Address(PC), size: 0x1000, file_offset: 0x1000, protection: 5 };
    let image = Image {
        path: "/opt/paint".to_owned(),
        load_address: Address(0x40_0000),
        size: 0x1_0000,
        segments: vec![segment],
        ..Image::default()
    };
    let signal = Signal { name: Some("SIGSEGV"), code: 1, code_name: Some("SEGV_MAPERR"), ..Signal::default() };
    let thread = Thread {
        tid: 7,
        crashed: true,
        registers: Some(registers),
        frames,
        walk_end: Some(WalkEnd::ROOT),
        ..Thread::default()
    };
    let mut report = Report {
        crash: Some(Crash { tid: 7, signal: Some(signal), address: Some(Address(0x10)), ..Crash::default() }),
        threads: vec![thread],
        images: vec![image],
        stack_memory: vec![piece(SP, &stack), piece(SHADOW, shadow)],
        ..Report::default()
    };
    report.header.os = Os::LINUX;
    report
}

fn x86_64(walked: &[u64], shadow: &[u64]) -> Report {
    report(Arch::X86_64, walked, walked, shadow)
}

/// Returns the frame whose return address was overwritten, the new address and the original one.
fn overwritten(report: &Report) -> Option<(usize, u64, u64)> {
    let explanation: Explanation = explain(report, &NoCode);
    let found = explanation.overwritten_return.map(|found| (found.frame, found.leads_to.0, found.was.0));
    assert_eq!(
        explanation.facts.iter().any(|fact| fact.contains("the shadow stack shows that the return address")),
        found.is_some()
    );
    found
}

/// Returns the addresses with another one at an index.
fn with(number: usize, address: u64) -> [u64; 5] {
    let mut all = RETURNS;
    all[number] = address;
    all
}

#[test]
fn equal_stacks_show_no_overwritten_return() {
    for arch in [Arch::X86_64, Arch::Aarch64] {
        assert_eq!(overwritten(&report(arch, &RETURNS, &RETURNS, &RETURNS)), None);
        // The walk or the saved part of the shadow stack is shorter than the other.
        assert_eq!(overwritten(&report(arch, &RETURNS[..2], &RETURNS[..2], &RETURNS)), None);
        assert_eq!(overwritten(&report(arch, &RETURNS, &RETURNS, &RETURNS[..2])), None);
        assert_eq!(overwritten(&report(arch, &RETURNS, &RETURNS, &[])), None);
    }
}

#[test]
fn an_overwritten_return_address_is_found() {
    for arch in [Arch::X86_64, Arch::Aarch64] {
        for (number, expected) in RETURNS.iter().copied().enumerate().take(4) {
            // The new address is code, as in an attack.
            let walked = with(number, 0x40_1ff0);
            let report = report(arch, &walked, &walked, &RETURNS);
            assert_eq!(overwritten(&report), Some((number, 0x40_1ff0, expected)), "{number}");
        }
    }
    let walked = with(1, 0x40_1ff0);
    let explanation = explain(&x86_64(&walked, &RETURNS), &NoCode);
    let fact = "the shadow stack shows that the return address of frame 1 was overwritten: it is 0x401ff0, and was 0x401200 (paint + 0x1200)";
    assert!(explanation.facts.iter().any(|explanation| explanation == fact), "{:#?}", explanation.facts);
    // The headline describes the crash itself.
    assert!(!explanation.headline.contains("overwritten"), "{}", explanation.headline);
}

#[test]
fn an_overwritten_return_address_without_code_is_found() {
    let stored = with(2, NOWHERE);
    let mut report = report(Arch::X86_64, &RETURNS[..2], &stored, &RETURNS);
    assert_eq!(overwritten(&report), None, "a walk that ended for another reason");
    report.threads[0].walk_end = Some(WalkEnd::OUTSIDE_IMAGES);
    assert_eq!(overwritten(&report), Some((2, NOWHERE, RETURNS[2])));
    // Frames found by a stack scan don't prove where the walk ended.
    let guessed = Frame { address: Address(RETURNS[4]), found_by: FoundBy::SCAN, ..Frame::default() };
    report.threads[0].frames.push(guessed);
    assert_eq!(overwritten(&report), None);
}

#[test]
fn a_return_stopped_by_the_processor_is_explained() {
    let control = |report: &mut Report| {
        let signal = Signal { name: Some("SIGSEGV"), code: 10, code_name: Some("SEGV_CPERR"), ..Signal::default() };
        let crash = report.crash.as_mut().unwrap();
        (crash.signal, crash.address) = (Some(signal), None);
    };
    // x86_64: the return address is at the stack pointer.
    for (leads_to, kind) in [(NOWHERE, FaultKind::BadReturn), (0x40_1ff0, FaultKind::ControlFlow)] {
        let mut report = x86_64(&[], &RETURNS);
        report.stack_memory[0].bytes = leads_to.to_le_bytes().to_vec().into();
        control(&mut report);
        let explanation = explain(&report, &NoCode);
        assert_eq!(overwritten(&report), Some((0, leads_to, RETURNS[0])));
        assert_eq!(explanation.kind, kind, "{explanation:#?}");
        assert!(explanation.headline.contains("0x401100 (paint + 0x1100)"), "{}", explanation.headline);
    }
    // arm64: it is in the link register.
    let mut report = report(Arch::Aarch64, &[], &[], &RETURNS);
    report.threads[0].registers.as_mut().unwrap().general[30] = NOWHERE;
    control(&mut report);
    assert_eq!(overwritten(&report), Some((0, NOWHERE, RETURNS[0])));
    // It equals the shadow stack's, so something else was wrong.
    report.threads[0].registers.as_mut().unwrap().general[30] = RETURNS[0];
    assert_eq!(overwritten(&report), None);
}

#[test]
fn frames_skipped_by_longjmp_show_no_overwritten_return() {
    // The skipped frames remain on the shadow stack (longjmp before it drops them) or on the walked
    // stack.
    assert_eq!(overwritten(&x86_64(&RETURNS[2..], &RETURNS)), None);
    assert_eq!(overwritten(&x86_64(&RETURNS, &RETURNS[2..])), None);
    // One frame for another: the walk found a tail call's caller, which also calls it elsewhere.
    assert_eq!(overwritten(&x86_64(&[RETURNS[1], RETURNS[1], RETURNS[2]], &RETURNS)), None);
    // All frames differ from some frame on: it is another stack.
    let other: Vec<u64> = RETURNS.iter().map(|address| address + 8).collect();
    assert_eq!(overwritten(&x86_64(&other, &RETURNS)), None);
    // The stored address is not what the walk found, so the walk was wrong, not the stack.
    let walked = with(1, 0x40_1ff0);
    assert_eq!(overwritten(&report(Arch::X86_64, &walked, &RETURNS, &RETURNS)), None);
}

#[test]
fn a_signal_frame_between_calls_is_recognized() {
    const TRAMPOLINE: u64 = 0x40_1800;
    for arch in [Arch::X86_64, Arch::Aarch64] {
        let token = match arch {
            Arch::X86_64 => (SHADOW + 24) | 1 << 63,
            Arch::Aarch64 => (SHADOW + 16) & !0xfff,
        };
        // The handler's caller, the trampoline, the interrupted function, its callers.
        let walked = [RETURNS[0], TRAMPOLINE, 0x40_1900, RETURNS[1], 0x40_1ff0, RETURNS[3]];
        let shadow = [RETURNS[0], TRAMPOLINE, token, RETURNS[1], RETURNS[2], RETURNS[3]];
        let mut report = report(arch, &walked, &walked, &shadow);
        for number in [2, 3] {
            report.threads[0].frames[number].address_kind = AddressKind::INSTRUCTION;
        }
        assert_eq!(overwritten(&report), Some((4, 0x40_1ff0, RETURNS[2])));
        // A token for another address is not a token.
        let bytes = &mut report.stack_memory[1].bytes.0;
        bytes[16..24].copy_from_slice(&(token ^ 0x1000).to_le_bytes());
        assert_eq!(overwritten(&report), None);
    }
}

#[test]
fn entries_after_a_restore_token_are_ignored() {
    for (arch, token) in [
        (Arch::X86_64, (SHADOW + 16) | 1),
        (Arch::X86_64, (SHADOW + 0x8000) | 3),
        (Arch::Aarch64, SHADOW & !0xfff | 1),
        (Arch::Aarch64, SHADOW & !0xfff | 5),
        (Arch::Aarch64, 0),
    ] {
        let shadow = [RETURNS[0], token, RETURNS[2], RETURNS[3]];
        assert_eq!(overwritten(&report(arch, &RETURNS, &RETURNS, &shadow)), None, "{token:#x}");
    }
}

#[test]
fn truncated_and_hostile_shadow_stacks_are_ignored() {
    let walked = with(1, 0x40_1ff0);
    for cut in 0..40 {
        let mut report = x86_64(&walked, &RETURNS);
        report.stack_memory[1].bytes.0.truncate(cut);
        // It is found only if the next frame is saved, and agrees.
        assert_eq!(overwritten(&report).is_some(), cut >= 24, "{cut} bytes");
    }
    for pointer in [0, 1, 7, u64::MAX, u64::MAX - 7, SHADOW + 4, SP] {
        let mut report = x86_64(&walked, &RETURNS);
        report.threads[0].registers.as_mut().unwrap().extra[0].1 = pointer;
        assert_eq!(overwritten(&report), None, "{pointer:#x}");
    }
    // The original address is not code.
    assert_eq!(overwritten(&x86_64(&RETURNS, &with(1, 0x1234))), None);
    // More entries than are read, and no frames.
    let mut long = x86_64(&RETURNS, &[RETURNS[0]; 4096]);
    assert_eq!(overwritten(&long), None);
    long.threads[0].frames.clear();
    assert_eq!(overwritten(&long), None);
}
