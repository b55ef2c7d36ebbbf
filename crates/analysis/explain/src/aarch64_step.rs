//! The effects of arm64 instructions on the general registers. They are derived from the encoding,
//! so that the registers that an unknown instruction may write are known, too. Arm's reference
//! manual, C4.1 "A64 instruction set encoding".

use crate::step::{ARM64_SP, Base, Effect, Flow, Register, Step};

/// Decodes a function's instructions from first to last.
pub(crate) fn steps(code: &[u8], start: u64) -> Option<Vec<Step>> {
    let (words, rest) = code.as_chunks::<4>();
    if !rest.is_empty() || start & 3 != 0 {
        return None;
    }
    let step = |(at, word): (usize, &[u8; 4])| step(u32::from_le_bytes(*word), start.wrapping_add(4 * at as u64));
    Some(words.iter().enumerate().map(step).collect())
}

/// Returns a field of an instruction: `length` bits, starting at bit `from`.
fn bits(word: u32, from: u32, length: u32) -> u32 {
    word >> from & ((1 << length) - 1)
}

fn signed(word: u32, from: u32, length: u32) -> i64 {
    let value = i64::from(bits(word, from, length));
    value << (64 - length) >> (64 - length)
}

fn register(word: u32, from: u32) -> Register {
    bits(word, from, 5) as Register
}

fn step(word: u32, address: u64) -> Step {
    let mut step = Step::new(address);
    match bits(word, 25, 4) {
        0b1000 | 0b1001 => immediate(word, &mut step),
        0b1010 | 0b1011 => branch(word, &mut step),
        0b0100 | 0b0110 | 0b1100 | 0b1110 => memory(word, &mut step),
        0b0101 | 0b1101 => by_registers(word, &mut step),
        // Floating point and vectors: a few write a general register.
        0b0111 | 0b1111 => step.may_write(register(word, 0)),
        // Reserved, SME, SVE: all registers that an encoding can name.
        _ => [0, 5, 10, 16].iter().for_each(|from| step.may_write(register(word, *from))),
    }
    // 31 is the zero register, except in instructions with an immediate or a base, where it is the
    // stack pointer.
    step
}

/// Data processing with an immediate.
fn immediate(word: u32, step: &mut Step) {
    let target = register(word, 0);
    let is_long = word >> 31 == 1;
    let effect = match bits(word, 23, 3) {
        // ADR, ADRP.
        0b000 | 0b001 => {
            let offset = signed(word, 5, 19) << 2 | i64::from(bits(word, 29, 2));
            Effect::Constant(match is_long {
                true => (step.address & !0xfff).wrapping_add((offset << 12) as u64),
                false => step.address.wrapping_add(offset as u64),
            })
        }
        // ADD, SUB, and the forms that set flags.
        0b010 => {
            let number = i64::from(bits(word, 10, 12)) << (12 * bits(word, 22, 1));
            let number = if bits(word, 30, 1) == 1 { -number } else { number };
            let sets_flags = bits(word, 29, 1) == 1;
            if sets_flags && target == 31 {
                return;
            }
            if is_long { Effect::Sum(register(word, 5), number) } else { Effect::Other }
        }
        // MOVN, MOVZ, MOVK.
        0b101 => {
            let value = u64::from(bits(word, 5, 16)) << (16 * bits(word, 21, 2));
            match bits(word, 29, 2) {
                0b00 if is_long => Effect::Constant(!value),
                0b10 => Effect::Constant(value),
                _ => Effect::Other,
            }
        }
        // Tags, logical, bit fields: register 31 is the zero register for ANDS.
        0b100 if bits(word, 29, 2) == 0b11 && target == 31 => return,
        _ => Effect::Other,
    };
    let is_zero_register = target == 31 && !matches!(bits(word, 23, 3), 0b010..=0b100);
    if !is_zero_register {
        step.writes(target, effect);
    }
}

fn branch(word: u32, step: &mut Step) {
    let target = |from, length| step.address.wrapping_add((signed(word, from, length) << 2) as u64);
    step.flow = match word {
        _ if bits(word, 26, 5) == 0b00101 => match word >> 31 {
            0 => Flow::Jump(target(0, 26)),
            _ => Flow::Call(Some(target(0, 26))),
        },
        _ if bits(word, 24, 8) == 0b0101_0100 || bits(word, 25, 6) == 0b01_1010 => Flow::Conditional(target(5, 19)),
        _ if bits(word, 25, 6) == 0b01_1011 => Flow::Conditional(target(5, 14)),
        // Branches to a register: BR, BLR, RET, and the forms with authentication.
        _ if bits(word, 25, 7) == 0b110_1011 => match bits(word, 21, 2) {
            0b00 => Flow::AnyJump,
            0b01 => Flow::Call(None),
            _ => Flow::End,
        },
        // SVC, BRK and others.
        _ if bits(word, 24, 8) == 0b1101_0100 => Flow::End,
        // System: MRS and SYSL write a register; hints authenticate x17 and lr.
        _ => {
            step.may_write(register(word, 0));
            [16, 17, 30].iter().for_each(|register| step.may_write(*register));
            Flow::Next
        }
    };
}

