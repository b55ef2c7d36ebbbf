//! Code analysis: what the code of a function does to the stack between an instruction and the
//! function's return.
//!
//! Unwind data of Mach-O describe function bodies only, those of some compilers are wrong in
//! prologues, and a shrink-wrapped function has its frame on some of its paths only. The code is
//! always right: whatever path it takes from an instruction to a return, it finds the return
//! address and restores the registers that it saved. So a path is followed ([`Path`]), with symbols
//! for values:
//!
//! * if it comes to a return without a call, all is known ([`Reached::Return`]): this covers
//!   epilogues, leaves, and everything on a path that builds no frame;
//! * if it comes to a call first ([`Reached::Call`]), the unwind data there hold, since functions
//!   are described at calls; what the path did is then taken back ([`Path::pull_back`]): this
//!   covers prologues.
//!
//! Conditional branches are followed both ways, one after the other, each instruction once, within
//! a budget. Calls of outlined functions are followed, and so is the return from one
//! ([`outlined`]).

pub(crate) mod decode_aarch64;
pub(crate) mod decode_x86_64;
pub(crate) mod outlined;
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

/// What an instruction does, as far as the stack is concerned. Registers have their DWARF numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing of interest.
    Other,
    /// `to = from + add`.
    Set { to: u8, from: u8, add: i64 },
    /// `to = value`.
    Constant { to: u8, value: i64 },
    /// `to = to & !(0xffff << shift) | value << shift`, of a constant.
    Insert { to: u8, value: u16, shift: u8 },
    /// `to = from ± other`, of which `other` may be a constant.
    Sum { to: u8, from: u8, other: u8, negative: bool },
    /// `to` becomes something that is not followed.
    Unknown { to: u8 },
    /// Loads or stores of 64-bit registers at `base + offset` and the next word, then
    /// `base += update`.
    Access(Access),
    /// `sp = fp; fp = *sp; sp += 8`.
    Leave,
    /// A jump to this address.
    Jump(u64),
    /// A jump to this address or on.
    Branch(u64),
    /// A jump to an address that is not known.
    IndirectJump,
    /// A call, of this address if it is known.
    Call(Option<u64>),
    /// A return to the address in this register, or (with [`NO_REGISTER`]) to the one on top of the
    /// stack.
    Return(u8),
    /// The end of a path that does not return: a trap, or no instruction at all.
    Trap,
}

/// Loads or stores of [`Effect::Access`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Loads rather than stores.
    pub load: bool,
    /// The base register.
    pub base: u8,
    /// Bytes from the base, before the update, to the first word.
    pub offset: i32,
    /// What is added to the base.
    pub update: i32,
    /// The registers of the words; [`NO_REGISTER`] for something else.
    pub registers: [u8; 2],
}

/// Where a path came to.
#[derive(Clone, Copy, Debug)]
// A path is large, is made once a walk, and there is no heap to box it on.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Reached {
    /// A return; the row says where the CFA and everything that was saved is, at the start.
    Return(CodeRow),
    /// A call, at this address.
    Call(u64, Path),
    /// A jump to an address that is not known, at this address: a tail call, at which a return's
    /// row holds, or a jump table, in a function's body as a call is.
    Jump(u64, Path),
    /// None of these: all paths end otherwise, or the budget is used up.
    Nothing,
}

/// Instructions that are looked at in all.
const BUDGET: u32 = 1_500;
/// Branches that wait to be followed.
const PENDING: usize = 12;
/// Branch targets that are remembered, so that loops end.
const VISITED: usize = 64;

/// The register that a tail call leaves the return address in.
pub(crate) const fn return_link<A: Architecture>() -> u8 {
    if A::LINK_REGISTER { A::RA } else { NO_REGISTER }
}

/// Decodes the instruction at the cursor and moves behind it.
fn decode<A: Architecture, M: Memory>(cursor: &mut Cursor<'_, M>) -> Result<Effect, Problem> {
    match A::ARCH {
        Arch::X86_64 => decode_x86_64::decode(cursor),
        Arch::Aarch64 => decode_aarch64::decode(cursor),
    }
}

