//! x86_64 instructions (Intel 64 Software Developer's Manual, volume 2, appendix A): their lengths,
//! and their effects on the stack and the general registers.

use super::{Access, Effect, NO_REGISTER, bit};
use crate::cursor::Cursor;
use crate::frame::Problem;
use coroner_process::memory::Memory;

const SP: u8 = 7;

// Bits of registers that instructions write implicitly.
const RAX: u32 = bit(0);
const RDX: u32 = bit(1);
const RCX: u32 = bit(2);
const RBX: u32 = bit(3);
const RSI: u32 = bit(4);
const RDI: u32 = bit(5);
const RBP_RSP: u32 = bit(6) | bit(SP);
const R11: u32 = bit(11);

/// DWARF_NUMBERS numbers of the registers in the order of their encoding.
const DWARF_NUMBERS: [u8; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];

/// Prefixes of an opcode.
#[derive(Clone, Copy, Default)]
struct Prefixes {
    /// 66: 16-bit operands.
    narrow: bool,
    /// 67: 32-bit addresses.
    narrow_address: bool,
    /// 64 or 65: relative to fs or gs.
    thread: bool,
    /// F2 or F3, or 0.
    repeat: u8,
    /// REX byte, or 0.
    rex: u8,
}

impl Prefixes {
    const fn wide(self) -> bool {
        self.rex & 8 != 0
    }

    /// Returns a register's bit, by DWARF number, for a byte operand if `byte`: without REX, the
    /// encodings of rsp, rbp, rsi and rdi are those of ah, ch, dh and bh.
    const fn bit(self, number: u8, byte: bool) -> u32 {
        match number {
            7 if byte && self.rex == 0 => RAX,
            6 if byte && self.rex == 0 => RCX,
            4 if byte && self.rex == 0 => RDX,
            5 if byte && self.rex == 0 => RBX,
            _ => bit(number),
        }
    }

    /// Returns the bit of rcx if a string instruction is repeated, and counts in it.
    const fn counter(self) -> u32 {
        if self.repeat == 0 { 0 } else { RCX }
    }

