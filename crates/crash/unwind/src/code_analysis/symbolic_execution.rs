//! A path through code: the effect of its instructions on registers and stack, with symbols for the
//! values at its start.

use super::{Access, Effect, NO_REGISTER, bit};
use crate::arch::Architecture;
use crate::registers::RegisterFile;
use crate::rule::Row;
use coroner_process::memory::Memory;

/// A value in terms of the registers at the start of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Symbol {
    /// `reg + offset`.
    Register(u8, i32),
    /// `*(reg + offset)`, at the start of the path.
    Memory(u8, i32),
    Constant(i32),
    /// The return address with this index in [`Path::links`].
    Link(u8),
    Unknown,
}

/// The registers at the start of a path, as symbols: each is itself, except that one pointing into
/// the stack near the stack pointer is named by its distance from the stack pointer, so that a
/// place on the stack has one name whichever register is used to reach it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    symbols: [Symbol; 32],
    /// Values of the registers, 0 if unknown.
    values: [u64; 32],
}

/// Maximum distance in bytes of a register above the stack pointer to count as near.
const MAX_STACK_DISTANCE: u64 = 1 << 24;

impl Start {
    /// Returns the symbols of these registers.
    pub(crate) fn new<A: Architecture, M: Memory>(registers: &mut RegisterFile<A>, memory: &mut M) -> Start {
        let mut start = Start::unrelated();
        let sp = registers.sp();
        for (number, (symbol, place)) in start.symbols.iter_mut().zip(&mut start.values).enumerate() {
            let number = number as u8;
            let Ok(Some(value)) = registers.value(number, memory) else { continue };
            *place = value;
            if number != A::RA
                && let Some(distance) = value.checked_sub(sp).filter(|distance| *distance < MAX_STACK_DISTANCE)
            {
                *symbol = Symbol::Register(A::SP, distance as i32);
            }
        }
        start
    }

    /// Returns registers without known values: each is itself.
    pub(super) fn unrelated() -> Start {
        let mut number = 0;
        let symbols = [(); 32].map(|()| {
            let symbol = Symbol::Register(number, 0);
            number = number.wrapping_add(1);
            symbol
        });
        Start { symbols, values: [0; 32] }
    }

    /// Returns the value that a symbol stands for, if it isn't an address near the stack pointer.
    pub(super) fn value<M: Memory>(&self, symbol: Symbol, memory: &mut M) -> Option<u64> {
        let register = |number: u8| self.values.get(usize::from(number)).copied();
        match symbol {
            Symbol::Register(number, 0) => register(number),
            Symbol::Memory(base, offset) => memory.read_u64(register(base)?.wrapping_add_signed(offset.into())).ok(),
            _ => None,
        }
    }

    pub(super) fn get(&self, register: u8) -> Symbol {
        self.symbols.get(usize::from(register)).copied().unwrap_or(Symbol::Unknown)
    }
}

/// Maximum number of nested outlined functions that a path may be in (LLVM's
/// `-machine-outliner-reruns`).
pub(crate) const MAX_OUTLINED: usize = 3;

/// Maximum number of stores of a path that are remembered: all callee-saved registers and some
/// more.
const MAX_STORES: usize = 20;

/// State of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(super) symbols: [Symbol; 32],
    /// Places (register at the start, offset) and the values stored there.
    pub(super) stores: [(u8, i32, Symbol); MAX_STORES],
    pub(super) stored: usize,
    /// Return addresses of the outlined functions that the path is in.
    links: [u64; MAX_OUTLINED],
    /// Number of these outlined functions.
    pub(super) entered: u8,
}

/// Row of a frame computed from its code, at the start of a path, and the register that contains
/// the return address if the row does not have it saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeRow {
    /// The row.
    pub row: Row,
    /// The link register, or one that keeps it during the call of an outlined function.
    pub link: u8,
    /// Registers, as bits, that a call should preserve and whose value in the caller does not
    /// follow from the code: Go's functions preserve none.
    pub lost: u32,
}

impl Path {
    pub(super) const fn new(start: &Start) -> Path {
        Path {
            symbols: start.symbols,
            stores: [(0, 0, Symbol::Unknown); MAX_STORES],
            stored: 0,
            links: [0; MAX_OUTLINED],
            entered: 0,
        }
    }

    /// Applies the call of an outlined function that returns to `link`; returns `false` if too many
    /// were entered.
    pub(super) fn enter<A: Architecture>(&mut self, link: u64) -> bool {
        let Some(place) = self.links.get_mut(usize::from(self.entered)) else { return false };
        *place = link;
        self.set(A::RA, Symbol::Link(self.entered));
        self.entered = self.entered.wrapping_add(1);
        true
    }

    pub(super) fn get(&self, register: u8) -> Symbol {
        self.symbols.get(usize::from(register)).copied().unwrap_or(Symbol::Unknown)
    }

    pub(super) fn set(&mut self, register: u8, symbol: Symbol) {
        if let Some(place) = self.symbols.get_mut(usize::from(register)) {
            *place = symbol;
        }
    }

    fn resolve_place(&self, base: u8, offset: i32) -> Option<(u8, i32)> {
        match self.get(base) {
            Symbol::Register(register, from) => Some((register, from.wrapping_add(offset))),
            _ => None,
        }
    }

    fn store(&mut self, base: u8, offset: i32, symbol: Symbol) {
        let Some((register, offset)) = self.resolve_place(base, offset) else { return };
        let used = self.stores.get_mut(..self.stored).unwrap_or_default();
        if let Some(known) = used.iter_mut().find(|store| (store.0, store.1) == (register, offset)) {
            known.2 = symbol;
            return;
        }
        // If there is no more room, only values of the program are dropped, not relevant saved
        // registers: those are stored first.
        if let Some(place) = self.stores.get_mut(self.stored) {
            *place = (register, offset, symbol);
            self.stored = self.stored.wrapping_add(1);
        }
    }

