//! Code analysis: the effect of a function's code on the stack between an instruction and the
//! function's return.
//!
//! Unwind data of Mach-O describe only function bodies, those of some compilers are wrong in
//! prologues, and a shrink-wrapped function has its frame on only some of its paths. The code is
//! always right: whatever path it takes from an instruction to a return, it finds the return
//! address and restores the registers that it saved. So a path is followed ([`Path`]), with symbols
//! for values:
//!
//! * If it reaches a return without a call, everything is known ([`Reached::Return`]): this covers
//!   epilogues, leaves, and everything on a path that builds no frame.
//! * If it reaches a call first ([`Reached::Call`]), the unwind data there hold, since functions
//!   are described at calls; the effect of the path is then reversed ([`Path::pull_back`]): this
//!   covers prologues.
//!
//! Conditional branches are followed both ways, one after the other, each instruction once, within
//! a budget. Calls of outlined functions are followed, and so is the return from one
//! ([`outlined`]).

pub(crate) mod decode_aarch64;
pub(crate) mod decode_x86_64;
pub(crate) mod outlined;
pub(crate) mod stack_switch;
mod symbolic_execution;

use crate::arch::Architecture;
use crate::cursor::Cursor;
use crate::frame::Problem;
use crate::image::AddressRange;
use coroner_process::memory::Memory;
use coroner_process::registers::Arch;
use symbolic_execution::Symbol;
pub(crate) use symbolic_execution::{CodeRow, Path, Start};

pub(crate) const NO_REGISTER: u8 = 0xff;

/// Effect of an instruction on the stack. Registers have their DWARF numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// No relevant effect.
    Other,
    /// `to = from + add`.
    Set { to: u8, from: u8, add: i64 },
    /// `to = value`.
    Constant { to: u8, value: i64 },
    /// `to = to & !(0xffff << shift) | value << shift`, for a constant.
    Insert { to: u8, value: u16, shift: u8 },
    /// `to = from ± other`, where `other` may be a constant.
    Sum { to: u8, from: u8, other: u8, negative: bool },
    /// These registers, as bits by number, get values that are not tracked.
    Unknown { registers: u32 },
    /// `to = to ± *(base + offset)`.
    Combine { to: u8, base: u8, offset: i32, negative: bool },
    /// A load or store of a 64-bit register, from or to thread-local storage.
    ThreadWord { load: bool, register: u8 },
    /// Loads or stores of 64-bit registers at `base + offset` and the next word, then
    /// `base += update`.
    Access(Access),
    /// `sp = fp; fp = *sp; sp += 8`.
    Leave,
    /// A jump to this address.
    Jump(u64),
    /// A jump to this address, or continuation after the instruction, which also gives these
    /// registers (bits by number) values that are not tracked.
    Branch { to: u64, unknown: u32 },
    /// A jump to an unknown address.
    IndirectJump,
    /// A call, to this address if it is known.
    Call(Option<u64>),
    /// A return to the address in this register, or (with [`NO_REGISTER`]) to the one on top of the
    /// stack.
    Return(u8),
    /// The end of a path that does not return: a trap, or an invalid instruction.
    Trap,
}

impl Effect {
    /// Returns the effect of giving registers, as bits by number, values that are not tracked.
    const fn unknown(registers: u32) -> Effect {
        if registers == 0 { Effect::Other } else { Effect::Unknown { registers } }
    }
}

/// Returns the bit of a register; 0 for [`NO_REGISTER`].
const fn bit(register: u8) -> u32 {
    if register < 32 { 1 << register } else { 0 }
}

/// Loads or stores of [`Effect::Access`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Whether it loads rather than stores.
    pub load: bool,
    /// The base register.
    pub base: u8,
    /// Offset of the first word from the base, before the update, in bytes.
    pub offset: i32,
    /// Value that is added to the base.
    pub update: i32,
    /// The registers of the words; [`NO_REGISTER`] for anything else.
    pub registers: [u8; 2],
    /// Whether only a part of each word is loaded or stored, so that the value is not tracked.
    pub partial: bool,
}