    /// Returns the number of the prefix that selects an instruction, as in a VEX prefix.
    const fn mandatory(self) -> u8 {
        match self.repeat {
            0xf3 => 2,
            0xf2 => 3,
            _ => self.narrow as u8,
        }
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

impl Operands {
    /// Returns the bit of the r/m operand if it is a register, and 0 if it is in memory.
    const fn target(self, prefixes: Prefixes, byte: bool) -> u32 {
        match self.other {
            Operand::Register(number) => prefixes.bit(number, byte),
            _ => 0,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operand {
    Register(u8),
    /// `[base + displacement]`.
    Based(u8, i32),
    /// `[rip + displacement]`.
    Relative,
    /// An address relative to fs or gs.
    Thread,
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
            0xf2 | 0xf3 => prefixes.repeat = byte,
            0x64 | 0x65 => prefixes.thread = true,
            0xf0 | 0x2e | 0x36 | 0x3e | 0x26 => {}
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

/// Returns the DWARF number of the register with this number in an instruction.
fn dwarf_number(encoded: u8) -> u8 {
    DWARF_NUMBERS.get(usize::from(encoded)).copied().unwrap_or(NO_REGISTER)
}

fn one_byte<M: Memory>(cursor: &mut Cursor<'_, M>, prefixes: Prefixes, opcode: u8) -> Result<Effect, Problem> {
    let low = dwarf_number(opcode & 7 | (prefixes.rex & 1) << 3);
    let byte = opcode & 1 == 0;
    let effect = match opcode {
        0x0f => return two_byte(cursor, prefixes),
        // Operations of the form `op r/m, r` and `op r, r/m`; `cmp` writes nothing.
        0x00..=0x3f if opcode & 7 < 4 => {
            let operands = operands(cursor, prefixes)?;
            if let (0x03 | 0x2b, true, Operand::Based(base, offset)) = (opcode, prefixes.wide(), operands.other) {
                return Ok(Effect::Combine { to: operands.register, base, offset, negative: opcode == 0x2b });
            }
            Effect::unknown(match opcode {
                0x38.. => 0,
                _ if opcode & 2 != 0 => prefixes.bit(operands.register, byte),
                _ => operands.target(prefixes, byte),
            })
        }
        // `op al, imm8`, `op eax, imm32`
        0x00..=0x3f if opcode & 7 < 6 => {
            cursor.skip(if byte { 1 } else { immediate(prefixes) })?;
            Effect::unknown(if opcode < 0x38 { RAX } else { 0 })
        }
        0x50..=0x57 => push(low),
        0x58..=0x5f => pop(low),
        // movsxd
        0x63 => Effect::unknown(bit(operands(cursor, prefixes)?.register)),
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
            Effect::unknown(bit(operands.register))
        }
        // String instructions; of lods, also al to rax
        0x6c | 0x6d | 0xaa | 0xab | 0xae | 0xaf => Effect::unknown(RDI | prefixes.counter()),
        0x6e | 0x6f => Effect::unknown(RSI | prefixes.counter()),
        0xa4..=0xa7 => Effect::unknown(RSI | RDI | prefixes.counter()),
        0xac | 0xad => Effect::unknown(RSI | RAX | prefixes.counter()),
        0x70..=0x7f | 0xe3 => Effect::Branch { to: relative8(cursor)?, unknown: 0 },
        // loop
        0xe0..=0xe2 => Effect::Branch { to: relative8(cursor)?, unknown: RCX },
        0x80 | 0x81 | 0x83 => group_1(cursor, prefixes, opcode)?,
        0x84..=0x8f => moves(cursor, prefixes, opcode)?,
        // nop, pause
        0x90 if prefixes.rex & 1 == 0 || prefixes.repeat == 0xf3 => Effect::Other,
        // xchg with rax
        0x90..=0x97 => Effect::unknown(bit(low) | RAX),
        // pushf, popf
        0x9c => push(NO_REGISTER),
        0x9d => pop(NO_REGISTER),
        0x9b | 0x9e | 0xee | 0xef | 0xf5 | 0xf8..=0xfd => Effect::Other,
        // cwde, lahf, xlat, in
        0x98 | 0x9f | 0xd7 | 0xec | 0xed => Effect::Unknown { registers: RAX },
        // cdq
        0x99 => Effect::Unknown { registers: RDX },
        // mov with an absolute address
        0xa0..=0xa3 => {
            cursor.skip(if prefixes.narrow_address { 4 } else { 8 })?;
            Effect::unknown(if opcode < 0xa2 { RAX } else { 0 })
        }
        0xa8 | 0xe6 | 0xe7 => skip(cursor, 1)?,
        // int, whose result is in rax; in
        0xcd | 0xe4 | 0xe5 => {
            cursor.skip(1)?;
            Effect::Unknown { registers: RAX }
        }
        0xa9 => skip(cursor, immediate(prefixes))?,
        0xb0..=0xb7 => {
            cursor.skip(1)?;
            Effect::unknown(prefixes.bit(low, true))
        }
        0xb8..=0xbf => {
            cursor.skip(if prefixes.wide() { 8 } else { immediate(prefixes) })?;
            Effect::unknown(bit(low))
        }
        // Shifts
        0xc0 | 0xc1 => {
            let operands = operands(cursor, prefixes)?;
            cursor.skip(1)?;
            Effect::unknown(operands.target(prefixes, byte))
        }
        0xd0..=0xd3 => Effect::unknown(operands(cursor, prefixes)?.target(prefixes, byte)),
        // x87; fnstsw ax
        0xd8..=0xdf => {
            let operands = operands(cursor, prefixes)?;
            let status = (opcode, operands.extension, operands.other) == (0xdf, 4, Operand::Register(0));
            Effect::unknown(if status { RAX } else { 0 })
        }
        0xc2 | 0xca => {
            cursor.skip(2)?;
            Effect::Return(NO_REGISTER)
        }
        0xc3 | 0xcb => Effect::Return(NO_REGISTER),
        0xc4 | 0xc5 | 0x62 => vector(cursor, prefixes, opcode)?,
        0xc6 | 0xc7 => {
            let operands = operands(cursor, prefixes)?;
            cursor.skip(if byte { 1 } else { immediate(prefixes) })?;
            // xabort, xbegin
            Effect::unknown(if operands.extension == 7 { RAX } else { operands.target(prefixes, byte) })
        }
        // enter
        0xc8 => {
            cursor.skip(3)?;
            Effect::Unknown { registers: RBP_RSP }
        }
        0xc9 => Effect::Leave,
        0xe8 => Effect::Call(Some(relative32(cursor)?)),
        0xe9 => Effect::Jump(relative32(cursor)?),
        0xeb => Effect::Jump(relative8(cursor)?),
        // test, not, neg, mul, imul, div, idiv
        0xf6 | 0xf7 => {
            let operands = operands(cursor, prefixes)?;
            match operands.extension {
                0 | 1 => skip(cursor, if byte { 1 } else { immediate(prefixes) })?,
                2 | 3 => Effect::unknown(operands.target(prefixes, byte)),
                _ => Effect::unknown(if byte { RAX } else { RAX | RDX }),
            }
        }
        0xfe | 0xff => {
            let operands = operands(cursor, prefixes)?;
            match operands.extension {
                // inc, dec
                0 | 1 => Effect::unknown(operands.target(prefixes, byte)),
                _ if byte => Effect::Trap,
                2 | 3 => Effect::Call(None),
                // Jump tables never have a fixed place in the code: this is a tail call to another
                // image.
                4 if operands.other == Operand::Relative => Effect::Return(NO_REGISTER),
                4 | 5 => Effect::IndirectJump,
                6 => push(NO_REGISTER),
                _ => Effect::Trap,
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
        _ => Effect::unknown(operands.target(prefixes, opcode == 0x80)),
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
        Effect::Access(Access { load, base, offset, update: 0, registers, partial: false })
    };
    let byte = opcode & 1 == 0;
    Ok(match (opcode, operands.other) {
        (0x89, Operand::Register(to)) if prefixes.wide() => Effect::Set { to, from: operands.register, add: 0 },
        (0x8b, Operand::Register(from)) if prefixes.wide() => Effect::Set { to: operands.register, from, add: 0 },
        (0x89, Operand::Based(base, offset)) if prefixes.wide() => one(false, base, offset),
        (0x8b, Operand::Based(base, offset)) if prefixes.wide() => one(true, base, offset),
        (0x89 | 0x8b, Operand::Thread) if prefixes.wide() => {
            Effect::ThreadWord { load: opcode == 0x8b, register: operands.register }
        }
        (0x8d, Operand::Based(base, offset)) if prefixes.wide() => {
            Effect::Set { to: operands.register, from: base, add: offset.into() }
        }
        (0x84 | 0x85 | 0x8e, _) => Effect::Other,
        // lea has no byte operands; a segment register is stored to a whole one.
        (0x8a | 0x8b | 0x8d, _) => Effect::unknown(prefixes.bit(operands.register, byte)),
        (0x8c, _) => Effect::unknown(operands.target(prefixes, false)),
        (0x86 | 0x87, _) => Effect::unknown(operands.target(prefixes, byte) | prefixes.bit(operands.register, byte)),
        _ => Effect::unknown(operands.target(prefixes, byte)),
    })
}

fn two_byte<M: Memory>(cursor: &mut Cursor<'_, M>, prefixes: Prefixes) -> Result<Effect, Problem> {
    let opcode = cursor.u8()?;
    Ok(match opcode {
        0x80..=0x8f => Effect::Branch { to: relative32(cursor)?, unknown: 0 },
        // ud2; getsec and moves of control and debug registers, which no program may do; AMD's
        // extrq and insertq, which no compiler emits; what is not defined
        0x0b | 0x04 | 0x0a | 0x0c | 0x78 | 0x20..=0x27 | 0x36 | 0x37 | 0x39 | 0x3b..=0x3f => Effect::Trap,
        // syscall
        0x05 => Effect::Unknown { registers: RAX | RCX | R11 },
        0x06..=0x09 | 0x0e | 0x30 | 0x34 | 0x35 | 0x77 | 0xaa => Effect::Other,
        // rdtsc, rdmsr, rdpmc
        0x31..=0x33 => Effect::Unknown { registers: RAX | RDX },
        // cpuid
        0xa2 => Effect::Unknown { registers: RAX | RBX | RCX | RDX },
        // bswap
        0xc8..=0xcf => Effect::unknown(bit(dwarf_number(opcode & 7 | (prefixes.rex & 1) << 3))),
        // push and pop of fs and gs
        0xa0 | 0xa8 => push(NO_REGISTER),
        0xa1 | 0xa9 => pop(NO_REGISTER),
        0x38 | 0x3a => {
            let map = if opcode == 0x38 { 2 } else { 3 };
            let opcode = cursor.u8()?;
            let operands = operands(cursor, prefixes)?;
            cursor.skip(if map == 3 { 1 } else { 0 })?;
            Effect::unknown(match (map, prefixes.mandatory(), opcode) {
                // movbe, crc32; adcx, adox; encodekey128, encodekey256, which is in map 2 alone
                (2, _, 0xf0) | (2, 3, 0xf1) | (2, 1 | 2, 0xf6) | (2, 2, 0xfa | 0xfb) => bit(operands.register),
                (2, ..) => 0,
                _ => extract(prefixes.mandatory(), opcode, &operands, prefixes),
            })
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
            match (opcode, operands.extension, operands.other) {
                // vmcall, pconfig and others, which no program may use
                (0x01, 0, Operand::Register(_)) => Effect::Trap,
                _ => Effect::unknown(written_by_two_byte(opcode, &operands, prefixes)),
            }
        }
    })
}

/// Returns the registers that an instruction of the map 0F with operands writes, as bits.
fn written_by_two_byte(opcode: u8, operands: &Operands, prefixes: Prefixes) -> u32 {
    let byte = opcode & 1 == 0;
    let register = bit(operands.register);
    let target = operands.target(prefixes, false);
    let is_register = matches!(operands.other, Operand::Register(_));
    match (opcode, operands.extension) {
        // sldt, str, smsw; enclu; xgetbv, rdpkru, rdtscp, rdpru and others that are encoded as
        // operations on registers
        (0x00, 0 | 1) | (0x01, 4) => target,
        (0x01, 1 | 2) if target == RDI => RAX | RBX | RCX | RDX,
        (0x01, 1 | 2 | 5 | 7) if is_register => RAX | RCX | RDX,
        // lar, lsl, lss, lfs, lgs, cmov, imul, movzx, movsx, popcnt, bsf, bsr
        (0x02 | 0x03 | 0x40..=0x4f | 0xaf | 0xb2 | 0xb4..=0xb8 | 0xbc..=0xbf, _) => register,
        // rdssp
        (0x1e, 1) if prefixes.repeat == 0xf3 => target,
        // cvtt?s[sd]2si; movmskp[sd], pextrw, pmovmskb
        (0x2c | 0x2d, _) if prefixes.repeat != 0 => register,
        (0x50 | 0xc5 | 0xd7, _) => register,
        // movd
        (0x7e, _) if prefixes.repeat != 0xf3 => target,
        // setcc
        (0x90..=0x9f, _) => operands.target(prefixes, true),
        // shld, shrd, bts, btr, btc with a register or an immediate
        (0xa4 | 0xa5 | 0xab | 0xac | 0xad | 0xb3 | 0xbb, _) | (0xba, 5..=7) => target,
        // rdfsbase, rdgsbase
        (0xae, 0 | 1) if is_register && prefixes.repeat == 0xf3 => target,
        // cmpxchg, xadd
        (0xb0 | 0xb1, _) => operands.target(prefixes, byte) | RAX,
        (0xc0 | 0xc1, _) => operands.target(prefixes, byte) | prefixes.bit(operands.register, byte),
        // cmpxchg16b; rdrand, rdseed, rdpid
        (0xc7, 1) => RAX | RDX,
        (0xc7, 6 | 7) if (operands.extension, prefixes.repeat) != (6, 0xf3) => target,
        // VIA PadLock
        (0xa6 | 0xa7, _) => RAX | RCX | RDX | RSI | RDI,
        _ => 0,
    }
}

/// Returns the registers that an instruction of the map 0F 3A writes, as bits.
fn extract(mandatory: u8, opcode: u8, operands: &Operands, prefixes: Prefixes) -> u32 {
    match (mandatory, opcode) {
        // pextrb, pextrw, pextrd, extractps
        (1, 0x14..=0x17) => operands.target(prefixes, false),
        // pcmpestri, pcmpistri
        (1, 0x61 | 0x63) => RCX,
        _ => 0,
    }
}

/// Decodes a VEX (C4, C5) or EVEX (62) instruction.
fn vector<M: Memory>(cursor: &mut Cursor<'_, M>, mut prefixes: Prefixes, first: u8) -> Result<Effect, Problem> {
    // The bits that extend register numbers are inverted.
    let payload = cursor.u8()?;
    let (map, last) = match first {
        0xc5 => (1, payload),
        0xc4 => (payload & 0x1f, cursor.u8()?),
        _ => {
            let second = cursor.u8()?;
            cursor.skip(1)?;
            (payload & 7, second)
        }
    };
    let extended = if first == 0xc5 { payload & 0x80 | 0x60 } else { payload };
    prefixes.rex = 0x40 | !extended >> 5 & 7;
    let opcode = cursor.u8()?;
    if map == 1 && opcode == 0x77 && first != 0x62 {
        return Ok(Effect::Other);
    }
    let operands = operands(cursor, prefixes)?;
    match map {
        3 => cursor.skip(1)?,
        1 if has_byte(opcode) => cursor.skip(1)?,
        1 | 2 | 5 | 6 => {}
        7 => cursor.skip(4)?,
        _ => return Ok(Effect::Trap),
    }
    let (register, target) = (bit(operands.register), operands.target(prefixes, false));
    let third = bit(dwarf_number(!last >> 3 & 15));
    let is_vex = first != 0x62;
    let written = match (map, last & 3, opcode) {
        // vcvtt?s[sdh]2u?si; vmovmskp[sd], vpextrw, vpmovmskb; kmov
        (1 | 5, 2 | 3, 0x2c | 0x2d) => register,
        (1 | 5, 2 | 3, 0x78 | 0x79) if !is_vex => register,
        (1, _, 0x50 | 0xd7 | 0x93) if is_vex => register,
        (1, 1, 0xc5) => register,
        // vmovd, vmovw
        (1 | 5, 1, 0x7e) => target,
        // andn, bzhi, pdep, pext, mulx, bextr and shifts; cmpccxadd
        (2, 0, 0xf2) | (2, 0 | 2 | 3, 0xf5) | (2, _, 0xf7) | (2, 1, 0xe0..=0xef) if is_vex => register,
        (2, 3, 0xf6) if is_vex => register | third,
        // blsr, blsmsk, blsi
        (2, 0, 0xf3) if is_vex => third,
        // rorx
        (3, 3, 0xf0) if is_vex => register,
        (3, mandatory, _) => extract(mandatory, opcode, &operands, prefixes),
        // urdmsr
        (7, 3, 0xf8) => target,
        _ => 0,
    };
    Ok(Effect::unknown(written))
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
    Effect::Access(Access {
        load: false,
        base: SP,
        offset: -8,
        update: -8,
        registers: [register, NO_REGISTER],
        partial: false,
    })
}

const fn pop(register: u8) -> Effect {
    if register == SP {
        return Effect::Unknown { registers: bit(SP) };
    }
    Effect::Access(Access {
        load: true,
        base: SP,
        offset: 0,
        update: 8,
        registers: [register, NO_REGISTER],
        partial: false,
    })
}

/// Reads a ModRM byte and the bytes that belong to it.
fn operands<M: Memory>(cursor: &mut Cursor<'_, M>, prefixes: Prefixes) -> Result<Operands, Problem> {
    let modrm = cursor.u8()?;
    let (mode, extension, low) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
    let number = |bits: u8, rex: u8| dwarf_number(bits & 7 | (prefixes.rex >> rex & 1) << 3);
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
        _ if prefixes.thread => Operand::Thread,
        Some(base) => Operand::Based(base, displacement),
        None if mode == 0 && low == 5 => Operand::Relative,
        None => Operand::Memory,
    };
    Ok(Operands { extension, register, other })
}

#[cfg(test)]
mod tests;
