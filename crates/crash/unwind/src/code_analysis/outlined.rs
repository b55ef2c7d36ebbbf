//! Outlined functions on arm64.
//!
//! LLVM's machine outliner moves common parts of functions into `OUTLINED_FUNCTION_n`, mainly saves
//! and restores of registers, and with `-homogeneous-prolog-epilog` every prologue and epilogue
//! consists of calls of shared helpers. They do not follow the calling convention: they may return
//! with another stack pointer, or with registers saved in or restored from their caller's frame.
//! Neither format of unwind data can express that, for either side of the call. The code can: an
//! outlined function goes straight to its return, without a branch, and calls only further outlined
//! functions, so the rest of it belongs to the path like any other code. (An outlined function that
//! calls other functions is an ordinary function for unwinding, with unwind data.)
//!
//! Only arm64 has them: on x86_64 a call pushes its return address, so code that changes the stack
//! pointer can't be called.

use super::symbolic_execution::{MAX_OUTLINED, Symbol};
use super::{Code, Effect, NO_REGISTER, Path, Start, decode};
use crate::arch::Architecture;
use crate::cursor::Cursor;
use crate::image::AddressRange;
use coroner_process::memory::Memory;

/// Maximum number of instructions of a possible outlined function that are analyzed. The longest
/// one that LLVM creates by itself, which saves all callee-saved registers, has a dozen.
const MAX_FUNCTION_LENGTH: u32 = 64;

/// Maximum number of instructions of possible outlined functions that are analyzed for one path.
pub(crate) const MAX_INSTRUCTIONS: u32 = 1_500;

/// An outlined function that was called and in which the path began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OutlinedReturn {
    /// Return address of the outlined function.
    pub pc: u64,
    /// The stack pointer with which the outlined function returns, minus that at the start of the
    /// path.
    pub sp: i32,
}

/// The outlined functions that a path began in, the innermost first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OutlinedReturns {
    parts: [OutlinedReturn; MAX_OUTLINED],
    count: usize,
}

impl OutlinedReturns {
    /// Returns the outlined function with that number.
    pub(crate) fn get(&self, number: usize) -> Option<OutlinedReturn> {
        self.parts.get(..self.count)?.get(number).copied()
    }

    /// Returns the outermost outlined function.
    pub(crate) fn last(&self) -> Option<OutlinedReturn> {
        self.get(self.count.checked_sub(1)?)
    }

    /// Adds an outlined function; returns `false` if there is no more room.
    pub(super) fn add(&mut self, part: OutlinedReturn) -> bool {
        let Some(place) = self.parts.get_mut(self.count) else { return false };
        *place = part;
        self.count = self.count.wrapping_add(1);
        true
    }
}

/// Follows code that goes straight on from `from` to a return, with `path`, and returns the
/// register that contains the return address there. Returns `None` if the code does anything else,
/// is too long, or does not pass the address `passing`, or if it jumps to a function, whose call
/// then follows the calling convention. `budget` is the number of instructions that may be
/// analyzed, and is reduced accordingly. Calls of outlined functions are followed up to a depth of
/// `nested`.
fn straight<A: Architecture, M: Memory>(
    memory: &mut M,
    from: u64,
    path: &mut Path,
    passing: Option<u64>,
    budget: &mut u32,
    nested: usize,
) -> Option<u8> {
    let everything = AddressRange { start: 0, end: u64::MAX };
    let mut cursor = Cursor::new(memory, everything, from).ok()?;
    let mut at = from;
    let mut passed = passing.is_none();
    let outside = path.entered;
    let mut before_jump = None;
    for _ in 0..MAX_FUNCTION_LENGTH {
        *budget = budget.checked_sub(1)?;
        passed |= passing == Some(at);
        cursor.seek(at, u64::MAX).ok()?;
        match decode::<A, _>(&mut cursor).ok()? {
            Effect::Return(link) => match path.leave(link) {
                Some(next) if path.entered >= outside => at = next,
                _ => {
                    let is_function = before_jump == Some(path.kept::<A>());
                    return (passed && !is_function).then_some(link);
                }
            },
            // Code that was jumped to, and not called, may be an epilogue with its function's tail
            // call.
            Effect::Jump(_) | Effect::IndirectJump if outside == 0 && path.restores_from_caller_frame::<A>() => {
                return Some(A::RA);
            }
            Effect::Jump(target) => {
                before_jump = Some(path.kept::<A>());
                at = target;
            }
            Effect::IndirectJump => {
                before_jump = Some(path.kept::<A>());
                at = veneer_target::<A, M>(cursor.memory, at)?;
            }
            Effect::Call(Some(target)) => {
                let next = cursor.address();
                let nested = nested.checked_sub(1)?;
                let is_outlined = is_nested_outlined::<A, M>(cursor.memory, target, next, None, budget, nested);
                if !is_outlined || !path.enter::<A>(next) {
                    return None;
                }
                at = target;
            }
            Effect::Call(None) | Effect::Branch { .. } | Effect::Trap => return None,
            effect => {
                path.apply::<A>(effect);
                at = cursor.address();
            }
        }
    }
    None
}

