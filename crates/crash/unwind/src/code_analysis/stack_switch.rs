//! Functions that return on another stack than the one that they called on: Go's `asmcgocall`, from
//! the system's stack to a goroutine's, and `cgocallback`, back to the system's.
//!
//! Their code loads the stack pointer from memory, so no rule relative to a register describes it.
//! But the memory still contains what they will load: the instructions are executed, with these
//! values, up to the return. Conditional branches are not taken.

use super::{Access, Effect, NO_REGISTER, decode};
use crate::arch::Architecture;
use crate::cursor::Cursor;
use crate::execute::Caller;
use crate::image::AddressRange;
use crate::registers::RegisterFile;
use coroner_process::memory::{Memory, Unreadable};

/// Maximum number of instructions up to the return.
const MAX_INSTRUCTIONS: u32 = 64;
/// Maximum distance in bytes, above the stack pointer, of a place on the same stack.
const MAX_FRAME_SIZE: u64 = 1 << 20;

/// Words that frames that the walk has left will have stored when they return.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stored {
    /// The word of thread-local storage: Go's current goroutine.
    thread_word: Option<u64>,
    /// The last word outside the stack, as address and value: the stack pointer that is restored
    /// for the system's stack.
    word: Option<(u64, u64)>,
}

/// Returns the caller of a frame that returns on another stack, and the caller's frame pointer, if
/// the code from the frame's return address on switches stacks. `stored` is updated if so.
///
/// # Errors
/// [`Unreadable`] if it does, and the memory that it loads from can't be read.
pub(crate) fn follow<A: Architecture, M: Memory>(
    memory: &mut M,
    registers: &mut RegisterFile<A>,
    stored: &mut Stored,
) -> Result<Option<(Caller, Option<u64>)>, Unreadable> {
    if A::LINK_REGISTER {
        return Ok(None);
    }
    let mut state = State::<A, M>::new(memory, registers, *stored);
    let mut at = registers.pc;
    for _ in 0..MAX_INSTRUCTIONS {
        let everything = AddressRange { start: 0, end: u64::MAX };
        let Ok(mut cursor) = Cursor::new(state.memory, everything, at) else { return Ok(None) };
        let Ok(effect) = decode::<A, M>(&mut cursor) else { return Ok(None) };
        at = cursor.address();
        match effect {
            Effect::Jump(target) => at = target,
            Effect::Return(NO_REGISTER) => {
                let caller = state.at_return(registers.sp())?;
                if caller.is_some() {
                    *stored = state.stored;
                }
                return Ok(caller);
            }
            Effect::Return(_) | Effect::IndirectJump | Effect::Trap => return Ok(None),
            effect => state.apply(effect),
        }
    }
    Ok(None)
}

struct State<'m, A, M> {
    memory: &'m mut M,
    /// The registers' values, as far as they are known.
    values: [Option<u64>; 32],
    stored: Stored,
    /// Whether the stack pointer was set from anything but itself and the frame pointer.
    switched: bool,
    /// The first load that failed.
    unreadable: Option<Unreadable>,
    arch: core::marker::PhantomData<A>,
}

impl<'m, A: Architecture, M: Memory> State<'m, A, M> {
    fn new(memory: &'m mut M, registers: &mut RegisterFile<A>, stored: Stored) -> Self {
        let mut values = [None; 32];
        for (number, value) in values.iter_mut().enumerate() {
            if registers.is_certain(number as u8) {
                *value = registers.value(number as u8, memory).ok().flatten();
            }
        }
        let arch = core::marker::PhantomData;
        State { memory, values, stored, switched: false, unreadable: None, arch }
    }

    fn get(&self, register: u8) -> Option<u64> {
        self.values.get(usize::from(register)).copied().flatten()
    }

    fn set(&mut self, register: u8, value: Option<u64>) {
        if let Some(place) = self.values.get_mut(usize::from(register)) {
            *place = value;
        }
    }

    fn keep(&mut self, registers: u32) {
        for (number, value) in self.values.iter_mut().enumerate() {
            if registers >> number & 1 == 0 {
                *value = None;
            }
        }
    }

    fn address(&self, base: u8, offset: i32) -> Option<u64> {
        Some(self.get(base)?.wrapping_add_signed(offset.into()))
    }

    fn load(&mut self, address: Option<u64>) -> Option<u64> {
        let address = address?;
        if let Some((_, value)) = self.stored.word.filter(|(place, _)| *place == address) {
            return Some(value);
        }
        match self.memory.read_u64(address) {
            Ok(value) => Some(value),
            Err(error) => {
                self.unreadable = self.unreadable.or(Some(error));
                None
            }
        }
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Set { to, from, add } => {
                self.switched |= to == A::SP && from != A::SP && from != A::FP;
                self.set(to, self.get(from).map(|value| value.wrapping_add_signed(add)));
            }
            Effect::Constant { to, value } => self.set(to, Some(value as u64)),
            Effect::Insert { to, .. } | Effect::Sum { to, .. } => self.set(to, None),
            Effect::Unknown { registers } | Effect::Branch { unknown: registers, .. } => self.keep(!registers),
            // Go's functions preserve no other register.
            Effect::Call(_) => self.keep(1 << A::SP | 1 << A::FP),
            Effect::Combine { to, base, offset, negative } => {
                let word = self.load(self.address(base, offset));
                let sum = self.get(to).zip(word).map(|(value, word)| match negative {
                    true => value.wrapping_sub(word),
                    false => value.wrapping_add(word),
                });
                self.set(to, sum);
            }
            Effect::ThreadWord { load: true, register } => self.set(register, self.stored.thread_word),
            Effect::ThreadWord { load: false, register } => self.stored.thread_word = self.get(register),
            Effect::Access(access) => self.access(access),
            Effect::Leave => {
                let fp = self.get(A::FP);
                let saved = self.load(fp);
                self.set(A::FP, saved);
                self.set(A::SP, fp.map(|fp| fp.wrapping_add(8)));
            }
            _ => {}
        }
    }

    /// Applies an access of at most one register, as all of x86_64 are.
    fn access(&mut self, access: Access) {
        let [register, _] = access.registers;
        let place = self.address(access.base, access.offset);
        let loaded = if access.load { self.load(place) } else { None };
        if !access.load && access.base != A::SP {
            self.stored.word = place.zip(self.get(register)).or(self.stored.word);
        }
        if access.update != 0 {
            self.set(access.base, self.address(access.base, access.update));
        }
        if access.load {
            self.switched |= register == A::SP;
            self.set(register, loaded);
        }
    }

    /// Returns the caller at a return, if it is on another stack than `sp`.
    fn at_return(&mut self, sp: u64) -> Result<Option<(Caller, Option<u64>)>, Unreadable> {
        if !self.switched {
            return Ok(None);
        }
        let place = self.get(A::SP);
        let pc = self.load(place);
        match (place, pc, self.unreadable) {
            (Some(place), _, _) if place.wrapping_sub(sp) < MAX_FRAME_SIZE => Ok(None),
            (Some(place), Some(pc), _) => Ok(Some((Caller { cfa: place.wrapping_add(8), pc }, self.get(A::FP)))),
            (_, _, Some(unreadable)) => Err(unreadable),
            _ => Ok(None),
        }
    }
}