/// The end of a path.
#[derive(Clone, Copy, Debug)]
// A path is large, is created once per walk, and there is no heap to box it on.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Reached {
    /// A return; the row contains the CFA and the places of everything that was saved, at the
    /// start.
    Return(CodeRow),
    /// A call, at this address.
    Call(u64, Path),
    /// A jump to an unknown address, at this address: either a tail call, where a return's row
    /// holds, or a jump table, which is in a function's body like a call.
    Jump(u64, Path),
    /// None of these: all paths end otherwise, or the budget is exhausted.
    Nothing,
}

/// Maximum number of instructions that are analyzed in total.
const MAX_INSTRUCTIONS: u32 = 1_500;
/// Maximum number of branches that wait to be followed.
const MAX_PENDING_BRANCHES: usize = 12;
/// Maximum number of branch targets that are remembered, so that loops end.
const MAX_VISITED_TARGETS: usize = 64;

/// Returns the register in which a tail call leaves the return address.
pub(crate) const fn return_link<A: Architecture>() -> u8 {
    if A::LINK_REGISTER { A::RA } else { NO_REGISTER }
}

/// Decodes the instruction at the cursor and moves past it.
fn decode<A: Architecture, M: Memory>(cursor: &mut Cursor<'_, M>) -> Result<Effect, Problem> {
    match A::ARCH {
        Arch::X86_64 => decode_x86_64::decode(cursor),
        Arch::Aarch64 => decode_aarch64::decode(cursor),
    }
}

/// Input of [`follow`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Code<'s> {
    /// Address of the first instruction.
    pub pc: u64,
    /// The registers at the first instruction.
    pub start: &'s Start,
    /// The image's jumps to other images: a jump to one of them is a tail call.
    pub stubs: AddressRange,
    /// Whether paths continue after calls, as required without unwind data, rather than end at
    /// calls, where unwind data hold.
    pub through_calls: bool,
    /// Mask of the significant bits of return addresses.
    pub mask: u64,
}

/// Result of [`follow`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Followed {
    /// The end of the path.
    pub reached: Reached,
    /// The outlined functions that the path began in. `reached` then belongs to the function that
    /// called them.
    pub parts: outlined::OutlinedReturns,
}

struct Pending {
    paths: [(u64, Path); MAX_PENDING_BRANCHES],
    length: usize,
}

