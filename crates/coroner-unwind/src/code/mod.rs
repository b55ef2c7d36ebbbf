//! What the code of an interrupted function does to the stack between here and its return.
//!
//! Unwind data of Mach-O describe function bodies only, those of some compilers are wrong in prologues, and a
//! shrink-wrapped function has its frame on some of its paths only. The code can't lie: whatever path it takes from an
//! instruction to a return, it must find the return address and put back the registers that it saved. So a path is
//! followed, with symbols for values:
//!
//! * if it comes to a return without a call, all is known ([`Reached::Return`]): this covers epilogues, leaves, and
//!   everything on a path that builds no frame;
//! * if it comes to a call first ([`Reached::Call`]), the unwind data there hold, since functions are described at calls;
//!   what the path did is then taken back ([`Path::pull_back`]): this covers prologues.
//!
//! Conditional branches are followed both ways, one after the other, each instruction once, within a budget.

pub mod aarch64;
pub mod x86_64;

use crate::arch::Architecture;
use crate::frame::Problem;
use crate::image::AddressRange;
use crate::registers::RegisterFile;
use crate::rule::Row;
use crate::section::Cursor;
use coroner_machine::memory::Memory;
use coroner_machine::registers::Arch;

/// No register.
pub const NO_REGISTER: u8 = 0xff;

/// What an instruction does, as far as the stack is concerned. Registers have their DWARF numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing of interest.
    Other,
    /// `to = from + add`.
    Set {
        /// Destination.
        to: u8,
        /// Source.
        from: u8,
        /// Bytes.
        add: i64,
    },
    /// `to = value`.
    Constant {
        /// Destination.
        to: u8,
        /// Value.
        value: i64,
    },
    /// `to = to & !(0xffff << shift) | value << shift`, of a constant.
    Insert {
        /// Destination.
        to: u8,
        /// Sixteen bits.
        value: u16,
        /// Where they go.
        shift: u8,
    },
    /// `to = from ± other`, of which `other` may be a constant.
    Sum {
        /// Destination.
        to: u8,
        /// Left.
        from: u8,
        /// Right.
        other: u8,
        /// Whether the right is subtracted.
        negative: bool,
    },
    /// `to` becomes something that is not followed.
    Unknown {
        /// Destination.
        to: u8,
    },
    /// Loads or stores of 64-bit registers at `base + offset` and the next word, then `base += update`.
    Access(Access),
    /// `sp = fp; fp = *sp; sp += 8`.
    Leave,
    /// A jump to this address.
    Jump(u64),
    /// A jump to this address or on.
    Branch(u64),
    /// A jump to an address that is not known.
    IndirectJump,
    /// A call.
    Call,
    /// A return to the address in this register, or (with [`NO_REGISTER`]) to the one on top of the stack.
    Return(u8),
    /// The end of a path that does not return: a trap, or no instruction at all.
    Trap,
}

/// Loads or stores of [`Effect::Access`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
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

/// A value in terms of the registers at the start of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Symbol {
    /// `reg + offset`.
    Register(u8, i32),
    /// `*(reg + offset)`, at the start of the path.
    Memory(u8, i32),
    Constant(i32),
    Unknown,
}

/// The registers at the start of a path, as symbols: each is itself, but one that points into the stack near the stack
/// pointer is told by its distance from it, so that a place on the stack has one name whichever register it is reached
/// by.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    symbols: [Symbol; 32],
}

/// How far above the stack pointer a register may point.
const NEAR: u64 = 1 << 24;

impl Start {
    /// The symbols of these registers.
    pub fn new<A: Architecture, M: Memory>(registers: &mut RegisterFile<A>, memory: &mut M) -> Start {
        let mut symbols = [Symbol::Unknown; 32];
        let sp = registers.sp();
        for (number, symbol) in symbols.iter_mut().enumerate() {
            let number = number as u8;
            let distance = match registers.value(number, memory) {
                Ok(Some(value)) if number != A::RA => value.checked_sub(sp).filter(|distance| *distance < NEAR),
                _ => None,
            };
            *symbol = match distance {
                Some(distance) => Symbol::Register(A::SP, distance as i32),
                None => Symbol::Register(number, 0),
            };
        }
        Start { symbols }
    }

