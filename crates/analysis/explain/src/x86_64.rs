//! Decodes x86_64 instructions with the values of their operands.

use coroner_report::wire::Access;
use iced_x86::{
    Code, CodeSize, Decoder, DecoderOptions, EncodingKind, FlowControl, Formatter, Instruction, InstructionInfoFactory,
    IntelFormatter, Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};

use crate::instruction::{Class, Decoded, Divisor, MemoryOperand, State};
use crate::{architecture, trap};

/// Length of the longest instruction, in bytes.
const MAX_LENGTH: usize = 15;

/// Decodes the instruction at `address`, which is at the start of `code`. `None` if `code` ends
/// inside the instruction.
pub(crate) fn decode(code: &[u8], address: u64, state: &State<'_>) -> Option<Decoded> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        // Too few bytes don't make an instruction invalid.
        let whole = code.len() >= MAX_LENGTH;
        return whole.then(|| Decoded {
            text: "(invalid instruction)".to_owned(),
            length: 1,
            memory: Vec::new(),
            class: Class::Invalid,
        });
    }
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(&instruction).used_memory();
    let memory: Vec<MemoryOperand> = used.iter().filter_map(|used| operand(&instruction, used, state)).collect();
    Some(Decoded {
        text: text(&instruction),
        length: instruction.len(),
        class: class(&instruction, code, state, &memory),
        memory,
    })
}

fn text(instruction: &Instruction) -> String {
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_space_after_operand_separator(true);
    options.set_small_hex_numbers_in_decimal(false);
    options.set_branch_leading_zeros(false);
    options.set_uppercase_hex(false);
    let mut text = String::new();
    formatter.format(instruction, &mut text);
    text
}

/// Returns the value of a register or of its named part, with the name.
fn value(register: Register, state: &State<'_>) -> Option<(&'static str, u64)> {
    if !register.is_gpr() {
        return None;
    }
    let (name, value) = state.register(&format!("{:?}", register.full_register()).to_ascii_lowercase())?;
    let high = matches!(register, Register::AH | Register::BH | Register::CH | Register::DH);
    let shifted = if high { value >> 8 } else { value };
    Some((architecture::part_name(name, register.size(), high), shifted & width_mask(register.size())))
}

fn width_mask(bytes: usize) -> u64 {
    if bytes >= 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 }
}

fn operand(instruction: &Instruction, used: &UsedMemory, state: &State<'_>) -> Option<MemoryOperand> {
    // Gathers and scatters have an address for each element, and reports don't contain their
    // registers. The base of fs and gs is not in a general register.
    let no_access = matches!(used.access(), OpAccess::None | OpAccess::NoMemAccess);
    if no_access || used.vsib_size() != 0 || matches!(used.segment(), Register::FS | Register::GS) {
        return None;
    }
    let part = |register: Register| match register {
        Register::None | Register::RIP | Register::EIP => Some(None),
        register => value(register, state).map(Some),
    };
    let (base, index) = (part(used.base())?, part(used.index())?);
    let index = index.map(|(name, value)| (name, value, used.scale()));
    let displacement = used.displacement() as i64;
    let mut address = used.displacement().wrapping_add(base.map_or(0, |(_, value)| value));
    address = address.wrapping_add(index.map_or(0, |(_, value, scale)| value.wrapping_mul(u64::from(scale))));
    if used.address_size() == CodeSize::Code32 {
        address &= width_mask(4);
    }
    // A mask disables some elements.
    let width = u32::try_from(used.memory_size().size()).ok().filter(|width| *width > 0 && !instruction.has_op_mask());
    let access = match used.access() {
        OpAccess::Read | OpAccess::CondRead => Some(Access::READ),
        OpAccess::Write | OpAccess::CondWrite => Some(Access::WRITE),
        _ => None,
    };
    let text = operand_text(base, index, displacement);
    let alignment = alignment(instruction, width);
    Some(MemoryOperand { text, base, index, displacement, address, width, access, alignment })
}

