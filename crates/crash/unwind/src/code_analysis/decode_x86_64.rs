//! x86_64 instructions (Intel 64 Software Developer's Manual, volume 2, appendix A): their lengths,
//! and their effects on the stack.

use super::{Access, Effect, NO_REGISTER};
use crate::cursor::Cursor;
use crate::frame::Problem;
use coroner_process::memory::Memory;

const SP: u8 = 7;
const FP: u8 = 6;

/// DWARF_NUMBERS numbers of the registers in the order of their encoding.
const DWARF_NUMBERS: [u8; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];

/// Prefixes of an opcode.
#[derive(Clone, Copy, Default)]
struct Prefixes {
    /// 66: 16-bit operands.
    narrow: bool,
    /// 67: 32-bit addresses.
    narrow_address: bool,
    /// REX byte, or 0.
    rex: u8,
}

impl Prefixes {
    const fn wide(self) -> bool {
        self.rex & 8 != 0
    }
}

/// The operands given by a ModRM byte.
#[derive(Clone, Copy)]
struct Operands {
    /// The reg field without REX: for some opcodes a part of the opcode.
    extension: u8,
    /// The register operand, by DWARF_NUMBERS number.
    register: u8,
    other: Operand,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operand {
    Register(u8),
    /// `[base + displacement]`.
    Based(u8, i32),
    /// `[rip + displacement]`.
    Relative,
    /// Any other form of address.
    Memory,
}

/// Decodes the instruction at the cursor and moves past it. An invalid instruction is an
/// [`Effect::Trap`].
pub(crate) fn decode<M: Memory>(cursor: &mut Cursor<'_, M>) -> Result<Effect, Problem> {
    let mut prefixes = Prefixes::default();
    // An instruction has at most 15 bytes.
    for _ in 0..15 {
        let byte = cursor.u8()?;
        match byte {
            0x66 => prefixes.narrow = true,
            0x67 => prefixes.narrow_address = true,
            0xf0 | 0xf2 | 0xf3 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 => {}
            0x40..=0x4f => {
                // A REX byte is only valid directly before the opcode.
                prefixes.rex = byte;
                let opcode = cursor.u8()?;
                if matches!(opcode, 0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3 | 0x40..=0x4f) {
                    return Ok(Effect::Trap);
                }
                return one_byte(cursor, prefixes, opcode);
            }
            opcode => return one_byte(cursor, prefixes, opcode),
        }
        if byte & 0xf0 != 0x40 {
            prefixes.rex = 0;
        }
    }
    Ok(Effect::Trap)
}

fn one_byte<M: Memory>(cursor: &mut Cursor<'_, M>, prefixes: Prefixes, opcode: u8) -> Result<Effect, Problem> {
    let low = DWARF_NUMBERS.get(usize::from(opcode & 7 | (prefixes.rex & 1) << 3)).copied().unwrap_or(NO_REGISTER);
    let effect = match opcode {
        0x0f => return two_byte(cursor, prefixes),
        // Operations of the form `op r/m, r` and `op r, r/m`
        0x00..=0x3f if opcode & 7 < 4 => {
            let operands = operands(cursor, prefixes)?;
            // All except `cmp` write; their results matter only for the stack and frame pointers.
            match (opcode & 2 != 0, operands.other) {
                _ if opcode >= 0x38 => Effect::Other,
                (true, _) => clobber(operands.register),
                (false, Operand::Register(number)) => clobber(number),
                (false, _) => Effect::Other,
            }
        }
        // `op al, imm8`, `op eax, imm32`
        0x00..=0x3f if opcode & 7 == 4 => skip(cursor, 1)?,
        0x00..=0x3f if opcode & 7 == 5 => skip(cursor, immediate(prefixes))?,
        0x50..=0x57 => push(low),
        0x58..=0x5f => pop(low),
        // movsxd
        0x63 => clobber(operands(cursor, prefixes)?.register),
        0x68 => {
            cursor.skip(immediate(prefixes))?;
            push(NO_REGISTER)
        }
        0x6a => {
            cursor.skip(1)?;
            push(NO_REGISTER)
        }
        // imul r, r/m, imm
        0x69 | 0x6b => {
            let operands = operands(cursor, prefixes)?;
            cursor.skip(if opcode == 0x69 { immediate(prefixes) } else { 1 })?;
            clobber(operands.register)
        }
        0x70..=0x7f | 0xe0..=0xe3 => Effect::Branch(relative8(cursor)?),
        0x80 | 0x81 | 0x83 => group_1(cursor, prefixes, opcode)?,
        0x84..=0x8f => moves(cursor, prefixes, opcode)?,
        // xchg with rax
        0x91..=0x97 => clobber(low),
        // pushf, popf
        0x9c => push(NO_REGISTER),
        0x9d => pop(NO_REGISTER),
        0x90
        | 0x98
        | 0x99
        | 0x9b
        | 0x9e
        | 0x9f
        | 0x6c..=0x6f
        | 0xa4..=0xa7
        | 0xaa..=0xaf
        | 0xd7
        | 0xec..=0xef
        | 0xf5
        | 0xf8..=0xfd => Effect::Other,
        // mov with an absolute address
        0xa0..=0xa3 => skip(cursor, if prefixes.narrow_address { 4 } else { 8 })?,
        0xa8 | 0xb0..=0xb7 | 0xcd | 0xe4..=0xe7 => skip(cursor, 1)?,
        0xa9 => skip(cursor, immediate(prefixes))?,
        0xb8..=0xbf => {
            cursor.skip(if prefixes.wide() { 8 } else { immediate(prefixes) })?;
            clobber(low)
        }
        // Shifts
        0xc0 | 0xc1 => {
            operands(cursor, prefixes)?;
            skip(cursor, 1)?
        }
        0xd0..=0xd3 | 0xd8..=0xdf | 0xfe => {
            operands(cursor, prefixes)?;
            Effect::Other
        }
        0xc2 | 0xca => {
            cursor.skip(2)?;
            Effect::Return(NO_REGISTER)
        }
        0xc3 | 0xcb => Effect::Return(NO_REGISTER),
        0xc4 | 0xc5 | 0x62 => vector(cursor, prefixes, opcode)?,
        0xc6 | 0xc7 => {
            let operands = operands(cursor, prefixes)?;
            cursor.skip(if opcode == 0xc6 { 1 } else { immediate(prefixes) })?;
            match operands.other {
                Operand::Register(number) => clobber(number),
                _ => Effect::Other,
            }
        }
        // enter
        0xc8 => {
            cursor.skip(3)?;
            Effect::Unknown { to: SP }
        }
        0xc9 => Effect::Leave,
        0xe8 => Effect::Call(Some(relative32(cursor)?)),
        0xe9 => Effect::Jump(relative32(cursor)?),
        0xeb => Effect::Jump(relative8(cursor)?),
        // test, not, neg, mul, div
        0xf6 | 0xf7 => {
            let operands = operands(cursor, prefixes)?;
            match (operands.extension, opcode) {
                (0 | 1, 0xf6) => skip(cursor, 1)?,
                (0 | 1, _) => skip(cursor, immediate(prefixes))?,
                _ => Effect::Other,
            }
        }
        0xff => {
            let operands = operands(cursor, prefixes)?;
            match operands.extension {
                2 | 3 => Effect::Call(None),
                // Jump tables never have a fixed place in the code: this is a tail call to another
                // image.
                4 if operands.other == Operand::Relative => Effect::Return(NO_REGISTER),
                4 | 5 => Effect::IndirectJump,
                6 => push(NO_REGISTER),
                7 => Effect::Trap,
                _ => Effect::Other,
            }
        }
        // int3, hlt, int1, iret and opcodes that do not exist in 64-bit mode
        _ => Effect::Trap,
    };
    Ok(effect)
}

/// add, or, adc, sbb, and, sub, xor, cmp with an immediate.
fn group_1<M: Memory>(cursor: &mut Cursor<'_, M>, prefixes: Prefixes, opcode: u8) -> Result<Effect, Problem> {
    let operands = operands(cursor, prefixes)?;
    let value = match opcode {
        0x81 if immediate(prefixes) == 4 => i64::from(cursor.u32()? as i32),
        0x81 => i64::from(cursor.u16()? as i16),
        _ => i64::from(cursor.u8()? as i8),
    };
    Ok(match (operands.extension, operands.other) {
        (0, Operand::Register(number)) if prefixes.wide() => Effect::Set { to: number, from: number, add: value },
        (5, Operand::Register(number)) if prefixes.wide() => {
            Effect::Set { to: number, from: number, add: value.wrapping_neg() }
        }
        (7, _) => Effect::Other,
        (_, Operand::Register(number)) => clobber(number),
        _ => Effect::Other,
    })
}

/// test, xchg, mov, lea, pop.
fn moves<M: Memory>(cursor: &mut Cursor<'_, M>, prefixes: Prefixes, opcode: u8) -> Result<Effect, Problem> {
    // XOP instructions share their first byte with `pop r/m`, whose reg field is 0.
    if opcode == 0x8f {
        let operands = operands(cursor, prefixes)?;
        return Ok(match operands.other {
            _ if operands.extension != 0 => Effect::Trap,
            Operand::Register(number) => pop(number),
            _ => pop(NO_REGISTER),
        });
    }
    let operands = operands(cursor, prefixes)?;
    let one = |load, base, offset| {
        let registers = [operands.register, NO_REGISTER];
        Effect::Access(Access { load, base, offset, update: 0, registers })
    };
    Ok(match (opcode, operands.other) {
        (0x89, Operand::Register(to)) if prefixes.wide() => Effect::Set { to, from: operands.register, add: 0 },
        (0x8b, Operand::Register(from)) if prefixes.wide() => Effect::Set { to: operands.register, from, add: 0 },
        (0x89, Operand::Based(base, offset)) if prefixes.wide() => one(false, base, offset),
        (0x8b, Operand::Based(base, offset)) if prefixes.wide() => one(true, base, offset),
        (0x8d, Operand::Based(base, offset)) if prefixes.wide() => {
            Effect::Set { to: operands.register, from: base, add: offset.into() }
        }
        (0x8a | 0x8b | 0x8d, _) => clobber(operands.register),
        (0x86..=0x89, Operand::Register(number)) => clobber(number),
        _ => Effect::Other,
    })
}

fn two_byte<M: Memory>(cursor: &mut Cursor<'_, M>, prefixes: Prefixes) -> Result<Effect, Problem> {
    let opcode = cursor.u8()?;
    Ok(match opcode {
        0x80..=0x8f => Effect::Branch(relative32(cursor)?),
        // ud2; moves of control and debug registers, which no program may do; AMD's
        // extrq and insertq, which no compiler emits; what is not defined
        0x0b | 0x04 | 0x0a | 0x0c | 0x78 | 0x20..=0x27 | 0x36 | 0x39 | 0x3b..=0x3f => Effect::Trap,
        0x05..=0x09 | 0x0e | 0x30..=0x35 | 0x37 | 0x77 | 0xa2 | 0xaa | 0xc8..=0xcf => Effect::Other,
        // push and pop of fs and gs
        0xa0 | 0xa8 => push(NO_REGISTER),
        0xa1 | 0xa9 => pop(NO_REGISTER),
        0x38 => {
            cursor.skip(1)?;
            operands(cursor, prefixes)?;
            Effect::Other
        }
        0x3a => {
            cursor.skip(1)?;
            operands(cursor, prefixes)?;
            skip(cursor, 1)?
        }
        // ud1, ud0
        0xb9 | 0xff => {
            operands(cursor, prefixes)?;
            Effect::Trap
        }
        _ => {
            let operands = operands(cursor, prefixes)?;
            if has_byte(opcode) || opcode == 0x0f {
                cursor.skip(1)?;
            }
            // cmov, imul, movzx, movsx, bsf, bsr: to the register operand
            if matches!(opcode, 0x40..=0x4f | 0xaf | 0xb6..=0xb8 | 0xbc..=0xbf) {
                clobber(operands.register)
            } else {
                Effect::Other
            }
        }
    })
}

/// Decodes a VEX (C4, C5) or EVEX (62) instruction: none changes the relevant general registers.
fn vector<M: Memory>(cursor: &mut Cursor<'_, M>, prefixes: Prefixes, first: u8) -> Result<Effect, Problem> {
    let map = match first {
        0xc5 => {
            cursor.skip(1)?;
            1
        }
        0xc4 => {
            let map = cursor.u8()? & 0x1f;
            cursor.skip(1)?;
            map
        }
        _ => {
            let map = cursor.u8()? & 7;
            cursor.skip(2)?;
            map
        }
    };
    let opcode = cursor.u8()?;
    if map == 1 && opcode == 0x77 && first != 0x62 {
        return Ok(Effect::Other);
    }
    operands(cursor, prefixes)?;
    match map {
        3 => skip(cursor, 1),
        1 if has_byte(opcode) => skip(cursor, 1),
        1 | 2 | 5 | 6 => Ok(Effect::Other),
        7 => skip(cursor, 4),
        _ => Ok(Effect::Trap),
    }
}

/// Whether an opcode after 0F has an 8-bit immediate.
const fn has_byte(opcode: u8) -> bool {
    matches!(opcode, 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6)
}

/// Returns the length in bytes of an immediate that depends on the operand size, at most 32 bits.
const fn immediate(prefixes: Prefixes) -> u64 {
    if prefixes.narrow && !prefixes.wide() { 2 } else { 4 }
}

fn skip<M: Memory>(cursor: &mut Cursor<'_, M>, count: u64) -> Result<Effect, Problem> {
    cursor.skip(count).map(|()| Effect::Other)
}

fn relative8<M: Memory>(cursor: &mut Cursor<'_, M>) -> Result<u64, Problem> {
    let distance = cursor.u8()? as i8;
    Ok(cursor.address().wrapping_add_signed(distance.into()))
}

fn relative32<M: Memory>(cursor: &mut Cursor<'_, M>) -> Result<u64, Problem> {
    let distance = cursor.u32()? as i32;
    Ok(cursor.address().wrapping_add_signed(distance.into()))
}

const fn push(register: u8) -> Effect {
    Effect::Access(Access { load: false, base: SP, offset: -8, update: -8, registers: [register, NO_REGISTER] })
}

const fn pop(register: u8) -> Effect {
    if register == SP {
        return Effect::Unknown { to: SP };
    }
    Effect::Access(Access { load: true, base: SP, offset: 0, update: 8, registers: [register, NO_REGISTER] })
}

/// Returns the effect of writing an unknown value to a register. Of the relevant registers, the
/// saved ones are restored before a return, so only the stack and frame pointers must be marked as
/// unknown; the others' symbols are used only for moves.
const fn clobber(register: u8) -> Effect {
    if register == SP || register == FP || register >= 8 && register <= 11 {
        Effect::Unknown { to: register }
    } else {
        Effect::Other
    }
}

/// Reads a ModRM byte and the bytes that belong to it.
fn operands<M: Memory>(cursor: &mut Cursor<'_, M>, prefixes: Prefixes) -> Result<Operands, Problem> {
    let modrm = cursor.u8()?;
    let (mode, extension, low) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
    let number = |bits: u8, rex: u8| {
        let index = usize::from(bits & 7 | (prefixes.rex >> rex & 1) << 3);
        DWARF_NUMBERS.get(index).copied().unwrap_or(NO_REGISTER)
    };
    let register = number(extension, 2);
    if mode == 3 {
        return Ok(Operands { extension, register, other: Operand::Register(number(low, 0)) });
    }
    let mut base = Some(number(low, 0));
    let mut long = mode == 2;
    if low == 4 {
        let sib = cursor.u8()?;
        let indexed = sib >> 3 & 7 != 4 || prefixes.rex & 2 != 0;
        let no_base = mode == 0 && sib & 7 == 5;
        base = (!indexed && !no_base).then_some(number(sib, 0));
        long |= no_base;
    } else if mode == 0 && low == 5 {
        // relative to rip
        base = None;
        long = true;
    }
    let displacement = match (long, mode) {
        (true, _) => cursor.u32()? as i32,
        (false, 1) => i32::from(cursor.u8()? as i8),
        _ => 0,
    };
    let other = match base {
        Some(base) => Operand::Based(base, displacement),
        None if mode == 0 && low == 5 => Operand::Relative,
        None => Operand::Memory,
    };
    Ok(Operands { extension, register, other })
}

#[cfg(test)]
mod tests;
