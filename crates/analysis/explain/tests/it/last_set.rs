//! The instruction that last set a register, if it is on every path to the crash.

use coroner_explain::{Code, CodeSource, explain};
use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{Address, Crash, Explanation, Frame, Registers, Signal, Thread};
use coroner_report::wire::{AddressKind, FoundBy};

const START: u64 = 0x40_1000;

/// A function whose code is known completely.
struct Function(Vec<u8>);

impl CodeSource for Function {
    fn code(&self, address: Address, length: usize) -> Option<Code> {
        let from = usize::try_from(address.0.checked_sub(START)?).ok()?;
        let bytes: Vec<u8> = self.0.get(from..)?.iter().take(length).copied().collect();
        (!bytes.is_empty()).then_some(Code { bytes, is_verified: true })
    }

    fn function(&self, address: Address) -> Option<(Address, Address)> {
        let end = START + self.0.len() as u64;
        (START..end).contains(&address.0).then_some((Address(START), Address(end)))
    }
}

/// Explains the read of a null pointer's field by the instruction at `at`.
fn explain_read(arch: Arch, code: Vec<u8>, at: u64, accessed: u64) -> Explanation {
    let (count, pc) = match arch {
        Arch::X86_64 => (18, 16),
        Arch::Aarch64 => (34, 32),
    };
    let mut general = vec![0; count];
    general[pc] = START + at;
    let registers = Registers { arch: Some(arch), general, ..Registers::default() };
    let frame = Frame {
        address: Address(START + at),
        found_by: FoundBy::CONTEXT,
        address_kind: AddressKind::INSTRUCTION,
        ..Frame::default()
    };
    let signal = Signal { name: Some("SIGSEGV"), code: 1, code_name: Some("SEGV_MAPERR"), ..Signal::default() };
    let crash = Crash { tid: 7, signal: Some(signal), address: Some(Address(accessed)), ..Crash::default() };
    let thread = Thread { tid: 7, crashed: true, registers: Some(registers), frames: vec![frame], ..Thread::default() };
    let report = Report { crash: Some(crash), threads: vec![thread], ..Report::default() };
    explain(&report, &Function(code))
}

fn last_set(explanation: &Explanation) -> Option<(u64, &str)> {
    explanation.last_set.as_ref().map(|set| (set.instruction.address.0 - START, set.instruction.text.as_str()))
}

fn arm64(words: &[u32], at: u64) -> Explanation {
    explain_read(Arch::Aarch64, words.iter().flat_map(|word| word.to_le_bytes()).collect(), at, 16)
}

#[test]
fn the_load_that_set_a_register_is_found_on_arm64() {
    // ldr x1, [x0, #8]; ldr w2, [x1, #16]; ret
    let explanation = arm64(&[0xf940_0401, 0xb940_1022, 0xd65f_03c0], 4);
    assert_eq!(last_set(&explanation), Some((0, "ldr x1, [x0, #0x8]")), "{explanation:#?}");
    assert!(explanation.facts.iter().any(|fact| fact.contains("x1 was last set by")), "{explanation:#?}");
    // With a conditional jump out of the function between them: cbz x3, +12.
    let explanation = arm64(&[0xf940_0401, 0xb400_0043, 0xb940_1022, 0xd65f_03c0], 8);
    assert_eq!(last_set(&explanation).map(|(at, _)| at), Some(0), "{explanation:#?}");
}

#[test]
fn a_register_set_on_one_of_several_paths_is_not_claimed() {
    // ldr x1, [x0, #8]; ldr w2, [x1, #16]; b.ne to the second; ret
    assert_eq!(last_set(&arm64(&[0xf940_0401, 0xb940_1022, 0x54ff_ffe1, 0xd65f_03c0], 4)), None);
    // With a jump to an address in a register: br x5.
    assert_eq!(last_set(&arm64(&[0xf940_0401, 0xb940_1022, 0xd61f_00a0, 0xd65f_03c0], 4)), None);
    // With a ret between them.
    assert_eq!(last_set(&arm64(&[0xf940_0401, 0xd65f_03c0, 0xb940_1022, 0xd65f_03c0], 8)), None);
    // A compare and swap may have written it: cas x1, x2, [x3].
    assert_eq!(last_set(&arm64(&[0xf940_0401, 0xc8a1_7c62, 0xb940_1022, 0xd65f_03c0], 8)), None);
}

#[test]
fn the_load_that_set_a_register_is_found_on_x86_64() {
    // mov rax, [rdi+8]; cmp ecx, 3; mov eax, [rax+16]; ret
    let code = vec![0x48, 0x8b, 0x47, 0x08, 0x83, 0xf9, 0x03, 0x8b, 0x40, 0x10, 0xc3];
    let explanation = explain_read(Arch::X86_64, code.clone(), 7, 16);
    assert_eq!(last_set(&explanation), Some((0, "mov rax, [rdi+0x8]")), "{explanation:#?}");
    // A conditional move instead of the compare may have set the register: cmove rax, rdx.
    let mut other = code.clone();
    other.splice(4..7, [0x48, 0x0f, 0x44, 0xc2]);
    assert_eq!(last_set(&explain_read(Arch::X86_64, other, 8, 16)), None);
    // A call overwrites the register, and its return value is unknown.
    let mut other = code;
    other.splice(4..7, [0xe8, 0, 0, 0, 0x10]);
    assert_eq!(last_set(&explain_read(Arch::X86_64, other, 9, 16)), None);
}

#[test]
fn registers_of_repeated_instructions_are_not_claimed() {
    // mov rdi, [rsi+8]; rep stosb; ret. And stosb alone.
    let explain_store = |repeated: bool| {
        let mut code = vec![0x48, 0x8b, 0x7e, 0x08];
        code.extend([0xf3, 0xaa, 0xc3].iter().skip(usize::from(!repeated)));
        explain_read(Arch::X86_64, code, 4, 0)
    };
    assert_eq!(last_set(&explain_store(false)), Some((0, "mov rdi, [rsi+0x8]")), "{:#?}", explain_store(false));
    let repeated = explain_store(true);
    assert!(
        repeated.instruction.is_some() && repeated.operand.is_some() && last_set(&repeated).is_none(),
        "{repeated:#?}"
    );
}

#[test]
fn random_code_causes_no_panic() {
    let mut state = 7_u64;
    for round in 0..20_000 {
        let code: Vec<u8> = (0..48)
            .map(|_| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (state >> 56) as u8
            })
            .collect();
        let arch = if round % 2 == 0 { Arch::X86_64 } else { Arch::Aarch64 };
        let _ = explain_read(arch, code, (state >> 40) % 12 * 4, (state >> 20) % 64);
    }
}
