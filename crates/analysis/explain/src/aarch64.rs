//! Decodes arm64 instructions with the values of their operands.

use coroner_report::wire::Access;
use yaxpeax_arch::{Decoder, U8Reader};
use yaxpeax_arm::armv8::a64::{InstDecoder, Instruction, Opcode, Operand, SIMDSizeCode, ShiftStyle, SizeCode};

use crate::instruction::{Class, Decoded, MemoryOperand, State};
use crate::trap;

/// Length of an instruction, in bytes.
const LENGTH: usize = 4;
/// Decodes the instruction at the start of `code`. `None` if there are too few bytes.
pub(crate) fn decode(code: &[u8], state: &State<'_>) -> Option<Decoded> {
    let bytes = code.first_chunk::<LENGTH>()?;
    let word = u32::from_le_bytes(*bytes);
    // Arm's reference manual: BRK, UDF.
    let brk = (word & 0xffe0_001f == 0xd420_0000).then_some((word >> 5) as u16);
    let udf = (word & 0xffff_0000 == 0).then_some(word as u16);
    let named = |text: String, class: Class| Decoded { text, length: LENGTH, memory: Vec::new(), class };
    if let Some(number) = brk {
        let class = match (number, trap::brk_meaning(number)) {
            (0xf000, _) => Class::Breakpoint(trap::BREAKPOINT),
            (_, Some(meaning)) => Class::Trap(meaning),
            (_, None) => Class::Breakpoint(trap::Meaning::new("a breakpoint with an unknown number")),
        };
        return Some(named(format!("brk #{number:#x}"), class));
    }
    if let Some(number) = udf {
        let what = if number == 0 {
            "an undefined instruction, or zero bytes that are not code"
        } else {
            "an intentionally undefined instruction"
        };
        return Some(named(format!("udf #{number:#x}"), Class::Trap(trap::Meaning::new(what))));
    }
    let Ok(instruction) = InstDecoder::default().decode(&mut U8Reader::new(bytes)) else {
        // The decoder doesn't support SVE and some new instructions.
        return Some(named(format!(".inst {word:#010x}"), Class::Other));
    };
    let text = instruction.to_string();
    let memory = operand(&instruction, &text, state).into_iter().collect();
    Some(Decoded { class: class(&instruction, word, state), text, length: LENGTH, memory })
}

fn register(number: u16, state: &State<'_>) -> Option<(&'static str, u64)> {
    match number {
        29 => state.register("fp"),
        30 => state.register("lr"),
        0..29 => state.register(&format!("x{number}")),
        _ => None,
    }
}

/// Returns a base register; 31 is the stack pointer in addresses.
fn base(number: u16, state: &State<'_>) -> Option<(&'static str, u64)> {
    if number == 31 { state.register("sp") } else { register(number, state) }
}

fn operand(instruction: &Instruction, text: &str, state: &State<'_>) -> Option<MemoryOperand> {
    let mnemonic = text.split_whitespace().next().unwrap_or_default();
    let access = access(mnemonic)?;
    let (base, index, displacement) = instruction.operands.iter().find_map(|operand| match *operand {
        Operand::RegPreIndex(number, offset, _) => Some((base(number, state), Some(None), i64::from(offset))),
        // The offset is added after the access.
        Operand::RegPostIndex(number, _) | Operand::RegPostIndexReg(number, _) => {
            Some((base(number, state), Some(None), 0))
        }
        Operand::RegRegOffset(number, index, size, style, amount) => {
            let index = match index {
                31 => Some(None),
                index => register(index, state).and_then(|(name, value)| {
                    Some(Some((name, extended(value, size, style)?, 1_u32.checked_shl(amount.into())?)))
                }),
            };
            Some((base(number, state), index, 0))
        }
        _ => None,
    })?;
    let (base, index) = (base?, index?);
    let scaled = index.map_or(0, |(_, value, scale): (_, u64, u32)| value.wrapping_mul(u64::from(scale)));
    let at = base.1.wrapping_add(scaled).wrapping_add(displacement as u64);
    let text = match (index, displacement) {
        (Some((name, _, 1)), _) => format!("[{}, {name}]", base.0),
        (Some((name, _, scale)), _) => format!("[{}, {name}*{scale}]", base.0),
        (None, 0) => format!("[{}]", base.0),
        (None, less) if less < 0 => format!("[{}, #-{:#x}]", base.0, less.unsigned_abs()),
        (None, more) => format!("[{}, #{more:#x}]", base.0),
    };
    Some(MemoryOperand {
        text,
        base: Some(base),
        index,
        displacement,
        address: at,
        width: width(mnemonic, instruction),
        access,
        alignment: None,
    })
}

