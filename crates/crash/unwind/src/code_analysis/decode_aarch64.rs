//! arm64 instructions (Arm Architecture Reference Manual, chapter C4), as far as they concern the
//! stack.

use super::{Access, Effect, NO_REGISTER};
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
        return Effect::Branch(jump(5, 19));
    }
    if word & 0x7e00_0000 == 0x3600_0000 {
        return Effect::Branch(jump(5, 14));
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
    memory(word).unwrap_or(Effect::Other)
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
        return Some(Effect::Unknown { to: rd });
    }
    // and (immediate) to the stack pointer: alignment
    if word & 0xff80_001f == 0x9200_001f {
        return Some(Effect::Unknown { to: SP });
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
            _ => Effect::Unknown { to: rd },
        });
    }
    // Other data processing: of the relevant registers, only fp and lr may really be changed by it.
    let data_processing = word & 0x1c00_0000 == 0x1000_0000 || word & 0x0e00_0000 == 0x0a00_0000;
    (data_processing && matches!(rd, 9..=17 | 29 | 30)).then_some(Effect::Unknown { to: rd })
}

fn memory(word: u32) -> Option<Effect> {
    let (rt, base) = (register(word, 0), register(word, 5));
    let load = word & 0x0040_0000 != 0;
    let vector = word & 0x0400_0000 != 0;
    // Load and store pair: no-allocate, post-indexed, offset, pre-indexed
    if word & 0x3a00_0000 == 0x2800_0000 {
        let size = word >> 30;
        let scale = if vector { size.wrapping_add(2) } else { size >> 1 | 2 };
        let immediate = signed(word, 15, 7).wrapping_shl(scale) as i32;
        let registers = match (vector, size) {
            (false, 2) => [rt, register(word, 10)].map(|number| if number == 31 { NO_REGISTER } else { number }),
            _ => [NO_REGISTER; 2],
        };
        let (offset, update) = match word >> 23 & 3 {
            1 => (0, immediate),
            3 => (immediate, immediate),
            _ => (immediate, 0),
        };
        return Some(Effect::Access(Access { load, base, offset, update, registers }));
    }
    if word & 0x3a00_0000 != 0x3800_0000 {
        return None;
    }
    // Load and store of one register. With sizes other than 64 bits only the base's update counts.
    let whole = word >> 30 == 3 && !vector && rt != 31 && word & 0x0080_0000 == 0;
    let registers = [if whole { rt } else { NO_REGISTER }, NO_REGISTER];
    if word & 0x0100_0000 != 0 {
        let offset = (word >> 10 & 0xfff).wrapping_mul(8) as i32;
        return Some(Effect::Access(Access { load, base, offset, update: 0, registers }));
    }
    if word & 0x0020_0000 != 0 {
        // register offset; atomics
        return (whole && load).then_some(Effect::Unknown { to: rt });
    }
    let immediate = signed(word, 12, 9) as i32;
    let (offset, update) = match word >> 10 & 3 {
        0 => (immediate, 0),
        1 => (0, immediate),
        3 => (immediate, immediate),
        _ => return None,
    };
    Some(Effect::Access(Access { load, base, offset, update, registers }))
}

#[cfg(test)]
mod tests;
