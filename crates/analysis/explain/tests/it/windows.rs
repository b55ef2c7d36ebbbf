//! Explanations of Windows exceptions in synthetic reports.
//!
//! `crates/launch/coroner/tests/windows_crashes.rs` raises real ones.

use coroner_explain::{Certainty, Code, CodeSource, Explanation, FaultKind, NoCode, explain};
use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{Address, Crash, Frame, Image, Mapping, Registers, Signal, Thread, signal_name};
use coroner_report::wire::{Access, AddressKind, FoundBy, Monitor, Os};

const PC: u64 = 0x1_4000_1000;

struct At(Vec<u8>);

impl CodeSource for At {
    fn code(&self, address: Address, length: usize) -> Option<Code> {
        let rest = self.0.get(usize::try_from(address.0.checked_sub(PC)?).ok()?..)?;
        let bytes = rest.get(..length.min(rest.len()))?.to_vec();
        (!bytes.is_empty()).then_some(Code { bytes, is_verified: true })
    }
}

/// Creates a crash by an exception at [`PC`], in which all registers but one have the same value.
fn crash(code: u32, access: Option<Access>, address: Option<u64>, rax: u64) -> Report {
    let number = code.cast_signed();
    let signal = Signal { number, name: signal_name(Os::WINDOWS, number), ..Signal::default() };
    let mut general = vec![0x1000_0000; 18];
    (general[0], general[16]) = (rax, PC);
    let frame = |address, address_kind, name: &str| Frame {
        address: Address(address),
        found_by: FoundBy::CFI,
        address_kind,
        function: Some(name.to_owned()),
        module: Some("C:\\paint.exe".to_owned()),
        ..Frame::default()
    };
    let frames = vec![frame(PC, AddressKind::INSTRUCTION, "save"), frame(PC + 0x100, AddressKind::RETURN, "main")];
    let registers = Some(Registers { arch: Some(Arch::X86_64), general, ..Registers::default() });
    let mut report = Report {
        crash: Some(Crash {
            tid: 7,
            monitor: Monitor::SEH,
            signal: Some(signal),
            access,
            address: address.map(Address),
            ..Crash::default()
        }),
        threads: vec![Thread { tid: 7, crashed: true, registers, frames, ..Thread::default() }],
        images: vec![Image {
            load_address: Address(0x1_4000_0000),
            size: 0x1_0000,
            path: "C:\\paint.exe".to_owned(),
            is_main: true,
            ..Image::default()
        }],
        ..Report::default()
    };
    report.header.os = Os::WINDOWS;
    report
}

fn violation(access: Access, address: u64) -> Report {
    crash(0xc000_0005, Some(access), Some(address), 0x1000_0000)
}

fn mapped(mut report: Report, start: u64, protection: u8) -> Report {
    report.mappings.push(Mapping { start: Address(start), size: 0x1000, protection, ..Mapping::default() });
    report
}

fn check(explanation: &Explanation, kind: FaultKind, certainty: Certainty, headline: &str) {
    assert_eq!(
        (explanation.kind, explanation.certainty, explanation.headline.as_str()),
        (kind, certainty, headline),
        "{explanation:#?}"
    );
}

#[test]
fn exception_codes_are_explained() {
    use FaultKind as K;
    let rows = [
        (0x8000_0003, K::Breakpoint, Certainty::Possible, "Breakpoint instruction in save"),
        (0xc000_001d, K::IllegalInstruction, Certainty::Possible, "Illegal instruction in save"),
        (0xc000_008e, K::FloatingPoint, Certainty::Certain, "Floating-point exception in save"),
        (0xc000_0094, K::DivisionError, Certainty::Certain, "Integer division by zero or overflow in save"),
        (0xc000_0096, K::PrivilegedInstruction, Certainty::Certain, "Privileged instruction in save"),
        (0xc000_0374, K::HeapCorruption, Certainty::Certain, "Heap corruption, called by save"),
        (0xe06d_7363, K::Exception, Certainty::Certain, "C++ exception, called by save"),
        (0xe043_4352, K::Exception, Certainty::Certain, ".NET exception, called by save"),
        (22, K::Abort, Certainty::Certain, "Abort, called by save"),
        (0x4000_0015, K::Abort, Certainty::Certain, "Abort, called by save"),
        (0xc000_0409, K::Abort, Certainty::Certain, "Abort, called by save"),
        (
            0xc000_0417,
            K::Abort,
            Certainty::Certain,
            "Abort: invalid parameter passed to a C runtime function, called by save",
        ),
        (0xc06d_007e, K::Unknown, Certainty::Unknown, "Delay-loaded library that was not found, called by save"),
        (0xc000_0008, K::Unknown, Certainty::Unknown, "EXCEPTION_INVALID_HANDLE, called by save"),
        (0x1234_5678, K::Unknown, Certainty::Unknown, "Exception 0x12345678, called by save"),
    ];
    for (code, kind, certainty, headline) in rows {
        check(&explain(&crash(code, None, None, 0), &NoCode), kind, certainty, headline);
    }
    let explanation = explain(&crash(0xc000_0374, None, None, 0), &NoCode);
    assert!(explanation.facts.iter().any(|fact| fact.contains("possibly on another thread")), "{explanation:#?}");
}

