//! Executes rules: computes the registers of a frame's caller from the frame's registers and stack
//! memory. No other code reads the stack by rule.
//!
//! Guarantees: the registers change only if the rule could be executed and `accept` agreed.

use crate::arch::Architecture;
use crate::cfi::Cie;
use crate::cfi::expression::evaluate;
use crate::cfi::row::{CfaRule, RegisterRule, RowState};
use crate::frame::{Malformed, Problem};
use crate::registers::RegisterFile;
use crate::rule::{Row, SignalContext};
use coroner_process::memory::Memory;
use coroner_process::registers::Arch;

/// Result of a rule, before it is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The CFA: the caller's stack pointer.
    pub cfa: u64,
    /// The return address as found (it may contain an authentication code).
    pub pc: u64,
}

/// Returns the problem for a register that a rule needs and whose value is unknown.
const fn unknown(register: u8) -> Problem {
    Problem::Malformed { what: Malformed::UnknownRegister, address: register as u64 }
}

/// Executes a row. `accept` receives the result; the registers become the caller's only if it
/// agrees.
///
/// # Errors
/// The error of `accept`, or a [`Problem`] if memory can't be read or a register is unknown
/// ([`Malformed::UnknownRegister`], with the register's number as address).
#[inline]
pub(crate) fn row<A: Architecture, M: Memory, E: From<Problem>>(
    row: &Row,
    registers: &mut RegisterFile<A>,
    memory: &mut M,
    accept: impl FnOnce(&mut M, Caller) -> Result<u64, E>,
) -> Result<u64, E> {
    let base = registers.address(row.cfa_register, memory).map_err(Problem::from)?.ok_or(unknown(row.cfa_register))?;
    let cfa = base.wrapping_add_signed(row.cfa_offset.into());
    let place = |slot: i16| cfa.wrapping_add_signed(i64::from(slot) << 3);
    let return_slot = A::SAVED_COUNT.wrapping_sub(1);
    let return_bit = 1u16.wrapping_shl(return_slot as u32);
    let pc = if row.saved & return_bit != 0 {
        let slot = row.slots.get(return_slot).copied().unwrap_or_default();
        memory.read_u64(place(slot)).map_err(Problem::from)?
    } else {
        link_register(registers, memory)?
    };
    let pc = accept(memory, Caller { cfa, pc })?;
    registers.return_by(row, cfa, pc);
    Ok(cfa)
}

/// Returns the return address in the link register: it must be this frame's, not a leftover of a
/// call.
#[inline]
fn link_register<A: Architecture, M: Memory>(registers: &mut RegisterFile<A>, memory: &mut M) -> Result<u64, Problem> {
    if !A::LINK_REGISTER || !registers.is_certain(A::RA) {
        return Err(unknown(A::RA));
    }
    registers.value(A::RA, memory)?.ok_or(unknown(A::RA))
}

/// Returns the address at which a row saved a register, and the CFA.
pub(crate) fn saved_at<A: Architecture, M: Memory>(
    row: &Row,
    register: u8,
    registers: &mut RegisterFile<A>,
    memory: &mut M,
) -> Option<(u64, u64)> {
    let slot = A::slot_of(register)?;
    if row.saved & 1u16.wrapping_shl(slot as u32) == 0 {
        return None;
    }
    let cfa = registers.address(row.cfa_register, memory).ok()??.wrapping_add_signed(row.cfa_offset.into());
    let words = i64::from(row.slots.get(slot).copied()?);
    Some((cfa.wrapping_add_signed(words << 3), cfa))
}

/// Executes the frame record at the frame pointer:
/// `pc' = *(fp + 8); fp' = *fp; sp' = cfa = fp + 16`.
#[inline]
pub(crate) fn frame_record<A: Architecture, M: Memory, E: From<Problem>>(
    registers: &mut RegisterFile<A>,
    memory: &mut M,
    accept: impl FnOnce(&mut M, Caller) -> Result<u64, E>,
) -> Result<u64, E> {
    let fp = registers.address(A::FP, memory).map_err(Problem::from)?.ok_or(unknown(A::FP))?;
    let (caller_fp, pc) = memory.read_pair(fp).map_err(Problem::from)?;
    let cfa = fp.wrapping_add(16);
    let pc = accept(memory, Caller { cfa, pc })?;
    registers.after_call(A::PRESERVED);
    registers.set(A::FP, caller_fp);
    registers.set(A::SP, cfa);
    registers.pc = pc;
    Ok(cfa)
}

/// Executes a full row of call frame information, including expressions and registers saved in
/// other registers.
pub(crate) fn full_row<A: Architecture, M: Memory, E: From<Problem>>(
    state: &RowState,
    cie: &Cie,
    registers: &mut RegisterFile<A>,
    memory: &mut M,
    accept: impl FnOnce(&mut M, Caller) -> Result<u64, E>,
) -> Result<u64, E> {
    let mut caller = *registers;
    let (cfa, pc) = evaluate_row(state, cie, registers, &mut caller, memory)?;
    let pc = accept(memory, Caller { cfa, pc })?;
    if A::LINK_REGISTER && !cie.signal_trampoline {
        caller.forget(A::RA);
    }
    caller.pc = pc;
    *registers = caller;
    Ok(cfa)
}

