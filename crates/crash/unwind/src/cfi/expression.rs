//! DWARF expressions in call frame information (DWARF 5, sections 2.5 and 6.4.2).
//!
//! Limits: a stack of 32 words and 1,000 operations, so that no expression is endless.

use crate::arch::Architecture;
use crate::cursor::Cursor;
use crate::frame::{Malformed, Problem};
use crate::image::AddressRange;
use crate::registers::RegisterFile;
use coroner_process::memory::Memory;

/// Maximum depth of the stack. Compilers use three.
const MAX_DEPTH: usize = 32;
/// Number of operations after which an expression is considered endless.
const MAX_OPERATIONS: u32 = 1_000;

struct Stack {
    values: [u64; MAX_DEPTH],
    length: usize,
    /// Address of the expression, for errors.
    address: u64,
}

impl Stack {
    fn bad(&self) -> Problem {
        Problem::Malformed { what: Malformed::Expression, address: self.address }
    }

    fn push(&mut self, value: u64) -> Result<(), Problem> {
        let bad = self.bad();
        *self.values.get_mut(self.length).ok_or(bad)? = value;
        self.length = self.length.wrapping_add(1);
        Ok(())
    }

    fn pop(&mut self) -> Result<u64, Problem> {
        self.length = self.length.checked_sub(1).ok_or(self.bad())?;
        self.values.get(self.length).copied().ok_or(self.bad())
    }

    /// Returns the value `depth` below the top.
    fn peek(&self, depth: usize) -> Result<u64, Problem> {
        let index = self.length.checked_sub(1).and_then(|top| top.checked_sub(depth)).ok_or(self.bad())?;
        self.values.get(index).copied().ok_or(self.bad())
    }
}

/// Evaluates the expression at `block`, a ULEB128 length and that many bytes, for the frame of
/// `registers`. `initial` is the initial stack content: the CFA for a register's rule.
///
/// # Errors
/// [`Malformed::Expression`] and [`Malformed::Opcode`] for invalid expressions;
/// [`Malformed::UnknownRegister`] if a required register's value is unknown;
/// [`Problem::Unreadable`] for memory that can't be read.
pub(crate) fn evaluate<A: Architecture, M: Memory>(
    block: u64,
    registers: &mut RegisterFile<A>,
    memory: &mut M,
    initial: Option<u64>,
) -> Result<u64, Problem> {
    let mut cursor = Cursor::new(memory, AddressRange { start: block, end: u64::MAX }, block)?;
    let length = cursor.uleb()?;
    let start = cursor.address();
    let end = start.checked_add(length).ok_or(cursor.malformed(Malformed::Truncated))?;
    cursor.narrow(end)?;
    let mut stack = Stack { values: [0; MAX_DEPTH], length: 0, address: start };
    if let Some(value) = initial {
        stack.push(value)?;
    }
    let mut steps = 0u32;
    while !cursor.is_at_end() {
        steps = steps.wrapping_add(1);
        if steps > MAX_OPERATIONS {
            return Err(stack.bad());
        }
        let at = cursor.address();
        let operation = cursor.u8()?;
        match operation {
            // DW_OP_bra: jumps if the top is not 0; DW_OP_skip: jumps
            0x28 | 0x2f => {
                let distance = cursor.u16()? as i16;
                if operation == 0x2f || stack.pop()? != 0 {
                    let to = cursor.address().wrapping_add_signed(distance.into());
                    if to < start || to > end {
                        return Err(stack.bad());
                    }
                    cursor.seek(to, end)?;
                }
            }
            // DW_OP_breg0 … 31, DW_OP_bregx
            0x70..=0x8f | 0x92 => {
                let number = if operation == 0x92 { cursor.uleb()? } else { u64::from(operation.wrapping_sub(0x70)) };
                let offset = cursor.sleb()?;
                let unknown = Problem::Malformed { what: Malformed::UnknownRegister, address: at };
                let number = u8::try_from(number).map_err(|_| unknown)?;
                let value = registers.value(number, cursor.memory)?.ok_or(unknown)?;
                stack.push(value.wrapping_add_signed(offset))?;
            }
            // DW_OP_deref, DW_OP_deref_size
            0x06 => {
                let address = stack.pop()?;
                stack.push(cursor.memory.read_u64(address)?)?;
            }
            0x94 => {
                let size = usize::from(cursor.u8()?);
                let address = stack.pop()?;
                let mut bytes = [0u8; 8];
                let into = bytes.get_mut(..size).filter(|into| !into.is_empty()).ok_or(stack.bad())?;
                cursor.memory.read(address, into)?;
                stack.push(u64::from_le_bytes(bytes))?;
            }
            _ => {
                if !constant(&mut cursor, &mut stack, operation)? && !arithmetic(&mut cursor, &mut stack, operation)? {
                    return Err(Problem::Malformed { what: Malformed::Opcode, address: at });
                }
            }
        }
    }
    stack.pop()
}

