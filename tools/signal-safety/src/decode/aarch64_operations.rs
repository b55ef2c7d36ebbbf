//! Operations in AArch64 code.
//!
//! The encodings are those of the Arm Architecture Reference Manual, chapter C4.

use super::aarch64::{is_table_jump, signed};
use super::operation::{Atomic, Effect, Flow, Operation, Place, Register};

const SP: Register = 31;
/// Number of preceding instructions to search for a jump table's base.
const NEARBY: usize = 16;

/// Decodes the instructions of `code`, which is at address `start`.
pub(super) fn operations(code: &[u8], start: u64) -> Vec<Operation> {
    let words: Vec<u32> = code.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    (0..words.len())
        .map(|index| operation(words[index], start + 4 * index as u64, &words[index.saturating_sub(NEARBY)..index]))
        .collect()
}

/// Returns the register in a field of five bits.
fn field(word: u32, from: u32) -> Register {
    ((word >> from) & 31) as Register
}

fn operation(word: u32, at: u64, before: &[u32]) -> Operation {
    let mut operation = Operation::new(at);
    if !control(word, at, before, &mut operation) {
        // op0 of the main encoding table: bits 25 to 28.
        match (word >> 25) & 0xf {
            0b1000 | 0b1001 => immediate(word, at, &mut operation),
            0b0101 | 0b1101 => register(word, &mut operation),
            0b0111 | 0b1111 => vector(word, &mut operation),
            0b0100 | 0b0110 | 0b1100 | 0b1110 => memory(word, &mut operation),
            _ => {}
        }
    }
    operation
}

fn read(operation: &mut Operation, register: Register) {
    // 31 is the zero register here.
    if register != 31 {
        operation.reads.push(Place::Register(register));
    }
}

fn write(operation: &mut Operation, register: Register) {
    if register != 31 {
        operation.writes.push(Place::Register(register));
    }
}

/// Decodes branches, exceptions and system instructions. Returns false for other instructions.
fn control(word: u32, at: u64, before: &[u32], operation: &mut Operation) -> bool {
    let to = |from, bits| at.wrapping_add(signed(word, from, bits).wrapping_mul(4) as u64);
    if word & 0xfc00_0000 == 0x1400_0000 {
        operation.flow = Flow::Branch { to: to(0, 26), conditional: false };
    } else if word & 0xfc00_0000 == 0x9400_0000 {
        operation.flow = Flow::Call(Some(to(0, 26)));
    } else if word & 0xff00_0000 == 0x5400_0000 {
        // b.cond; its conditions al and nv are always true.
        operation.flow = Flow::Branch { to: to(5, 19), conditional: word & 0xe != 0xe };
        operation.reads.push(Place::Flags);
    } else if word & 0x7e00_0000 == 0x3400_0000 {
        operation.flow = Flow::Branch { to: to(5, 19), conditional: true };
        read(operation, field(word, 0));
    } else if word & 0x7e00_0000 == 0x3600_0000 {
        operation.flow = Flow::Branch { to: to(5, 14), conditional: true };
        read(operation, field(word, 0));
    } else if word & 0xffff_fc1f == 0xd63f_0000 || word & 0xfeff_f800 == 0xd63f_0800 {
        operation.flow = Flow::Call(None);
        operation.through = Some((field(word, 5), None));
    } else if word & 0xffff_fc1f == 0xd61f_0000 || word & 0xfedf_f800 == 0xd61f_0800 {
        operation.flow = Flow::Jump;
        if !is_table_jump(usize::from(field(word, 5)), before) {
            operation.through = Some((field(word, 5), None));
        }
    } else if word & 0xffff_fc1f == 0xd65f_0000 || word & 0xffff_fbff == 0xd65f_0bff {
        operation.flow = Flow::End; // ret, retaa, retab
    } else if word & 0xffe0_001f == 0xd400_0001 {
        operation.system_call = true;
        write(operation, 0);
    } else if word & 0xffe0_001f == 0xd420_0000 || word >> 16 == 0 {
        operation.flow = Flow::End; // brk, udf
    } else if matches!(word, 0xd503_203f | 0xd503_205f) || word & 0xffff_f0ff == 0xd503_30df {
        operation.pauses = true; // yield, wfe, isb
    } else if word & 0xfff0_0000 == 0xd530_0000 {
        write(operation, field(word, 0)); // mrs
    } else {
        return (word >> 26) & 7 == 0b101;
    }
    true
}

