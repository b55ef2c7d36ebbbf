//! Source names of bad registers.
//!
//! A register is named after the variable that it holds, or the field that it was loaded from:
//!
//! - Debug information has a variable in the register at that address: the variable.
//! - The register was last set by a load from a variable's location, on the stack or at a fixed
//!   address: the variable, or its field there.
//! - The register was last set by a load at an offset from a register that has a name and points to
//!   a structure: the structure's field at the offset.
//! - The register was last set by a copy of, or a sum with, a register that has a name: that name.

use coroner_report::model::Address;
use coroner_symbols::{FrameBase, FunctionVariables, Place, Pointee, TypeId, Variable};

use crate::code_source::CodeSource;
use crate::instruction::State;
use crate::last_set::{Function, Setter};
use crate::step::{self, Base, Effect, Register};

/// Maximum number of loads, copies and sums that are followed.
const MAX_STEPS: usize = 8;

/// A value with a source name.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    /// The source expression, such as `row->pixels`.
    pub(crate) path: String,
    /// Its type, if known.
    pub(crate) type_id: Option<TypeId>,
    /// The constant that was added to it.
    pub(crate) added: i64,
}

/// The context for finding source names in a function.
pub(crate) struct Names<'a> {
    pub(crate) function: Option<&'a Function>,
    pub(crate) variables: &'a FunctionVariables,
    pub(crate) source: &'a dyn CodeSource,
    pub(crate) state: &'a State<'a>,
    /// The function's canonical frame address.
    pub(crate) cfa: Option<u64>,
    /// The instruction before which registers have the values in `state`.
    pub(crate) at: Address,
    /// Number of bytes by which the stack pointer is lower than in `state`.
    pub(crate) pushed: u64,
}