/// Returns the index with its extension and shift applied.
fn extended(value: u64, size: SizeCode, style: ShiftStyle) -> Option<u64> {
    Some(match (size, style) {
        (SizeCode::W, ShiftStyle::SXTW) => i64::from(value as i32) as u64,
        (SizeCode::W, ShiftStyle::UXTW) => u64::from(value as u32),
        (SizeCode::X, ShiftStyle::LSL | ShiftStyle::SXTX | ShiftStyle::UXTX) => value,
        _ => return None,
    })
}

/// Returns the access of a load or a store; `Some(None)` for instructions that read and write.
/// `None` for instructions without a memory operand.
fn access(mnemonic: &str) -> Option<Option<Access>> {
    const BOTH: [&str; 10] = ["ldadd", "ldclr", "ldeor", "ldset", "ldsmax", "ldsmin", "ldumax", "ldumin", "swp", "cas"];
    match mnemonic {
        _ if BOTH.iter().any(|both| mnemonic.starts_with(both)) => Some(None),
        _ if mnemonic.starts_with("ld") => Some(Some(Access::READ)),
        _ if mnemonic.starts_with("st") => Some(Some(Access::WRITE)),
        _ => None,
    }
}

/// Returns the access's width in bytes. `None` if unknown: for structures (`ld1` and so on) and
/// rare instructions.
fn width(mnemonic: &str, instruction: &Instruction) -> Option<u32> {
    let structure = matches!(mnemonic.as_bytes().get(2), Some(b'1'..=b'4'));
    if structure {
        return None;
    }
    // An exclusive store's first operand is its status.
    let place = usize::from(mnemonic.starts_with("stx") || mnemonic.starts_with("stlx"));
    let register = match instruction.operands.get(place)? {
        Operand::Register(SizeCode::X, _) | Operand::SIMDRegister(SIMDSizeCode::D, _) => 8,
        Operand::Register(SizeCode::W, _) | Operand::SIMDRegister(SIMDSizeCode::S, _) => 4,
        Operand::SIMDRegister(SIMDSizeCode::B, _) => 1,
        Operand::SIMDRegister(SIMDSizeCode::H, _) => 2,
        Operand::SIMDRegister(SIMDSizeCode::Q, _) => 16,
        _ => return None,
    };
    let is_pair = ["ldp", "stp", "ldnp", "stnp", "ldxp", "stxp", "ldaxp", "stlxp"].contains(&mnemonic);
    Some(match mnemonic {
        "ldpsw" => 8,
        _ if mnemonic.ends_with("sw") => 4,
        _ if is_pair => register * 2,
        _ if mnemonic.ends_with('b') && !mnemonic.ends_with("sub") => 1,
        _ if mnemonic.ends_with('h') => 2,
        _ => register,
    })
}

fn class(instruction: &Instruction, word: u32, state: &State<'_>) -> Class {
    // Arm's reference manual, C4.1: unconditional branches to a register; those with authentication
    // change the value.
    let by_register = matches!(word & 0xffff_fc1f, 0xd61f_0000 | 0xd63f_0000);
    match instruction.opcode {
        _ if by_register => match register((word >> 5 & 31) as u16, state) {
            Some((register, value)) => Class::Branch { register, value },
            None => Class::OtherBranch,
        },
        Opcode::RET => Class::Return,
        Opcode::B | Opcode::BL => Class::OtherBranch,
        _ => Class::Other,
    }
}

/// Returns the call through a register that returns to an address, where `code` ends.
pub(crate) fn calls_before(code: &[u8], state: &State<'_>) -> Vec<Decoded> {
    let Some(bytes) = code.last_chunk::<LENGTH>() else { return Vec::new() };
    let is_call = u32::from_le_bytes(*bytes) & 0xffff_fc1f == 0xd63f_0000;
    let call = is_call.then(|| decode(bytes, state)).flatten();
    call.into_iter().collect()
}