/// Returns the target of the jump at `at`, if it belongs to an entry of a procedure linkage table
/// or to a linker's veneer: shared helpers of prologues and epilogues that another image could
/// replace are called through such a table.
pub(crate) fn veneer_target<A: Architecture, M: Memory>(memory: &mut M, at: u64) -> Option<u64> {
    let start = at.checked_sub(12).filter(|_| A::LINK_REGISTER)?;
    let mut words = [[0; 4]; 4];
    memory.read(start, words.as_flattened_mut()).ok()?;
    let [first, second, third, jump] = words.map(u32::from_le_bytes);
    // adrp xa, page; ldr xb, [xa, #offset]; (add xa, xa, #offset;) br xb, or adrp xa, page; add xa,
    // xa, #offset; br xa
    let add = |word: u32, register: u32| word & 0xffc0_03ff == 0x9100_0000 | register << 5 | register;
    let (place, page, load) = if add(third, first & 31) && second & 0xffc0_0000 == 0xf940_0000 {
        (start, first, second)
    } else {
        (start.wrapping_add(4), second, third)
    };
    let (register, target) = (page & 31, load & 31);
    if page & 0x9f00_0000 != 0x9000_0000 || load >> 5 & 31 != register || jump != 0xd61f_0000 | target << 5 {
        return None;
    }
    let pages = (page >> 5 & 0x7_ffff) << 2 | page >> 29 & 3;
    let pages = i64::from((pages << 11) as i32 >> 11);
    let page = (place & !0xfff).wrapping_add_signed(pages.wrapping_mul(0x1000));
    let offset = u64::from(load >> 10 & 0xfff);
    match load & 0xffc0_0000 {
        0xf940_0000 => memory.read_u64(page.wrapping_add(offset.wrapping_mul(8))).ok(),
        0x9100_0000 => Some(page.wrapping_add(offset)),
        _ => None,
    }
}

/// Whether the code at `target` is an outlined function that the function with the return address
/// `pc` has called: it goes straight on to its return there, and does something that no function
/// does, or its caller kept the link register elsewhere for it. It must pass the address `passing`,
/// if given.
pub(crate) fn is_called_outlined<A: Architecture, M: Memory>(
    memory: &mut M,
    target: u64,
    pc: u64,
    passing: Option<u64>,
    budget: &mut u32,
) -> bool {
    A::LINK_REGISTER && is_nested_outlined::<A, M>(memory, target, pc, passing, budget, MAX_OUTLINED - 1)
}

fn is_nested_outlined<A: Architecture, M: Memory>(
    memory: &mut M,
    target: u64,
    pc: u64,
    passing: Option<u64>,
    budget: &mut u32,
    nested: usize,
) -> bool {
    let start = Start::unrelated();
    let mut path = Path::new(&start);
    path.enter::<A>(pc);
    let Some(link) = straight::<A, M>(memory, target, &mut path, passing, budget, nested) else { return false };
    path.get(link) == Symbol::Link(0) && (path.acts_as_outlined::<A>() || restores_link(memory, pc))
}

/// Whether the code at `target`, the target of a jump, is an outlined function: it goes straight on
/// to a return and does something that no function does. It is then the rest of an epilogue, or the
/// code that a call of an outlined function was redirected to.
pub(crate) fn is_outlined<A: Architecture, M: Memory>(memory: &mut M, target: u64, budget: &mut u32) -> bool {
    let mut path = Path::new(&Start::unrelated());
    A::LINK_REGISTER
        && straight::<A, M>(memory, target, &mut path, None, budget, MAX_OUTLINED - 1).is_some()
        && path.acts_as_outlined::<A>()
}

/// Whether the instruction at a return address restores the link register from where its function
/// kept it during the call of an outlined function: no other call is made in a function whose
/// return address is still there.
fn restores_link<M: Memory>(memory: &mut M, pc: u64) -> bool {
    let mut bytes = [0; 4];
    if memory.read(pc, &mut bytes).is_err() {
        return false;
    }
    let word = u32::from_le_bytes(bytes);
    // ldr x30, [sp], #16; mov x30, xn
    word == 0xf841_07fe || word & 0xffe0_ffff == 0xaa00_03fe
}