    fn get(&self, register: u8) -> Symbol {
        self.symbols.get(usize::from(register)).copied().unwrap_or(Symbol::Unknown)
    }
}

/// How many stores of a path are remembered: all callee-saved registers and some more.
const STORES: usize = 20;

/// What a path has done.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    symbols: [Symbol; 32],
    /// Places (register at the start, offset) and what was stored there.
    stores: [(u8, i32, Symbol); STORES],
    stored: usize,
}

/// Where a path came to.
#[derive(Clone, Copy, Debug)]
// A path is large, is made once a walk, and there is no heap to box it on.
#[allow(clippy::large_enum_variant)]
pub enum Reached {
    /// A return; the row says where the canonical frame address and everything that was saved is, at the start.
    Return(Row),
    /// A call, at this address.
    Call(u64, Path),
    /// A jump to an address that is not known, at this address: a tail call, at which a return's row holds, or a jump table,
    /// in a function's body as a call is.
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

impl Path {
    const fn new(start: &Start) -> Path {
        Path { symbols: start.symbols, stores: [(0, 0, Symbol::Unknown); STORES], stored: 0 }
    }

    fn get(&self, register: u8) -> Symbol {
        self.symbols.get(usize::from(register)).copied().unwrap_or(Symbol::Unknown)
    }

    fn set(&mut self, register: u8, symbol: Symbol) {
        if let Some(place) = self.symbols.get_mut(usize::from(register)) {
            *place = symbol;
        }
    }

    fn place(&self, base: u8, offset: i32) -> Option<(u8, i32)> {
        match self.get(base) {
            Symbol::Register(register, from) => Some((register, from.wrapping_add(offset))),
            _ => None,
        }
    }

    fn store(&mut self, base: u8, offset: i32, symbol: Symbol) {
        let Some((register, offset)) = self.place(base, offset) else { return };
        let used = self.stores.get_mut(..self.stored).unwrap_or_default();
        if let Some(known) = used.iter_mut().find(|store| (store.0, store.1) == (register, offset)) {
            known.2 = symbol;
            return;
        }
        // Where there is no more room for what is stored, values of the program crowd out saved registers of no
        // interest here: those are stored first.
        if let Some(place) = self.stores.get_mut(self.stored) {
            *place = (register, offset, symbol);
            self.stored = self.stored.wrapping_add(1);
        }
    }

    /// What is at a place, by what the path stored there.
    fn at(&self, register: u8, offset: i32) -> Symbol {
        let used = self.stores.get(..self.stored).unwrap_or_default();
        let stored = used.iter().find(|store| (store.0, store.1) == (register, offset));
        stored.map_or(Symbol::Memory(register, offset), |store| store.2)
    }

    fn load(&self, base: u8, offset: i32) -> Symbol {
        self.place(base, offset).map_or(Symbol::Unknown, |(register, offset)| self.at(register, offset))
    }

    /// What a call does to registers.
    fn call<A: Architecture>(&mut self) {
        for (number, symbol) in self.symbols.iter_mut().enumerate() {
            if A::PRESERVED >> number & 1 == 0 {
                *symbol = Symbol::Unknown;
            }
        }
    }