/// Runs an operation that pushes a constant or a copy of a stack value. Returns whether `operation`
/// is one.
fn constant<M: Memory>(cursor: &mut Cursor<'_, M>, stack: &mut Stack, operation: u8) -> Result<bool, Problem> {
    let value = match operation {
        // DW_OP_addr, DW_OP_const8u, DW_OP_const8s
        0x03 | 0x0e | 0x0f => cursor.u64()?,
        // DW_OP_const1u … DW_OP_const4s, DW_OP_constu, DW_OP_consts
        0x08 => cursor.u8()?.into(),
        0x09 => cursor.u8()? as i8 as u64,
        0x0a => cursor.u16()?.into(),
        0x0b => cursor.u16()? as i16 as u64,
        0x0c => cursor.u32()?.into(),
        0x0d => cursor.u32()? as i32 as u64,
        0x10 => cursor.uleb()?,
        0x11 => cursor.sleb()? as u64,
        // DW_OP_lit0 … 31
        0x30..=0x4f => u64::from(operation.wrapping_sub(0x30)),
        // DW_OP_dup, DW_OP_over, DW_OP_pick
        0x12 => stack.peek(0)?,
        0x14 => stack.peek(1)?,
        0x15 => {
            let depth = cursor.u8()?;
            stack.peek(depth.into())?
        }
        _ => return Ok(false),
    };
    stack.push(value)?;
    Ok(true)
}

/// Runs an operation on stack values. Returns whether `operation` is one.
fn arithmetic<M: Memory>(cursor: &mut Cursor<'_, M>, stack: &mut Stack, operation: u8) -> Result<bool, Problem> {
    match operation {
        // DW_OP_drop, DW_OP_nop
        0x13 => {
            stack.pop()?;
        }
        0x96 => {}
        // DW_OP_swap
        0x16 => {
            let (top, second) = (stack.pop()?, stack.pop()?);
            stack.push(top)?;
            stack.push(second)?;
        }
        // DW_OP_rot: the top becomes the third
        0x17 => {
            let (top, second, third) = (stack.pop()?, stack.pop()?, stack.pop()?);
            stack.push(top)?;
            stack.push(third)?;
            stack.push(second)?;
        }
        // DW_OP_abs, DW_OP_neg, DW_OP_not, DW_OP_plus_uconst
        0x19 => {
            let value = stack.pop()? as i64;
            stack.push(value.wrapping_abs() as u64)?;
        }
        0x1f => {
            let value = stack.pop()?;
            stack.push(value.wrapping_neg())?;
        }
        0x20 => {
            let value = stack.pop()?;
            stack.push(!value)?;
        }
        0x23 => {
            let addend = cursor.uleb()?;
            let value = stack.pop()?;
            stack.push(value.wrapping_add(addend))?;
        }
        0x1a..=0x1e | 0x21 | 0x22 | 0x24..=0x27 | 0x29..=0x2e => {
            let (right, left) = (stack.pop()?, stack.pop()?);
            let shift = u32::try_from(right).unwrap_or(u32::MAX);
            stack.push(match operation {
                // DW_OP_and, div (signed), minus, mod (unsigned), mul
                0x1a => left & right,
                0x1b => (left as i64).checked_div(right as i64).ok_or(stack.bad())? as u64,
                0x1c => left.wrapping_sub(right),
                0x1d => left.checked_rem(right).ok_or(stack.bad())?,
                0x1e => left.wrapping_mul(right),
                // DW_OP_or, plus, shl, shr, shra, xor
                0x21 => left | right,
                0x22 => left.wrapping_add(right),
                0x24 => left.checked_shl(shift).unwrap_or(0),
                0x25 => left.checked_shr(shift).unwrap_or(0),
                0x26 => (left as i64).checked_shr(shift).unwrap_or((left as i64) >> 63) as u64,
                0x27 => left ^ right,
                // DW_OP_eq, ge, gt, le, lt, ne: signed
                0x29 => u64::from(left == right),
                0x2a => u64::from(left as i64 >= right as i64),
                0x2b => u64::from(left as i64 > right as i64),
                0x2c => u64::from(left as i64 <= right as i64),
                0x2d => u64::from((left as i64) < right as i64),
                _ => u64::from(left != right),
            })?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}