    /// Returns the value at a place, by what the path stored there.
    fn at(&self, register: u8, offset: i32) -> Symbol {
        let used = self.stores.get(..self.stored).unwrap_or_default();
        let stored = used.iter().find(|store| (store.0, store.1) == (register, offset));
        stored.map_or(Symbol::Memory(register, offset), |store| store.2)
    }

    fn load(&self, base: u8, offset: i32) -> Symbol {
        self.resolve_place(base, offset).map_or(Symbol::Unknown, |(register, offset)| self.at(register, offset))
    }

    /// Applies the effect of a call to the registers.
    pub(super) fn call<A: Architecture>(&mut self) {
        for (number, symbol) in self.symbols.iter_mut().enumerate() {
            if A::PRESERVED >> number & 1 == 0 {
                *symbol = Symbol::Unknown;
            }
        }
    }

    /// Applies an instruction that continues with the next one.
    pub(super) fn apply<A: Architecture>(&mut self, effect: Effect) {
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
            Effect::Unknown { registers } => {
                for (number, symbol) in self.symbols.iter_mut().enumerate() {
                    if registers >> number & 1 != 0 {
                        *symbol = Symbol::Unknown;
                    }
                }
            }
            Effect::Combine { to, .. } | Effect::ThreadWord { load: true, register: to } => {
                self.set(to, Symbol::Unknown);
            }
            Effect::Access(access) => self.access(access),
            Effect::Leave => {
                self.set(A::SP, self.get(A::FP));
                let registers = [A::FP, NO_REGISTER];
                self.access(Access { load: true, base: A::SP, offset: 0, update: 8, registers, partial: false });
            }
            _ => {}
        }
    }

    fn access(&mut self, access: Access) {
        let mut loaded = [Symbol::Unknown; 2];
        for (index, (register, loaded)) in access.registers.iter().zip(&mut loaded).enumerate() {
            let offset = access.offset.wrapping_add((index as i32).wrapping_mul(8));
            match (access.load, *register) {
                _ if access.partial => {}
                (true, NO_REGISTER) => {}
                (true, _) => *loaded = self.load(access.base, offset),
                (false, NO_REGISTER) if index > 0 => {}
                (false, register) => self.store(access.base, offset, self.get(register)),
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

    /// Returns the row at the start of the path that follows from its state at a return to the
    /// address in `link` (or on top of the stack). Returns `None` if that isn't a sensible return,
    /// or if a row can't express it: the stack pointer or the address is unknown.
    pub(crate) fn at_return<A: Architecture>(&self, start: &Start, link: u8) -> Option<CodeRow> {
        let Symbol::Register(base, offset) = self.get(A::SP) else { return None };
        if base == A::SP && offset < 0 {
            // The path has pushed something that is still on the stack.
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

    /// Leaves an outlined function that the path entered, if the register contains its return
    /// address, and returns the address.
    pub(super) fn leave(&mut self, register: u8) -> Option<u64> {
        match self.get(register) {
            Symbol::Link(number) if number < self.entered => {
                self.entered = number;
                self.links.get(usize::from(number)).copied()
            }
            _ => None,
        }
    }

    /// Whether the path reversed the effect of a prologue: then a jump to anywhere leaves the
    /// function.
    pub(super) fn has_undone_prologue<A: Architecture>(&self) -> bool {
        let raised = matches!(self.get(A::SP), Symbol::Register(base, offset) if base == A::SP && offset > 0);
        raised || A::LINK_REGISTER && matches!(self.get(A::RA), Symbol::Memory(..))
    }

    /// Returns the row at the start of the path, from the one that holds at its end: what the path
    /// saves is not saved yet, what it has restored is still saved.
    pub(crate) fn pull_back<A: Architecture>(&self, start: &Start, row: &Row) -> Option<CodeRow> {
        let Symbol::Register(base, offset) = self.get(row.cfa_register) else { return None };
        let cfa = Row::new(base, offset.checked_add(row.cfa_offset)?);
        row_from::<A>(start, cfa, |number| {
            let slot = A::slot_of(number).filter(|slot| row.saved & 1u16.wrapping_shl(*slot as u32) != 0);
            match slot.and_then(|slot| row.slots.get(slot)) {
                Some(words) => self.at(base, cfa.cfa_offset.wrapping_add(i32::from(*words).wrapping_mul(8))),
                // What the path sets without having saved it is set for the caller: an outlined
                // function that makes calls itself, and therefore has a row, does that.
                None => match self.get(number) {
                    put_back @ Symbol::Memory(..) => put_back,
                    _ if A::LINK_REGISTER && number != A::RA && number != A::FP => start.get(number),
                    symbol => symbol,
                },
            }
        })
    }
}

/// Returns `row` with the places of registers according to the symbol of each at the end of the
/// path.
fn row_from<A: Architecture>(start: &Start, mut row: Row, symbol: impl Fn(u8) -> Symbol) -> Option<CodeRow> {
    let (mut link, mut lost) = (A::RA, 0);
    for number in A::SAVED.iter().take(A::SAVED_COUNT) {
        match symbol(*number) {
            unchanged if unchanged == start.get(*number) => {}
            Symbol::Memory(register, at) if register == row.cfa_register => {
                row = row.with_saved::<A>(*number, at.checked_sub(row.cfa_offset)?.into())?;
            }
            Symbol::Register(register, 0) if A::LINK_REGISTER && *number == A::RA && register != A::SP => {
                link = register;
            }
            _ if *number == A::RA => return None,
            _ => lost |= bit(*number),
        }
    }
    Some(CodeRow { row, link, lost })
}