    /// Follows an instruction that goes on with the next one.
    fn apply<A: Architecture>(&mut self, effect: Effect) {
        match effect {
            Effect::Set { to, from, add } => {
                let add = i32::try_from(add);
                let symbol = match (self.get(from), add) {
                    (Symbol::Register(register, offset), Ok(add)) => {
                        offset.checked_add(add).map_or(Symbol::Unknown, |offset| Symbol::Register(register, offset))
                    }
                    (Symbol::Constant(value), Ok(add)) => {
                        value.checked_add(add).map_or(Symbol::Unknown, Symbol::Constant)
                    }
                    (symbol @ Symbol::Memory(..), Ok(0)) => symbol,
                    _ => Symbol::Unknown,
                };
                self.set(to, symbol);
            }
            Effect::Constant { to, value } => {
                self.set(to, i32::try_from(value).map_or(Symbol::Unknown, Symbol::Constant));
            }
            Effect::Insert { to, value, shift } => {
                let symbol = match self.get(to) {
                    Symbol::Constant(known) => {
                        let mask = 0xffffu64.wrapping_shl(shift.into());
                        let value = known as i64 as u64 & !mask | u64::from(value).wrapping_shl(shift.into());
                        i32::try_from(value as i64).map_or(Symbol::Unknown, Symbol::Constant)
                    }
                    _ => Symbol::Unknown,
                };
                self.set(to, symbol);
            }
            Effect::Sum { to, from, other, negative } => {
                let symbol = match (self.get(from), self.get(other)) {
                    (Symbol::Register(register, offset), Symbol::Constant(value)) => {
                        let value = if negative { value.checked_neg() } else { Some(value) };
                        let sum = value.and_then(|value| offset.checked_add(value));
                        sum.map_or(Symbol::Unknown, |offset| Symbol::Register(register, offset))
                    }
                    _ => Symbol::Unknown,
                };
                self.set(to, symbol);
            }
            Effect::Unknown { to } => self.set(to, Symbol::Unknown),
            Effect::Access(access) => self.access(access),
            Effect::Leave => {
                self.set(A::SP, self.get(A::FP));
                self.access(Access { load: true, base: A::SP, offset: 0, update: 8, registers: [A::FP, NO_REGISTER] });
            }
            _ => {}
        }
    }

    fn access(&mut self, access: Access) {
        let mut loaded = [Symbol::Unknown; 2];
        for (index, (register, loaded)) in access.registers.iter().zip(&mut loaded).enumerate() {
            let offset = access.offset.wrapping_add((index as i32).wrapping_mul(8));
            if *register == NO_REGISTER {
                continue;
            }
            if access.load {
                *loaded = self.load(access.base, offset);
            } else {
                self.store(access.base, offset, self.get(*register));
            }
        }
        if access.update != 0 {
            let moved = match self.get(access.base) {
                Symbol::Register(register, offset) => Symbol::Register(register, offset.wrapping_add(access.update)),
                _ => Symbol::Unknown,
            };
            self.set(access.base, moved);
        }
        if access.load {
            for (register, symbol) in access.registers.iter().zip(loaded) {
                self.set(*register, symbol);
            }
        }
    }

    /// The row at the start of the path that follows from its state at a return to the address in `link` (or on top of
    /// the stack). `None` where that is no sensible return, or none that a row can say: the stack pointer or the address
    /// is not known, or a register is put back from another register.
    pub fn at_return<A: Architecture>(&self, start: &Start, link: u8) -> Option<Row> {
        let Symbol::Register(base, offset) = self.get(A::SP) else { return None };
        if base == A::SP && offset < 0 {
            // The path has put something on the stack that is still there.
            return None;
        }
        let cfa = Row::new(base, if A::LINK_REGISTER { offset } else { offset.checked_add(8)? });
        row_from::<A>(start, cfa, |number| {
            if number != A::RA {
                self.get(number)
            } else if A::LINK_REGISTER {
                self.get(link)
            } else {
                self.at(base, offset)
            }
        })
    }

    /// Whether the path took back what a prologue did: then a jump to wherever leaves the function.
    fn has_unwound<A: Architecture>(&self) -> bool {
        let raised = matches!(self.get(A::SP), Symbol::Register(base, offset) if base == A::SP && offset > 0);
        raised || A::LINK_REGISTER && matches!(self.get(A::RA), Symbol::Memory(..))
    }