/// Decodes data processing instructions with an immediate.
fn immediate(word: u32, at: u64, operation: &mut Operation) {
    let (rd, rn) = (field(word, 0), field(word, 5));
    if word & 0x1f00_0000 == 0x1000_0000 {
        let distance = (signed(word, 5, 19) << 2) | i64::from((word >> 29) & 3);
        let address = if word >> 31 == 1 {
            (at & !0xfff).wrapping_add((distance << 12) as u64)
        } else {
            at.wrapping_add(distance as u64)
        };
        write(operation, rd);
        operation.effects.push(Effect::Address { to: rd, address });
    } else if word & 0x1f80_0000 == 0x1100_0000 {
        // add, sub: register 31 is sp, except that the result of those that set the flags is
        // dropped.
        let shift = if word >> 22 & 1 == 1 { 12 } else { 0 };
        let amount = i64::from((word >> 10) & 0xfff) << shift;
        let add = if word >> 30 & 1 == 1 { -amount } else { amount };
        let sets_flags = word >> 29 & 1 == 1;
        operation.reads.push(Place::Register(rn));
        if sets_flags {
            operation.writes.push(Place::Flags);
        }
        if !(sets_flags && rd == 31) {
            operation.writes.push(Place::Register(rd));
            if word >> 31 == 1 {
                operation.effects.push(Effect::Copy { to: rd, from: rn, add });
            }
        }
    } else if word & 0x1f80_0000 == 0x1200_0000 {
        // Logical: and, orr, eor; `ands` sets the flags. The result of the others may be sp.
        read(operation, rn);
        if word >> 29 & 3 == 3 {
            operation.writes.push(Place::Flags);
            write(operation, rd);
        } else {
            operation.writes.push(Place::Register(rd));
            // `and sp, x, #-alignment`: N is 1, and the ones are the highest bits (imms + 1 of
            // them, rotated right by immr).
            let (rotation, ones) = ((word >> 16) & 63, ((word >> 10) & 63) + 1);
            if word & 0xff80_0000 == 0x9200_0000 && rd == SP && word >> 22 & 1 == 1 && rotation == ones {
                operation.effects.push(Effect::Copy { to: SP, from: rn, add: 0 });
                operation.effects.push(Effect::Align { register: SP, alignment: 1 << (64 - ones) });
            }
        }
    } else {
        // Moves of constants write; movk and bitfields also read.
        let moves = word & 0x1f80_0000 == 0x1280_0000;
        if moves && word >> 29 & 3 == 3 || word & 0x7f80_0000 == 0x3300_0000 {
            read(operation, rd);
        }
        if !moves {
            read(operation, rn);
        }
        if word & 0x1f80_0000 == 0x1380_0000 {
            read(operation, field(word, 16));
        }
        write(operation, rd);
    }
}