/// Returns the target of the call before a return address, if it is known.
pub(crate) fn call_target<A: Architecture, M: Memory>(memory: &mut M, pc: u64) -> Option<u64> {
    let call = pc.checked_sub(4).filter(|_| A::LINK_REGISTER)?;
    let everything = AddressRange { start: 0, end: u64::MAX };
    match decode::<A, _>(&mut Cursor::new(memory, everything, call).ok()?) {
        Ok(Effect::Call(target)) => target,
        _ => None,
    }
}

/// Follows the code of Mach-O's `__stub_helper` from `pc` to the jump to dyld's binder.
pub(crate) fn follow_to_binder<A: Architecture, M: Memory>(memory: &mut M, pc: u64, start: &Start) -> Option<Path> {
    let everything = AddressRange { start: 0, end: u64::MAX };
    let mut path = Path::new(start);
    let mut cursor = Cursor::new(memory, everything, pc).ok()?;
    // An entry of two instructions and a jump; the common beginning of all entries, of at most six.
    for _ in 0..12 {
        match decode::<A, _>(&mut cursor).ok()? {
            // The latter is x86_64's jump through a pointer in memory.
            Effect::IndirectJump | Effect::Return(NO_REGISTER) => return Some(path),
            Effect::Jump(target) => cursor.seek(target, u64::MAX).ok()?,
            Effect::Call(_) | Effect::Branch { .. } | Effect::Trap | Effect::Return(_) => return None,
            effect => path.apply::<A>(effect),
        }
    }
    None
}

impl Path {
    /// Whether the path, from a first instruction to its return, did something that no function
    /// does: it changed the stack pointer or a register that calls preserve, or stored such a
    /// register in its caller's frame.
    fn acts_as_outlined<A: Architecture>(&self) -> bool {
        let sp = self.get(A::SP);
        if !matches!(sp, Symbol::Register(base, _) if base == A::SP || base == A::FP) {
            // Code that switches to another stack: longjmp, coroutines.
            return false;
        }
        let changed = (0..32).any(|number| {
            is_preserved::<A>(number) && number != A::SP && self.get(number) != Symbol::Register(number, 0)
        });
        sp != Symbol::Register(A::SP, 0) || changed || self.count_saved_in_caller_frame::<A>() > 0
    }

    /// Returns the outlined function that returns to the address in `link`, if it is one: the call
    /// before that address must be one of code that passes the path's first instruction.
    pub(super) fn returns_from_outlined<A: Architecture, M: Memory>(
        &self,
        code: &Code<'_>,
        link: u8,
        budget: &mut u32,
        memory: &mut M,
    ) -> Option<OutlinedReturn> {
        if !A::LINK_REGISTER {
            return None;
        }
        let Symbol::Register(base, sp) = self.get(A::SP) else { return None };
        let link = code.start.value(self.get(link), memory)? & code.mask;
        let target = call_target::<A, M>(memory, link)?;
        let is_outlined = base == A::SP && is_called_outlined::<A, M>(memory, target, link, Some(code.pc), budget);
        is_outlined.then_some(OutlinedReturn { pc: link, sp })
    }

    /// Whether the path has popped its caller's stack or restored registers from there.
    fn restores_from_caller_frame<A: Architecture>(&self) -> bool {
        let is_of_caller =
            |symbol: &Symbol| matches!(symbol, Symbol::Memory(base, offset) if *base == A::SP && *offset >= 0);
        let raised = matches!(self.get(A::SP), Symbol::Register(base, offset) if base == A::SP && offset > 0);
        let mut symbols = self.symbols.iter().enumerate();
        raised || symbols.any(|(number, symbol)| is_preserved::<A>(number as u8) && is_of_caller(symbol))
    }

    /// Returns the number of registers preserved by calls that the path has stored in its caller's
    /// frame.
    fn count_saved_in_caller_frame<A: Architecture>(&self) -> usize {
        let stores = self.stores.iter().take(self.stored);
        let saves = stores.filter(|(base, offset, symbol)| {
            let in_frame_of_caller = *base == A::SP && *offset >= 0 || *base == A::FP;
            in_frame_of_caller
                && matches!(symbol, Symbol::Register(number, 0) if *number != A::SP && is_preserved::<A>(*number))
        });
        saves.count()
    }

    /// Returns the state that a function, from its first instruction to its return, leaves
    /// unchanged.
    fn kept<A: Architecture>(&self) -> ([Symbol; 32], usize) {
        let mut symbols = self.symbols;
        for (number, symbol) in symbols.iter_mut().enumerate() {
            if !is_preserved::<A>(number as u8) {
                *symbol = Symbol::Unknown;
            }
        }
        (symbols, self.count_saved_in_caller_frame::<A>())
    }
}

/// Whether a call preserves a register.
const fn is_preserved<A: Architecture>(number: u8) -> bool {
    number < 32 && A::PRESERVED >> number & 1 != 0
}

#[cfg(test)]
mod tests;