fn evaluate_row<A: Architecture, M: Memory>(
    state: &RowState,
    cie: &Cie,
    registers: &mut RegisterFile<A>,
    caller: &mut RegisterFile<A>,
    memory: &mut M,
) -> Result<(u64, u64), Problem> {
    let undefined = Problem::Malformed { what: Malformed::Opcode, address: cie.address };
    let cfa = match state.cfa {
        CfaRule::Undefined => return Err(undefined),
        CfaRule::Register { register, offset } => {
            registers.address(register, memory)?.ok_or(unknown(register))?.wrapping_add_signed(offset)
        }
        CfaRule::Expression(block) => evaluate(state.block_address(block), registers, memory, None)?,
    };
    caller.after_call(A::PRESERVED);
    caller.set(A::SP, cfa);
    let mut return_address = None;
    for (number, rule) in state.registers.iter().enumerate() {
        let number = number as u8;
        let is_return = number == cie.return_register;
        if matches!(rule, RegisterRule::Unspecified) && !is_return {
            continue;
        }
        let at = |offset: i32| cfa.wrapping_add_signed(offset.into());
        // Either the value, or its address.
        let (value, place) = match *rule {
            RegisterRule::Unspecified | RegisterRule::Same if is_return && A::LINK_REGISTER && number == A::RA => {
                (Some(link_register(registers, memory)?), None)
            }
            RegisterRule::Unspecified | RegisterRule::Same => (registers.value(number, memory)?, None),
            RegisterRule::Undefined => (None, None),
            RegisterRule::Offset(offset) => (None, Some(at(offset))),
            RegisterRule::ValueOffset(offset) => (Some(at(offset)), None),
            RegisterRule::Register(other) => (registers.value(other, memory)?, None),
            RegisterRule::Expression(block) => {
                (None, Some(evaluate(state.block_address(block), registers, memory, Some(cfa))?))
            }
            RegisterRule::ValueExpression(block) => {
                (Some(evaluate(state.block_address(block), registers, memory, Some(cfa))?), None)
            }
        };
        if is_return {
            return_address = match place {
                Some(place) => Some(memory.read_u64(place)?),
                None => value,
            };
            // On arm64 the link register of interrupted code is its own, and pc has a separate
            // column.
            if !(A::LINK_REGISTER && number == A::RA) {
                continue;
            }
        }
        match (value, place) {
            _ if number >= 32 => {}
            (_, Some(place)) => caller.set_saved_at(number, place),
            (Some(value), None) => caller.set(number, value),
            (None, None) => caller.forget(number),
        }
    }
    let pc = return_address.ok_or(unknown(cie.return_register))?;
    Ok((cfa, pc))
}

/// Executes a signal context: restores all registers of the interrupted code, with its stack
/// pointer as canonical frame address.
pub(crate) fn signal_context<A: Architecture, M: Memory, E: From<Problem>>(
    context: SignalContext,
    registers: &mut RegisterFile<A>,
    memory: &mut M,
    accept: impl FnOnce(&mut M, Caller) -> Result<u64, E>,
) -> Result<u64, E> {
    let layout = layout(A::ARCH, context);
    let start = match context {
        SignalContext::Linux => registers.sp(),
        SignalContext::Darwin { register, offset } => registers
            .address(register, memory)
            .map_err(Problem::from)?
            .ok_or(unknown(register))?
            .wrapping_add_signed(offset.into()),
    };
    let at = start.wrapping_add(layout.general);
    let at = match layout.indirect {
        Some(offset) => {
            memory.read_u64(start.wrapping_add(offset)).map_err(Problem::from)?.wrapping_add(layout.general)
        }
        None => at,
    };
    let mut interrupted = RegisterFile::<A>::new(0);
    let mut cfa = 0;
    let mut pc = 0;
    for (index, number) in layout.order.iter().enumerate() {
        let place = at.wrapping_add((index as u64).wrapping_mul(8));
        match *number {
            PC => pc = memory.read_u64(place).map_err(Problem::from)?,
            number if number == A::SP => {
                cfa = memory.read_u64(place).map_err(Problem::from)?;
                interrupted.set(number, cfa);
            }
            NONE => {}
            number => interrupted.set_saved_at(number, place),
        }
    }
    interrupted.pc = accept(memory, Caller { cfa, pc })?;
    *registers = interrupted;
    Ok(cfa)
}

const PC: u8 = 0xff;
const NONE: u8 = 0xfe;

struct Layout {
    /// Offset of the pointer to the machine context, if there is one.
    indirect: Option<u64>,
    /// Offset of the general registers.
    general: u64,
    /// DWARF numbers of the words there.
    order: &'static [u8],
}

/// Returns the layout of a signal context. Linux: `struct rt_sigframe`, `struct ucontext` and
/// `struct sigcontext` of `arch/{x86,arm64}/include/uapi/asm`; on x86_64 the return from the
/// handler has popped `pretcode` off the stack. Darwin: `struct __darwin_ucontext` and
/// `struct __darwin_mcontext64` (`uc_mcontext`, at 48, points to the latter, which begins with the
/// exception state of 16 bytes).
const fn layout(arch: Arch, context: SignalContext) -> Layout {
    const X86_64_LINUX: &[u8] = &[8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, PC];
    const X86_64_DARWIN: &[u8] = &[0, 3, 2, 1, 5, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, PC];
    const AARCH64: &[u8] = &[
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29,
        30, 31, PC,
    ];
    match (arch, context) {
        // uc_flags, uc_link, uc_stack
        (Arch::X86_64, SignalContext::Linux) => Layout { indirect: None, general: 40, order: X86_64_LINUX },
        // siginfo 128; uc_flags, uc_link, uc_stack, uc_sigmask and its padding 176; fault_address 8
        (Arch::Aarch64, SignalContext::Linux) => Layout { indirect: None, general: 312, order: AARCH64 },
        (Arch::X86_64, SignalContext::Darwin { .. }) => {
            Layout { indirect: Some(48), general: 16, order: X86_64_DARWIN }
        }
        (Arch::Aarch64, SignalContext::Darwin { .. }) => Layout { indirect: Some(48), general: 16, order: AARCH64 },
    }
}
