//! arm64 instructions (Arm Architecture Reference Manual, chapter C4): their effects on the stack
//! and the general registers.

use super::{Access, Effect, NO_REGISTER, bit};
use crate::cursor::Cursor;
use crate::frame::Problem;
use coroner_process::memory::Memory;

const SP: u8 = 31;

/// Decodes the instruction at the cursor and moves past it.
pub(crate) fn decode<M: Memory>(cursor: &mut Cursor<'_, M>) -> Result<Effect, Problem> {
    let at = cursor.address();
    Ok(effect(cursor.u32()?, at))
}

/// Returns the `bits` bits of `word` from bit `from` on, as a signed number.
const fn signed(word: u32, from: u32, bits: u32) -> i64 {
    let left = 32u32.wrapping_sub(bits).wrapping_sub(from);
    (word.wrapping_shl(left) as i32).wrapping_shr(32u32.wrapping_sub(bits)) as i64
}

const fn register(word: u32, from: u32) -> u8 {
    (word.wrapping_shr(from) & 0x1f) as u8
}

/// Returns the effect of the instruction `word` at address `at`.
pub(crate) fn effect(word: u32, at: u64) -> Effect {
    let jump = |from, bits| at.wrapping_add_signed(signed(word, from, bits).wrapping_mul(4));
    let (rd, rn) = (register(word, 0), register(word, 5));
    // Branches, traps
    if word & 0xfc00_0000 == 0x1400_0000 {
        return Effect::Jump(jump(0, 26));
    }
    if crate::call_site::is_aarch64_call(word) {
        return Effect::Call((word & 0xfc00_0000 == 0x9400_0000).then(|| jump(0, 26)));
    }
    // b.cond and bc.cond; cbz, cbnz; tbz, tbnz
    if word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 {
        return Effect::Branch { to: jump(5, 19), unknown: 0 };
    }
    if word & 0x7e00_0000 == 0x3600_0000 {
        return Effect::Branch { to: jump(5, 14), unknown: 0 };
    }
    // ret, retaa, retab; br and its authenticating forms
    if word & 0xffff_fc1f == 0xd65f_0000 {
        return Effect::Return(rn);
    }
    if word & 0xffff_fbff == 0xd65f_0bff {
        return Effect::Return(30);
    }
    if word & 0xfeff_f000 == 0xd61f_0000 {
        return Effect::IndirectJump;
    }
    // brk, hlt, udf
    if word & 0xff80_001f == 0xd400_0000 && word & 0x0060_0000 != 0 || word & 0xffff_0000 == 0 {
        return Effect::Trap;
    }
    if let Some(effect) = arithmetic(word, rd, rn) {
        return effect;
    }
    memory(word).unwrap_or_else(|| Effect::unknown(other_writes(word)))
}

/// Returns the bit of a register that is not the zero register.
const fn not_zero(register: u8) -> u32 {
    if register == 31 { 0 } else { bit(register) }
}

