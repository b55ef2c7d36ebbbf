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
//! Conditional branches are followed both ways, one after the other, each instruction once, within a budget. Calls of
//! outlined parts of functions are followed, and so is the return from one ([`part`]).

pub mod aarch64;
pub mod part;
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
    /// A call, of this address if it is known.
    Call(Option<u64>),
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
    /// The return address of this number of [`Path::links`].
    Link(u8),
    Unknown,
}

/// The registers at the start of a path, as symbols: each is itself, but one that points into the stack near the stack
/// pointer is told by its distance from it, so that a place on the stack has one name whichever register it is reached
/// by.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    symbols: [Symbol; 32],
    /// The registers' values, 0 where there is none.
    values: [u64; 32],
}

/// How far above the stack pointer a register may point.
const NEAR: u64 = 1 << 24;

impl Start {
    /// The symbols of these registers.
    pub fn new<A: Architecture, M: Memory>(registers: &mut RegisterFile<A>, memory: &mut M) -> Start {
        let mut start = Start::unrelated();
        let sp = registers.sp();
        for (number, (symbol, place)) in start.symbols.iter_mut().zip(&mut start.values).enumerate() {
            let number = number as u8;
            let Ok(Some(value)) = registers.value(number, memory) else { continue };
            *place = value;
            if number != A::RA
                && let Some(distance) = value.checked_sub(sp).filter(|distance| *distance < NEAR)
            {
                *symbol = Symbol::Register(A::SP, distance as i32);
            }
        }
        start
    }

    /// Registers of which nothing is known: each is itself.
    fn unrelated() -> Start {
        let mut number = 0;
        let symbols = [(); 32].map(|()| {
            let symbol = Symbol::Register(number, 0);
            number = number.wrapping_add(1);
            symbol
        });
        Start { symbols, values: [0; 32] }
    }

    /// The value that a symbol stands for, which is no address near the stack pointer.
    fn value<M: Memory>(&self, symbol: Symbol, memory: &mut M) -> Option<u64> {
        let register = |number: u8| self.values.get(usize::from(number)).copied();
        match symbol {
            Symbol::Register(number, 0) => register(number),
            Symbol::Memory(base, offset) => memory.read_u64(register(base)?.wrapping_add_signed(offset.into())).ok(),
            _ => None,
        }
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
    /// The return addresses of the parts that the path is in.
    links: [u64; part::NESTED],
    /// How many these are.
    entered: u8,
}

/// What code says of a frame: the row at the start of a path, and the register that the return address is in where the row
/// does not say that it was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeRow {
    /// The row.
    pub row: Row,
    /// The register: the link register, or one that keeps it during the call of an outlined part.
    pub link: u8,
}