/// Follows the code from its first instruction.
///
/// # Errors
/// A [`Problem`] if the first instruction can't be read.
#[inline(never)]
pub(crate) fn follow<A: Architecture, M: Memory>(memory: &mut M, code: &Code<'_>) -> Result<Followed, Problem> {
    let Code { pc, start, stubs, mut through_calls, .. } = *code;
    let everything = AddressRange { start: 0, end: u64::MAX };
    let mut cursor = Cursor::new(memory, everything, pc)?;
    let mut pending = Pending { paths: [(0, Path::new(start)); MAX_PENDING_BRANCHES], length: 0 };
    let mut visited = [0u64; MAX_VISITED_TARGETS];
    let mut visits = 0usize;
    let mut path = Path::new(start);
    let mut at = pc;
    let mut left = MAX_INSTRUCTIONS;
    let mut trapped = None;
    let mut jump = None;
    let mut parts = outlined::OutlinedReturns::default();
    let mut outlined_budget = outlined::MAX_INSTRUCTIONS;
    let return_link = return_link::<A>();
    loop {
        left = match left.checked_sub(1) {
            Some(left) => left,
            None => break,
        };
        cursor.seek(at, u64::MAX)?;
        let effect = match decode::<A, M>(&mut cursor) {
            Ok(effect) => effect,
            Err(problem) if at == pc => return Err(problem),
            Err(_) => Effect::Trap,
        };
        // Where the path continues, `None` if it ends without a result.
        let next = match effect {
            Effect::Return(link) => {
                if let Some(next) = path.leave(link) {
                    Some(next)
                } else if let Some(part) =
                    path.returns_from_outlined::<A, M>(code, link, &mut outlined_budget, cursor.memory)
                    && parts.add(part)
                {
                    // The function that called it has its own unwind data, and nothing in the link
                    // register.
                    through_calls = false;
                    if link == return_link {
                        path.set(link, Symbol::Unknown);
                    }
                    Some(part.pc)
                } else {
                    match path.at_return::<A>(start, link) {
                        Some(row) => return Ok(Followed { reached: Reached::Return(row), parts }),
                        None => None,
                    }
                }
            }
            Effect::Call(target) => {
                let next = cursor.address();
                match target {
                    Some(target)
                        if outlined::is_called_outlined::<A, M>(
                            cursor.memory,
                            target,
                            next,
                            None,
                            &mut outlined_budget,
                        ) && path.enter::<A>(next) =>
                    {
                        Some(target)
                    }
                    _ if !through_calls => return Ok(Followed { reached: Reached::Call(at, path), parts }),
                    _ => {
                        path.call::<A>();
                        Some(next)
                    }
                }
            }
            // An outlined function goes straight on, however often it is called.
            Effect::Jump(target) if path.entered > 0 => Some(target),
            Effect::Jump(target)
                if stubs.contains(target)
                    || A::LINK_REGISTER
                        && path.has_undone_prologue::<A>()
                        && !outlined::is_outlined::<A, M>(cursor.memory, target, &mut outlined_budget) =>
            {
                match path.at_return::<A>(start, return_link) {
                    Some(row) => return Ok(Followed { reached: Reached::Return(row), parts }),
                    None if stubs.contains(target) => None,
                    // The jump is inside the function, which continues with less stack.
                    None => (!seen(&mut visited, &mut visits, target)).then_some(target),
                }
            }
            Effect::IndirectJump => {
                let veneer = outlined::veneer_target::<A, M>(cursor.memory, at).filter(|target| {
                    path.entered > 0 || outlined::is_outlined::<A, M>(cursor.memory, *target, &mut outlined_budget)
                });
                if veneer.is_none() {
                    if path.has_undone_prologue::<A>()
                        && let Some(row) = path.at_return::<A>(start, return_link)
                    {
                        return Ok(Followed { reached: Reached::Return(row), parts });
                    }
                    jump = jump.or(Some((at, path)));
                }
                veneer
            }
            Effect::Jump(target) => (!seen(&mut visited, &mut visits, target)).then_some(target),
            Effect::Branch { to: target, unknown } => {
                path.apply::<A>(Effect::Unknown { registers: unknown });
                if !seen(&mut visited, &mut visits, target)
                    && let Some(place) = pending.paths.get_mut(pending.length)
                {
                    *place = (target, path);
                    pending.length = pending.length.wrapping_add(1);
                }
                Some(cursor.address())
            }
            Effect::Trap => {
                trapped = trapped.or(Some((at, path)));
                None
            }
            _ => {
                path.apply::<A>(effect);
                Some(cursor.address())
            }
        };
        if let Some(next) = next {
            at = next;
            continue;
        }
        let Some(length) = pending.length.checked_sub(1) else { break };
        pending.length = length;
        let Some(&(target, waiting)) = pending.paths.get(length) else { break };
        at = target;
        path = waiting;
    }
    let reached = match (jump, trapped) {
        (Some((at, path)), _) => Reached::Jump(at, path),
        // A trap is in a function's body, like a call.
        (None, Some((at, path))) => Reached::Call(at, path),
        (None, None) => Reached::Nothing,
    };
    Ok(Followed { reached, parts })
}

/// Returns whether a branch target was followed before, and remembers it.
fn seen(visited: &mut [u64; MAX_VISITED_TARGETS], visits: &mut usize, target: u64) -> bool {
    if visited.iter().take(*visits).any(|known| *known == target) {
        return true;
    }
    match visited.get_mut(*visits) {
        Some(place) => {
            *place = target;
            *visits = visits.wrapping_add(1);
            false
        }
        // No more room: loops would not be noticed.
        None => true,
    }
}
