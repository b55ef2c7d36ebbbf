//! Faults: why the processor or the kernel stopped a thread.

use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{Address, Crash, CrashFlag, Frame, Thread};
use coroner_report::wire::{Access, Monitor};

use crate::bad_operand::{self, NEAR_NULL};
use crate::code_source::{Code, CodeSource};
use crate::grouped_digits::grouped;
use crate::instruction::{Class, Decoded, MemoryOperand, State};
use crate::memory_map::{self, MAY_ALL, MAY_EXECUTE, MAY_WRITE, permissions_at};
use crate::notice::{self, Notice};
use crate::{architecture, bad_jump, decode, poison_pattern, recursion, shadow_stack, stack_frame};
use coroner_report::model::FaultKind;
use coroner_report::model::{BadOperand, Certainty, Explanation, Instruction, MemoryAccess};

/// Error codes taken for pointers: −1 to −4095 (Linux's `MAX_ERRNO`; `MAP_FAILED` is −1).
pub(crate) const MIN_ERROR_VALUE: u64 = 0xffff_ffff_ffff_f001;
/// Maximum offset from a null pointer that is described as a field or an element, in bytes.
const MAX_OFFSET: u64 = 0x10_0000;
/// Explains a fault.
pub(crate) fn explain(report: &Report, crash: &Crash, code: &dyn CodeSource) -> Explanation {
    let notice = match notice::from_crash(report, crash) {
        Notice::Unmapped if is_guard_in_mapping(report, crash) => Notice::Denied,
        notice => notice,
    };
    let thread = report.crashed_thread();
    // Registers of another frame don't belong to the instruction.
    let registers = thread.and_then(|thread| thread.registers.as_ref()).filter(|registers| !registers.only_preserved);
    let state = registers.map(|registers| State::new(report, registers));
    let arch = registers.and_then(|registers| registers.arch);
    let Some((thread, state, arch)) = thread.zip(state).zip(arch).map(|((thread, state), arch)| (thread, state, arch))
    else {
        return explain_by_notice(report, crash, notice);
    };
    let pc = state.pc().unwrap_or_default();
    let found = decode::decode(arch, pc, code, &state);
    let is_memory = matches!(notice, Notice::Unmapped | Notice::Denied);
    let too_large = is_memory.then(|| stack_frame::find_too_large(report, thread, &state, crash)).flatten();
    let fault = Fault { report, crash, notice, thread, state, arch, pc, source: code, found };
    let mut explanation = fault.explain();
    fault.compare_shadow_stack(&mut explanation);
    if crash.has(CrashFlag::StackOverflow) {
        explanation.kind = FaultKind::StackOverflow;
        explanation.certainty = Certainty::Certain;
        explanation.recursion = recursion::find_cycle(thread);
        // The operand is only bad because the stack has no room there.
        explanation.operand = None;
        if notice == Notice::GeneralProtection {
            explanation.facts.insert(0, "the stack had no room for a signal frame".to_owned());
        }
    } else if let Some(size) = too_large {
        (explanation.kind, explanation.certainty) = (FaultKind::StackOverflow, Certainty::Certain);
        explanation.operand = None;
        explanation.facts.insert(0, format!("a frame of {} bytes exceeds the remaining stack", grouped(size)));
    }
    explanation
}