    /// The row at the start of the path, from the one that holds at its end: what the path saves is not saved yet, what it
    /// has put back is still saved.
    pub fn pull_back<A: Architecture>(&self, start: &Start, row: &Row) -> Option<Row> {
        let Symbol::Register(base, offset) = self.get(row.cfa_register) else { return None };
        let cfa = Row::new(base, offset.checked_add(row.cfa_offset)?);
        row_from::<A>(start, cfa, |number| {
            let slot = A::slot_of(number).filter(|slot| row.saved & 1u16.wrapping_shl(*slot as u32) != 0);
            match slot.and_then(|slot| row.slots.get(slot)) {
                Some(words) => self.at(base, cfa.cfa_offset.wrapping_add(i32::from(*words).wrapping_mul(8))),
                None => self.get(number),
            }
        })
    }
}

/// `row` with the places of registers by what each is at the end of the path.
fn row_from<A: Architecture>(start: &Start, mut row: Row, symbol: impl Fn(u8) -> Symbol) -> Option<Row> {
    for number in A::SAVED.iter().take(A::SAVED_COUNT) {
        match symbol(*number) {
            unchanged if unchanged == start.get(*number) => {}
            Symbol::Memory(register, at) if register == row.cfa_register => {
                row = row.with_saved::<A>(*number, at.checked_sub(row.cfa_offset)?.into())?;
            }
            _ => return None,
        }
    }
    Some(row)
}

/// The register that a tail call leaves the return address in.
pub const fn return_link<A: Architecture>() -> u8 {
    if A::LINK_REGISTER { A::RA } else { NO_REGISTER }
}

struct Pending {
    paths: [(u64, Path); PENDING],
    length: usize,
}

/// Follows the code from `pc` on. A jump into `stubs`, the image's jumps to other images, is a tail call. Paths end at
/// calls, where unwind data hold, or go on behind them (`through_calls`), where there are no unwind data.
///
/// # Errors
/// Where the instruction at `pc` can't be read.
#[inline(never)]
pub fn follow<A: Architecture, M: Memory>(
    memory: &mut M,
    pc: u64,
    start: &Start,
    stubs: AddressRange,
    through_calls: bool,
) -> Result<Reached, Problem> {
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
    let return_link = return_link::<A>();
    loop {
        left = match left.checked_sub(1) {
            Some(left) => left,
            None => break,
        };
        cursor.seek(at, u64::MAX)?;
        let effect = match A::ARCH {
            Arch::X86_64 => x86_64::decode(&mut cursor),
            Arch::Aarch64 => aarch64::decode(&mut cursor),
        };
        let effect = match effect {
            Ok(effect) => effect,
            Err(problem) if at == pc => return Err(problem),
            Err(_) => Effect::Trap,
        };
        // Where the path goes on, `None` where it ends without a result.
        let next = match effect {
            Effect::Return(link) => match path.at_return::<A>(start, link) {
                Some(row) => return Ok(Reached::Return(row)),
                None => None,
            },
            Effect::Call if !through_calls => return Ok(Reached::Call(at, path)),
            Effect::Call => {
                path.call::<A>();
                Some(cursor.address())
            }
            Effect::Jump(target) if stubs.contains(target) || A::LINK_REGISTER && path.has_unwound::<A>() => {
                match path.at_return::<A>(start, return_link) {
                    Some(row) => return Ok(Reached::Return(row)),
                    None => None,
                }
            }
            Effect::IndirectJump => {
                if path.has_unwound::<A>()
                    && let Some(row) = path.at_return::<A>(start, return_link)
                {
                    return Ok(Reached::Return(row));
                }
                jump = jump.or(Some((at, path)));
                None
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
    Ok(match (jump, trapped) {
        (Some((at, path)), _) => Reached::Jump(at, path),
        // A trap is in a function's body, as a call is.
        (None, Some((at, path))) => Reached::Call(at, path),
        (None, None) => Reached::Nothing,
    })
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