/// What [`follow`] follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Code<'s> {
    /// The first instruction.
    pub pc: u64,
    /// The registers there.
    pub start: &'s Start,
    /// The image's jumps to other images: a jump to one is a tail call.
    pub stubs: AddressRange,
    /// Whether paths go on behind calls, as where there are no unwind data, rather than end at
    /// them, where unwind data hold.
    pub through_calls: bool,
    /// Bits of return addresses that count.
    pub mask: u64,
}

/// What [`follow`] came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Followed {
    /// Where.
    pub reached: Reached,
    /// The outlined functions that the path began in. What was reached is then of the function that
    /// called them.
    pub parts: outlined::OutlinedReturns,
}

struct Pending {
    paths: [(u64, Path); PENDING],
    length: usize,
}

/// Follows code.
///
/// # Errors
/// If the first instruction can't be read.
#[inline(never)]
pub(crate) fn follow<A: Architecture, M: Memory>(memory: &mut M, code: &Code<'_>) -> Result<Followed, Problem> {
    let Code { pc, start, stubs, mut through_calls, .. } = *code;
    let everything = AddressRange { start: 0, end: u64::MAX };
    let mut cursor = Cursor::new(memory, everything, pc)?;
    let mut pending = Pending { paths: [(0, Path::new(start)); PENDING], length: 0 };
    let mut visited = [0u64; VISITED];
    let mut visits = 0usize;
    let mut path = Path::new(start);
    let mut at = pc;
    let mut left = BUDGET;
    let mut trapped = None;
    let mut jump = None;
    let mut parts = outlined::OutlinedReturns::default();
    let mut outlined_budget = outlined::BUDGET;
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
        // Where the path goes on, `None` if it ends without a result.
        let next = match effect {
            Effect::Return(link) => {
                if let Some(next) = path.leave(link) {
                    Some(next)
                } else if let Some(part) =
                    path.returns_from_outlined::<A, M>(code, link, &mut outlined_budget, cursor.memory)
                    && parts.add(part)
                {
                    // The function that called it has unwind data of its own, and nothing in the
                    // link register.
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
            // An outlined function goes straight on, as often as it is called.
            Effect::Jump(target) if path.entered > 0 => Some(target),
            Effect::Jump(target)
                if stubs.contains(target)
                    || A::LINK_REGISTER
                        && path.has_unwound::<A>()
                        && !outlined::is_outlined::<A, M>(cursor.memory, target, &mut outlined_budget) =>
            {
                match path.at_return::<A>(start, return_link) {
                    Some(row) => return Ok(Followed { reached: Reached::Return(row), parts }),
                    None if stubs.contains(target) => None,
                    // It is in the function, which goes on with less stack.
                    None => (!seen(&mut visited, &mut visits, target)).then_some(target),
                }
            }
            Effect::IndirectJump => {
                let veneer = outlined::through_veneer::<A, M>(cursor.memory, at).filter(|target| {
                    path.entered > 0 || outlined::is_outlined::<A, M>(cursor.memory, *target, &mut outlined_budget)
                });
                if veneer.is_none() {
                    if path.has_unwound::<A>()
                        && let Some(row) = path.at_return::<A>(start, return_link)
                    {
                        return Ok(Followed { reached: Reached::Return(row), parts });
                    }
                    jump = jump.or(Some((at, path)));
                }
                veneer
            }
            Effect::Jump(target) => (!seen(&mut visited, &mut visits, target)).then_some(target),
            Effect::Branch(target) => {
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
        // A trap is in a function's body, as a call is.
        (None, Some((at, path))) => Reached::Call(at, path),
        (None, None) => Reached::Nothing,
    };
    Ok(Followed { reached, parts })
}

/// Whether a branch target was followed before; remembers it.
fn seen(visited: &mut [u64; VISITED], visits: &mut usize, target: u64) -> bool {
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