/// Explains a fault without registers.
fn explain_by_notice(report: &Report, crash: &Crash, notice: Notice) -> Explanation {
    let mut explanation = Explanation::default();
    let certain = |kind| (kind, Certainty::Certain);
    (explanation.kind, explanation.certainty) = match notice {
        _ if crash.has(CrashFlag::StackOverflow) => certain(FaultKind::StackOverflow),
        Notice::Unmapped => match crash.address {
            Some(address) => certain(kind_of_address(None, address)),
            None => (FaultKind::Unmapped, Certainty::Possible),
        },
        Notice::Denied => kind_of_denial(report, crash),
        Notice::DeniedByKey => certain(FaultKind::AccessDenied),
        Notice::GuardPage => certain(FaultKind::GuardPage),
        Notice::Unaligned => certain(FaultKind::Unaligned),
        Notice::NoObject => (FaultKind::TruncatedMapping, Certainty::Possible),
        Notice::MemoryFailure => certain(FaultKind::MemoryFailure),
        Notice::Tag => certain(FaultKind::TagMismatch),
        Notice::ShadowStack => certain(FaultKind::ControlFlow),
        Notice::IntegerDivision => certain(FaultKind::DivisionError),
        Notice::FloatingPoint => certain(FaultKind::FloatingPoint),
        Notice::Illegal => (FaultKind::IllegalInstruction, Certainty::Possible),
        Notice::Privileged => certain(FaultKind::PrivilegedInstruction),
        Notice::Heap => certain(FaultKind::HeapCorruption),
        Notice::Breakpoint => (FaultKind::Breakpoint, Certainty::Possible),
        Notice::Abort
        | Notice::Thrown
        | Notice::SystemCall
        | Notice::Sent
        | Notice::GeneralProtection
        | Notice::Other => (FaultKind::Unknown, Certainty::Unknown),
    };
    if notice == Notice::Heap {
        let fact = "the heap's metadata was overwritten earlier, by a write beyond a block or to a freed block, possibly on another thread";
        explanation.facts.push(fact.to_owned());
    }
    if let Some(address) = crash.address.filter(|_| is_memory_fault(notice)) {
        explanation.access = Some(MemoryAccess { kind: reported_access(crash), width: None, address: Some(address) });
        explanation.facts.extend(memory_map::describe_address(report, address));
        if is_guard_in_mapping(report, crash) {
            let fact =
                "the address is in a guard region of that mapping (MADV_GUARD_INSTALL), or was mapped after the fault";
            explanation.facts.push(fact.to_owned());
        }
    }
    if crash.has(CrashFlag::StackOverflow) {
        explanation.recursion = report.crashed_thread().and_then(recursion::find_cycle);
    }
    explanation
}

fn is_memory_fault(notice: Notice) -> bool {
    matches!(
        notice,
        Notice::Unmapped
            | Notice::Denied
            | Notice::DeniedByKey
            | Notice::GuardPage
            | Notice::NoObject
            | Notice::Unaligned
            | Notice::MemoryFailure
            | Notice::Tag
    )
}

/// Returns the access reported by the processor; unknown values are ignored.
fn reported_access(crash: &Crash) -> Option<Access> {
    crash.access.filter(|access| [Access::READ, Access::WRITE, Access::EXECUTE].contains(access))
}

/// Returns the kind of a fault at an unmapped address, based on the bad register's value.
fn kind_of_address(operand: Option<(Option<u64>, Arch, u64)>, address: Address) -> FaultKind {
    let value = operand.and_then(|(value, ..)| value);
    let is_near = address.0 < NEAR_NULL || address.0 >= MIN_ERROR_VALUE;
    match (value, operand) {
        (Some(0), Some((_, _, offset))) if offset < MAX_OFFSET => FaultKind::NullPointer,
        (Some(value), _) if poison_pattern::describe(value).is_some() => FaultKind::PoisonedPointer,
        (None, _) if address.0 == 0 => FaultKind::NullPointer,
        _ if is_near => FaultKind::NearNull,
        (_, Some((_, arch, _))) if !architecture::is_canonical(arch, address.0) => FaultKind::NonCanonical,
        _ => FaultKind::Unmapped,
    }
}

/// Whether the kernel reported an unmapped address that lies in an accessible mapping.
///
/// A guard was installed inside the mapping (Linux's `MADV_GUARD_INSTALL`), or it was mapped after
/// the fault.
fn is_guard_in_mapping(report: &Report, crash: &Crash) -> bool {
    let is_open = |address| report.mappings.iter().any(|at| at.contains(address) && at.protection & MAY_ALL != 0);
    crash.mach.is_none() && notice::from_crash(report, crash) == Notice::Unmapped && crash.address.is_some_and(is_open)
}

/// Returns the kind of an access that the mapping did not allow.
fn kind_of_denial(report: &Report, crash: &Crash) -> (FaultKind, Certainty) {
    if is_guard_in_mapping(report, crash) {
        return (FaultKind::GuardPage, Certainty::Possible);
    }
    let permissions = crash.address.and_then(|address| permissions_at(report, address));
    let lacks = |bit: u8| permissions.is_some_and(|permissions| permissions & bit == 0);
    let is_mapping_known =
        crash.address.is_some_and(|address| report.mappings.iter().any(|mapping| mapping.contains(address)));
    let kind = match reported_access(crash) {
        _ if is_mapping_known && permissions.is_some_and(|permissions| permissions & MAY_ALL == 0) => {
            FaultKind::GuardPage
        }
        Some(Access::WRITE) if lacks(MAY_WRITE) => FaultKind::WriteToReadOnly,
        Some(Access::EXECUTE) if lacks(MAY_EXECUTE) || permissions.is_none() => FaultKind::ExecuteOfData,
        _ => FaultKind::AccessDenied,
    };
    (kind, Certainty::Certain)
}