fn memory(word: u32, step: &mut Step) {
    let (target, second, base, status) = (register(word, 0), register(word, 10), register(word, 5), register(word, 16));
    let is_vector = bits(word, 26, 1) == 1;
    let counts_from = Base::Register(base);
    let write = |step: &mut Step, register: Register, effect: Effect| {
        if register != 31 {
            step.writes(register, effect);
        }
    };
    match bits(word, 27, 3) {
        // A literal.
        0b011 if bits(word, 24, 1) == 0 => {
            let at = step.address.wrapping_add((signed(word, 5, 19) << 2) as u64) as i64;
            match word >> 30 {
                0b11 => {}
                _ if is_vector => {}
                size => {
                    let width = if size == 0 { 4 } else { 8 };
                    let load = Effect::Load { base: Base::Nothing, displacement: at, width };
                    write(step, target, if size == 0b10 { Effect::Other } else { load });
                }
            }
        }
        // Pairs.
        0b101 => {
            let mode = bits(word, 23, 3);
            if bits(word, 22, 1) == 1 && !is_vector {
                let width = if word >> 30 == 0b10 { 8 } else { 4 };
                let first = signed(word, 15, 7) * i64::from(width);
                let at = |displacement| match (mode, word >> 30) {
                    // The address is the base without an offset.
                    (0b001, _) | (_, 0b01 | 0b11) => Effect::Other,
                    _ => Effect::Load { base: counts_from, displacement, width },
                };
                // With write-back the base changes.
                let at = |displacement| if mode == 0b011 { Effect::Other } else { at(displacement) };
                write(step, target, at(first));
                write(step, second, at(first + i64::from(width)));
            }
            if matches!(mode, 0b001 | 0b011) {
                step.writes(base, Effect::Other);
            }
        }
        0b111 => one(word, step, counts_from),
        // Exclusive, ordered, compare and swap, tags, vector structures, memory copies.
        _ => [target, second, base, status]
            .iter()
            .filter(|register| **register != ARM64_SP)
            .for_each(|register| step.may_write(*register)),
    }
}

/// Handles a load or a store of one register.
fn one(word: u32, step: &mut Step, counts_from: Base) {
    let (target, base) = (register(word, 0), register(word, 5));
    let (size, kind) = (word >> 30, bits(word, 22, 2));
    let is_vector = bits(word, 26, 1) == 1;
    let width = 1 << size;
    let is_scaled = bits(word, 24, 1) == 1;
    let (is_register, mode) = (bits(word, 21, 1) == 1, bits(word, 10, 2));
    // Atomics, pointers with authentication.
    if !is_scaled && is_register && mode != 0b10 {
        [target, base, register(word, 16)]
            .iter()
            .filter(|register| **register != 31)
            .for_each(|register| step.may_write(*register));
        return;
    }
    let has_write_back = !is_scaled && !is_register && matches!(mode, 0b01 | 0b11);
    let is_prefetch = size == 0b11 && kind == 0b10;
    if kind != 0 && !is_vector && !is_prefetch && target != 31 {
        let load = |displacement| Effect::Load { base: counts_from, displacement, width };
        step.writes(
            target,
            match (is_scaled, is_register, mode) {
                // Sign-extending loads produce a different value.
                _ if kind != 0b01 => Effect::Other,
                (true, ..) => load(i64::from(bits(word, 10, 12)) << size),
                (false, false, 0b00) => load(signed(word, 12, 9)),
                _ => Effect::Other,
            },
        );
    }
    if has_write_back {
        step.writes(base, Effect::Other);
    }
}

/// Data processing with registers.
fn by_registers(word: u32, step: &mut Step) {
    let target = register(word, 0);
    // Conditional compares have flags in place of the target register.
    let is_compare = bits(word, 21, 8) == 0b1101_0010;
    if is_compare || target == 31 {
        return;
    }
    let is_move = word & 0xffe0_ffe0 == 0xaa00_03e0;
    step.writes(target, if is_move { moved(word) } else { Effect::Other });
}

fn moved(word: u32) -> Effect {
    match register(word, 16) {
        31 => Effect::Constant(0),
        from => Effect::Copy(from),
    }
}