/// Decodes data processing instructions with registers.
fn register(word: u32, operation: &mut Operation) {
    let (rd, rn, rm) = (field(word, 0), field(word, 5), field(word, 16));
    let logical = word & 0x1f00_0000 == 0x0a00_0000;
    let adds = word & 0x1f00_0000 == 0x0b00_0000;
    let extended = adds && word >> 21 & 1 == 1;
    if word & 0xffe0_ffe0 == 0xaa00_03e0 {
        // mov
        read(operation, rm);
        write(operation, rd);
        if rm != 31 {
            operation.effects.push(Effect::Copy { to: rd, from: rm, add: 0 });
        }
        return;
    }
    if extended {
        // Register 31 is sp.
        operation.reads.push(Place::Register(rn));
    } else {
        read(operation, rn);
    }
    // ccmp and ccmn with an immediate have a number in this field.
    let compares = word & 0x1fe0_0000 == 0x1a40_0000;
    if !(compares && word >> 11 & 1 == 1) {
        read(operation, rm);
    }
    let carries = word & 0x1fe0_0000 == 0x1a00_0000;
    let selects = word & 0x1fe0_0000 == 0x1a80_0000;
    if compares || carries || selects {
        operation.reads.push(Place::Flags);
    }
    if word & 0x1f00_0000 == 0x1b00_0000 {
        read(operation, field(word, 10));
    }
    let sets_flags = compares || (logical && word >> 29 & 3 == 3) || ((adds || carries) && word >> 29 & 1 == 1);
    if sets_flags {
        operation.writes.push(Place::Flags);
    }
    if extended && !sets_flags {
        operation.writes.push(Place::Register(rd));
    } else if !compares {
        write(operation, rd);
    }
    // cmp sp, x: subs xzr, sp, x, uxtx
    if word & 0xffe0_fc1f == 0xeb20_601f && rn == SP {
        operation.probe = Some(rm);
    }
}

/// Decodes floating-point and vector instructions: only moves to and from general registers matter.
fn vector(word: u32, operation: &mut Operation) {
    let (rd, rn, rm) = (field(word, 0), field(word, 5), field(word, 16));
    let converts = word & 0x7f20_fc00 == 0x1e20_0000;
    let to_general = (converts && matches!(word >> 16 & 7, 0 | 1 | 4 | 5 | 6)) || word & 0xbfe0_f400 == 0x0e00_3400;
    let from_general = converts && matches!(word >> 16 & 7, 2 | 3 | 7) || word & 0xbfe0_fc00 == 0x0e00_0c00;
    operation.reads.push(if from_general { Place::Register(rn) } else { Place::Vector(rn) });
    operation.reads.push(Place::Vector(rm));
    if to_general {
        write(operation, rd);
    } else {
        operation.writes.push(Place::Vector(rd));
        operation.reads.push(Place::Vector(rd));
    }
    // fcmp, fccmp
    if word & 0x5f20_fc00 == 0x1e20_2000 || word & 0x5f20_0c00 == 0x1e20_0400 {
        operation.writes.push(Place::Flags);
    }
}