/// Handles a return to an address without code.
fn set_bad_return(thread: &Thread, explanation: &mut Explanation) {
    explanation.kind = FaultKind::BadReturn;
    // On a stack without callers (such as `makecontext`'s, which starts with a return) it may have
    // been the first return.
    let is_start = |frame: &Frame| frame.function.as_deref() == Some("__start_context");
    if thread.frames.iter().skip(1).all(is_start) {
        return;
    }
    let fact = "the return address was overwritten, as by a stack buffer overflow, or the stack pointer was wrong";
    explanation.facts.push(fact.to_owned());
}

struct Fault<'a> {
    report: &'a Report,
    crash: &'a Crash,
    notice: Notice,
    thread: &'a Thread,
    state: State<'a>,
    arch: Arch,
    pc: Address,
    source: &'a dyn CodeSource,
    found: Option<(Decoded, Code)>,
}

impl Fault<'_> {
    fn explain(&self) -> Explanation {
        let mut explanation = explain_by_notice(self.report, self.crash, self.notice);
        let mask = architecture::address_mask(self.arch);
        let is_fetch = self.crash.address.is_some_and(|address| (address.0 ^ self.pc.0) & mask == 0);
        let may_be_fetch = reported_access(self.crash).is_none_or(|access| access == Access::EXECUTE);
        if is_fetch && may_be_fetch && matches!(self.notice, Notice::Unmapped | Notice::Denied) {
            self.explain_jump(&mut explanation);
            return explanation;
        }
        if let Some((decoded, _)) = &self.found
            && decoded.class != Class::Invalid
        {
            explanation.instruction = Some(Instruction { address: self.pc, text: decoded.text.clone() });
        }
        match self.notice {
            Notice::Unmapped => self.explain_unmapped(&mut explanation),
            Notice::Denied
            | Notice::DeniedByKey
            | Notice::GuardPage
            | Notice::NoObject
            | Notice::MemoryFailure
            | Notice::Tag => {
                self.set_operand_at_address(&mut explanation);
                if self.notice == Notice::Denied && explanation.kind == FaultKind::AccessDenied {
                    self.refine_denial(&mut explanation);
                }
            }
            Notice::Unaligned => {
                if let Some((decoded, _)) = &self.found
                    && let [operand] = decoded.memory.as_slice()
                    && operand.width.is_some_and(|width| width > 1 && !operand.address.is_multiple_of(width.into()))
                {
                    self.set_operand(operand, &mut explanation);
                }
            }
            Notice::GeneralProtection => self.explain_general_protection(&mut explanation),
            Notice::IntegerDivision => self.explain_division(&mut explanation),
            Notice::Illegal => self.explain_illegal(&mut explanation),
            Notice::Breakpoint => self.explain_breakpoint(&mut explanation),
            _ => {}
        }
        explanation
    }

    /// Compares return addresses with the shadow stack, if the thread had one.
    fn compare_shadow_stack(&self, explanation: &mut Explanation) {
        let stopped = self.notice == Notice::ShadowStack;
        let returns = self.found.as_ref().is_none_or(|(decoded, _)| decoded.class == Class::Return);
        // A return that the processor did not allow, because of the shadow stack or because of an
        // invalid address.
        let failed = returns && (stopped || self.found.is_some() && explanation.kind == FaultKind::BadReturn);
        if stopped && !failed {
            return;
        }
        let found = shadow_stack::compare(self.report, self.thread, self.arch, &self.state, failed);
        let Some(overwritten) = found else { return };
        let place = if failed { 0 } else { explanation.facts.len() };
        explanation.facts.insert(place, shadow_stack::describe(self.report, &overwritten));
        explanation.overwritten_return = Some(overwritten);
        let leads_to = overwritten.leads_to;
        if stopped && permissions_at(self.report, leads_to).is_none_or(|permissions| permissions & MAY_EXECUTE == 0) {
            explanation.kind = FaultKind::BadReturn;
            explanation.access =
                Some(MemoryAccess { kind: Some(Access::EXECUTE), width: None, address: Some(leads_to) });
        }
    }

    fn is_verified(&self) -> bool {
        self.found.as_ref().is_some_and(|(_, code)| code.is_verified)
    }

    /// Returns how certain conclusions from the code are.
    fn certainty_of_code(&self) -> Certainty {
        if self.is_verified() { Certainty::Certain } else { Certainty::Possible }
    }

    /// Handles a thread whose program counter is the fault's address: it jumped there.
    fn explain_jump(&self, explanation: &mut Explanation) {
        explanation.kind = match self.notice {
            Notice::Unmapped if self.pc.0 < NEAR_NULL => FaultKind::JumpToNull,
            // Can't happen on x86_64.
            Notice::Unmapped if !architecture::is_canonical(self.arch, self.pc.0) => FaultKind::NonCanonical,
            Notice::Unmapped => FaultKind::JumpToNowhere,
            // The mapping exists, but its code could not be fetched.
            _ if permissions_at(self.report, self.pc).is_none_or(|permissions| permissions & MAY_EXECUTE == 0) => {
                FaultKind::ExecuteOfData
            }
            _ => FaultKind::AccessDenied,
        };
        explanation.certainty = Certainty::Certain;
        explanation.access = Some(MemoryAccess { kind: Some(Access::EXECUTE), width: None, address: Some(self.pc) });
        if let Some(operand) = bad_jump::find_return(self.thread, self.arch, self.pc, &self.state) {
            explanation.operand = Some(operand);
            return set_bad_return(self.thread, explanation);
        }
        bad_jump::find_call(self.thread, self.arch, self.pc, self.source, &self.state, explanation);
        if explanation.operand.as_ref().is_some_and(|operand| operand.pattern.is_some()) {
            explanation.kind = FaultKind::PoisonedPointer;
        }
    }

    /// Finds the operand whose address the processor reported. `None` if there isn't one.
    fn set_operand_at_address(&self, explanation: &mut Explanation) -> Option<&MemoryOperand> {
        let (decoded, _) = self.found.as_ref()?;
        let address = self.crash.address?;
        let operand = bad_operand::find_at_address(decoded, self.arch, address, reported_access(self.crash))?;
        self.set_operand(operand, explanation);
        explanation.access.get_or_insert_default().address = Some(address);
        Some(operand)
    }

    fn set_operand(&self, operand: &MemoryOperand, explanation: &mut Explanation) {
        explanation.access = Some(MemoryAccess {
            kind: reported_access(self.crash).or(operand.access),
            width: operand.width,
            address: Some(Address(operand.address)),
        });
        let is_mapped = |address| memory_map::is_mapped(self.report, Address(address));
        explanation.operand = Some(bad_operand::describe(operand, self.arch, is_mapped));
    }

    fn explain_unmapped(&self, explanation: &mut Explanation) {
        let Some(address) = self.crash.address else { return };
        let Some(operand) = self.set_operand_at_address(explanation) else {
            let Some((decoded, _)) = &self.found else { return };
            if self.arch == Arch::Aarch64
                && address.0 == 0
                && bad_operand::find_non_canonical(decoded, self.arch).is_some()
            {
                // An emulator of arm64 on x86_64 (qemu-user) forwards that processor's faults,
                // which have no address if it is not canonical.
                return self.explain_general_protection(explanation);
            }
            explanation.certainty = Certainty::Possible;
            // The known code did not access the address. (No operand is known for fs, gs and
            // gathers.)
            let mask = architecture::address_mask(self.arch);
            if !decoded.memory.is_empty() && !decoded.memory.iter().any(|operand| operand.contains(address.0, mask)) {
                explanation.facts.push("no operand of the instruction refers to the fault address".to_owned());
            }
            return;
        };
        let is_null_itself = operand.base.is_none() && operand.index.is_none() && address.0 == 0;
        let value = explanation.operand.as_ref().and_then(|named| named.value);
        let value = value.or(is_null_itself.then_some(address));
        let offset = address.0.min(operand.displacement.unsigned_abs());
        explanation.kind = kind_of_address(Some((value.map(|value| value.0), self.arch, offset)), address);
        explanation.certainty = self.certainty_of_code();
        if self.is_cleared_code() {
            explanation.certainty = Certainty::Possible;
            explanation.facts.push("the code at the program counter is all zeros: cleared or never written".to_owned());
        }
        if value.is_some_and(|value| value.0 >= MIN_ERROR_VALUE) {
            explanation
                .facts
                .push("the register holds a small negative number, as error results such as MAP_FAILED are".to_owned());
        }
    }

    /// Whether the instruction consists of zeros and is outside all images: `add [rax], al` on
    /// x86_64.
    fn is_cleared_code(&self) -> bool {
        const ZEROS: usize = 8;
        let is_zero = |code: &Code| code.bytes.iter().take(ZEROS).all(|byte| *byte == 0);
        self.report.image_at(self.pc).is_none() && self.found.as_ref().is_some_and(|(_, code)| is_zero(code))
    }

    /// Takes the access from the instruction if the processor did not report it.
    fn refine_denial(&self, explanation: &mut Explanation) {
        let crash = Crash { access: explanation.access.and_then(|access| access.kind), ..self.crash.clone() };
        if reported_access(self.crash).is_none() && explanation.operand.is_some() && self.is_verified() {
            explanation.kind = kind_of_denial(self.report, &crash).0;
        }
    }

    /// x86_64: the processor gives no address, so the cause is derived from the instruction.
    fn explain_general_protection(&self, explanation: &mut Explanation) {
        let Some((decoded, _)) = &self.found else { return self.explain_general_protection_by_registers(explanation) };
        let is_bad = |value: u64| !architecture::is_canonical(self.arch, value);
        let by_value = |value: u64| match poison_pattern::describe(value) {
            Some(_) => FaultKind::PoisonedPointer,
            None => FaultKind::NonCanonical,
        };
        if decoded.class == Class::Privileged {
            (explanation.kind, explanation.certainty) = (FaultKind::PrivilegedInstruction, self.certainty_of_code());
        } else if let Class::Branch { register, value } = decoded.class
            && is_bad(value)
        {
            (explanation.kind, explanation.certainty) = (by_value(value), self.certainty_of_code());
            self.set_bad_target(register.to_owned(), Some(register), value, explanation);
        } else if let Some(operand) = bad_operand::find_non_canonical(decoded, self.arch) {
            self.set_operand(operand, explanation);
            let filled = explanation.operand.as_ref().is_some_and(|operand| operand.pattern.is_some());
            explanation.kind = if filled { FaultKind::PoisonedPointer } else { FaultKind::NonCanonical };
            explanation.certainty = self.certainty_of_code();
        } else if matches!(decoded.class, Class::BranchByMemory | Class::Return)
            && let Some(operand) = decoded.memory.iter().find(|operand| operand.access == Some(Access::READ))
            && let Some(value) = self.state.saved(operand.address, 8).filter(|value| is_bad(*value))
        {
            (explanation.kind, explanation.certainty) = (by_value(value), self.certainty_of_code());
            self.set_bad_target(operand.text.clone(), None, value, explanation);
            if decoded.class == Class::Return {
                set_bad_return(self.thread, explanation);
            }
        } else if let Some(operand) = bad_operand::find_unaligned(decoded) {
            self.set_operand(operand, explanation);
            (explanation.kind, explanation.certainty) = (FaultKind::Unaligned, self.certainty_of_code());
        }
    }

    /// Like [`Self::explain_general_protection`], without the instruction.
    ///
    /// If exactly one register holds a non-canonical value, that may be the cause.
    fn explain_general_protection_by_registers(&self, explanation: &mut Explanation) {
        let named = self.state.registers.named().filter(|(name, _)| !matches!(*name, "rip" | "rflags"));
        let mut bad = named.filter(|(_, value)| !architecture::is_canonical(self.arch, *value));
        let (Some((name, value)), None) = (bad.next(), bad.next()) else { return };
        explanation.kind = if poison_pattern::describe(value).is_some() {
            FaultKind::PoisonedPointer
        } else {
            FaultKind::NonCanonical
        };
        explanation.certainty = Certainty::Possible;
        let pattern = poison_pattern::describe(value).map_or_else(String::new, |pattern| format!(": {pattern}"));
        explanation.facts.push(format!("{name} holds {}, which is not a valid address{pattern}", Address(value)));
    }

    fn set_bad_target(&self, text: String, register: Option<&'static str>, value: u64, explanation: &mut Explanation) {
        explanation.access =
            Some(MemoryAccess { kind: Some(Access::EXECUTE), width: None, address: Some(Address(value)) });
        let (value, pattern) = (Some(Address(value)), poison_pattern::describe(value).map(str::to_owned));
        let register = register.map(str::to_owned);
        explanation.operand = Some(BadOperand { text, register, value, pattern, ..BadOperand::default() });
    }

    fn explain_division(&self, explanation: &mut Explanation) {
        let Some((Decoded { class: Class::Division { divisor }, .. }, _)) = &self.found else { return };
        let Some(divisor) = divisor else { return };
        explanation.kind = if divisor.value == 0 { FaultKind::DivisionByZero } else { FaultKind::DivisionOverflow };
        explanation.certainty = self.certainty_of_code();
        // Memory may have changed since: a compiler's division only overflows with -1.
        let is_minus_one = matches!(divisor.value, 0xff | 0xffff | 0xffff_ffff | u64::MAX);
        if divisor.register.is_none() && divisor.value != 0 && !is_minus_one {
            explanation.certainty = Certainty::Possible;
        }
        explanation.operand = Some(BadOperand {
            text: divisor.text.clone(),
            register: divisor.register.map(str::to_owned),
            value: Some(Address(divisor.value)),
            ..BadOperand::default()
        });
    }

    fn explain_illegal(&self, explanation: &mut Explanation) {
        let signal = self.crash.signal.as_ref();
        // Arm's reference manual, ESR_EL1.EC: a branch target that is not a landing pad, a pointer
        // that failed authentication.
        let class = signal
            .and_then(|signal| signal.error_code)
            .filter(|_| self.arch == Arch::Aarch64)
            .map(|esr| esr >> 26 & 63);
        if let Some(what) = match class {
            Some(0x0d) => Some("a branch went to an instruction that is not a landing pad (BTI)"),
            Some(0x1c) => Some("pointer authentication failed"),
            _ => None,
        } {
            (explanation.kind, explanation.certainty) = (FaultKind::ControlFlow, Certainty::Certain);
            explanation.facts.push(what.to_owned());
            return;
        }
        let Some((decoded, code)) = &self.found else {
            if self.report.image_at(self.pc).is_none() {
                explanation.facts.push(format!("{} is outside all images", self.pc));
            }
            return;
        };
        let said_privileged =
            signal.is_some_and(|signal| matches!(signal.code_name, Some("ILL_PRVOPC" | "ILL_PRVREG")));
        match &decoded.class {
            Class::Trap(meaning) => {
                explanation.kind = if meaning.is_control_flow { FaultKind::ControlFlow } else { FaultKind::Trap };
                // Outside images it was not put there by an ahead-of-time compiler, but possibly by
                // one that generates code at run time.
                let is_of_image = self.report.image_at(self.pc).is_some();
                explanation.facts.extend(is_of_image.then(|| meaning.what.to_owned()));
            }
            Class::Privileged => explanation.kind = FaultKind::PrivilegedInstruction,
            _ if said_privileged => explanation.kind = FaultKind::PrivilegedInstruction,
            Class::Invalid => explanation.facts.push("the bytes are not a valid instruction".to_owned()),
            _ => {
                if let Some(feature) = decode::needed_feature(self.arch, &code.bytes) {
                    explanation.facts.push(format!("the instruction requires a processor with {feature}"));
                }
            }
        }
        explanation.certainty = self.certainty_of_code();
    }

    fn explain_breakpoint(&self, explanation: &mut Explanation) {
        let is_of_windows = self.crash.monitor == Monitor::SEH;
        // A debugger's step or watchpoint (`TRAP_TRACE`, `TRAP_HWBKPT` on Linux) is not an
        // instruction of the program.
        if self.crash.signal.as_ref().is_some_and(|signal| matches!(signal.code, 2 | 4)) {
            (explanation.kind, explanation.instruction) = (FaultKind::Unknown, None);
            return;
        }
        let (decoded, certainty, at) = match self.arch {
            // The processor advances past `int3` before it traps. (Windows resets it.)
            Arch::X86_64 if !is_of_windows => {
                explanation.instruction = None;
                let before = Address(self.pc.0.wrapping_sub(1));
                let Some((decoded, code)) = decode::decode(self.arch, before, self.source, &self.state) else {
                    return;
                };
                if decoded.length != 1 {
                    return;
                }
                (decoded, if code.is_verified { Certainty::Certain } else { Certainty::Possible }, before)
            }
            _ => {
                let Some((decoded, _)) = self.found.clone() else { return };
                (decoded, self.certainty_of_code(), self.pc)
            }
        };
        let (kind, meaning) = match &decoded.class {
            Class::Breakpoint(meaning) => (FaultKind::Breakpoint, meaning),
            Class::Trap(meaning) if meaning.is_control_flow => (FaultKind::ControlFlow, meaning),
            Class::Trap(meaning) => (FaultKind::Trap, meaning),
            _ => return,
        };
        (explanation.kind, explanation.certainty) = (kind, certainty);
        explanation.instruction = Some(Instruction { address: at, text: decoded.text.clone() });
        explanation.facts.push(meaning.what.to_owned());
    }
}