impl Names<'_> {
    /// Returns the name of a register's value before the instruction at an address.
    pub(crate) fn name_register(&self, register: Register, at: Address) -> Option<Named> {
        self.follow(register, at, MAX_STEPS)
    }

    fn follow(&self, register: Register, at: Address, left: usize) -> Option<Named> {
        let left = left.checked_sub(1)?;
        if let Some(named) = self.name_in_register(register, at) {
            return Some(named);
        }
        let Setter::Instruction(setter) = self.function?.setter(register, at)? else { return None };
        let before = Address(setter.address);
        match setter.effect(register)? {
            Effect::Copy(from) => self.follow(from, before, left),
            Effect::Sum(from, number) => {
                let named = self.follow(from, before, left)?;
                Some(Named { added: named.added.checked_add(number)?, ..named })
            }
            Effect::Load { base, displacement, width } => self.name_loaded(base, displacement, width, before, left),
            _ => None,
        }
    }

    /// Returns the variable, or part of one, that is in a register according to debug information.
    fn name_in_register(&self, register: Register, at: Address) -> Option<Named> {
        let svma = self.source.svma(at)?;
        self.innermost(svma, |variable, place| match place {
            Place::Register { register: own, offset, size } if own == u16::from(register) => {
                let type_id = variable.type_id;
                match size {
                    None if offset == 0 => Some(self.name_whole(variable)),
                    None => None,
                    Some(size) => {
                        let part = self.source.part(type_id?, offset, Some(size))?;
                        Some(Named { path: variable.name.clone() + &part.path, type_id: part.type_id, added: 0 })
                    }
                }
            }
            _ => None,
        })
    }

    /// Returns the name of a variable in its own register.
    ///
    /// A structure with a single pointer is named after that field.
    fn name_whole(&self, variable: &Variable) -> Named {
        let inner = variable
            .type_id
            .and_then(|type_id| self.source.part(type_id, 0, None))
            .filter(|part| !part.path.is_empty());
        let path = inner.as_ref().map_or("", |part| part.path.as_str());
        let type_id = if inner.is_some() { inner.as_ref().and_then(|part| part.type_id) } else { variable.type_id };
        Named { path: variable.name.clone() + path, type_id, added: 0 }
    }

    /// Returns the last match, which is in the innermost block, among the variables visible at an
    /// address.
    fn innermost(&self, svma: u64, find: impl Fn(&Variable, Place) -> Option<Named>) -> Option<Named> {
        self.variables
            .variables
            .iter()
            .rev()
            .find_map(|variable| variable.places_at(svma).find_map(|place| find(variable, place)))
    }

    /// Returns the name of a loaded value, from the location that it was loaded from.
    fn name_loaded(&self, base: Base, displacement: i64, width: u32, at: Address, left: usize) -> Option<Named> {
        if let Some(named) = self.name_in_memory(base, displacement, width, at) {
            return Some(named);
        }
        let Base::Register(register) = base else { return None };
        // On arm64 two instructions compute a variable's address in a register.
        if let Some(address) = self.constant(register, at, left) {
            return self.name_at_address(address.wrapping_add(displacement as u64), width, at);
        }
        let pointer = self.follow(register, at, left)?;
        self.name_field(&pointer, displacement, Some(width))
    }

    /// Returns the constant that a register was set to.
    fn constant(&self, register: Register, at: Address, left: usize) -> Option<u64> {
        let left = left.checked_sub(1)?;
        let Setter::Instruction(setter) = self.function?.setter(register, at)? else { return None };
        match setter.effect(register)? {
            Effect::Constant(value) => Some(value),
            Effect::Sum(from, number) => {
                Some(self.constant(from, Address(setter.address), left)?.wrapping_add(number as u64))
            }
            _ => None,
        }
    }

    /// Returns the field that a pointer and an offset refer to.
    pub(crate) fn name_field(&self, pointer: &Named, displacement: i64, width: Option<u32>) -> Option<Named> {
        let offset = u64::try_from(pointer.added.checked_add(displacement)?).ok()?;
        let Pointee { type_id, is_reference } = self.source.pointee(pointer.type_id?)?;
        let part = self.source.part(type_id, offset, width.map(u64::from)).or_else(|| {
            // An array element. A field at such an offset is not named: it could equally belong to
            // a larger structure that the pointer was cast to.
            let size = self.source.size_of(type_id).filter(|size| *size > 0 && offset >= *size)?;
            let part =
                self.source.part(type_id, offset % size, width.map(u64::from)).filter(|part| part.path.is_empty())?;
            Some(coroner_symbols::Part { path: format!("[{}]", offset / size), ..part })
        })?;
        let path = match part.path.strip_prefix('.') {
            Some(field) if self.variables.by_dot || is_reference => format!("{}.{field}", pointer.path),
            Some(field) => format!("{}->{field}", pointer.path),
            None if part.path.is_empty() && is_reference => pointer.path.clone(),
            None if part.path.is_empty() => format!("*{}", pointer.path),
            None => format!("{}{}", pointer.path, part.path),
        };
        Some(Named { path, type_id: part.type_id, added: 0 })
    }

    /// Returns the variable at an address given by a register and a displacement.
    pub(crate) fn name_in_memory(&self, base: Base, displacement: i64, width: u32, at: Address) -> Option<Named> {
        let Base::Register(register) = base else {
            return self.name_at_address(displacement as u64, width, at);
        };
        let svma = self.source.svma(at)?;
        // The address from the register's current value, if it is still the same; only for the
        // stack.
        let held = || {
            let is_kept =
                at == self.at || self.function.is_some_and(|function| function.is_kept(register, at, self.at));
            let name = step::name(self.state.registers.arch?, register)?;
            let value = self.state.register(name)?.1;
            let pushed = if matches!(name, "rsp" | "sp") { self.pushed } else { 0 };
            is_kept.then(|| value.wrapping_add(pushed).wrapping_add(displacement as u64))
        };
        let by_register =
            |own: u16, offset: i64| (own == u16::from(register)).then(|| displacement.checked_sub(offset)).flatten();
        self.innermost(svma, |variable, place| {
            let offset = match (place, self.variables.frame_base) {
                (Place::Memory { register: own, offset }, _) => by_register(own, offset),
                (Place::Frame(offset), Some(FrameBase::Register(own))) => by_register(own, offset),
                (Place::Frame(offset), Some(FrameBase::Cfa)) => {
                    let start = self.cfa?.wrapping_add(offset as u64);
                    Some(held()?.wrapping_sub(start) as i64)
                }
                _ => None,
            };
            self.name_part(variable, u64::try_from(offset?).ok()?, width)
        })
    }

    /// Returns the variable at a fixed address.
    fn name_at_address(&self, address: u64, width: u32, at: Address) -> Option<Named> {
        let (target, svma) = (self.source.svma(Address(address))?, self.source.svma(at)?);
        self.innermost(svma, |variable, place| match place {
            Place::Static(start) => self.name_part(variable, target.checked_sub(start)?, width),
            _ => None,
        })
    }

    /// Returns the part of a variable in memory with this size and offset.
    fn name_part(&self, variable: &Variable, offset: u64, width: u32) -> Option<Named> {
        let part = self.source.part(variable.type_id?, offset, Some(width.into()))?;
        Some(Named { path: variable.name.clone() + &part.path, type_id: part.type_id, added: 0 })
    }
}