/// Decodes loads and stores.
fn memory(word: u32, operation: &mut Operation) {
    let (rt, rn) = (field(word, 0), field(word, 5));
    let is_vector = word >> 26 & 1 == 1;
    let size = word >> 30;
    if word & 0x3f00_0000 == 0x0800_0000 {
        return exclusive(word, operation);
    }
    if word & 0x3b20_0c00 == 0x3820_0000 && !is_vector {
        // Atomic memory operations: ldadd, ldclr, ldeor, ldset, minimum and maximum, swp; ldapr is
        // a load.
        let (operands, exchanges) = ((word >> 12) & 7, word >> 15 & 1 == 1);
        operation.reads.push(Place::Register(rn));
        write(operation, rt);
        if exchanges && operands == 4 {
            operation.loads = Some(vec![rn]);
        } else {
            read(operation, field(word, 16));
            operation.stores = true;
            operation.atomic = Some(if operands == 0 && !exchanges { Atomic::Add } else { Atomic::Exchange });
        }
        return;
    }
    if word & 0x3b00_0000 == 0x1800_0000 {
        // A load of a constant beside the code.
        if !is_vector {
            write(operation, rt);
        }
        return;
    }
    let pair = word & 0x3a00_0000 == 0x2800_0000;
    let is_load = if pair { word >> 22 & 1 == 1 } else { word >> 22 & 3 != 0 };
    let wide = !is_vector && if pair { size == 2 } else { size == 3 };
    // The offset from the base, and what writeback adds to the base before (pre-index) or after
    // (post-index).
    let (offset, before, after) = if pair {
        let scale = if is_vector { 2 + size } else { 2 + (size >> 1) };
        let offset = signed(word, 15, 7) << scale;
        match word >> 23 & 3 {
            1 => (Some(0), 0, offset),
            3 => (Some(0), offset, 0),
            _ => (Some(offset), 0, 0),
        }
    } else if word & 0x3b00_0000 == 0x3900_0000 {
        let scale = if is_vector && word >> 23 & 1 == 1 { 4 } else { size };
        (Some(i64::from((word >> 10) & 0xfff) << scale), 0, 0)
    } else if word >> 21 & 1 == 0 {
        let offset = signed(word, 12, 9);
        match word >> 10 & 3 {
            1 => (Some(0), 0, offset),
            3 => (Some(0), offset, 0),
            _ => (Some(offset), 0, 0),
        }
    } else {
        // Register offset.
        operation.reads.push(Place::Register(field(word, 16)));
        (None, 0, 0)
    };
    operation.reads.push(Place::Register(rn));
    let on_stack = offset.filter(|_| rn == SP || rn == 29);
    if before != 0 {
        operation.effects.push(Effect::Copy { to: rn, from: rn, add: before });
    }
    let second = field(word, 10);
    let values = if pair { vec![(rt, 0), (second, 8)] } else { vec![(rt, 0)] };
    for (value, more) in values {
        let place = if is_vector { Place::Vector(value) } else { Place::Register(value) };
        let is_zero = !is_vector && value == 31;
        if let Some(offset) = on_stack {
            let slot = Place::Word(rn, offset + more);
            if is_load { &mut operation.reads } else { &mut operation.writes }.push(slot);
        }
        if !is_zero {
            if is_load { &mut operation.writes } else { &mut operation.reads }.push(place);
        }
        if let Some(offset) = offset
            && wide
            && !is_zero
        {
            let offset = offset + more;
            operation.effects.push(if is_load {
                Effect::Fill { to: value, base: rn, offset }
            } else {
                Effect::Store { base: rn, offset, from: value }
            });
        }
    }
    if on_stack.is_none() {
        if is_load {
            let mut by = vec![rn];
            if offset.is_none() {
                by.push(field(word, 16));
            }
            operation.loads = Some(by);
        } else {
            operation.stores = true;
        }
    }
    if after != 0 {
        operation.effects.push(Effect::Copy { to: rn, from: rn, add: after });
    }
    if before != 0 || after != 0 {
        operation.writes.push(Place::Register(rn));
    }
}

/// Decodes load-exclusive and store-exclusive, load-acquire and store-release, compare and swap.
fn exclusive(word: u32, operation: &mut Operation) {
    let (rt, rn, second, status) = (field(word, 0), field(word, 5), field(word, 10), field(word, 16));
    let (o2, is_load, o1) = (word >> 23 & 1 == 1, word >> 22 & 1 == 1, word >> 21 & 1 == 1);
    operation.reads.push(Place::Register(rn));
    let is_pair = o1 && word >> 31 == 1 && !o2;
    let swaps_pair = o1 && word >> 31 == 0 && !o2;
    if (o2 && o1) || swaps_pair {
        // cas, casp: `status` is the register of the expected value.
        read(operation, status);
        read(operation, rt);
        write(operation, status);
        operation.stores = true;
        operation.atomic = Some(Atomic::CompareExchange(status));
    } else if is_load {
        write(operation, rt);
        if is_pair {
            write(operation, second);
        }
        operation.loads = Some(vec![rn]);
        if !o2 {
            operation.atomic = Some(Atomic::LoadExclusive);
        }
    } else {
        read(operation, rt);
        operation.stores = true;
        if !o2 {
            write(operation, status);
            operation.atomic = Some(Atomic::StoreExclusive(status));
        }
    }
}