#[test]
fn mappings_decide_whether_an_address_is_unmapped() {
    use FaultKind as K;
    let at = 0x7000_0010;
    // Without mappings, only the lowest addresses are known to be unmapped.
    check(
        &explain(&violation(Access::READ, at), &NoCode),
        K::Unknown,
        Certainty::Unknown,
        "EXCEPTION_ACCESS_VIOLATION: read at 0x70000010, called by save",
    );
    check(
        &explain(&violation(Access::WRITE, 0), &NoCode),
        K::NullPointer,
        Certainty::Certain,
        "Null pointer: write in save",
    );
    check(
        &explain(&violation(Access::READ, 0x10), &NoCode),
        K::NearNull,
        Certainty::Certain,
        "Address near null: read at 0x10 in save",
    );
    let beside = mapped(violation(Access::READ, at), 0x7000_1000, 6);
    let explanation = explain(&beside, &NoCode);
    assert_eq!((explanation.kind, explanation.certainty), (K::Unmapped, Certainty::Certain), "{explanation:#?}");
    assert!(explanation.facts.iter().any(|fact| fact.contains("4,080 bytes before")), "{explanation:#?}");
    for (access, protection, kind) in [
        (Access::WRITE, 4, K::WriteToReadOnly),
        (Access::WRITE, 5, K::WriteToReadOnly),
        (Access::READ, 0, K::GuardPage),
        (Access::WRITE, 0, K::GuardPage),
        // An allowed access was mapped later, or the program raised the exception itself.
        (Access::READ, 4, K::Unknown),
        (Access::WRITE, 6, K::Unknown),
    ] {
        let explanation = explain(&mapped(violation(access, at), 0x7000_0000, protection), &NoCode);
        assert_eq!(explanation.kind, kind, "{protection}: {explanation:#?}");
    }
    // Windows reports a guard page as such.
    let guard = crash(0x8000_0001, Some(Access::READ), Some(at), 0);
    check(
        &explain(&guard, &NoCode),
        K::GuardPage,
        Certainty::Certain,
        "Guard page or reserved memory: read at 0x70000010 in save",
    );
}

#[test]
fn jumps_are_explained() {
    use FaultKind as K;
    let jump = |to: u64| {
        let mut report = crash(0xc000_0005, Some(Access::EXECUTE), Some(to), 0);
        report.threads[0].registers.as_mut().unwrap().general[16] = to;
        report.threads[0].frames[0].address = Address(to);
        report.threads[0].frames[1].found_by = FoundBy::STACK_TOP;
        report
    };
    check(
        &explain(&jump(0), &NoCode),
        K::JumpToNull,
        Certainty::Certain,
        "Call through a null pointer, called by main",
    );
    let explanation = explain(&mapped(jump(0x7000_0010), 0x7000_0000, 6), &NoCode);
    assert_eq!((explanation.kind, explanation.certainty), (K::ExecuteOfData, Certainty::Certain), "{explanation:#?}");
    let explanation = explain(&mapped(jump(0x7000_0010), 0x7000_1000, 6), &NoCode);
    assert_eq!((explanation.kind, explanation.certainty), (K::JumpToNowhere, Certainty::Certain), "{explanation:#?}");
}

#[test]
#[cfg(feature = "decode")]
fn instructions_are_explained() {
    use FaultKind as K;
    // mov eax, [rax+0x10]
    let load = At(vec![0x8b, 0x40, 0x10]);
    let explanation = explain(&crash(0xc000_0005, Some(Access::READ), Some(0x10), 0), &load);
    check(
        &explanation,
        K::NullPointer,
        Certainty::Certain,
        "Null pointer: read of 4 bytes at null + 0x10 (rax is null) in save",
    );
    // The processor reports no address for a non-canonical one.
    let explanation = explain(&crash(0xc000_0005, Some(Access::READ), None, 0x1234_0000_0000_0000), &load);
    assert_eq!((explanation.kind, explanation.certainty), (K::NonCanonical, Certainty::Certain), "{explanation:#?}");
    let operand = explanation.operand.unwrap();
    assert_eq!((operand.register.as_deref(), operand.value), (Some("rax"), Some(Address(0x1234_0000_0000_0000))));
    // An exception that the program raised itself: the instruction is unrelated.
    let explanation = explain(&crash(0xc000_0005, None, None, 0x1000_0000), &load);
    assert_eq!(explanation.kind, K::Unknown, "{explanation:#?}");
    // div eax
    let division = At(vec![0xf7, 0xf0]);
    for code in [0xc000_0094, 0xc000_0095] {
        assert_eq!(explain(&crash(code, None, None, 0), &division).kind, K::DivisionByZero);
        assert_eq!(explain(&crash(code, None, None, 0xffff_ffff), &division).kind, K::DivisionOverflow);
    }
    // int3, at which Windows puts the program counter; hlt; ud2
    let explanation = explain(&crash(0x8000_0003, None, None, 0), &At(vec![0xcc]));
    assert_eq!((explanation.kind, explanation.certainty), (K::Breakpoint, Certainty::Certain), "{explanation:#?}");
    assert_eq!(explanation.instruction.unwrap().address, Address(PC));
    let explanation = explain(&crash(0xc000_0096, None, None, 0), &At(vec![0xf4]));
    check(&explanation, K::PrivilegedInstruction, Certainty::Certain, "Privileged instruction `hlt` in save");
    assert_eq!(explain(&crash(0xc000_001d, None, None, 0), &At(vec![0x0f, 0x0b])).kind, K::Trap);
}