fn operand_text(
    base: Option<(&'static str, u64)>,
    index: Option<(&'static str, u64, u32)>,
    displacement: i64,
) -> String {
    let base = base.map(|(name, _)| name.to_owned());
    let index = index.map(|(name, _, scale)| if scale == 1 { name.to_owned() } else { format!("{name}*{scale}") });
    let registers: Vec<String> = base.into_iter().chain(index).collect();
    match (registers.join("+"), displacement) {
        (registers, _) if registers.is_empty() => format!("[{displacement:#x}]"),
        (registers, 0) => format!("[{registers}]"),
        (registers, less) if less < 0 => format!("[{registers}-{:#x}]", less.unsigned_abs()),
        (registers, more) => format!("[{registers}+{more:#x}]"),
    }
}

/// Returns the alignment that an operand requires: SSE operands with few exceptions, and AVX's
/// aligned moves.
fn alignment(instruction: &Instruction, width: Option<u32>) -> Option<u32> {
    use Mnemonic as M;
    let aligned_moves = [
        M::Movaps,
        M::Movapd,
        M::Movdqa,
        M::Movntps,
        M::Movntpd,
        M::Movntdq,
        M::Movntdqa,
        M::Vmovaps,
        M::Vmovapd,
        M::Vmovdqa,
        M::Vmovdqa32,
        M::Vmovdqa64,
        M::Vmovntps,
        M::Vmovntpd,
        M::Vmovntdq,
        M::Vmovntdqa,
        M::Cmpxchg16b,
    ];
    aligned_moves.contains(&instruction.mnemonic()).then_some(width).flatten().filter(|width| *width >= 16)
}

fn class(instruction: &Instruction, code: &[u8], state: &State<'_>, memory: &[MemoryOperand]) -> Class {
    match instruction.mnemonic() {
        Mnemonic::Ud2 => return Class::Trap(trap::TRAP),
        // `ud1 eax, [eax+KIND]`, as emitted by LLVM.
        Mnemonic::Ud1 => {
            return match code {
                [0x67, 0x0f, 0xb9, 0x40, kind, ..] => Class::Trap(trap::sanitizer_check(*kind)),
                _ => Class::Trap(trap::Meaning::new("an intentionally undefined instruction")),
            };
        }
        Mnemonic::Int3 => return Class::Breakpoint(trap::BREAKPOINT),
        Mnemonic::Div | Mnemonic::Idiv => return Class::Division { divisor: divisor(instruction, state, memory) },
        _ => {}
    }
    let is_port = matches!(
        instruction.mnemonic(),
        Mnemonic::In | Mnemonic::Out | Mnemonic::Insb | Mnemonic::Insd | Mnemonic::Outsb | Mnemonic::Outsd
    );
    if instruction.is_privileged() || is_port || matches!(instruction.code(), Code::Cli | Code::Sti) {
        return Class::Privileged;
    }
    match instruction.flow_control() {
        FlowControl::IndirectCall | FlowControl::IndirectBranch => match instruction.op0_kind() {
            OpKind::Register => match value(instruction.op0_register(), state) {
                Some((register, value)) => Class::Branch { register, value },
                None => Class::OtherBranch,
            },
            _ => Class::BranchByMemory,
        },
        FlowControl::Return => Class::Return,
        FlowControl::Call | FlowControl::UnconditionalBranch => Class::OtherBranch,
        _ => Class::Other,
    }
}

fn divisor(instruction: &Instruction, state: &State<'_>, memory: &[MemoryOperand]) -> Option<Divisor> {
    if instruction.op0_kind() == OpKind::Register {
        let (register, value) = value(instruction.op0_register(), state)?;
        let text = format!("{:?}", instruction.op0_register()).to_ascii_lowercase();
        return Some(Divisor { text, register: Some(register), value });
    }
    let [operand] = memory else { return None };
    let value = state.saved(operand.address, operand.width?)?;
    Some(Divisor { text: operand.text.clone(), register: None, value })
}

/// Returns the possible calls that return to an address.
///
/// `code` ends at that address; the result has instructions of each length that end there.
pub(crate) fn calls_before(code: &[u8], returned_to: u64, state: &State<'_>) -> Vec<Decoded> {
    let calls = (2..=8_usize).filter_map(|length| {
        let bytes = code.get(code.len().checked_sub(length)?..)?;
        let address = returned_to.checked_sub(length as u64)?;
        let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        let is_call = !instruction.is_invalid()
            && instruction.len() == length
            && matches!(instruction.flow_control(), FlowControl::IndirectCall | FlowControl::Call);
        is_call.then(|| decode(bytes, address, state)).flatten()
    });
    calls.collect()
}

/// Returns the processor feature that the instruction requires, unless every x86_64 has it.
pub(crate) fn needed_feature(code: &[u8]) -> Option<String> {
    let instruction = Decoder::new(64, code, DecoderOptions::NONE).decode();
    let is_base = matches!(instruction.encoding(), EncodingKind::Legacy) && instruction.cpuid_features().len() <= 1;
    let names: Vec<String> = instruction.cpuid_features().iter().map(|feature| format!("{feature:?}")).collect();
    let of_every = ["INTEL8086", "INTEL186", "INTEL286", "INTEL386", "INTEL486", "X64", "SSE", "SSE2", "CMOV", "FPU"];
    let is_of_every = is_base && names.iter().all(|name| of_every.iter().any(|known| name.starts_with(known)));
    (!instruction.is_invalid() && !is_of_every && !names.is_empty()).then(|| names.join(", "))
}