fn arithmetic(word: u32, rd: u8, rn: u8) -> Option<Effect> {
    // add, sub (immediate, 64 bits); register 31 is the stack pointer in both places
    if word & 0xbf80_0000 == 0x9100_0000 {
        let immediate = i64::from(word >> 10 & 0xfff).wrapping_shl(if word & 0x0040_0000 != 0 { 12 } else { 0 });
        let negative = word & 0x4000_0000 != 0;
        return Some(Effect::Set {
            to: rd,
            from: rn,
            add: if negative { immediate.wrapping_neg() } else { immediate },
        });
    }
    // add, sub (extended register, 64 bits) to the stack pointer; unscaled uxtx only is followed
    if word & 0xbfe0_0000 == 0x8b20_0000 {
        if word & 0xfc00 == 0x6000 {
            let negative = word & 0x4000_0000 != 0;
            return Some(Effect::Sum { to: rd, from: rn, other: register(word, 16), negative });
        }
        return Some(Effect::Unknown { registers: bit(rd) });
    }
    // and, orr, eor (immediate), add and sub (immediate, 32 bits) to the stack pointer
    let logical = word & 0x1f80_0000 == 0x1200_0000 && word & 0x6000_0000 != 0x6000_0000;
    if rd == SP && (logical || word & 0x3f80_0000 == 0x1100_0000) {
        return Some(Effect::Unknown { registers: bit(SP) });
    }
    // In the following instructions register 31 is the zero register, and writing to it does
    // nothing.
    if rd == 31 {
        return None;
    }
    // orr xd, xzr, xm: mov
    if word & 0xffe0_ffe0 == 0xaa00_03e0 {
        let from = register(word, 16);
        return Some(if from == 31 {
            Effect::Constant { to: rd, value: 0 }
        } else {
            Effect::Set { to: rd, from, add: 0 }
        });
    }
    // movz, movn, movk, of both widths
    if word & 0x1f80_0000 == 0x1280_0000 {
        let value = (word >> 5 & 0xffff) as u16;
        let shift = (word >> 21 & 3) as u8 * 16;
        let placed = i64::from(value).wrapping_shl(shift.into());
        return Some(match word >> 29 & 3 {
            0 if word & 0x8000_0000 != 0 => Effect::Constant { to: rd, value: !placed },
            2 => Effect::Constant { to: rd, value: placed },
            3 => Effect::Insert { to: rd, value, shift },
            _ => Effect::Unknown { registers: bit(rd) },
        });
    }
    let immediate = word & 0x1c00_0000 == 0x1000_0000;
    let by_register = word & 0x0e00_0000 == 0x0a00_0000;
    // ccmn, ccmp; rmif, setf8, setf16: to the flags
    let to_flags = word & 0x1fe0_0000 == 0x1a40_0000 || word & 0x3fe0_0000 == 0x3a00_0000 && word & 0xfc00 != 0;
    // Signing a return address changes only bits that walks ignore.
    let signs_link = rd == 30 && word & 0xffff_0000 == 0xdac1_0000;
    (immediate || by_register && !to_flags && !signs_link).then_some(Effect::Unknown { registers: bit(rd) })
}

fn memory(word: u32) -> Option<Effect> {
    let (rt, base) = (register(word, 0), register(word, 5));
    let vector = word & 0x0400_0000 != 0;
    let access = |load, offset, update, registers, partial| {
        let registers = match vector {
            true => [NO_REGISTER; 2],
            false => registers,
        };
        let registers = registers.map(|number| if number == 31 { NO_REGISTER } else { number });
        Some(Effect::Access(Access { load, base, offset, update, registers, partial: partial || vector }))
    };
    // Load and store pair: no-allocate, post-indexed, offset, pre-indexed
    if word & 0x3a00_0000 == 0x2800_0000 {
        let (size, load) = (word >> 30, word & 0x0040_0000 != 0);
        let scale = match (vector, size) {
            (true, _) => size.wrapping_add(2),
            // stgp
            (false, 1) if !load => 4,
            (false, _) => size >> 1 | 2,
        };
        let immediate = signed(word, 15, 7).wrapping_shl(scale) as i32;
        let (offset, update) = match word >> 23 & 3 {
            1 => (0, immediate),
            3 => (immediate, immediate),
            _ => (immediate, 0),
        };
        return access(load, offset, update, [rt, register(word, 10)], size == 0 || size == 1 && load);
    }
    // Load and store of one register
    if word & 0x3a00_0000 != 0x3800_0000 {
        return None;
    }
    let (size, kind) = (word >> 30, word >> 22 & 3);
    let load = if vector { kind & 1 != 0 } else { kind != 0 };
    // prfm; in its place for vectors, 128 bits
    let registers = if size == 3 && kind == 2 { [NO_REGISTER; 2] } else { [rt, NO_REGISTER] };
    let partial = size != 3;
    if word & 0x0100_0000 != 0 {
        let offset = (word >> 10 & 0xfff).wrapping_mul(8) as i32;
        return access(load, offset, 0, registers, partial);
    }
    if word & 0x0020_0000 != 0 {
        return None;
    }
    let immediate = signed(word, 12, 9) as i32;
    match word >> 10 & 3 {
        1 => access(load, 0, immediate, registers, partial),
        3 => access(load, immediate, immediate, registers, partial),
        _ => access(load, immediate, 0, registers, partial),
    }
}