/// Where a path came to.
#[derive(Clone, Copy, Debug)]
// A path is large, is made once a walk, and there is no heap to box it on.
#[allow(clippy::large_enum_variant)]
pub enum Reached {
    /// A return; the row says where the canonical frame address and everything that was saved is, at the start.
    Return(CodeRow),
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
        Path {
            symbols: start.symbols,
            stores: [(0, 0, Symbol::Unknown); STORES],
            stored: 0,
            links: [0; part::NESTED],
            entered: 0,
        }
    }

    /// What the call of a part does, which returns to `link`; `false` where too many were entered.
    fn enter<A: Architecture>(&mut self, link: u64) -> bool {
        let Some(place) = self.links.get_mut(usize::from(self.entered)) else { return false };
        *place = link;
        self.set(A::RA, Symbol::Link(self.entered));
        self.entered = self.entered.wrapping_add(1);
        true
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
                    (symbol @ (Symbol::Memory(..) | Symbol::Link(_)), Ok(0)) => symbol,
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
    pub fn at_return<A: Architecture>(&self, start: &Start, link: u8) -> Option<CodeRow> {
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

    /// Leaves a part that the path entered, if it is its return address that is in a register, and gives that.
    fn leave(&mut self, register: u8) -> Option<u64> {
        match self.get(register) {
            Symbol::Link(number) if number < self.entered => {
                self.entered = number;
                self.links.get(usize::from(number)).copied()
            }
            _ => None,
        }
    }

    /// Whether the return to the address in `link` is that of an outlined part: the call before that address is one of code
    /// that comes by the path's first instruction.
    fn leaves_part<A: Architecture, M: Memory>(
        &self,
        code: &Code<'_>,
        link: u8,
        budget: &mut u32,
        memory: &mut M,
    ) -> Option<part::Left> {
        if !A::LINK_REGISTER {
            return None;
        }
        let Symbol::Register(base, sp) = self.get(A::SP) else { return None };
        let link = code.start.value(self.get(link), memory)? & code.mask;
        let target = part::call_target::<A, M>(memory, link)?;
        let is_part = base == A::SP && part::is_called_part::<A, M>(memory, target, link, Some(code.pc), budget);
        is_part.then_some(part::Left { pc: link, sp })
    }

    /// Whether the path took back what a prologue did: then a jump to wherever leaves the function.
    fn has_unwound<A: Architecture>(&self) -> bool {
        let raised = matches!(self.get(A::SP), Symbol::Register(base, offset) if base == A::SP && offset > 0);
        raised || A::LINK_REGISTER && matches!(self.get(A::RA), Symbol::Memory(..))
    }

    /// The row at the start of the path, from the one that holds at its end: what the path saves is not saved yet, what it
    /// has put back is still saved.
    pub fn pull_back<A: Architecture>(&self, start: &Start, row: &Row) -> Option<CodeRow> {
        let Symbol::Register(base, offset) = self.get(row.cfa_register) else { return None };
        let cfa = Row::new(base, offset.checked_add(row.cfa_offset)?);
        row_from::<A>(start, cfa, |number| {
            let slot = A::slot_of(number).filter(|slot| row.saved & 1u16.wrapping_shl(*slot as u32) != 0);
            match slot.and_then(|slot| row.slots.get(slot)) {
                Some(words) => self.at(base, cfa.cfa_offset.wrapping_add(i32::from(*words).wrapping_mul(8))),
                // What the path sets without having saved it is set for the caller: an outlined part that makes calls
                // itself, and so has a row, does that.
                None => match self.get(number) {
                    put_back @ Symbol::Memory(..) => put_back,
                    _ if A::LINK_REGISTER && number != A::RA && number != A::FP => start.get(number),
                    symbol => symbol,
                },
            }
        })
    }
}

/// `row` with the places of registers by what each is at the end of the path.
fn row_from<A: Architecture>(start: &Start, mut row: Row, symbol: impl Fn(u8) -> Symbol) -> Option<CodeRow> {
    let mut link = A::RA;
    for number in A::SAVED.iter().take(A::SAVED_COUNT) {
        match symbol(*number) {
            unchanged if unchanged == start.get(*number) => {}
            Symbol::Memory(register, at) if register == row.cfa_register => {
                row = row.with_saved::<A>(*number, at.checked_sub(row.cfa_offset)?.into())?;
            }
            Symbol::Register(register, 0) if A::LINK_REGISTER && *number == A::RA && register != A::SP => {
                link = register;
            }
            _ => return None,
        }
    }
    Some(CodeRow { row, link })
}

/// The register that a tail call leaves the return address in.
pub const fn return_link<A: Architecture>() -> u8 {
    if A::LINK_REGISTER { A::RA } else { NO_REGISTER }
}

/// Decodes the instruction at the cursor and moves behind it.
fn decode<A: Architecture, M: Memory>(cursor: &mut Cursor<'_, M>) -> Result<Effect, Problem> {
    match A::ARCH {
        Arch::X86_64 => x86_64::decode(cursor),
        Arch::Aarch64 => aarch64::decode(cursor),
    }
}

/// What [`follow`] follows.
#[derive(Clone, Copy, Debug)]
pub struct Code<'s> {
    /// The first instruction.
    pub pc: u64,
    /// The registers there.
    pub start: &'s Start,
    /// The image's jumps to other images: a jump to one is a tail call.
    pub stubs: AddressRange,
    /// Whether paths go on behind calls, as where there are no unwind data, rather than end at them, where unwind data hold.
    pub through_calls: bool,
    /// Bits of return addresses that count.
    pub mask: u64,
}

/// What [`follow`] came to.
#[derive(Clone, Copy, Debug)]
pub struct Followed {
    /// Where.
    pub reached: Reached,
    /// The outlined parts that the path began in. What was reached is then of the function that called them.
    pub parts: part::LeftParts,
}

struct Pending {
    paths: [(u64, Path); PENDING],
    length: usize,
}

/// Follows code.
///
/// # Errors
/// Where the first instruction can't be read.
#[inline(never)]
pub fn follow<A: Architecture, M: Memory>(memory: &mut M, code: &Code<'_>) -> Result<Followed, Problem> {
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
    let mut parts = part::LeftParts::default();
    let mut parts_budget = part::BUDGET;
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
        // Where the path goes on, `None` where it ends without a result.
        let next = match effect {
            Effect::Return(link) => {
                if let Some(next) = path.leave(link) {
                    Some(next)
                } else if let Some(part) = path.leaves_part::<A, M>(code, link, &mut parts_budget, cursor.memory)
                    && parts.add(part)
                {
                    // The function that called it has unwind data of its own, and nothing in the link register.
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
                        if part::is_called_part::<A, M>(cursor.memory, target, next, None, &mut parts_budget)
                            && path.enter::<A>(next) =>
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
            // A part goes straight on, as often as it is called.
            Effect::Jump(target) if path.entered > 0 => Some(target),
            Effect::Jump(target)
                if stubs.contains(target)
                    || A::LINK_REGISTER
                        && path.has_unwound::<A>()
                        && !part::is_part::<A, M>(cursor.memory, target, &mut parts_budget) =>
            {
                match path.at_return::<A>(start, return_link) {
                    Some(row) => return Ok(Followed { reached: Reached::Return(row), parts }),
                    None if stubs.contains(target) => None,
                    // It is in the function, which goes on with less stack.
                    None => (!seen(&mut visited, &mut visits, target)).then_some(target),
                }
            }
            Effect::IndirectJump
                if let Some(target) = part::through_veneer::<A, M>(cursor.memory, at)
                    && (path.entered > 0 || part::is_part::<A, M>(cursor.memory, target, &mut parts_budget)) =>
            {
                Some(target)
            }
            Effect::IndirectJump => {
                if path.has_unwound::<A>()
                    && let Some(row) = path.at_return::<A>(start, return_link)
                {
                    return Ok(Followed { reached: Reached::Return(row), parts });
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