/// Returns the general registers, as bits, that an instruction writes that is none of those above.
fn other_writes(word: u32) -> u32 {
    let [rd, rn, rt2, rs] = [0, 5, 10, 16].map(|from| not_zero(register(word, from)));
    // Of addresses, 31 is the stack pointer.
    let base = bit(register(word, 5));
    let load = word & 0x0040_0000 != 0;
    match word >> 24 & 0x3f {
        // svc; mrs, sysl, mrrs; hints that sign or authenticate x17, chkfeat
        0x14 if word & 0xffe0_001f == 0xd400_0001 => bit(0) | bit(1),
        0x15 if word & 0xffe0_0000 == 0xd520_0000 => rd,
        0x15 if word & 0xffe0_0000 == 0xd560_0000 => rd | not_zero(register(word, 0).wrapping_add(1)),
        0x15 if word & 0xffff_ff3f == 0xd503_211f => bit(17),
        0x15 if word == 0xd503_251f => bit(16),
        // Exclusive and ordered loads and stores, compare and swap
        0x08 | 0x09 => match (word >> 23 & 1, word >> 21 & 1, word >> 31) {
            (0, 0, _) => {
                if load {
                    rd
                } else {
                    rs
                }
            }
            (0, _, 1) => {
                if load {
                    rd | rt2
                } else {
                    rs
                }
            }
            (0, _, _) => rs | not_zero(register(word, 16).wrapping_add(1)),
            (_, 0, _) => {
                if load {
                    rd
                } else {
                    0
                }
            }
            _ => rs,
        },
        // Vector structures, with an update of the base
        0x0c | 0x0d if word & 0x0080_0000 != 0 => base,
        // ldr, ldrsw (literal)
        0x18 if word >> 30 != 3 => rd,
        // Memory tags: ldg; stg and others with an update of the base
        0x19 if word & 0xff20_0000 == 0xd920_0000 => match word >> 10 & 3 {
            0 => {
                if word >> 22 & 3 == 1 {
                    rd
                } else {
                    0
                }
            }
            2 => 0,
            _ => base,
        },
        // Memory copies and sets; 128-bit atomics; ordered loads, also of pairs
        0x19 | 0x1d if word & 0x0020_0c00 == 0x0400 => rd | rn | rs,
        0x19 if word & 0x0020_0000 != 0 => rd | rs,
        0x19 if word & 0x0c00 == 0x0800 => base | if load { rd | rs } else { 0 },
        0x19 if word >> 22 & 3 != 0 => rd,
        // Atomics, ld64b and st64bv; register offsets; ldraa, ldrab
        0x38 if word & 0x0020_0000 != 0 => match word >> 10 & 3 {
            0 if word & 0xffff_fc00 == 0xf83f_d000 => 0xff_u32.wrapping_shl(rd.trailing_zeros()),
            0 if word & 0xffe0_dc00 == 0xf820_9000 => rs,
            0 => rd,
            2 if word >> 22 & 3 == 0 || word >> 22 == 0x3e2 => 0,
            2 | 1 => rd,
            _ => rd | base,
        },
        // Scalar floating point: conversions and moves to general registers
        0x1e if word & 0x5f20_fc00 == 0x1e20_0000 => match (word >> 19 & 3, word >> 16 & 7) {
            (0, 2 | 3) | (_, 7) => 0,
            _ => rd,
        },
        0x1e if word & 0x5f20_0000 == 0x1e00_0000 && word >> 16 & 0x1e == 0x18 => rd,
        // smov, umov
        0x0e if word & 0xbfe0_ec00 == 0x0e00_2c00 => rd,
        // SVE: addvl, addpl, rdvl; element counts; lasta, clasta; predicate counts. All
        // instructions of these groups, some of which write vectors.
        0x04 if word >> 30 == 0 && word & 0x0020_f000 == 0x0020_5000 => bit(register(word, 0)),
        0x04 if word >> 30 == 0 && word & 0x0020_e000 == 0x0020_e000 => rd,
        0x05 if word >> 30 == 0 && word & 0x0020_e000 == 0x0020_a000 => rd,
        0x25 if word >> 30 == 0 && word & 0x0020_c000 == 0x0020_8000 => rd,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
